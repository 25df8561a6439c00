//! Lost packets and silent peers: timeouts, retries, what is sent again (IBTA vol. 1, 9.7.6.1 and 9.9.2.1).

use crate::{
    bench::Bench,
    case::{Case, Outcome, broken, check, must, numbered, same, should, template},
    conn::{Came, Conn},
    dut::{Feature, Kind, State, WrOp},
    wire::{Packet, op},
};
use std::time::Duration;

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(COUNT.family(numbered([0, 1, 3, 7]), counted).map(Case::slow));
    let codes =
        [12, 14, 16, 17].map(|code| (code, code.to_string(), format!("{code} ({:?})", timeout(code))));
    let all_but_short = |case: Case| if case.id.ends_with('7') { case.slow() } else { case };
    all.extend(TIMEOUT.family(codes.clone(), timed).map(all_but_short));
    all.extend(WITHIN.family(codes, timed_within).map(all_but_short));
    all.extend_from_slice(CASES);
}

const COUNT: Case = must(
    "RC.RETRY.COUNT",
    "A silent peer is asked {} more times, then the request fails",
    "IBTA 9.9.2.1.1, 11.2.5.2",
    template,
);
const TIMEOUT: Case = must(
    "RC.RETRY.TIMEOUT",
    "A request is sent again after the timeout {}, not before",
    "IBTA 9.7.6.1.3",
    template,
);
// No "must", because the suite's own machine may be late, too.
const WITHIN: Case = should(
    "RC.RETRY.WITHIN",
    "A request is sent again within four times the timeout {}",
    "IBTA 9.7.6.1.3",
    template,
);
/// The part of a device's time to answer by which a packet may be late on its way: 75 to 100 ms, if nothing else is set.
const LATE_PART: u32 = 40;

fn timeout(code: u32) -> Duration {
    Duration::from_nanos(4096) * 2_u32.pow(code)
}

/// Answers nothing until the request completes. Returns how often the request came, and the completion's status.
fn silence(c: &Conn, most: u32) -> Outcome<(u32, String)> {
    let mut tries = 0;
    loop {
        match c.next_or_wc(Kind::Send, c.patience())? {
            Some(Came::Packet(_)) => {
                tries += 1;
                check(tries <= most, || format!("{tries} tries and no end"))?;
            }
            Some(Came::Completion(wc)) => {
                // Count tries that were sent before the completion and not yet taken.
                return Ok((tries + c.drain()?, wc.status));
            }
            None => return broken(format!("neither a try nor a completion after {tries} tries")),
        }
    }
}

fn counted(b: &mut Bench, count: u32) -> Outcome {
    let mut c = b.rc_with(|o| (o.retry_cnt, o.timeout) = (count as u8, 12))?;
    c.post(WrOp::Send, 8)?;
    let (tries, status) = silence(&c, count + 4)?;
    same("the status", status.as_str(), "RETRY_EXC_ERR")?;
    same("tries", tries, count + 1)?;
    c.in_state(State::Err)
}

/// The time from a request that nobody answers until it is sent again.
fn sent_again(b: &mut Bench, code: u32) -> Outcome<Duration> {
    let mut c = b.rc_with(|o| o.timeout = code as u8)?;
    // The time of sending is not known exactly, only that it is after this point.
    let start = c.now();
    c.post(WrOp::Send, 8)?;
    let first = c.request(Packet::of(op::SEND_ONLY))?;
    let again = c.rx(Packet::of(op::SEND_ONLY).psn(first.psn.unwrap_or(0)))?;
    // No acknowledgement: on a busy machine the device may have used up all its retries by now.
    Ok(again.at.saturating_sub(start))
}

fn timed(b: &mut Bench, code: u32) -> Outcome {
    let waited = sent_again(b, code)?;
    check(waited >= timeout(code).mul_f64(0.9), || format!("sent again after {waited:?} already"))
}

fn timed_within(b: &mut Bench, code: u32) -> Outcome {
    let waited = sent_again(b, code)?;
    let patience = b.world.borrow().patience();
    let late = if b.has(Feature::ExactTime) { Duration::ZERO } else { patience / LATE_PART };
    check(waited <= timeout(code) * 4 + late, || format!("sent again only after {waited:?}"))
}

const CASES: &[Case] = &[
    must("RC.RETRY.NEVER.1", "A timeout of 0 never runs out", "IBTA 9.7.6.1.3, 11.2.5.2", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        let wr = c.post(WrOp::Send, 8)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        // Longer than the timeout that a device may use instead: up to code 19 (2.1 s), or the longest one (2.4 h) where time
        // costs nothing.
        c.quiet_for(Duration::from_secs(if b.has(Feature::ExactTime) { 9000 } else { 3 }))?;
        c.ack(got.psn.unwrap_or(0))?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must("RC.RETRY.RESET.1", "Progress gives the retries back", "IBTA 9.9.2.1.1", |b| {
        // The timeout is 1.07 s. The second try has to be answered within it.
        let mut c = b.rc_with(|o| (o.retry_cnt, o.timeout) = (1, 18))?;
        for _ in 0..2 {
            let wr = c.post(WrOp::Send, 8)?;
            let first = c.request(Packet::of(op::SEND_ONLY))?;
            c.rx(Packet::of(op::SEND_ONLY).psn(first.psn.unwrap_or(0)))?;
            c.ack(first.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr)?;
            // Pass over copies that were on their way.
            c.drain()?;
        }
        Ok(())
    }),
    must(
        "RC.RETRY.FROM.1",
        "After a timeout all from the first unanswered packet on is sent again",
        "IBTA 9.7.6.1.3",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 18)?;
            let first = c.post(WrOp::Send, 8)?;
            let second = c.post(WrOp::Send, 8)?;
            let one = c.request(Packet::of(op::SEND_ONLY))?;
            let two = c.request(Packet::of(op::SEND_ONLY))?;
            c.ack(one.psn.unwrap_or(0))?;
            c.done(Kind::Send, first)?;
            c.rx(Packet::of(op::SEND_ONLY).psn(two.psn.unwrap_or(0)))?;
            c.ack(two.psn.unwrap_or(0))?;
            c.done(Kind::Send, second).map(|_| ())
        },
    ),
    must(
        "RC.RETRY.FROM.2",
        "A message that is sent again from its middle on keeps its opcodes and PSNs",
        "IBTA 9.7.6.1.3",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 18)?;
            let wr = c.post(WrOp::Send, 2500)?;
            let first = c.request(Packet::of(op::SEND_FIRST))?;
            c.request(Packet::of(op::SEND_MIDDLE))?;
            let last = c.request(Packet::of(op::SEND_LAST))?;
            c.respond(first.psn.unwrap_or(0), Packet::of(op::ACK).msn(0))?;
            let middle = c.rx(Packet::of(op::SEND_MIDDLE).psn(first.psn.unwrap_or(0) + 1))?;
            // Like a responder, answer each packet: the device may wait for an answer before it sends more.
            c.respond(middle.at_psn(), Packet::of(op::ACK).msn(0))?;
            c.rx(Packet::of(op::SEND_LAST).psn(last.at_psn()))?;
            c.ack(last.at_psn())?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    must(
        "RC.RETRY.FLUSH.1",
        "What is queued behind a request that ran out of retries is flushed in order",
        "IBTA 10.3.1.7",
        |b| {
            let mut c = b.rc_with(|o| (o.retry_cnt, o.timeout) = (0, 12))?;
            let wrs = [c.post(WrOp::Send, 8)?, c.post(WrOp::Send, 8)?, c.post(WrOp::Send, 8)?];
            c.failed(Kind::Send, wrs[0], "RETRY_EXC_ERR")?;
            c.failed(Kind::Send, wrs[1], "WR_FLUSH_ERR")?;
            c.failed(Kind::Send, wrs[2], "WR_FLUSH_ERR").map(|_| ())
        },
    ),
    must(
        "RC.RETRY.READ.1",
        "A READ whose last response is lost is asked for again from there",
        "IBTA 9.7.6.1.3, 9.4.4",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 17)?;
            let wr = c.post(WrOp::RdmaRead { remote_addr: 0x10_0000, rkey: 0x42 }, 3000)?;
            let got = c.request(Packet::of(op::READ_REQUEST).reth(0x10_0000, 0x42, 3000))?;
            let psn = got.psn.unwrap_or(0);
            c.respond(psn, Packet::of(op::READ_FIRST).msn(1).data(vec![1; 1024]))?;
            c.respond(psn + 1, Packet::of(op::READ_MIDDLE).data(vec![2; 1024]))?;
            c.rx(Packet::of(op::READ_REQUEST).psn(psn + 2).reth(0x10_0000 + 2048, 0x42, 952))?;
            c.respond(psn + 2, Packet::of(op::READ_ONLY).msn(1).data(vec![3; 952]))?;
            c.done(Kind::Send, wr)?;
            c.received(2048, &[3; 952])
        },
    ),
    must(
        "RC.RETRY.READ.2",
        "A READ whose first response is lost is asked for again when the second comes",
        "IBTA 9.7.6.2.1",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let wr = c.post(WrOp::RdmaRead { remote_addr: 0x10_0000, rkey: 0x42 }, 2048)?;
            let got = c.request(Packet::of(op::READ_REQUEST).dma_len(2048))?;
            let psn = got.psn.unwrap_or(0);
            c.respond(psn + 1, Packet::of(op::READ_LAST).msn(1).data(vec![2; 1024]))?;
            let again = c.rx(Packet::of(op::READ_REQUEST).psn(psn).reth(0x10_0000, 0x42, 2048))?;
            let psn = again.psn.unwrap_or(0);
            c.respond(psn, Packet::of(op::READ_FIRST).msn(1).data(vec![1; 1024]))?;
            c.respond(psn + 1, Packet::of(op::READ_LAST).msn(1).data(vec![2; 1024]))?;
            c.done(Kind::Send, wr)?;
            c.received(1020, &[1, 1, 1, 1, 2, 2, 2, 2])
        },
    ),
    must(
        "RC.RETRY.ATOMIC.1",
        "An atomic that is not answered is sent again as it was",
        "IBTA 9.7.6.1.3",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 17)?;
            let wr = c.post(WrOp::AtomicFetchAndAdd { remote_addr: 0x1000, rkey: 0x42, add: 9 }, 8)?;
            let got = c.request(Packet::of(op::FETCH_ADD))?;
            let expected = Packet { ident: None, sport: None, ..got.packet.clone() };
            c.rx(expected)?;
            c.respond(got.at_psn(), Packet::of(op::ATOMIC_ACK).msn(1).original(3))?;
            c.done(Kind::Send, wr)?;
            c.received(0, &3_u64.to_le_bytes())
        },
    ),
    must(
        "RC.RETRY.IMPLIED.1",
        "An acknowledgement past an atomic's result has the atomic sent again",
        "IBTA 9.7.6.2.1",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let first = c.post(WrOp::AtomicFetchAndAdd { remote_addr: 0x1000, rkey: 0x42, add: 9 }, 8)?;
            let second = c.post(WrOp::Send, 8)?;
            let atomic = c.request(Packet::of(op::FETCH_ADD))?;
            let send = c.request(Packet::of(op::SEND_ONLY))?;
            c.respond(send.at_psn(), Packet::of(op::ACK).msn(2))?;
            c.rx(Packet::of(op::FETCH_ADD).psn(atomic.at_psn()))?;
            c.respond(atomic.at_psn(), Packet::of(op::ATOMIC_ACK).msn(2).original(4))?;
            c.respond(send.at_psn(), Packet::of(op::ACK).msn(2))?;
            c.done(Kind::Send, first)?;
            c.done(Kind::Send, second)?;
            c.received(0, &4_u64.to_le_bytes())
        },
    ),
];
