//! Receiver not ready: who says so, how long the other end waits, how often it tries (IBTA vol. 1, 9.7.5.2.8, table 46).

use crate::{
    bench::Bench,
    case::{Case, Outcome, broken, check, must, numbered, same, template},
    conn::{Came, Conn, pattern},
    dut::{Feature, Kind, State, WrOp},
    wire::{Packet, op},
};
use std::time::Duration;

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    let codes = || (0..32).map(|code| (code, format!("{code:02}"), format!("{code} ({:?})", timer(code))));
    all.extend(SENT.family(codes(), timer_is_sent));
    // In real time the short timers cannot be told apart; the long ones take long, so they count as slow cases.
    all.extend(
        OBEYED
            .family(codes(), timer_is_obeyed)
            .map(|case| if case_is_long(&case) { case.slow() } else { case }),
    );
    all.extend(RETRIES.family(numbered([0, 1, 3, 6]), retries));
    all.extend_from_slice(RESPONDER);
    all.extend_from_slice(REQUESTER);
}

const SENT: Case = must(
    "RC.RNR.TIMER",
    "The RNR NAK carries the timer code of modify QP: {}",
    "IBTA 9.7.5.2.8, table 46",
    template,
);
const OBEYED: Case = must(
    "RC.RNR.WAIT",
    "After an RNR NAK the requester waits for the timer: {}",
    "IBTA 9.7.5.2.8, table 46",
    template,
);
const RETRIES: Case = must(
    "RC.RNR.RETRY",
    "With an RNR retry count of {} that many tries follow the first, then the request fails",
    "IBTA 9.7.5.2.8, 9.9.2.4.1",
    template,
);

/// The timers' lengths by code, in hundredths of a millisecond (IBTA vol. 1, table 46).
const TABLE: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

fn timer(code: u32) -> Duration {
    Duration::from_micros(TABLE[code as usize] * 10)
}

fn case_is_long(case: &Case) -> bool {
    let code = case.id.rsplit('.').next().and_then(|last| last.parse().ok()).unwrap_or(0);
    timer(code) > Duration::from_millis(50)
}

fn timer_is_sent(b: &mut Bench, code: u32) -> Outcome {
    let mut c = b.rc_with(|o| o.min_rnr_timer = code as u8)?;
    c.raw(Packet::of(op::SEND_ONLY).data(vec![1; 4]).ask())?;
    c.naked(c.psn, 0x20 | code as u8)?;
    c.alive().map(|_| ())
}

fn timer_is_obeyed(b: &mut Bench, code: u32) -> Outcome {
    let mut c = b.rc_with(|o| o.timeout = 0)?;
    let wr = c.post(WrOp::Send, 8)?;
    let got = c.request(Packet::of(op::SEND_ONLY))?;
    let psn = got.psn.unwrap_or(0);
    let start = c.now();
    c.nak(psn, 0x20 | code as u8)?;
    let again = c.rx(Packet::of(op::SEND_ONLY).psn(psn))?;
    let waited = again.at.saturating_sub(start);
    // A device may round the timer by one per cent, as kernels do.
    check(waited >= timer(code).mul_f64(0.99), || {
        format!("sent again after {waited:?}, before {:?}", timer(code))
    })?;
    if b.has(Feature::ExactTime) {
        let most = timer(code) * 2 + Duration::from_millis(1);
        check(waited <= most, || format!("sent again only after {waited:?} instead of {:?}", timer(code)))?;
    }
    c.ack(psn)?;
    c.done(Kind::Send, wr).map(|_| ())
}

/// Answers every try with an RNR NAK of the shortest timer, and counts them until the completion comes.
fn refuse_all(c: &Conn, most: u32) -> Outcome<(u32, String)> {
    let mut tries = 0;
    loop {
        match c.next_or_wc(Kind::Send, c.patience())? {
            Some(Came::Packet(got)) => {
                tries += 1;
                check(tries <= most, || format!("{tries} tries and no end"))?;
                c.nak(got.at_psn(), 0x21)?;
            }
            Some(Came::Completion(wc)) => return Ok((tries, wc.status)),
            None => return broken(format!("neither a try nor a completion after {tries} tries")),
        }
    }
}

fn retries(b: &mut Bench, count: u32) -> Outcome {
    let mut c = b.rc_with(|o| (o.rnr_retry, o.timeout) = (count as u8, 0))?;
    c.post(WrOp::Send, 8)?;
    let (tries, status) = refuse_all(&c, count + 8)?;
    same("the status", status.as_str(), "RNR_RETRY_EXC_ERR")?;
    same("tries", tries, count + 1)?;
    c.in_state(State::Err)
}

const RESPONDER: &[Case] = &[
    must(
        "RC.RNR.SEND.1",
        "A SEND without a receive is answered by an RNR NAK, and taken when it comes again",
        "IBTA 9.7.5.2.8",
        |b| {
            let mut c = b.rc()?;
            let send = Packet::of(op::SEND_ONLY).data(pattern(1, 8)).ask();
            c.raw(send.clone())?;
            c.naked(c.psn, 0x20 | 12)?;
            let posted = c.post_recv(64)?;
            let psn = c.tx(send)?;
            c.acked(psn)?;
            c.done(Kind::Recv, posted.wr_id)?;
            c.received(posted.offset, &pattern(1, 8))
        },
    ),
    must(
        "RC.RNR.SEND.2",
        "The RNR NAK has the PSN of the refused packet and moves nothing",
        "IBTA 9.7.5.2.8",
        |b| {
            let mut c = b.rc()?;
            c.alive()?;
            c.raw(Packet::of(op::SEND_ONLY).data(vec![1; 4]).ask())?;
            let got = c.naked(c.psn, 0x20 | 12)?;
            same("the MSN", got.msn, Some(1))?;
            c.alive().map(|_| ())
        },
    ),
    must("RC.RNR.SEND.3", "A SEND of many packets is refused at its first", "IBTA 9.7.5.2.8", |b| {
        let mut c = b.rc()?;
        c.raw(Packet::of(op::SEND_FIRST).data(vec![1; 1024]).ask())?;
        c.naked(c.psn, 0x20 | 12)?;
        c.alive().map(|_| ())
    }),
    must("RC.RNR.WRITE.1", "A WRITE without immediate needs no receive", "IBTA 9.4.3", |b| {
        let mut c = b.rc()?;
        let psn = c.tx(c.write(0, &[1; 8]))?;
        c.acked(psn).map(|_| ())
    }),
    must(
        "RC.RNR.WRITE.2",
        "A WRITE with immediate without a receive is answered by an RNR NAK",
        "IBTA 9.7.5.2.8",
        |b| {
            let mut c = b.rc()?;
            let (va, rkey) = c.at(0);
            let write = Packet::of(op::WRITE_ONLY_IMM).reth(va, rkey, 4).imm(7).data(vec![1; 4]).ask();
            c.raw(write.clone())?;
            c.naked(c.psn, 0x20 | 12)?;
            let posted = c.post_recv(8)?;
            let psn = c.tx(write)?;
            c.acked(psn)?;
            same("the immediate", c.done(Kind::Recv, posted.wr_id)?.imm, Some(7))
        },
    ),
    must(
        "RC.RNR.WRITE.3",
        "A long WRITE with immediate is refused at its last packet only",
        "IBTA 9.7.5.2.8",
        |b| {
            let mut c = b.rc()?;
            let (va, rkey) = c.at(0);
            let psn = c.tx(Packet::of(op::WRITE_FIRST).reth(va, rkey, 1032).data(vec![1; 1024]).ask())?;
            c.acked(psn)?;
            let last = Packet::of(op::WRITE_LAST_IMM).imm(9).data(vec![2; 8]).ask();
            c.raw(last.clone())?;
            c.naked(c.psn, 0x20 | 12)?;
            let posted = c.post_recv(8)?;
            let psn = c.tx(last)?;
            c.acked(psn)?;
            c.holds(1024, &[2; 8])?;
            c.done(Kind::Recv, posted.wr_id).map(|_| ())
        },
    ),
    must("RC.RNR.READ.1", "READs and atomics need no receive", "IBTA 9.4.4, 9.4.5", |b| {
        let mut c = b.rc()?;
        c.tx(c.read(0, 8))?;
        c.rx(Packet::of(op::READ_ONLY))?;
        c.tx(c.fetch_add(0, 1))?;
        c.rx(Packet::of(op::ATOMIC_ACK)).map(|_| ())
    }),
    must("RC.RNR.SRQ.1", "An empty shared receive queue is answered by an RNR NAK", "IBTA 10.2.9", |b| {
        let mut c = b.rc_with(|o| o.srq = true)?;
        let send = Packet::of(op::SEND_ONLY).data(vec![3; 4]).ask();
        c.raw(send.clone())?;
        c.naked(c.psn, 0x20 | 12)?;
        let posted = c.post_recv(8)?;
        let psn = c.tx(send)?;
        c.acked(psn)?;
        c.done(Kind::Recv, posted.wr_id).map(|_| ())
    })
    .needs(&[Feature::Srq]),
    must("RC.RNR.AFTER.1", "Requests behind a refused one are not executed", "IBTA 9.7.5.2.8", |b| {
        let c = b.rc()?;
        c.raw(Packet::of(op::SEND_ONLY).data(vec![1; 4]).ask())?;
        c.raw(c.write(0, &[1; 8]).psn(c.psn + 1))?;
        c.naked(c.psn, 0x20 | 12)?;
        c.wait_calm()?;
        c.holds(0, &[0; 8])
    }),
    must(
        "RC.RNR.AFTER.2",
        "No PSN sequence NAK follows for packets that were sent behind the refused one",
        "IBTA 9.7.5.2.8",
        |b| {
            let c = b.rc()?;
            c.raw(Packet::of(op::SEND_ONLY).data(vec![1; 4]).ask())?;
            c.raw(c.write(0, &[1; 8]).psn(c.psn + 1))?;
            c.naked(c.psn, 0x20 | 12)?;
            c.quiet()
        },
    ),
];

const REQUESTER: &[Case] = &[
    must("RC.RNR.RETRY.7", "An RNR retry count of 7 means without end", "IBTA 9.7.5.2.8, 11.2.5.2", |b| {
        let mut c = b.rc_with(|o| (o.rnr_retry, o.timeout) = (7, 0))?;
        let wr = c.post(WrOp::Send, 8)?;
        for _ in 0..20 {
            let got = c.rx(Packet::of(op::SEND_ONLY))?;
            c.nak(got.psn.unwrap_or(0), 0x21)?;
        }
        let got = c.rx(Packet::of(op::SEND_ONLY))?;
        c.ack(got.psn.unwrap_or(0))?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must("RC.RNR.RETRY.RESET", "Progress gives the RNR retries back", "IBTA 9.7.5.2.8", |b| {
        let mut c = b.rc_with(|o| (o.rnr_retry, o.timeout) = (1, 0))?;
        for _ in 0..4 {
            let wr = c.post(WrOp::Send, 8)?;
            let got = c.rx(Packet::of(op::SEND_ONLY))?;
            c.nak(got.psn.unwrap_or(0), 0x21)?;
            let got = c.rx(Packet::of(op::SEND_ONLY).psn(got.psn.unwrap_or(0)))?;
            c.ack(got.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr)?;
        }
        Ok(())
    }),
    must("RC.RNR.RETRY.OTHER", "RNR NAKs do not use up the retries for losses", "IBTA 9.7.5.2.8", |b| {
        let mut c = b.rc_with(|o| (o.retry_cnt, o.rnr_retry, o.timeout) = (1, 6, 0))?;
        let wr = c.post(WrOp::Send, 8)?;
        for _ in 0..4 {
            let got = c.rx(Packet::of(op::SEND_ONLY))?;
            c.nak(got.psn.unwrap_or(0), 0x21)?;
        }
        let got = c.rx(Packet::of(op::SEND_ONLY))?;
        c.ack(got.psn.unwrap_or(0))?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must(
        "RC.RNR.HOLD.1",
        "Nothing new leaves a queue pair that waits for an RNR timer",
        "IBTA 9.7.5.2.8",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            // Timer code 0 is 655.36 ms.
            c.nak(got.at_psn(), 0x20)?;
            c.wait_calm()?;
            c.post(WrOp::Send, 8)?;
            match c.next(c.calm())? {
                // On a busy machine the timer may have run out already. Then the refused SEND comes first, which is right.
                Some(next) if next.psn != got.psn => {
                    broken(format!("{} left while the timer ran", next.summary()))
                }
                _ => Ok(()),
            }
        },
    ),
    must("RC.RNR.COMPLETES.1", "An RNR NAK completes the requests before its PSN", "IBTA 9.7.5.2", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        let first = c.post(WrOp::RdmaWrite { remote_addr: 0x10, rkey: 1 }, 8)?;
        let second = c.post(WrOp::Send, 8)?;
        c.request(Packet::of(op::WRITE_ONLY))?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        c.msn = 1;
        c.nak(got.psn.unwrap_or(0), 0x2c)?;
        c.done(Kind::Send, first)?;
        c.rx(Packet::of(op::SEND_ONLY).psn(got.psn.unwrap_or(0)))?;
        c.ack(got.psn.unwrap_or(0))?;
        c.done(Kind::Send, second).map(|_| ())
    }),
];
