//! How a requester takes NAKs (IBTA vol. 1, 9.7.5.2 and 9.9.2).

use crate::{
    bench::Bench,
    case::{Case, Outcome, broken, check, must, named, same, template},
    conn::{Came, Conn},
    dut::{Kind, State, WrOp},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    let naks = [
        (0x61, "61", "invalid request"),
        (0x62, "62", "remote access error"),
        (0x63, "63", "remote operation error"),
    ];
    let members = named(naks);
    all.extend(SEND.family(members.clone(), |b, code| ends(b, code, 0)));
    all.extend(WRITE.family(members.clone(), |b, code| ends(b, code, 1)));
    all.extend(READ.family(members.clone(), |b, code| ends(b, code, 2)));
    all.extend(ATOMIC.family(members, |b, code| ends(b, code, 3)));
    all.extend_from_slice(CASES);
}

const SOURCE: &str = "IBTA 9.9.2.4.2, table 59";
const SEND: Case =
    must("RC.NAK.SEND", "The NAK \"{}\" of a SEND ends it with the status of that name", SOURCE, template);
const WRITE: Case =
    must("RC.NAK.WRITE", "The NAK \"{}\" of a WRITE ends it with the status of that name", SOURCE, template);
const READ: Case =
    must("RC.NAK.READ", "The NAK \"{}\" of a READ ends it with the status of that name", SOURCE, template);
const ATOMIC: Case = must(
    "RC.NAK.ATOMIC",
    "The NAK \"{}\" of an atomic ends it with the status of that name",
    SOURCE,
    template,
);

/// Posts one of four kinds of request.
fn post(c: &mut Conn, which: u32) -> Outcome<u64> {
    let (remote_addr, rkey) = (0x1000, 0x77);
    let op = match which {
        0 => WrOp::Send,
        1 => WrOp::RdmaWrite { remote_addr, rkey },
        2 => WrOp::RdmaRead { remote_addr, rkey },
        _ => WrOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
    };
    c.post(op, 8)
}

fn ends(b: &mut Bench, code: u32, which: u32) -> Outcome {
    let mut c = b.rc()?;
    let wr = post(&mut c, which)?;
    let later = c.post(WrOp::Send, 8)?;
    let got = c.request(Packet::default())?;
    let status = ["REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR"][code as usize - 0x61];
    c.nak(got.psn.unwrap_or(0), code as u8)?;
    c.failed(Kind::Send, wr, status)?;
    c.failed(Kind::Send, later, "WR_FLUSH_ERR")?;
    c.in_state(State::Err)
}

/// The device sends two messages. We refuse the second, so the first succeeds. Returns the work request's ID of the second and
/// its PSN.
fn second_refused(c: &mut Conn, syndrome: u8) -> Outcome<(u64, u32)> {
    let first = c.post(WrOp::Send, 8)?;
    let second = c.post(WrOp::Send, 8)?;
    c.request(Packet::of(op::SEND_ONLY))?;
    let psn = c.request(Packet::of(op::SEND_ONLY))?.at_psn();
    c.msn = 1;
    c.nak(psn, syndrome)?;
    c.done(Kind::Send, first)?;
    Ok((second, psn))
}

const CASES: &[Case] = &[
    must(
        "RC.NAK.SEQ.1",
        "A PSN sequence NAK has the requester go back to the PSN in it",
        "IBTA 9.7.5.2.1, 9.7.6.2.2",
        |b| {
            let mut c = b.rc()?;
            let wr = c.post(WrOp::Send, 2500)?;
            let first = c.request(Packet::of(op::SEND_FIRST))?;
            let middle = c.request(Packet::of(op::SEND_MIDDLE))?;
            c.request(Packet::of(op::SEND_LAST))?;
            c.nak(middle.psn.unwrap_or(0), 0x60)?;
            c.expected = middle.psn.unwrap_or(0);
            c.request(Packet::of(op::SEND_MIDDLE))?;
            let last = c.request(Packet::of(op::SEND_LAST))?;
            same("the last PSN", last.psn, first.psn.map(|psn| psn + 2))?;
            c.ack(last.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    must("RC.NAK.SEQ.2", "What is sent again is what was sent before", "IBTA 9.7.5.1.1", |b| {
        let mut c = b.rc()?;
        c.set_local(0, &crate::conn::pattern(6, 100))?;
        c.post(WrOp::RdmaWriteWithImm { remote_addr: 0x5000, rkey: 0x99, imm: 0x0102_0304 }, 100)?;
        let got = c.request(Packet::of(op::WRITE_ONLY_IMM))?;
        let psn = got.psn.unwrap_or(0);
        c.post_recv(8)?;
        c.nak(psn, 0x60)?;
        let expected = Packet { ident: None, sport: None, ack_req: None, ..got.packet };
        c.rx(expected).map(|_| ())
    }),
    must("RC.NAK.SEQ.3", "A PSN sequence NAK acknowledges all before its PSN", "IBTA 9.7.5.2.1", |b| {
        let mut c = b.rc()?;
        let (second, psn) = second_refused(&mut c, 0x60)?;
        c.rx(Packet::of(op::SEND_ONLY).psn(psn))?;
        c.ack(psn)?;
        c.done(Kind::Send, second).map(|_| ())
    }),
    must("RC.NAK.SEQ.4", "A PSN sequence NAK of a PSN that was not sent is ignored", "IBTA 9.7.6.2.3", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        let wr = c.post(WrOp::Send, 8)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        c.nak(got.psn.unwrap_or(0) + 100, 0x60)?;
        c.quiet()?;
        c.ack(got.psn.unwrap_or(0))?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must("RC.NAK.SEQ.5", "NAKs without progress use up the retries", "IBTA 9.7.5.2.1, 9.9.2.4.1", |b| {
        let mut c = b.rc_with(|o| (o.retry_cnt, o.timeout) = (2, 18))?;
        let wr = c.post(WrOp::Send, 8)?;
        let mut tries = 0;
        loop {
            // Some devices send again at once for the first NAK, and for later ones only after the timeout.
            match c.next_or_wc(Kind::Send, 4 * c.patience())? {
                Some(Came::Packet(got)) => {
                    tries += 1;
                    check(tries <= 3, || "a fourth try".into())?;
                    c.nak(got.at_psn(), 0x60)?;
                }
                Some(Came::Completion(wc)) => {
                    same("the request", wc.wr_id, wr)?;
                    same("tries", tries, 3)?;
                    return same("the status", wc.status.as_str(), "RETRY_EXC_ERR");
                }
                None => return broken(format!("no completion after {tries} tries")),
            }
        }
    })
    .slow(),
    must("RC.NAK.AFTER.1", "A NAK completes the requests before it with success", "IBTA 9.7.5.2", |b| {
        let mut c = b.rc()?;
        let (second, _) = second_refused(&mut c, 0x62)?;
        c.failed(Kind::Send, second, "REM_ACCESS_ERR").map(|_| ())
    }),
    must("RC.NAK.AFTER.2", "Nothing leaves a queue pair after a NAK that ends it", "IBTA 10.3.1.7", |b| {
        let mut c = b.rc()?;
        c.post(WrOp::Send, 8)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        c.nak(got.psn.unwrap_or(0), 0x61)?;
        c.in_state(State::Err)?;
        let wr = c.post(WrOp::Send, 8)?;
        c.wc(Kind::Send)?;
        c.failed(Kind::Send, wr, "WR_FLUSH_ERR")?;
        c.quiet()
    }),
    must(
        "RC.NAK.AFTER.3",
        "A NAK inside a message of many packets ends the whole message once",
        "IBTA 9.7.5.2",
        |b| {
            let mut c = b.rc()?;
            let wr = c.post(WrOp::Send, 3000)?;
            c.request(Packet::of(op::SEND_FIRST))?;
            let got = c.request(Packet::of(op::SEND_MIDDLE))?;
            c.nak(got.psn.unwrap_or(0), 0x61)?;
            c.failed(Kind::Send, wr, "REM_INV_REQ_ERR")?;
            c.nothing_done(Kind::Send)
        },
    ),
    must(
        "RC.NAK.AFTER.4",
        "A failed request completes although it was posted without the signaled flag",
        "IBTA 10.8.6",
        |b| {
            let mut c = b.rc()?;
            let wr = c.post_with(WrOp::Send, 8, &[])?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.nak(got.psn.unwrap_or(0), 0x62)?;
            c.failed(Kind::Send, wr, "REM_ACCESS_ERR").map(|_| ())
        },
    ),
    must(
        "RC.NAK.AFTER.5",
        "Receives of a queue pair that a NAK has ended are flushed",
        "IBTA 10.3.1.7",
        |b| {
            let mut c = b.rc()?;
            let posted = c.post_recv(64)?;
            c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.nak(got.psn.unwrap_or(0), 0x62)?;
            c.failed(Kind::Recv, posted.wr_id, "WR_FLUSH_ERR").map(|_| ())
        },
    ),
    must(
        "RC.NAK.OLD.1",
        "A NAK of a request that is acknowledged already is ignored",
        "IBTA 9.7.6.2.1",
        |b| {
            let mut c = b.rc()?;
            let wr = c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.ack(got.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr)?;
            c.nak(got.psn.unwrap_or(0), 0x62)?;
            let wr = c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.ack(got.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
];
