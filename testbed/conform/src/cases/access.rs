//! Access to memory: a request's rights, R_Key and range (IBTA vol. 1, 9.7.4.1.3 to 9.7.4.1.5 and 10.6).

use crate::{
    bench::Bench,
    case::{Case, Outcome, broken, check, must, named, template},
    conn::{Conn, TARGET},
    dut::{Access, Kind, State},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    let kinds = [
        (0, "WRITE", "WRITE"),
        (1, "READ", "READ"),
        (2, "ATOMIC", "FETCH ADD"),
        (3, "CAS", "COMPARE SWAP"),
        (4, "FIRST", "WRITE of two packets"),
    ];
    let members = || named(kinds);
    all.extend(KEY.family(members(), |b, which| aimed(b, which, Aim { rkey: 0x0100, ..Aim::default() })));
    all.extend(VARIANT.family(members(), |b, which| aimed(b, which, Aim { rkey: 0x01, ..Aim::default() })));
    all.extend(BEFORE.family(members(), |b, which| aimed(b, which, Aim { offset: -8, ..Aim::default() })));
    all.extend(
        BEHIND.family(members(), |b, which| aimed(b, which, Aim { offset: TARGET as i64, ..Aim::default() })),
    );
    all.extend(ACROSS.family([members()[0].clone(), members()[1].clone(), members()[4].clone()], across));
    all.extend(AROUND.family([members()[0].clone(), members()[1].clone()], around));
    all.extend(RIGHT.family(members(), denied_by_region));
    all.extend(QP.family(members(), denied_by_queue_pair));
    all.extend_from_slice(CASES);
}

const SOURCE: &str = "IBTA 9.7.4.1.5, 10.6";
const KEY: Case = must(
    "RC.ACCESS.KEY",
    "A {} with an R_Key that names nothing is refused: remote access error",
    SOURCE,
    template,
);
const VARIANT: Case =
    must("RC.ACCESS.VARIANT", "A {} with an R_Key whose low byte is wrong is refused", SOURCE, template);
const BEFORE: Case = must("RC.ACCESS.BEFORE", "A {} just before the region is refused", SOURCE, template);
const BEHIND: Case = must("RC.ACCESS.BEHIND", "A {} just behind the region is refused", SOURCE, template);
const ACROSS: Case =
    must("RC.ACCESS.ACROSS", "A {} that reaches one byte beyond the region is refused", SOURCE, template);
const AROUND: Case =
    must("RC.ACCESS.AROUND", "A {} that wraps around the address space is refused", SOURCE, template);
const RIGHT: Case = must(
    "RC.ACCESS.RIGHT",
    "A {} that the region does not allow is refused: remote access error",
    SOURCE,
    template,
);
const QP: Case = must(
    "RC.ACCESS.QP",
    "A {} that the queue pair does not allow is refused",
    "IBTA 9.7.4.1.4, 11.2.5.2",
    template,
);

/// How a request misses its target.
#[derive(Clone, Copy, Default)]
struct Aim {
    /// The bits of the R_Key to change.
    rkey: u32,
    /// The request's address, relative to the start of the region.
    offset: i64,
}

/// One of five requests of eight bytes (the last is the first packet of two).
fn request(c: &Conn, which: u32, aim: Aim) -> Packet {
    let packet = match which {
        0 => c.write(0, &[0xee; 8]),
        1 => c.read(0, 8),
        2 => c.fetch_add(0, 1),
        3 => c.compare_swap(0, 0, 1),
        _ => {
            let (va, rkey) = c.at(0);
            Packet::of(op::WRITE_FIRST).reth(va, rkey, 2000).data(vec![0xee; 1024]).ask()
        }
    };
    let va = packet.va.map(|va| va.wrapping_add_signed(aim.offset));
    let rkey = packet.rkey.map(|rkey| rkey ^ aim.rkey);
    Packet { va, rkey, ..packet }
}

/// The packet is refused with that NAK, changes nothing, and the queue pair answers nothing more.
fn refused(c: &mut Conn, packet: Packet, syndrome: u8) -> Outcome {
    let psn = c.tx(packet)?;
    c.naked(psn, syndrome)?;
    c.in_state(State::Err)?;
    c.raw(c.write(0, &[1; 8]))?;
    c.quiet()?;
    c.holds(0, &[0; 16])?;
    c.holds(TARGET - 16, &[0; 16])
}

fn aimed(b: &mut Bench, which: u32, aim: Aim) -> Outcome {
    let mut c = b.rc()?;
    let packet = request(&c, which, aim);
    refused(&mut c, packet, 0x62)
}

fn across(b: &mut Bench, which: u32) -> Outcome {
    let mut c = b.rc()?;
    let len = if which == 4 { 2000 } else { 8 };
    let packet = request(&c, which, Aim { offset: TARGET as i64 - len + 1, ..Aim::default() });
    refused(&mut c, packet, 0x62)
}

fn around(b: &mut Bench, which: u32) -> Outcome {
    let mut c = b.rc()?;
    let packet = request(&c, which, Aim::default()).va(u64::MAX - 3);
    refused(&mut c, packet, 0x62)
}

/// The access right that each of the five requests needs.
const NEEDED: [Access; 5] = [
    Access::RemoteWrite,
    Access::RemoteRead,
    Access::RemoteAtomic,
    Access::RemoteAtomic,
    Access::RemoteWrite,
];

fn without(which: u32) -> Vec<Access> {
    Access::COMMON.into_iter().filter(|right| *right != NEEDED[which as usize]).collect()
}

fn denied_by_region(b: &mut Bench, which: u32) -> Outcome {
    let mut c = b.rc_with(|o| o.region = without(which))?;
    let packet = request(&c, which, Aim::default());
    refused(&mut c, packet, 0x62)
}

/// NICs differ: some answer with the NAK of an invalid request, some with that of an access error.
fn denied_by_queue_pair(b: &mut Bench, which: u32) -> Outcome {
    let mut c = b.rc_with(|o| o.access = without(which))?;
    let packet = request(&c, which, Aim::default());
    let psn = c.tx(packet)?;
    let got = c.rx(Packet::of(op::ACK).psn(psn))?;
    check(matches!(got.syndrome, Some(0x61 | 0x62)), || format!("expected a NAK, got {}", got.summary()))?;
    c.in_state(State::Err)?;
    c.holds(0, &[0; 16])
}

const CASES: &[Case] = &[
    must("RC.ACCESS.EDGE.1", "A WRITE of the region's last bytes is taken", SOURCE, |b| {
        let mut c = b.rc()?;
        let psn = c.tx(c.write(TARGET - 8, &[7; 8]))?;
        c.acked(psn)?;
        c.holds(TARGET - 8, &[7; 8])
    }),
    must("RC.ACCESS.EDGE.2", "A READ of the region's last bytes is answered", SOURCE, |b| {
        let mut c = b.rc()?;
        c.set(TARGET - 5, &[7; 5])?;
        c.tx(c.read(TARGET - 5, 5))?;
        c.rx(Packet::of(op::READ_ONLY).data(vec![7; 5])).map(|_| ())
    }),
    must("RC.ACCESS.DOMAIN.1", "A region of another protection domain is refused", "IBTA 10.6.3.5", |b| {
        let mut c = b.rc()?;
        let mut world = c.world.borrow_mut();
        let pd = world.dut.pd()?;
        let foreign = world.dut.mr(pd, 64, &Access::COMMON)?;
        drop(world);
        let packet = c.write(0, &[1; 8]).reth(foreign.addr, foreign.rkey, 8);
        refused(&mut c, packet, 0x62)?;
        let found = c.world.borrow_mut().dut.mem_read(&foreign, 0, 8)?;
        check(found == [0; 8], || "the foreign region was written".into())
    }),
    must("RC.ACCESS.GONE.1", "A region that was deregistered is refused", "IBTA 10.6.6", |b| {
        let mut c = b.rc()?;
        let mut world = c.world.borrow_mut();
        let gone = world.dut.mr(c.objects.pd, 64, &Access::COMMON)?;
        world.dut.close(gone.handle)?;
        drop(world);
        let packet = c.write(0, &[1; 8]).reth(gone.addr, gone.rkey, 8);
        refused(&mut c, packet, 0x62)
    }),
    must(
        "RC.ACCESS.ZERO.1",
        "A WRITE of no bytes is taken whatever address and key it has",
        "IBTA 9.7.4.1.5",
        |b| {
            let mut c = b.rc()?;
            let psn = c.tx(c.write(0, &[]).va(0xdead_0000).rkey(0x1234_5678))?;
            c.acked(psn).map(|_| ())
        },
    ),
    must(
        "RC.ACCESS.ZERO.2",
        "A READ of no bytes is answered whatever address and key it has",
        "IBTA 9.7.4.1.5",
        |b| {
            let mut c = b.rc()?;
            let psn = c.tx(c.read(0, 0).va(0xdead_0000).rkey(0x1234_5678))?;
            c.rx(Packet::of(op::READ_ONLY).psn(psn).data(vec![]))?;
            c.alive().map(|_| ())
        },
    ),
    must(
        "RC.ACCESS.WHOLE.1",
        "A WRITE whose first packet is inside but whose length is not writes nothing outside",
        SOURCE,
        |b| {
            let mut c = b.rc()?;
            let at = TARGET - 1024;
            let (va, rkey) = c.at(at);
            let psn = c.tx(Packet::of(op::WRITE_FIRST).reth(va, rkey, 2048).data(vec![3; 1024]).ask())?;
            let got = c.rx(Packet::of(op::ACK).psn(psn))?;
            if got.syndrome == Some(0x62) {
                return Ok(());
            }
            let psn = c.tx(Packet::of(op::WRITE_LAST).data(vec![3; 1024]).ask())?;
            c.naked(psn, 0x62).map(|_| ())
        },
    ),
    must(
        "RC.ACCESS.RECV.1",
        "After a refused request the receives are flushed",
        "IBTA 9.9.3, 10.3.1.7",
        |b| {
            let mut c = b.rc()?;
            let posted = c.post_recv(64)?;
            let psn = c.tx(request(&c, 0, Aim { rkey: 0x100, ..Aim::default() }))?;
            c.naked(psn, 0x62)?;
            match c.wc(Kind::Recv)? {
                wc if wc.wr_id == posted.wr_id && wc.status != "SUCCESS" => Ok(()),
                wc => broken(format!("{} of {}", wc.status, wc.wr_id)),
            }
        },
    ),
    must("RC.ACCESS.ORDER.1", "What came before a refused request stays", "IBTA 9.7.4.1", |b| {
        let mut c = b.rc()?;
        let psn = c.tx(c.write(64, &[4; 8]))?;
        c.acked(psn)?;
        let packet = request(&c, 0, Aim { rkey: 0x100, ..Aim::default() });
        refused(&mut c, packet, 0x62)?;
        c.holds(64, &[4; 8])
    }),
];
