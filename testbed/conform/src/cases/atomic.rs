//! Atomics, ATOMIC WRITE and FLUSH (IBTA vol. 1, 9.4.5; annex A19).

use crate::{
    bench::Bench,
    case::{Case, Outcome, check, must, numbered, same, template},
    conn::Conn,
    dut::{Access, Feature, Kind, State, WrOp},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend_from_slice(RESPONDER);
    let members = numbered([1, 2, 4, 7]);
    all.extend(MISALIGNED.family(members.clone(), |b, offset| misaligned(b, offset, op::FETCH_ADD)));
    all.extend(MISALIGNED_SWAP.family(members, |b, offset| misaligned(b, offset, op::COMPARE_SWAP)));
    all.extend_from_slice(REQUESTER);
    all.extend_from_slice(WRITE);
    all.extend_from_slice(FLUSH);
}

const MISALIGNED: Case = must(
    "RC.ATOMIC.ALIGN.ADD",
    "A FETCH ADD {} bytes beside a multiple of 8 is an invalid request",
    "IBTA 9.7.4.1.3, 9.4.5",
    template,
);
const MISALIGNED_SWAP: Case = must(
    "RC.ATOMIC.ALIGN.SWAP",
    "A COMPARE SWAP {} bytes beside a multiple of 8 is an invalid request",
    "IBTA 9.7.4.1.3, 9.4.5",
    template,
);

fn misaligned(b: &mut Bench, offset: u32, code: u8) -> Outcome {
    let mut c = b.rc()?;
    let psn = c.tx(c.fetch_add(64 + offset as usize, 1).opcode(code).compare(0))?;
    c.naked(psn, 0x61)?;
    c.in_state(State::Err)?;
    c.holds(64, &[0; 24])
}

/// The eight bytes at `offset` of the target region, as a number.
fn value(c: &Conn, offset: usize) -> Outcome<u64> {
    let bytes = c.get(offset, 8)?;
    Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
}

const RESPONDER: &[Case] = &[
    must("RC.ATOMIC.ADD.1", "FETCH ADD adds, and answers with the value before", "IBTA 9.4.5", |b| {
        let mut c = b.rc()?;
        c.set(8, &40_u64.to_ne_bytes())?;
        let psn = c.tx(c.fetch_add(8, 2))?;
        c.rx(Packet::of(op::ATOMIC_ACK).psn(psn).original(40))?;
        same("the sum", value(&c, 8)?, 42)
    }),
    must("RC.ATOMIC.ADD.2", "FETCH ADD wraps at 64 bits", "IBTA 9.4.5", |b| {
        let mut c = b.rc()?;
        c.set(0, &u64::MAX.to_ne_bytes())?;
        c.tx(c.fetch_add(0, 3))?;
        c.rx(Packet::of(op::ATOMIC_ACK).original(u64::MAX))?;
        same("the sum", value(&c, 0)?, 2)
    }),
    must("RC.ATOMIC.ADD.3", "FETCH ADD carries between all its bytes", "IBTA 9.4.5", |b| {
        let mut c = b.rc()?;
        c.set(0, &0x00ff_ffff_ffff_ffff_u64.to_ne_bytes())?;
        c.tx(c.fetch_add(0, 1))?;
        c.rx(Packet::of(op::ATOMIC_ACK))?;
        same("the sum", value(&c, 0)?, 1 << 56)
    }),
    must("RC.ATOMIC.ADD.4", "FETCH ADD touches eight bytes and no more", "IBTA 9.4.5", |b| {
        let mut c = b.rc()?;
        c.set(0, &[0xff; 24])?;
        c.tx(c.fetch_add(8, 1))?;
        c.rx(Packet::of(op::ATOMIC_ACK))?;
        c.holds(0, &[0xff; 8])?;
        c.holds(8, &[0; 8])?;
        c.holds(16, &[0xff; 8])
    }),
    must("RC.ATOMIC.ADD.5", "The compare field of a FETCH ADD does not matter", "IBTA 9.2.5.2", |b| {
        let mut c = b.rc()?;
        c.tx(c.fetch_add(0, 5).compare(0xdead_beef))?;
        c.rx(Packet::of(op::ATOMIC_ACK).original(0))?;
        same("the sum", value(&c, 0)?, 5)
    }),
    must("RC.ATOMIC.SWAP.1", "COMPARE SWAP stores where the values are equal", "IBTA 9.4.5", |b| {
        let mut c = b.rc()?;
        c.set(0, &7_u64.to_ne_bytes())?;
        c.tx(c.compare_swap(0, 7, 0x1122_3344_5566_7788))?;
        c.rx(Packet::of(op::ATOMIC_ACK).original(7))?;
        same("the value", value(&c, 0)?, 0x1122_3344_5566_7788)
    }),
    must(
        "RC.ATOMIC.SWAP.2",
        "COMPARE SWAP does not store where they differ, and answers with what is there",
        "IBTA 9.4.5",
        |b| {
            let mut c = b.rc()?;
            c.set(0, &7_u64.to_ne_bytes())?;
            c.tx(c.compare_swap(0, 8, 9))?;
            c.rx(Packet::of(op::ATOMIC_ACK).original(7))?;
            same("the value", value(&c, 0)?, 7)
        },
    ),
    must("RC.ATOMIC.SWAP.3", "COMPARE SWAP compares all 64 bits", "IBTA 9.4.5", |b| {
        let mut c = b.rc()?;
        c.set(0, &(1_u64 << 63).to_ne_bytes())?;
        c.tx(c.compare_swap(0, 0, 9))?;
        c.rx(Packet::of(op::ATOMIC_ACK).original(1 << 63))?;
        same("the value", value(&c, 0)?, 1 << 63)
    }),
    must("RC.ATOMIC.SEQUENCE.1", "Atomics in a row see each other", "IBTA 9.4.5", |b| {
        let mut c = b.rc()?;
        for n in 0..4 {
            c.tx(c.fetch_add(0, 10))?;
            c.rx(Packet::of(op::ATOMIC_ACK).original(10 * n))?;
        }
        same("the sum", value(&c, 0)?, 40)
    }),
    must(
        "RC.ATOMIC.SEQUENCE.2",
        "Duplicates of atomics leave the ones behind them alone",
        "IBTA 9.7.5.1.4",
        |b| {
            let mut c = b.rc()?;
            let add = c.fetch_add(0, 1);
            let psn = c.tx(add.clone())?;
            c.rx(Packet::of(op::ATOMIC_ACK).original(0))?;
            c.tx(c.fetch_add(0, 1))?;
            c.rx(Packet::of(op::ATOMIC_ACK).original(1))?;
            c.raw(add.psn(psn))?;
            c.rx(Packet::of(op::ATOMIC_ACK).psn(psn).original(0))?;
            same("the sum", value(&c, 0)?, 2)
        },
    ),
];

const REQUESTER: &[Case] = &[
    must("RC.ATOMIC.ASKS.1", "A FETCH ADD carries address, key and addend", "IBTA 9.2.5.2", |b| {
        let mut c = b.rc()?;
        let wr = c.post(
            WrOp::AtomicFetchAndAdd {
                remote_addr: 0x1122_3344_5566_7788,
                rkey: 0x99,
                add: 0xa1a2_a3a4_a5a6_a7a8,
            },
            8,
        )?;
        let expected =
            Packet::of(op::FETCH_ADD).va(0x1122_3344_5566_7788).rkey(0x99).swap_add(0xa1a2_a3a4_a5a6_a7a8);
        let got = c.request(expected.ack_req(true))?;
        c.respond(got.at_psn(), Packet::of(op::ATOMIC_ACK).msn(1).original(0x0102_0304_0506_0708))?;
        c.done(Kind::Send, wr)?;
        c.received(0, &0x0102_0304_0506_0708_u64.to_ne_bytes())
    }),
    must("RC.ATOMIC.ASKS.2", "A COMPARE SWAP carries both values, each in its place", "IBTA 9.2.5.2", |b| {
        let mut c = b.rc()?;
        c.post(WrOp::AtomicCmpAndSwp { remote_addr: 0x1000, rkey: 0x99, compare: 0x11, swap: 0x22 }, 8)?;
        c.request(Packet::of(op::COMPARE_SWAP).compare(0x11).swap_add(0x22)).map(|_| ())
    }),
    must(
        "RC.ATOMIC.ACK.1",
        "An acknowledgement without the value does not complete an atomic",
        "IBTA 9.7.6.2",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let wr = c.post(WrOp::AtomicFetchAndAdd { remote_addr: 0x1000, rkey: 0x99, add: 1 }, 8)?;
            let got = c.request(Packet::of(op::FETCH_ADD))?;
            c.respond(got.at_psn(), Packet::of(op::ACK).msn(1))?;
            c.nothing_done(Kind::Send)?;
            c.drain()?;
            c.respond(got.at_psn(), Packet::of(op::ATOMIC_ACK).msn(1).original(6))?;
            c.done(Kind::Send, wr)?;
            c.received(0, &6_u64.to_ne_bytes())
        },
    ),
    must("RC.ATOMIC.FENCE.1", "A fenced request waits for the atomic before it", "IBTA 10.8.3.3", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        c.post(WrOp::AtomicFetchAndAdd { remote_addr: 0x1000, rkey: 0x99, add: 1 }, 8)?;
        let got = c.request(Packet::of(op::FETCH_ADD))?;
        c.post_with(WrOp::Send, 4, &[crate::dut::Flag::Signaled, crate::dut::Flag::Fence])?;
        c.quiet()?;
        c.respond(got.at_psn(), Packet::of(op::ATOMIC_ACK).msn(1).original(6))?;
        c.request(Packet::of(op::SEND_ONLY)).map(|_| ())
    }),
];

/// ATOMIC WRITE of eight bytes.
fn atomic_write(c: &Conn, offset: usize, data: &[u8]) -> Packet {
    c.write(offset, data).opcode(op::ATOMIC_WRITE)
}

const AW: &[Feature] = &[Feature::AtomicWrite];

const WRITE: &[Case] = &[
    must(
        "RC.AWRITE.1",
        "An ATOMIC WRITE stores eight bytes, and is answered by an empty READ response",
        "IBTA A19.4.2",
        |b| {
            let mut c = b.rc()?;
            let psn = c.tx(atomic_write(&c, 8, &[1, 2, 3, 4, 5, 6, 7, 8]))?;
            c.rx(Packet::of(op::READ_ONLY).psn(psn).data(vec![]).msn(1))?;
            c.holds(8, &[1, 2, 3, 4, 5, 6, 7, 8])
        },
    )
    .needs(AW),
    must("RC.AWRITE.2", "A duplicate ATOMIC WRITE is answered and not stored again", "IBTA A19.4.2", |b| {
        let mut c = b.rc()?;
        let write = atomic_write(&c, 0, &[5; 8]);
        let psn = c.tx(write.clone())?;
        c.rx(Packet::of(op::READ_ONLY).psn(psn))?;
        c.set(0, &[0; 8])?;
        c.raw(write.psn(psn))?;
        c.rx(Packet::of(op::READ_ONLY).psn(psn))?;
        c.holds(0, &[0; 8])
    })
    .needs(AW),
    must(
        "RC.AWRITE.3",
        "An ATOMIC WRITE beside a multiple of 8 is an invalid request",
        "IBTA A19.4.2",
        |b| {
            let mut c = b.rc()?;
            let psn = c.tx(atomic_write(&c, 4, &[5; 8]))?;
            c.naked(psn, 0x61)?;
            c.holds(0, &[0; 16])
        },
    )
    .needs(AW),
    must(
        "RC.AWRITE.4",
        "An ATOMIC WRITE of another length than 8 is an invalid request",
        "IBTA A19.4.2",
        |b| {
            let mut c = b.rc()?;
            let psn = c.tx(atomic_write(&c, 0, &[5; 4]))?;
            c.naked(psn, 0x61)?;
            c.holds(0, &[0; 8])
        },
    )
    .needs(AW),
    must("RC.AWRITE.5", "An ATOMIC WRITE without the right to write is refused", "IBTA A19.4.2", |b| {
        let mut c = b.rc_with(|o| o.region = vec![Access::LocalWrite, Access::RemoteRead])?;
        let psn = c.tx(atomic_write(&c, 0, &[5; 8]))?;
        c.naked(psn, 0x62)?;
        c.holds(0, &[0; 8])
    })
    .needs(AW),
    must(
        "RC.AWRITE.6",
        "A posted ATOMIC WRITE carries its eight bytes, and an empty READ response completes it",
        "IBTA A19.4.2",
        |b| {
            let mut c = b.rc()?;
            let wr = c.post(
                WrOp::AtomicWrite { remote_addr: 0x1000, rkey: 0x99, value: 0x0807_0605_0403_0201 },
                0,
            )?;
            let got = c.request(
                Packet::of(op::ATOMIC_WRITE).reth(0x1000, 0x99, 8).data(vec![1, 2, 3, 4, 5, 6, 7, 8]),
            )?;
            c.respond(got.at_psn(), Packet::of(op::READ_ONLY).msn(1))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    )
    .needs(AW),
];

const FL: &[Feature] = &[Feature::Flush];

fn flushing(b: &mut Bench) -> Outcome<Conn> {
    let all = [Access::COMMON.to_vec(), vec![Access::FlushGlobal]].concat();
    b.rc_with(|o| (o.access, o.region) = (all.clone(), all))
}

/// FLUSH of a range, for global visibility.
fn flush(c: &Conn, len: u32) -> Packet {
    let (va, rkey) = c.at(0);
    Packet::of(op::FLUSH).feth(0x01).reth(va, rkey, len).ask()
}

const FLUSH: &[Case] = &[
    must(
        "RC.FLUSH.1",
        "A FLUSH for global visibility is answered by an empty READ response",
        "IBTA A19.4.3",
        |b| {
            let mut c = flushing(b)?;
            let psn = c.tx(flush(&c, 64))?;
            c.rx(Packet::of(op::READ_ONLY).psn(psn).data(vec![]).msn(1))?;
            c.alive().map(|_| ())
        },
    )
    .needs(FL),
    must("RC.FLUSH.2", "A FLUSH beyond the region is refused", "IBTA A19.4.3", |b| {
        let mut c = flushing(b)?;
        let psn = c.tx(flush(&c, 1 << 20))?;
        c.naked(psn, 0x62).map(|_| ())
    })
    .needs(FL),
    must("RC.FLUSH.3", "A FLUSH of a region that does not allow it is refused", "IBTA A19.4.3", |b| {
        let mut c =
            b.rc_with(|o| o.access = [Access::COMMON.to_vec(), vec![Access::FlushGlobal]].concat())?;
        let psn = c.tx(flush(&c, 64))?;
        c.naked(psn, 0x62).map(|_| ())
    })
    .needs(FL),
    must("RC.FLUSH.4", "A duplicate FLUSH is answered again", "IBTA A19.4.3", |b| {
        let mut c = flushing(b)?;
        let packet = flush(&c, 64);
        let psn = c.tx(packet.clone())?;
        c.rx(Packet::of(op::READ_ONLY).psn(psn))?;
        c.raw(packet.psn(psn))?;
        c.rx(Packet::of(op::READ_ONLY).psn(psn)).map(|_| ())
    })
    .needs(FL),
    must(
        "RC.FLUSH.5",
        "A posted FLUSH carries what is to be flushed, and an empty READ response completes it",
        "IBTA A19.4.3",
        |b| {
            let mut c = b.rc()?;
            let wr =
                c.post(WrOp::Flush { remote_addr: 0x1000, rkey: 0x99, length: 77, r#type: 1, level: 0 }, 0)?;
            let got = c.request(Packet::of(op::FLUSH).feth(0x01).reth(0x1000, 0x99, 77).data(vec![]))?;
            c.respond(got.at_psn(), Packet::of(op::READ_ONLY).msn(1))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    )
    .needs(FL),
    must("RC.FLUSH.6", "A FLUSH that the queue pair does not allow is refused", "IBTA A19.4.3", |b| {
        let mut c =
            b.rc_with(|o| o.region = [Access::COMMON.to_vec(), vec![Access::FlushGlobal]].concat())?;
        let psn = c.tx(flush(&c, 64))?;
        let got = c.rx(Packet::of(op::ACK).psn(psn))?;
        check(matches!(got.syndrome, Some(0x61 | 0x62)), || got.summary())
    })
    .needs(FL),
];
