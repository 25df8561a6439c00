//! Acknowledgements: when they are sent, what they count, and how a requester takes them (IBTA vol. 1, 9.7.5.1 and 9.7.6).

use crate::{
    case::{Case, Outcome, broken, check, may, must, same, should},
    conn::{Conn, pattern},
    dut::{Feature, Kind, WrOp},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend_from_slice(SENT);
    all.extend_from_slice(COUNTED);
    all.extend_from_slice(TAKEN);
}

/// A WRITE of two packets, of which the first asks for an acknowledgement too: the MSN counts only whole messages.
fn first_asks(c: &mut Conn) -> Outcome {
    let (va, rkey) = c.at(0);
    let psn = c.tx(Packet::of(op::WRITE_FIRST).reth(va, rkey, 2048).data(pattern(1, 1024)).ask())?;
    let ack = c.acked(psn)?;
    same("the MSN inside the message", ack.msn, Some(0))?;
    let psn = c.tx(Packet::of(op::WRITE_LAST).data(pattern(2, 1024)).ask())?;
    let ack = c.acked(psn)?;
    same("the MSN behind the message", ack.msn, Some(1))
}

const SENT: &[Case] = &[
    must("RC.ACK.ASKED.1", "A request that asks is acknowledged", "IBTA 9.7.5.1.1", |b| {
        let mut c = b.rc()?;
        let psn = c.tx(c.write(0, &[1; 4]))?;
        c.acked(psn).map(|_| ())
    }),
    must(
        "RC.ACK.ASKED.2",
        "A packet inside a message that asks is acknowledged before the message ends",
        "IBTA 9.7.5.1.1; ConnectX",
        |b| first_asks(&mut b.rc()?),
    ),
    must(
        "RC.ACK.ASKED.3",
        "An acknowledgement of a later request covers those before it that did not ask",
        "IBTA 9.7.5.1.2",
        |b| {
            let mut c = b.rc()?;
            for n in 0..3 {
                c.tx(Packet { ack_req: None, ..c.write(8 * n, &[n as u8 + 1; 8]) })?;
            }
            let last = c.tx(c.write(24, &[4; 8]))?;
            same("the MSN", c.acked(last)?.msn, Some(4))?;
            c.holds(16, &[3; 8])
        },
    ),
    must("RC.ACK.ORDER.1", "Answers leave in the order of the requests", "IBTA 9.7.5.1.9", |b| {
        let mut c = b.rc()?;
        let write = c.tx(c.write(0, &[1; 8]))?;
        let read = c.tx(c.read(0, 2000))?;
        let add = c.tx(c.fetch_add(8, 1))?;
        let last = c.tx(c.write(16, &[1; 8]))?;
        let mut got = c.rx(Packet::default())?;
        if got.psn == Some(write) && got.opcode == Some(op::ACK) {
            got = c.rx(Packet::default())?;
        }
        same("the first answer", (got.opcode, got.psn), (Some(op::READ_FIRST), Some(read)))?;
        c.rx(Packet::of(op::READ_LAST).psn(read + 1))?;
        c.rx(Packet::of(op::ATOMIC_ACK).psn(add))?;
        c.acked(last).map(|_| ())
    }),
    // The specification promises this order only with a fence.
    may(
        "RC.ACK.ORDER.2",
        "A WRITE behind a READ without a fence does not change what the READ brings",
        "IBTA 9.5, table 79",
        |b| {
            let mut c = b.rc()?;
            c.set(0, &pattern(1, 2048))?;
            c.tx(c.read(0, 2048))?;
            let last = c.tx(c.write(0, &[0; 1024]))?;
            let first = c.rx(Packet::of(op::READ_FIRST))?;
            let second = c.rx(Packet::of(op::READ_LAST))?;
            c.acked(last)?;
            let whole =
                [first.packet.data.unwrap_or_default(), second.packet.data.unwrap_or_default()].concat();
            check(whole == pattern(1, 2048), || "the READ brought bytes of the later WRITE".into())
        },
    ),
    must("RC.ACK.ORDER.3", "A READ behind a WRITE brings what was written", "IBTA 9.5, table 79", |b| {
        let mut c = b.rc()?;
        c.tx(Packet { ack_req: None, ..c.write(0, &pattern(3, 100)) })?;
        let read = c.tx(c.read(0, 100))?;
        let mut got = c.rx(Packet::default())?;
        if got.opcode == Some(op::ACK) {
            got = c.rx(Packet::default())?;
        }
        same("the answer", (got.opcode, got.psn), (Some(op::READ_ONLY), Some(read)))?;
        check(got.data == Some(pattern(3, 100)), || "the READ brought older bytes".into())
    }),
    must(
        "RC.ACK.CREDITS.1",
        "The syndrome of an acknowledgement is an ACK with a credit code",
        "IBTA 9.7.5.1, table 45",
        |b| {
            let mut c = b.rc()?;
            c.post_recv(64)?;
            let got = c.alive()?;
            check(got.syndrome.is_some_and(|code| code <= 0x1f), || format!("syndrome {:?}", got.syndrome))
        },
    ),
    must(
        "RC.ACK.CREDITS.2",
        "A responder with a shared receive queue says that it has no credits to give",
        "IBTA 10.2.9.4",
        |b| {
            let mut c = b.rc_with(|o| o.srq = true)?;
            let got = c.alive()?;
            same("the syndrome", got.syndrome, Some(0x1f))
        },
    )
    .needs(&[Feature::Srq]),
    must("RC.ACK.CREDITS.3", "Credits never promise a receive that is not posted", "IBTA 9.7.7.2", |b| {
        let mut c = b.rc()?;
        for posted in 0..3_u8 {
            let got = c.alive()?;
            let code = got.syndrome.unwrap_or(0);
            check(code == 0x1f || code <= posted, || format!("credit code {code} with {posted} receives"))?;
            c.post_recv(64)?;
        }
        Ok(())
    }),
];

/// Sends a request of one packet and returns the MSN of its acknowledgement.
fn counted(c: &mut Conn, packet: Packet) -> Outcome<u32> {
    let psn = c.tx(packet)?;
    let got = c.rx(Packet::default().psn(psn))?;
    got.msn.map_or_else(|| broken("an answer without MSN"), Ok)
}

const COUNTED: &[Case] = &[
    must("RC.MSN.1", "The MSN of a new connection counts from 0", "IBTA 9.7.7.1", |b| {
        let mut c = b.rc()?;
        same("the MSN behind the first message", c.alive()?.msn, Some(1))
    }),
    must("RC.MSN.2", "SEND, WRITE, READ and atomics count one each", "IBTA 9.7.7.1", |b| {
        let mut c = b.rc()?;
        c.post_recv(64)?;
        let list = [
            Packet::of(op::SEND_ONLY).data(vec![1; 4]).ask(),
            c.write(0, &[1; 4]),
            c.read(0, 8),
            c.fetch_add(8, 1),
            c.compare_swap(8, 1, 2),
        ];
        for (number, packet) in (1..).zip(list) {
            same("the MSN", counted(&mut c, packet)?, number)?;
        }
        Ok(())
    }),
    must("RC.MSN.3", "A message of many packets counts once, at its end", "IBTA 9.7.7.1", |b| {
        first_asks(&mut b.rc()?)
    }),
    must("RC.MSN.4", "A READ counts with its first response, and all of them say so", "IBTA 9.7.7.1", |b| {
        let mut c = b.rc()?;
        c.tx(c.read(0, 3000))?;
        same("the MSN of the first", c.rx(Packet::of(op::READ_FIRST))?.msn, Some(1))?;
        c.rx(Packet::of(op::READ_MIDDLE))?;
        same("the MSN of the last", c.rx(Packet::of(op::READ_LAST))?.msn, Some(1))?;
        same("the MSN behind", c.alive()?.msn, Some(2))
    }),
    must("RC.MSN.5", "A refused request does not count", "IBTA 9.7.7.1", |b| {
        let mut c = b.rc()?;
        c.alive()?;
        let psn = c.tx(Packet { rkey: Some(c.objects.target.rkey ^ 0xff00), ..c.write(0, &[1; 4]) })?;
        let nak = c.naked(psn, 0x62)?;
        same("the MSN", nak.msn, Some(1))
    }),
];

const TAKEN: &[Case] = &[
    must("RC.ACK.TAKEN.1", "An acknowledgement completes the request", "IBTA 9.7.6", |b| {
        let mut c = b.rc()?;
        let wr = c.post(WrOp::Send, 8)?;
        let got = c.request(Packet::of(op::SEND_ONLY).ack_req(true))?;
        c.nothing_done(Kind::Send)?;
        c.ack(got.psn.unwrap_or(0))?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must(
        "RC.ACK.TAKEN.2",
        "One acknowledgement completes all requests before it",
        "IBTA 9.7.6, 9.7.5.1.2",
        |b| {
            let mut c = b.rc()?;
            let wrs = [c.post(WrOp::Send, 8)?, c.post(WrOp::Send, 8)?, c.post(WrOp::Send, 8)?];
            for _ in wrs {
                c.request(Packet::of(op::SEND_ONLY))?;
            }
            c.msn = 2;
            c.ack(c.expected - 1)?;
            for wr in wrs {
                c.done(Kind::Send, wr)?;
            }
            Ok(())
        },
    ),
    must("RC.ACK.TAKEN.3", "An acknowledgement inside a message does not complete it", "IBTA 9.7.6", |b| {
        let mut c = b.rc()?;
        let wr = c.post(WrOp::Send, 2000)?;
        let first = c.request(Packet::of(op::SEND_FIRST))?;
        let last = c.request(Packet::of(op::SEND_LAST))?;
        c.respond(first.psn.unwrap_or(0), Packet::of(op::ACK).msn(0))?;
        c.nothing_done(Kind::Send)?;
        c.ack(last.psn.unwrap_or(0))?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must(
        "RC.ACK.TAKEN.4",
        "An acknowledgement of a PSN that was not sent is ignored",
        "IBTA 9.7.6.2.3",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let wr = c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.respond(got.psn.unwrap_or(0) + 5, Packet::of(op::ACK).msn(1))?;
            c.nothing_done(Kind::Send)?;
            c.ack(got.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    must("RC.ACK.TAKEN.5", "An acknowledgement that comes twice changes nothing", "IBTA 9.7.6.2.1", |b| {
        let mut c = b.rc()?;
        let wr = c.post(WrOp::Send, 8)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        c.ack(got.psn.unwrap_or(0))?;
        c.done(Kind::Send, wr)?;
        c.respond(got.psn.unwrap_or(0), Packet::of(op::ACK).msn(1))?;
        let wr = c.post(WrOp::Send, 8)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        c.ack(got.psn.unwrap_or(0))?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must(
        "RC.ACK.TAKEN.6",
        "An old acknowledgement does not complete a younger request",
        "IBTA 9.7.6.2.1",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            c.post(WrOp::Send, 8)?;
            let old = c.request(Packet::of(op::SEND_ONLY))?;
            c.ack(old.psn.unwrap_or(0))?;
            c.wc(Kind::Send)?;
            let wr = c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.respond(old.psn.unwrap_or(0), Packet::of(op::ACK).msn(1))?;
            c.nothing_done(Kind::Send)?;
            c.ack(got.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    must(
        "RC.ACK.TAKEN.7",
        "The last packet of a message asks for an acknowledgement",
        "IBTA 9.7.5.1.2, 9.7.7",
        |b| {
            let mut c = b.rc()?;
            c.post(WrOp::Send, 1500)?;
            c.request(Packet::of(op::SEND_FIRST))?;
            c.request(Packet::of(op::SEND_LAST).ack_req(true)).map(|_| ())
        },
    ),
    must(
        "RC.ACK.TAKEN.8",
        "A request in an acknowledgement's clothes answers nothing: only responses complete",
        "IBTA 9.7.6",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let wr = c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.alive()?;
            c.nothing_done(Kind::Send)?;
            c.ack(got.psn.unwrap_or(0))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
    should(
        "RC.ACK.TAKEN.9",
        "With zero credits at most one SEND is under way beyond them",
        "IBTA 9.7.7.2.5",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.msn = 1;
            c.respond(got.psn.unwrap_or(0), Packet::of(op::ACK).syndrome(0).msn(1))?;
            c.wc(Kind::Send)?;
            for _ in 0..4 {
                c.post(WrOp::Send, 8)?;
            }
            c.request(Packet::of(op::SEND_ONLY))?;
            c.quiet()
        },
    ),
    must("RC.ACK.TAKEN.10", "Unknown credits (code 31) hold nothing back", "IBTA 9.7.7.2", |b| {
        let mut c = b.rc()?;
        c.post(WrOp::Send, 8)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        c.ack(got.psn.unwrap_or(0))?;
        for _ in 0..4 {
            c.post(WrOp::Send, 8)?;
        }
        for _ in 0..4 {
            c.request(Packet::of(op::SEND_ONLY))?;
        }
        Ok(())
    }),
];
