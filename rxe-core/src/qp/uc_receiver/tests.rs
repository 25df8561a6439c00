use super::*;
use crate::{
    memory::AccessError,
    num::Key,
    qp::{
        QpType,
        fake::{PD, QPN, World, packet},
    },
    wire::{Ext, Opcode, Reth},
    work::{AsyncEvent, PdId, WcExtra, WcOpcode, WcStatus},
};
use alloc::vec::Vec;
use proptest::{collection::vec, prelude::*};

const LOCAL: u32 = 0x2000;
const REMOTE: u32 = 0x1000;
const BASE: u64 = 0x10_0000;

struct Rig {
    world: World,
    receiver: UcReceiver,
}

impl Rig {
    fn new() -> Self {
        let mut world = World::new(QpType::Uc);
        world.memory.add(REMOTE, BASE, 0x1000, Access::all());
        world.memory.add(LOCAL, 0, 0x1000, Access::LOCAL_WRITE);
        world.qp.established = true;
        let mut receiver = UcReceiver::default();
        receiver.start(&world.qp);
        Self { world, receiver }
    }

    /// A packet of RC opcode `op` on UC.
    fn hear(&mut self, op: u8, psn: u32, ext: Ext, payload: &[u8]) -> Result<(), Violation> {
        let packet = packet(op | 0x20, psn, ext, payload);
        let receiver = &mut self.receiver;
        self.world.with(|qp, ctx| receiver.handle(qp, ctx, &packet))
    }

    fn send(&mut self, op: u8, psn: u32, payload: &[u8]) {
        self.hear(op, psn, Ext::default(), payload).unwrap();
    }

    fn write(&mut self, op: u8, psn: u32, len: u32, payload: &[u8]) {
        self.hear(op, psn, to(BASE, len), payload).unwrap();
    }

    /// (wr_id, bytes) of completions, all good.
    fn received(&mut self) -> Vec<(u64, u32)> {
        let wc = self.world.completions();
        assert!(wc.iter().all(|wc| wc.status == WcStatus::Success));
        wc.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect()
    }
}

fn to(addr: u64, len: u32) -> Ext {
    Ext { reth: Reth { addr, rkey: Key(REMOTE), len }, ..Ext::default() }
}

#[test]
fn messages_in_sequence() {
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.world.post(wr_id, LOCAL, 0, 600);
    }
    rig.send(0x00, 100, &[1; 256]);
    rig.send(0x01, 101, &[2; 256]);
    rig.send(0x02, 102, &[3; 4]);
    rig.hear(0x05, 103, Ext { imm: [5; 4], ..Ext::default() }, &[]).unwrap();
    rig.write(0x06, 104, 300, &[9; 256]);
    rig.hear(0x09, 105, Ext { imm: [6; 4], ..Ext::default() }, &[8; 44]).unwrap();
    let wc = rig.world.completions();
    let seen: Vec<_> = wc.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.extra)).collect();
    assert_eq!(
        seen,
        [
            (1, WcOpcode::Recv, 516, WcExtra::None),
            (2, WcOpcode::Recv, 0, WcExtra::Immediate([5; 4])),
            (3, WcOpcode::RecvRdmaWithImm, 300, WcExtra::Immediate([6; 4])),
        ]
    );
    assert_eq!(rig.world.memory.bytes(REMOTE)[256..300], [8; 44]);
    assert_eq!(rig.receiver.expected, Psn::new(106));
}

#[test]
fn any_first_packet_starts_the_sequence() {
    let mut rig = Rig::new();
    rig.world.qp.established = false;
    rig.world.post(1, LOCAL, 0, 8);
    rig.send(0x04, 5000, b"x");
    assert_eq!(rig.received(), [(1, 1)]);
    assert_eq!(rig.world.async_events(), [AsyncEvent::CommunicationEstablished(QPN)]);
    assert_eq!(rig.receiver.expected, Psn::new(5001));
}

#[test]
fn a_gap_drops_the_message_but_not_the_next_one() {
    for (lost_op, next_psn) in [(0x01, 103), (0x02, 103)] {
        let mut rig = Rig::new();
        rig.world.post(1, LOCAL, 0, 600);
        rig.send(0x00, 100, &[1; 256]);
        if lost_op == 0x01 {
            rig.send(0x02, 102, &[3; 4]);
        } else {
            rig.send(0x01, 101, &[2; 256]);
        }
        // The receive was not used up.
        rig.send(0x04, next_psn, b"next");
        assert_eq!(rig.received(), [(1, 4)]);
        assert_eq!(&rig.world.memory.bytes(LOCAL)[..4], b"next");
        assert_eq!(rig.world.qp.stats.dropped_out_of_order, 1);
        assert_eq!(rig.world.qp.stats.dropped_refused, 0);
    }
}

#[test]
fn a_broken_write_does_not_wedge_the_receiver() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 600);
    rig.write(0x06, 100, 700, &[1; 256]);
    rig.write(0x08, 102, 0, &[1; 188]);
    rig.write(0x0a, 103, 4, b"good");
    assert_eq!(&rig.world.memory.bytes(REMOTE)[..4], b"good");
    rig.send(0x04, 104, b"x");
    assert_eq!(rig.received(), [(1, 1)]);
}

#[test]
fn a_write_leaves_the_receive_of_a_broken_send_alone() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 600);
    rig.send(0x00, 100, &[1; 256]);
    rig.write(0x0a, 105, 4, b"good");
    assert!(rig.received().is_empty());
    rig.hear(0x0b, 106, Ext { imm: [1; 4], ..to(BASE, 2) }, b"im").unwrap();
    assert_eq!(rig.received(), [(1, 2)]);
}

#[test]
fn strays_are_skipped() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 600);
    rig.send(0x01, 100, &[1; 256]);
    assert_eq!(rig.world.qp.stats.dropped_refused, 1, "in sequence, but of no message");
    rig.send(0x01, 101, &[1; 256]);
    rig.send(0x02, 102, &[1; 256]);
    assert_eq!(rig.world.qp.stats.dropped_refused, 1, "the rest of it is not counted again");
    rig.send(0x01, 200, &[1; 256]);
    assert_eq!(rig.world.qp.stats.dropped_out_of_order, 1);
    assert!(rig.world.memory.writes.borrow().is_empty() && rig.world.events.is_empty());
    rig.hear(0x00, 201, Ext::default(), &[1; 256]).unwrap();
    // Another kind of message in the middle.
    rig.write(0x07, 202, 0, &[1; 256]);
    assert_eq!(rig.world.qp.stats.dropped_refused, 2);
}

#[test]
fn no_receive_drops_the_message() {
    let mut rig = Rig::new();
    rig.send(0x00, 100, &[1; 256]);
    rig.world.post(1, LOCAL, 0, 600);
    rig.send(0x02, 101, &[1; 256]);
    assert!(rig.received().is_empty());
    assert_eq!(rig.world.qp.stats.dropped_no_receive, 1);
    rig.send(0x04, 102, b"x");
    assert_eq!(rig.received(), [(1, 1)]);
    rig.hear(0x0b, 103, Ext { imm: [1; 4], ..to(BASE, 2) }, b"im").unwrap();
    assert_eq!(rig.world.qp.stats.dropped_no_receive, 2);
    assert_eq!(rig.world.memory.bytes(REMOTE)[..2], [0; 2]);
}

#[test]
fn refused_writes_are_dropped_silently() {
    let wrong_key = Ext { reth: Reth { rkey: Key(0x99), ..to(BASE, 4).reth }, ..Ext::default() };
    for (ext, payload) in
        [(wrong_key, 4), (to(BASE + 0xffe, 4), 4), (to(BASE, 5), 4), (to(BASE, 0), 4), (to(BASE, 257), 257)]
    {
        let mut rig = Rig::new();
        rig.hear(0x0a, 100, ext, &[1; 300][..payload]).unwrap();
        assert_eq!(rig.world.qp.stats.dropped_refused, 1);
        assert!(rig.world.events.is_empty() && rig.world.memory.writes.borrow().is_empty());
        rig.write(0x0a, 101, 1, b"x");
        assert_eq!(rig.world.memory.writes.borrow().len(), 1);
    }
    let mut rig = Rig::new();
    rig.world.qp.attrs.access = Access::LOCAL_WRITE;
    rig.write(0x0a, 100, 1, b"x");
    assert_eq!(rig.world.qp.stats.dropped_refused, 1);
    // That message has ended: a packet of its kind that comes later belongs to another one.
    rig.write(0x07, 101, 0, &[1; 256]);
    assert_eq!(rig.world.qp.stats.dropped_refused, 2);
}

#[test]
fn a_receive_too_short_is_an_error() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 3);
    assert_eq!(rig.hear(0x04, 100, Ext::default(), b"four"), Err(Violation::ReceiveTooShort));
    assert_eq!(rig.world.completions()[0].status, WcStatus::LocalLength);
    rig.world.post(2, 0x99, 0, 30);
    assert_eq!(
        rig.hear(0x04, 101, Ext::default(), b"four"),
        Err(Violation::ReceiveAccess(AccessError::UnknownKey(Key(0x99))))
    );
    assert_eq!(rig.world.completions()[0].status, WcStatus::LocalProtection);
}

#[test]
fn flush_gives_the_open_receive_back() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 600);
    rig.send(0x00, 100, &[1; 256]);
    let receiver = &mut rig.receiver;
    rig.world.with(|qp, ctx| receiver.flush(qp, ctx));
    let wc = rig.world.completions();
    assert_eq!((wc.len(), wc[0].wr_id, wc[0].status), (1, 1, WcStatus::WorkRequestFlushed));
}

#[test]
fn a_shared_queue_serves_too() {
    let mut rig = Rig::new();
    rig.world.share(PdId(PD.0 + 1), 0);
    rig.world.memory.regions.borrow_mut()[1].pd.0 += 1;
    rig.world.post(1, LOCAL, 0, 600);
    rig.send(0x00, 100, &[1; 256]);
    rig.send(0x04, 110, b"x");
    assert_eq!(rig.received(), [(1, 1)]);
}

#[test]
fn psns_wrap() {
    let mut rig = Rig::new();
    rig.world.qp.attrs.rq_psn = Psn::new(0xff_ffff);
    let receiver = &mut rig.receiver;
    receiver.start(&rig.world.qp);
    rig.write(0x06, 0xff_ffff, 300, &[1; 256]);
    rig.write(0x08, 0, 0, &[1; 44]);
    assert_eq!(rig.world.memory.writes.borrow().len(), 2);
    assert_eq!(rig.world.qp.stats.dropped_out_of_order, 0);
}

proptest! {
    /// Messages of numbered bytes over a link that loses packets: what completes is whole and in order.
    #[test]
    fn lossy_messages_are_whole_or_absent(
        lens in vec(1..800_usize, 1..12),
        lost in vec(any::<bool>(), 64),
    ) {
        let mut rig = Rig::new();
        for wr_id in 0..lens.len() as u64 {
            rig.world.post(wr_id, LOCAL, 0, 800);
        }
        let (mut psn, mut lost) = (100, lost.into_iter().cycle());
        let mut seen = 0;
        for (id, len) in lens.iter().enumerate() {
            let data: Vec<u8> = (0..*len).map(|at| (at + id * 31) as u8).collect();
            let packets = data.len().div_ceil(256);
            let mut whole = true;
            for (k, chunk) in data.chunks(256).enumerate() {
                let op = match (k == 0, k + 1 == packets) {
                    (true, true) => 4, (true, false) => 0, (false, false) => 1, (false, true) => 2,
                };
                if lost.next() == Some(true) {
                    whole = false;
                } else {
                    rig.send(op, psn, chunk);
                }
                psn += 1;
            }
            let got = rig.received();
            if whole {
                prop_assert_eq!(&got[..], &[(seen, *len as u32)]);
                prop_assert_eq!(&rig.world.memory.bytes(LOCAL)[..*len], &data[..]);
                seen += 1;
            } else {
                prop_assert!(got.is_empty());
            }
        }
    }

    #[test]
    fn anything_goes(
        steps in vec((0..0x18_u8, 0..4_u32, 0..0x1200_u64, 0..600_u32, 0..300_usize), 0..80),
    ) {
        let mut rig = Rig::new();
        let mut psn = 100;
        for (op, skip, at, len, payload) in steps {
            if Opcode(op | 0x20).info().is_none() {
                rig.world.post(1, LOCAL, 0, len);
                continue;
            }
            psn += u32::from(skip == 0);
            let payload = if skip == 1 { 256 } else { payload };
            if rig.hear(op, psn, to(BASE + at, len), &[1; 300][..payload]).is_err() {
                break;
            }
            psn += 1;
            if rig.world.qp.rq.queue.len() > 50 {
                rig.world.qp.rq.queue.clear();
            }
        }
        for &(key, addr, len) in rig.world.memory.writes.borrow().iter() {
            let base = if key == Key(REMOTE) { BASE } else { 0 };
            prop_assert!(addr >= base && addr + len <= base + 0x1000);
        }
    }
}
