use super::*;
use crate::{
    memory::AccessError,
    num::{Key, Qpn},
    qp::fake::{PD, World, packet},
    wire::{Deth, Ext},
    work::{Access, PdId, Sge, WcStatus},
};
use alloc::vec::Vec;

const LOCAL: u32 = 0x2000;

fn world(qp_type: QpType) -> World {
    let world = World::new(qp_type);
    world.memory.add(LOCAL, 0, 0x2000, Access::LOCAL_WRITE);
    world
}

fn grh() -> [u8; 40] {
    core::array::from_fn(|at| at as u8 + 1)
}

fn hear(world: &mut World, opcode: u8, qkey: u32, payload: &[u8]) -> Result<(), Violation> {
    let ext =
        Ext { deth: Deth { qkey: Qkey(qkey), src_qp: Qpn::new(0x77) }, imm: *b"imm!", ..Ext::default() };
    let mut packet = packet(opcode, 4242, ext, payload);
    packet.bth.solicited = true;
    packet.bth.pkey = Pkey(0x7fff);
    world.with(|qp, ctx| receive(qp, ctx, &packet, &grh()))
}

#[test]
fn a_datagram_follows_its_header_area() {
    let mut world = world(QpType::Ud);
    world.post_sges(3, &[(0, 30), (100, 300)].map(|(addr, len)| Sge { addr, len, lkey: Key(LOCAL) }));
    hear(&mut world, 0x65, 0x1111, b"hello").unwrap();
    let memory = world.memory.bytes(LOCAL);
    assert_eq!([&memory[..30], &memory[100..115]].concat(), [&grh()[..], b"hello"].concat());
    let wc = world.completions();
    let expected = Completion {
        wr_id: 3,
        opcode: WcOpcode::Recv,
        byte_len: 45,
        extra: WcExtra::Immediate(*b"imm!"),
        qpn: world.qp.qpn,
        src_qp: Qpn::new(0x77),
        grh: true,
        sl: 10,
        solicited: true,
        ..Completion::default()
    };
    assert_eq!(wc, [expected]);
}

#[test]
fn a_datagram_of_nothing() {
    let mut world = world(QpType::Ud);
    world.post(1, LOCAL, 0, 40);
    hear(&mut world, 0x64, 0x1111, &[]).unwrap();
    let wc = world.completions();
    assert_eq!((wc[0].byte_len, wc[0].extra), (40, WcExtra::None));
}

#[test]
fn drops_are_counted_and_keep_the_receive() {
    let mut world = world(QpType::Ud);
    hear(&mut world, 0x64, 0x1111, b"x").unwrap();
    assert_eq!(world.qp.stats.dropped_no_receive, 1);
    world.post(1, LOCAL, 0, 44);
    hear(&mut world, 0x64, 0x1112, b"x").unwrap();
    assert_eq!(world.qp.stats.dropped_qkey, 1);
    hear(&mut world, 0x64, 0x1111, b"12345").unwrap();
    assert_eq!(world.qp.stats.dropped_length, 1);
    assert!(world.events.is_empty() && world.memory.writes.borrow().is_empty());
    hear(&mut world, 0x64, 0x1111, b"1234").unwrap();
    assert_eq!(world.completions().len(), 1);
}

#[test]
fn queue_pair_one_has_its_own_qkey_and_tells_the_pkey() {
    let mut world = world(QpType::Gsi);
    world.post(1, LOCAL, 0, 400);
    hear(&mut world, 0x64, 0x1111, &[5; 256]).unwrap();
    assert_eq!(world.qp.stats.dropped_qkey, 1);
    hear(&mut world, 0x64, 0x8001_0000, &[5; 256]).unwrap();
    let wc = world.completions();
    assert_eq!((wc[0].byte_len, wc[0].pkey), (296, Pkey(0x7fff)));
}

#[test]
fn a_shared_queue_serves_with_its_own_domain() {
    let mut world = world(QpType::Ud);
    world.share(PdId(PD.0 + 1), 0);
    world.memory.regions.borrow_mut()[0].pd.0 += 1;
    world.post(8, LOCAL, 0, 400);
    hear(&mut world, 0x64, 0x1111, b"x").unwrap();
    assert_eq!(world.completions()[0].wr_id, 8);
    hear(&mut world, 0x64, 0x1111, b"x").unwrap();
    assert_eq!(world.qp.stats.dropped_no_receive, 1);
}

#[test]
fn a_receive_with_wrong_memory_is_an_error() {
    let mut world = world(QpType::Ud);
    world.post(1, 0x99, 0, 400);
    let result = hear(&mut world, 0x64, 0x1111, b"x");
    assert_eq!(result, Err(Violation::ReceiveAccess(AccessError::UnknownKey(Key(0x99)))));
    let status: Vec<_> = world.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(status, [(1, WcStatus::LocalProtection)]);
}
