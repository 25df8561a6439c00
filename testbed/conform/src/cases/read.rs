//! RDMA READ, both ends (IBTA vol. 1, 9.4.4, 9.7.5.1.3 and 9.7.6).

use crate::{
    bench::Bench,
    case::{Case, Outcome, check, must, numbered, same, should, template},
    conn::{Conn, pattern},
    dut::{Kind, State, WrOp},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    let members = numbered([1, 7, 1023, 1024, 1025, 2048, 5000]);
    all.extend(ANSWERED.family(members.clone(), answered));
    all.extend(TAKEN.family(members, taken));
    all.extend_from_slice(RESPONDER);
    all.extend_from_slice(REQUESTER);
}

const ANSWERED: Case =
    must("RC.READ.ANSWERED", "A READ of {} bytes is answered with these bytes", "IBTA 9.4.4", template);
const TAKEN: Case =
    must("RC.READ.TAKEN", "A READ of {} bytes lands where it was asked for", "IBTA 9.4.4", template);

/// Takes READ responses, starting with PSN `psn`, until `len` bytes have come, and returns these bytes.
fn responses(c: &Conn, mut psn: u32, len: usize, fresh: bool) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let rest = len - bytes.len();
        let (start, end) = (bytes.is_empty() && fresh, rest <= c.mtu());
        let got = c.rx(Packet::of(op::read_response(start, end)).psn(psn & crate::wire::MASK24))?;
        let data = got.packet.data.unwrap_or_default();
        same("the payload's length", data.len(), rest.min(c.mtu()))?;
        bytes.extend(data);
        psn += 1;
        if end {
            return Ok(bytes);
        }
    }
}

fn answered(b: &mut Bench, len: u32) -> Outcome {
    let mut c = b.rc()?;
    let data = pattern(1, len as usize);
    c.set(11, &data)?;
    let psn = c.tx(c.read(11, data.len()))?;
    let found = responses(&c, psn, data.len(), true)?;
    check(found == data, || "other bytes came".into())?;
    c.alive().map(|_| ())
}

fn taken(b: &mut Bench, len: u32) -> Outcome {
    let mut c = b.rc()?;
    let data = pattern(2, len as usize);
    let wr = c.post(WrOp::RdmaRead { remote_addr: 0x1234_5678_9abc, rkey: 0xfeed }, data.len())?;
    let mut taken = 0;
    // A device may split the READ into several requests.
    while taken < data.len() {
        let got = c.request(Packet::of(op::READ_REQUEST).va(0x1234_5678_9abc + taken as u64).rkey(0xfeed))?;
        let piece = got.dma_len.unwrap_or(0) as usize;
        check(piece > 0 && taken + piece <= data.len(), || format!("a piece of {piece} bytes"))?;
        c.answer_read(got.at_psn(), &data[taken..taken + piece])?;
        taken += piece;
    }
    c.done(Kind::Send, wr)?;
    c.received(0, &[data, vec![0; 4]].concat())
}

const RESPONDER: &[Case] = &[
    must(
        "RC.READ.RESUME.1",
        "A READ asked for again from its middle on is answered from there",
        "IBTA 9.7.5.1.3",
        |b| {
            let mut c = b.rc()?;
            let data = pattern(3, 4096);
            c.set(0, &data)?;
            let psn = c.tx(c.read(0, 4096))?;
            responses(&c, psn, 4096, true)?;
            c.raw(c.read(2048, 2048).psn(psn + 2))?;
            let found = responses(&c, psn + 2, 2048, true)?;
            check(found == data[2048..], || "other bytes came".into())?;
            c.alive().map(|_| ())
        },
    ),
    must(
        "RC.READ.RESUME.2",
        "A READ asked for again may end earlier than the first time",
        "IBTA 9.7.5.1.3",
        |b| {
            let mut c = b.rc()?;
            c.set(0, &pattern(3, 3072))?;
            let psn = c.tx(c.read(0, 3072))?;
            responses(&c, psn, 3072, true)?;
            c.raw(c.read(0, 1024).psn(psn))?;
            let found = responses(&c, psn, 1024, true)?;
            check(found == pattern(3, 3072)[..1024], || "other bytes came".into())?;
            c.alive().map(|_| ())
        },
    ),
    must(
        "RC.READ.RESUME.3",
        "A duplicate READ with an address outside the first one's range brings no data from there",
        "IBTA 9.7.5.1.3",
        |b| {
            let mut c = b.rc()?;
            c.set(8192, &[0x5e; 64])?;
            let psn = c.tx(c.read(0, 64))?;
            responses(&c, psn, 64, true)?;
            c.raw(c.read(8192, 64).psn(psn))?;
            match c.next(c.calm())? {
                None => Ok(()),
                Some(got) => {
                    check(got.data != Some(vec![0x5e; 64]), || "it was answered as if it were new".into())
                }
            }
        },
    ),
    must(
        "RC.READ.RESUME.4",
        "A duplicate READ behind later requests does not disturb them",
        "IBTA 9.7.5.1.3",
        |b| {
            let mut c = b.rc()?;
            let read = c.read(0, 16);
            let psn = c.tx(read.clone())?;
            responses(&c, psn, 16, true)?;
            // Empty: a device may forget the READ's region there, which it would find again by a request of some bytes.
            let later = c.tx(c.write(0, &[]))?;
            c.acked(later)?;
            c.raw(read.psn(psn))?;
            c.rx(Packet::of(op::READ_ONLY).psn(psn))?;
            c.alive().map(|_| ())
        },
    ),
    must("RC.READ.PSN.1", "A READ takes as many PSNs as its responses", "IBTA 9.7.3.2", |b| {
        let mut c = b.rc()?;
        let psn = c.tx(c.read(0, 3000))?;
        responses(&c, psn, 3000, true)?;
        c.raw(c.write(0, &[1; 4]).psn(psn + 4))?;
        c.naked(psn + 3, 0x60)?;
        c.alive().map(|_| ())
    }),
    must(
        "RC.READ.MANY.1",
        "As many READs as modify QP allows may be under way",
        "IBTA 9.4.4, 11.2.5.2",
        |b| {
            let mut c = b.rc()?;
            c.set(0, &pattern(4, 400))?;
            let psn = c.psn;
            for n in 0..4 {
                c.tx(c.read(n * 100, 100))?;
            }
            for n in 0..4_u32 {
                let at = n as usize * 100;
                c.rx(Packet::of(op::READ_ONLY).psn(psn + n).data(pattern(4, 400)[at..at + 100].to_vec()))?;
            }
            Ok(())
        },
    ),
    must(
        "RC.READ.NONE.1",
        "Where no READ may be under way a READ is an invalid request",
        "IBTA 9.7.4.1.3, 11.2.5.2",
        |b| {
            let mut c = b.rc_with(|o| o.max_dest_rd_atomic = 0)?;
            let psn = c.tx(c.read(0, 8))?;
            c.naked(psn, 0x61)?;
            c.in_state(State::Err)
        },
    ),
    must(
        "RC.READ.NONE.2",
        "Where no READ may be under way an atomic is an invalid request",
        "IBTA 9.7.4.1.3, 11.2.5.2",
        |b| {
            let mut c = b.rc_with(|o| o.max_dest_rd_atomic = 0)?;
            let psn = c.tx(c.fetch_add(0, 1))?;
            c.naked(psn, 0x61)?;
            c.holds(0, &[0; 8])
        },
    ),
    must(
        "RC.READ.SYNDROME.1",
        "First, last and only responses carry a positive syndrome",
        "IBTA 9.7.5.1.3",
        |b| {
            let mut c = b.rc()?;
            c.tx(c.read(0, 2048))?;
            for code in [op::READ_FIRST, op::READ_LAST] {
                let got = c.rx(Packet::of(code))?;
                check(got.syndrome.is_some_and(|syndrome| syndrome < 0x20), || got.summary())?;
            }
            Ok(())
        },
    ),
];

/// The device READs `len` bytes. Returns the work request's ID and the PSN of the READ request.
fn reading(c: &mut Conn, len: usize) -> Outcome<(u64, u32)> {
    let wr = c.post(WrOp::RdmaRead { remote_addr: 0x4000, rkey: 0x42 }, len)?;
    let got = c.request(Packet::of(op::READ_REQUEST).reth(0x4000, 0x42, len as u32))?;
    Ok((wr, got.at_psn()))
}

const REQUESTER: &[Case] = &[
    must(
        "RC.READ.ASKS.1",
        "A READ request carries address, key and length, and no payload",
        "IBTA 9.4.4",
        |b| {
            let mut c = b.rc()?;
            c.post(WrOp::RdmaRead { remote_addr: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc }, 100)?;
            c.request(Packet::of(op::READ_REQUEST).reth(0x1122_3344_5566_7788, 0x99aa_bbcc, 100).data(vec![]))
                .map(|_| ())
        },
    ),
    must("RC.READ.ACK.1", "An acknowledgement without data does not complete a READ", "IBTA 9.7.6.2", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        let (wr, psn) = reading(&mut c, 8)?;
        c.respond(psn, Packet::of(op::ACK).msn(1))?;
        c.nothing_done(Kind::Send)?;
        c.drain()?;
        c.respond(psn, Packet::of(op::READ_ONLY).msn(1).data(vec![5; 8]))?;
        c.done(Kind::Send, wr)?;
        c.received(0, &[5; 8])
    }),
    must("RC.READ.TWICE.1", "A response that comes twice is taken once", "IBTA 9.7.6.2", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        let (wr, psn) = reading(&mut c, 2048)?;
        c.respond(psn, Packet::of(op::READ_FIRST).msn(1).data(vec![1; 1024]))?;
        c.respond(psn, Packet::of(op::READ_FIRST).msn(1).data(vec![9; 1024]))?;
        c.respond(psn + 1, Packet::of(op::READ_LAST).msn(1).data(vec![2; 1024]))?;
        c.done(Kind::Send, wr)?;
        c.received(1020, &[1, 1, 1, 1, 2, 2, 2, 2])
    }),
    must(
        "RC.READ.SHORT.1",
        "A last response with too few bytes does not complete the READ with success",
        "IBTA 9.7.6.2, 9.9.2.4.3",
        |b| {
            let mut c = b.rc_with(|o| (o.retry_cnt, o.timeout) = (0, 14))?;
            let (wr, psn) = reading(&mut c, 2048)?;
            c.respond(psn, Packet::of(op::READ_FIRST).msn(1).data(vec![1; 1024]))?;
            c.respond(psn + 1, Packet::of(op::READ_LAST).msn(1).data(vec![2; 512]))?;
            let wc = c.wc(Kind::Send)?;
            check(wc.wr_id == wr && wc.status != "SUCCESS", || format!("{} of {}", wc.status, wc.wr_id))
        },
    ),
    must(
        "RC.READ.LONG.1",
        "A response with more bytes than were asked for writes nothing behind them",
        "IBTA 9.7.6.2",
        |b| {
            let mut c = b.rc_with(|o| (o.retry_cnt, o.timeout) = (0, 14))?;
            let (_, psn) = reading(&mut c, 16)?;
            c.respond(psn, Packet::of(op::READ_ONLY).msn(1).data(vec![7; 64]))?;
            let wc = c.wc(Kind::Send)?;
            check(wc.status != "SUCCESS", || "it succeeded".into())?;
            c.received(16, &[0; 48])
        },
    ),
    must("RC.READ.UNASKED.1", "A READ response that nobody asked for is ignored", "IBTA 9.7.6.2.3", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        c.respond(c.expected, Packet::of(op::READ_ONLY).msn(1).data(vec![7; 64]))?;
        c.alive()?;
        c.received(0, &[0; 64])?;
        let wr = c.post(WrOp::Send, 4)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        c.ack(got.at_psn())?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must(
        "RC.READ.LIMIT.1",
        "No more READs are under way than modify QP allows",
        "IBTA 9.4.4, 11.2.5.2",
        |b| {
            let mut c = b.rc_with(|o| (o.max_rd_atomic, o.timeout) = (2, 0))?;
            for _ in 0..4 {
                c.post(WrOp::RdmaRead { remote_addr: 0x4000, rkey: 0x42 }, 8)?;
            }
            let first = c.request(Packet::of(op::READ_REQUEST))?;
            c.request(Packet::of(op::READ_REQUEST))?;
            c.quiet()?;
            c.respond(first.at_psn(), Packet::of(op::READ_ONLY).msn(1).data(vec![1; 8]))?;
            c.request(Packet::of(op::READ_REQUEST))?;
            c.quiet()
        },
    ),
    must(
        "RC.READ.LIMIT.3",
        "The limit is the number that modify QP was given, not the next power of two",
        "IBTA 9.4.4, 11.2.5.2",
        |b| {
            let mut c = b.rc_with(|o| (o.max_rd_atomic, o.timeout) = (3, 0))?;
            for _ in 0..5 {
                c.post(WrOp::RdmaRead { remote_addr: 0x4000, rkey: 0x42 }, 8)?;
            }
            for _ in 0..3 {
                c.request(Packet::of(op::READ_REQUEST))?;
            }
            c.quiet()
        },
    ),
    must("RC.READ.LIMIT.2", "Atomics count against the limit of READs", "IBTA 9.4.5, 11.2.5.2", |b| {
        let mut c = b.rc_with(|o| (o.max_rd_atomic, o.timeout) = (1, 0))?;
        c.post(WrOp::AtomicFetchAndAdd { remote_addr: 0x4000, rkey: 0x42, add: 1 }, 8)?;
        c.post(WrOp::RdmaRead { remote_addr: 0x4000, rkey: 0x42 }, 8)?;
        let first = c.request(Packet::of(op::FETCH_ADD))?;
        c.quiet()?;
        c.respond(first.at_psn(), Packet::of(op::ATOMIC_ACK).msn(1).original(0))?;
        c.request(Packet::of(op::READ_REQUEST)).map(|_| ())
    }),
    must("RC.READ.FENCE.1", "A fenced request waits for the READ before it", "IBTA 10.8.3.3", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        let (_, psn) = reading(&mut c, 8)?;
        c.post_with(WrOp::Send, 4, &[crate::dut::Flag::Signaled, crate::dut::Flag::Fence])?;
        c.quiet()?;
        c.respond(psn, Packet::of(op::READ_ONLY).msn(1).data(vec![1; 8]))?;
        c.request(Packet::of(op::SEND_ONLY)).map(|_| ())
    }),
    must(
        "RC.READ.ORDER.1",
        "Completions come in the order of posting, READs among SENDs",
        "IBTA 10.8.3.2",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let first = c.post(WrOp::Send, 4)?;
            let second = c.post(WrOp::RdmaRead { remote_addr: 0x4000, rkey: 0x42 }, 8)?;
            c.request(Packet::of(op::SEND_ONLY))?;
            let read = c.request(Packet::of(op::READ_REQUEST))?;
            c.msn = 1;
            c.respond(read.at_psn(), Packet::of(op::READ_ONLY).msn(2).data(vec![1; 8]))?;
            c.done(Kind::Send, first)?;
            c.done(Kind::Send, second).map(|_| ())
        },
    ),
    should(
        "RC.READ.RESTART.1",
        "A repeated READ's responses may start with a middle packet, as some peers send them",
        "kernel rxe",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 17)?;
            let (wr, psn) = reading(&mut c, 3072)?;
            c.respond(psn, Packet::of(op::READ_FIRST).msn(1).data(vec![1; 1024]))?;
            c.rx(Packet::of(op::READ_REQUEST).psn(psn + 1))?;
            c.respond(psn + 1, Packet::of(op::READ_MIDDLE).data(vec![2; 1024]))?;
            c.respond(psn + 2, Packet::of(op::READ_LAST).msn(1).data(vec![3; 1024]))?;
            c.done(Kind::Send, wr)?;
            c.received(2044, &[2, 2, 2, 2, 3, 3, 3, 3])
        },
    ),
];
