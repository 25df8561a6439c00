//! Queue pairs and their queues: states, flushing, draining, shared receive queues, events; many at once; XRC and congestion.

use crate::{
    bench::Bench,
    case::{Case, Fail, Outcome, broken, check, may, must, same, should},
    conn::{Conn, pattern},
    dut::{Attrs, Change, Feature, Kind, Service, State, WrOp},
    wire::{MASK24, Packet, op},
};
use std::time::Duration;

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend_from_slice(STATES);
    all.extend_from_slice(COMPLETIONS);
    all.extend_from_slice(SHARED);
    all.extend_from_slice(MANY);
    all.extend(XRC.iter().cloned().map(|case| case.needs(&[Feature::Xrc])));
    all.extend_from_slice(CONGESTION);
}

/// The device refuses this call. A device that is gone has refused nothing.
fn not_allowed(outcome: Outcome) -> Outcome {
    match outcome {
        Ok(()) => broken("it was allowed"),
        Err(Fail::Broken(_)) => Ok(()),
        Err(other) => Err(other),
    }
}

/// A change to SQD that asks for the event SQ_DRAINED.
fn sqd() -> Change {
    Change { state: Some(State::Sqd), attrs: Attrs { en_sqd_async_notify: Some(1), ..Attrs::default() } }
}

const COMPLETIONS: &[Case] = &[
    must(
        "QP.CQ.OVERFLOW",
        "A completion queue that overflows is in error: its program is told of CQ_ERR",
        "IBTA 10.8.4.1, 11.6.3.2",
        |b| {
            let mut c = b.rc_with(|o| (o.cqe, o.timeout) = (2, 0))?;
            let mut last = 0;
            for _ in 0..60 {
                c.post(WrOp::Send, 0)?;
                last = c.request(Packet::of(op::SEND_ONLY))?.at_psn();
            }
            c.ack(last)?;
            c.event("CQ_ERR")
        },
    )
    .needs(&[Feature::BoundedCq]),
    // No should: ibv_poll_cq(3) has the flag "valid only for UD", so no program may read it here. Kernel rxe sets it in each
    // receive completion, and so does our drop-in, which programs written on kernel rxe are to find no different.
    may(
        "QP.WC.GRH",
        "A completion of a connection does not tell of a GRH in front of the message",
        "IBTA 11.4.2.1; ibv_poll_cq(3)",
        |b| {
            let mut c = b.rc()?;
            let posted = c.post_recv(64)?;
            c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 8]))?;
            let Some(flags) = c.done(Kind::Recv, posted.wr_id)?.wc_flags else {
                return Err(Fail::Skip("the device tells no flags".into()));
            };
            check(!flags.iter().any(|flag| flag == "GRH"), || format!("the flags are {flags:?}"))
        },
    ),
];

const STATES: &[Case] = &[
    must(
        "QP.FLUSH.1",
        "Requests of a queue pair that goes to ERR are flushed in the order of posting",
        "IBTA 10.3.1.7",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let wrs = [c.post(WrOp::Send, 8)?, c.post(WrOp::Send, 8)?, c.post(WrOp::Send, 8)?];
            c.request(Packet::of(op::SEND_ONLY))?;
            c.modify(&Change::to(State::Err))?;
            for wr in wrs {
                c.failed(Kind::Send, wr, "WR_FLUSH_ERR")?;
            }
            Ok(())
        },
    ),
    must(
        "QP.FLUSH.2",
        "Receives of a queue pair that goes to ERR are flushed in the order of posting",
        "IBTA 10.3.1.7",
        |b| {
            let mut c = b.rc()?;
            let posted = [c.post_recv(8)?, c.post_recv(8)?, c.post_recv(8)?];
            c.modify(&Change::to(State::Err))?;
            for one in posted {
                c.failed(Kind::Recv, one.wr_id, "WR_FLUSH_ERR")?;
            }
            Ok(())
        },
    ),
    must("QP.FLUSH.3", "What is posted in ERR is flushed, too", "IBTA 10.3.1.7", |b| {
        let mut c = b.rc()?;
        c.modify(&Change::to(State::Err))?;
        let posted = c.post_recv(8)?;
        c.failed(Kind::Recv, posted.wr_id, "WR_FLUSH_ERR")?;
        let wr = c.post(WrOp::Send, 8)?;
        c.failed(Kind::Send, wr, "WR_FLUSH_ERR").map(|_| ())
    }),
    must(
        "QP.FLUSH.4",
        "Requests without the signaled flag are flushed with completions",
        "IBTA 10.8.6",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let wr = c.post_with(WrOp::Send, 8, &[])?;
            c.request(Packet::of(op::SEND_ONLY))?;
            c.modify(&Change::to(State::Err))?;
            c.failed(Kind::Send, wr, "WR_FLUSH_ERR").map(|_| ())
        },
    ),
    must("QP.SIGNAL.1", "A request without the signaled flag completes without a word", "IBTA 10.8.6", |b| {
        let mut c = b.rc()?;
        c.post_with(WrOp::Send, 8, &[])?;
        let wr = c.post(WrOp::Send, 8)?;
        c.request(Packet::of(op::SEND_ONLY))?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        c.msn = 1;
        c.ack(got.at_psn())?;
        c.done(Kind::Send, wr)?;
        c.nothing_done(Kind::Send)
    }),
    must(
        "QP.RESET.1",
        "A queue pair that is reset forgets its requests without completions",
        "IBTA 10.3.1.1",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            c.post_recv(8)?;
            c.post(WrOp::Send, 8)?;
            c.request(Packet::of(op::SEND_ONLY))?;
            c.modify(&Change::to(State::Reset))?;
            c.nothing_done(Kind::Send)?;
            c.nothing_done(Kind::Recv)
        },
    ),
    must(
        "QP.SQD.1",
        "A queue pair in SQD finishes what is under way and starts nothing new",
        "IBTA 10.3.1.5",
        |b| {
            let mut c = b.rc_with(|o| o.timeout = 0)?;
            let first = c.post(WrOp::Send, 8)?;
            let got = c.request(Packet::of(op::SEND_ONLY))?;
            c.modify(&sqd())?;
            c.post(WrOp::Send, 8)?;
            c.quiet()?;
            c.ack(got.at_psn())?;
            c.done(Kind::Send, first)?;
            c.event("SQ_DRAINED")?;
            c.quiet()?;
            c.modify(&Change::to(State::Rts))?;
            c.request(Packet::of(op::SEND_ONLY)).map(|_| ())
        },
    ),
    must("QP.SQD.2", "A queue pair in SQD with nothing under way is drained at once", "IBTA 10.3.1.5", |b| {
        let mut c = b.rc()?;
        c.modify(&sqd())?;
        c.event("SQ_DRAINED")
    }),
    must("QP.SQD.3", "A queue pair in SQD goes on answering", "IBTA 10.3.1.5", |b| {
        let mut c = b.rc()?;
        c.modify(&sqd())?;
        c.alive().map(|_| ())
    }),
    must("QP.MODIFY.1", "RESET does not lead to RTS in one step", "IBTA 10.3.1, table 91", |b| {
        let mut c = b.rc_with(|o| o.upto = State::Reset)?;
        not_allowed(c.step(State::Rts))
    }),
    must(
        "QP.MODIFY.2",
        "A step to RTR without its attributes is refused, and changes nothing",
        "IBTA 11.2.5.2",
        |b| {
            let mut c = b.rc_with(|o| o.upto = State::Init)?;
            not_allowed(c.modify(&Change::to(State::Rtr)))?;
            same("the state", c.state()?, State::Init)
        },
    ),
    must("QP.MODIFY.3", "ERR leads nowhere but to RESET", "IBTA 10.3.1", |b| {
        let mut c = b.rc()?;
        c.modify(&Change::to(State::Err))?;
        not_allowed(c.step(State::Rts))?;
        c.modify(&Change::to(State::Reset))
    }),
    should("QP.EVENT.REQUEST", "An invalid request is told by an asynchronous event", "IBTA 11.6.3.2", |b| {
        let mut c = b.rc()?;
        c.tx(Packet::of(op::SEND_LAST).data(vec![1; 4]).ask())?;
        c.event("QP_REQ_ERR")
    }),
    should("QP.EVENT.ACCESS", "A refused access is told by an asynchronous event", "IBTA 11.6.3.2", |b| {
        let mut c = b.rc()?;
        c.tx(c.write(0, &[1; 4]).rkey(0x7700_1234))?;
        c.event("QP_ACCESS_ERR")
    }),
    should(
        "QP.EVENT.ESTABLISHED",
        "The first packet in RTR is told by an asynchronous event",
        "IBTA 11.6.3.1",
        |b| {
            let mut c = b.rc_with(|o| o.upto = State::Rtr)?;
            c.alive()?;
            c.event("COMM_EST")
        },
    ),
];

const SRQ: &[Feature] = &[Feature::Srq];

const SHARED: &[Case] = &[
    must(
        "SRQ.ORDER.1",
        "Receives of a shared queue are taken in the order of posting, by whoever comes first",
        "IBTA 10.2.9.1",
        |b| {
            let mut one = b.rc_with(|o| o.srq = true)?;
            let mut two = one.sibling()?;
            let (first, second) = (one.post_recv(64)?, one.post_recv(64)?);
            let psn = two.tx(Packet::of(op::SEND_ONLY).data(pattern(2, 8)).ask())?;
            two.acked(psn)?;
            let psn = one.tx(Packet::of(op::SEND_ONLY).data(pattern(1, 8)).ask())?;
            one.acked(psn)?;
            same("qp_num", one.done(Kind::Recv, first.wr_id)?.qp_num, two.qp.qpn)?;
            same("qp_num", one.done(Kind::Recv, second.wr_id)?.qp_num, one.qp.qpn)?;
            one.received(first.offset, &pattern(2, 8))
        },
    )
    .needs(SRQ),
    must("SRQ.LIMIT.1", "The limit event comes once, when fewer receives are left", "IBTA 10.2.9.2", |b| {
        let mut c = b.rc_with(|o| o.srq = true)?;
        let posted: Vec<_> = (0..3).map(|_| c.post_recv(16)).collect::<Result<_, _>>()?;
        let srq = c.objects.srq.unwrap_or(0);
        c.world.borrow_mut().dut.srq_limit(srq, 2)?;
        for one in &posted {
            let psn = c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 4]).ask())?;
            c.acked(psn)?;
            c.done(Kind::Recv, one.wr_id)?;
        }
        c.event("SRQ_LIMIT_REACHED")?;
        let more = c.world.borrow_mut().dut.async_event()?;
        same("the next event", more, None)
    })
    .needs(SRQ),
    must(
        "SRQ.LAST.1",
        "A queue pair in ERR says when it has taken its last receive",
        "IBTA 11.6.3.1 last WQE reached",
        |b| {
            let mut c = b.rc_with(|o| o.srq = true)?;
            c.post_recv(16)?;
            c.modify(&Change::to(State::Err))?;
            c.event("QP_LAST_WQE_REACHED")
        },
    )
    .needs(SRQ),
    must(
        "SRQ.ERROR.1",
        "A queue pair in ERR leaves the receives of a shared queue to the others",
        "IBTA 10.2.9.5",
        |b| {
            let mut one = b.rc_with(|o| o.srq = true)?;
            let mut two = one.sibling()?;
            let posted = one.post_recv(64)?;
            one.modify(&Change::to(State::Err))?;
            let psn = two.tx(Packet::of(op::SEND_ONLY).data(pattern(2, 8)).ask())?;
            two.acked(psn)?;
            two.done(Kind::Recv, posted.wr_id).map(|_| ())
        },
    )
    .needs(SRQ),
];

/// Opens `count` connections with the same memory.
fn crowd(b: &mut Bench, count: usize) -> Outcome<Vec<Conn>> {
    let first = b.rc_with(|o| (o.timeout, o.retry_cnt) = (18, 7))?;
    let mut all = Vec::with_capacity(count);
    for _ in 1..count {
        all.push(first.sibling()?);
    }
    all.insert(0, first);
    Ok(all)
}

/// How often a busy device may send a packet again before it has taken the answer.
const MOST_AGAIN: usize = 8;

/// Takes the next packet of a SEND and acknowledges it. On a busy machine the device may send the packets before it again, since
/// it has not yet taken their answers: those are passed over.
fn fresh(c: &mut Conn, code: u8) -> Outcome {
    let due = c.expected;
    let mut got = c.rx(Packet::default())?;
    for _ in 0..MOST_AGAIN {
        if due.wrapping_sub(got.at_psn()) & MASK24 > 2 || got.at_psn() == due {
            break;
        }
        got = c.rx(Packet::default())?;
    }
    same("the PSN", got.at_psn(), due)?;
    same("the opcode", got.packet.opcode, Some(code))?;
    c.expected = (due + 1) & MASK24;
    // The first packet of a message does not complete it, so the MSN stays.
    if code == op::SEND_FIRST {
        c.respond(due, Packet::of(op::ACK).syndrome(0x1f).msn(c.msn))
    } else {
        c.ack(due)
    }
}

/// Checks, where time is exact, that less than 100 ms have passed: the device has not waited for the timeouts of the other queue
/// pairs (1 s).
fn prompt(b: &Bench, c: &Conn, start: Duration) -> Outcome {
    let took = c.now().saturating_sub(start);
    check(took < Duration::from_millis(100) || !b.has(Feature::ExactTime), || format!("it took {took:?}"))
}

const MANY: &[Case] = &[
    must("MANY.APART.1", "Queue pairs have PSNs and MSNs of their own", "IBTA 9.7.3", |b| {
        let mut all = crowd(b, 8)?;
        for round in 1..=3 {
            for c in &mut all {
                same("the MSN", c.alive()?.msn, Some(round))?;
            }
        }
        Ok(())
    }),
    must("MANY.DEAD.1", "A queue pair that was refused does not disturb the others", "IBTA 10.3.1.7", |b| {
        let mut all = crowd(b, 4)?;
        let wrong = all[0].write(0, &[1; 4]).rkey(0x7700_1234);
        let psn = all[0].tx(wrong)?;
        all[0].naked(psn, 0x62)?;
        for c in &mut all[1..] {
            c.alive()?;
        }
        Ok(())
    }),
    must(
        "MANY.SILENT.1",
        "Queue pairs that are never answered do not hold up another that is",
        "IBTA 9.7; fairness",
        |b| {
            let mut all = crowd(b, 65)?;
            let Some(mut c) = all.pop() else { return Ok(()) };
            for silent in &mut all {
                silent.post(WrOp::Send, 4096)?;
            }
            let start = c.now();
            // Messages of two packets and of one. The first message finds the packets of all silent queue pairs in front of it.
            for (len, codes) in [(2048, &[op::SEND_FIRST, op::SEND_LAST][..]), (1024, &[op::SEND_ONLY])] {
                for _ in 0..10 {
                    let wr = c.post(WrOp::Send, len)?;
                    for code in codes {
                        fresh(&mut c, *code)?;
                    }
                    c.done(Kind::Send, wr)?;
                }
            }
            prompt(b, &c, start)
        },
    )
    .needs(&[Feature::ManyQps]),
    must(
        "MANY.SILENT.2",
        "READs that are never answered do not hold up another queue pair's",
        "IBTA 9.7; fairness",
        |b| {
            let mut all = crowd(b, 33)?;
            let Some(mut c) = all.pop() else { return Ok(()) };
            for silent in &mut all {
                silent.post(WrOp::RdmaRead { remote_addr: 0x4000, rkey: 0x42 }, 30_000)?;
            }
            let start = c.now();
            for _ in 0..10 {
                let wr = c.post(WrOp::RdmaRead { remote_addr: 0x4000, rkey: 0x42 }, 8192)?;
                let mut taken = 0;
                // A device may split the READ into several requests.
                while taken < 8192 {
                    let got = c.request(Packet::of(op::READ_REQUEST))?;
                    let piece = got.dma_len.unwrap_or(8192) as usize;
                    c.answer_read(got.at_psn(), &vec![1; piece])?;
                    taken += piece.max(1);
                }
                c.done(Kind::Send, wr)?;
            }
            prompt(b, &c, start)
        },
    )
    .needs(&[Feature::ManyQps]),
    must(
        "MANY.RNR.1",
        "A queue pair that waits for an RNR timer does not hold up another",
        "IBTA 9.7.5.2.8; fairness",
        |b| {
            let mut all = crowd(b, 2)?;
            all[0].post(WrOp::Send, 8)?;
            let got = all[0].request(Packet::of(op::SEND_ONLY))?;
            // Timer code 31 is 491.52 ms.
            all[0].nak(got.at_psn(), 0x3f)?;
            let start = all[1].now();
            for _ in 0..5 {
                let c = &mut all[1];
                let wr = c.post(WrOp::Send, 8)?;
                let got = c.request(Packet::of(op::SEND_ONLY))?;
                c.ack(got.at_psn())?;
                c.done(Kind::Send, wr)?;
            }
            let took = all[1].now() - start;
            check(took < Duration::from_millis(450) || !b.has(Feature::ExactTime), || {
                format!("it took {took:?}")
            })
        },
    ),
    must(
        "MANY.LONG.1",
        "A long READ of one queue pair does not keep another from its answers",
        "fairness",
        |b| {
            let mut all = crowd(b, 2)?;
            let long = all[0].read(0, 32 << 10);
            all[0].tx(long)?;
            all[1].alive().map(|_| ())
        },
    ),
    must(
        "MANY.DESTROY.1",
        "A queue pair destroyed under way leaves the others as they are",
        "IBTA 10.2.4.4",
        |b| {
            let mut all = crowd(b, 3)?;
            all[0].post(WrOp::Send, 4096)?;
            let handle = all[0].qp.handle;
            b.world.borrow_mut().dut.close(handle)?;
            for c in &mut all[1..] {
                c.alive()?;
            }
            Ok(())
        },
    ),
];

fn xrc(b: &mut Bench) -> Outcome<Conn> {
    b.rc_with(|o| o.service = Service::XrcTarget)
}

const XRC: &[Case] = &[
    must("XRC.SEND.1", "A SEND lands in the shared receive queue that it names", "IBTA A14.3", |b| {
        let mut c = xrc(b)?;
        let posted = c.post_recv(64)?;
        let psn = c.tx(Packet::of(op::SEND_ONLY).data(pattern(1, 8)).ask())?;
        c.acked(psn)?;
        c.done(Kind::Recv, posted.wr_id)?;
        c.received(posted.offset, &pattern(1, 8))
    }),
    must(
        "XRC.SEND.2",
        "A SEND that names no shared receive queue is an invalid request",
        "IBTA A14.3",
        |b| {
            let mut c = xrc(b)?;
            c.post_recv(64)?;
            let psn = c.tx(Packet::of(op::SEND_ONLY).xrc_srq(0xabcd).data(vec![1; 8]).ask())?;
            c.naked(psn, 0x61)?;
            c.nothing_done(Kind::Recv)
        },
    ),
    must(
        "XRC.SEND.3",
        "A SEND to an empty shared receive queue is answered by an RNR NAK",
        "IBTA A14.3",
        |b| {
            let mut c = xrc(b)?;
            let psn = c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 8]).ask())?;
            c.naked(psn, 0x2c).map(|_| ())
        },
    ),
    must("XRC.WRITE.1", "A WRITE to the named queue's domain is executed", "IBTA A14.3", |b| {
        let mut c = xrc(b)?;
        let psn = c.tx(c.write(0, &[7; 8]))?;
        c.acked(psn)?;
        c.holds(0, &[7; 8])
    }),
    must("XRC.READ.1", "A READ is answered with the service's opcodes", "IBTA A14.3", |b| {
        let mut c = xrc(b)?;
        c.tx(c.read(0, 8))?;
        c.rx(Packet::of(op::READ_ONLY)).map(|_| ())
    }),
    must("XRC.SERVICE.1", "A packet of the plain reliable service is dropped", "IBTA A14.3", |b| {
        let mut c = xrc(b)?;
        let psn = c.psn;
        let packet = c.write(0, &[7; 8]).dest_qp(c.qp.qpn).psn(psn);
        c.world.borrow_mut().send(&packet)?;
        c.alive()?;
        c.holds(0, &[0; 8])
    }),
];

const CONGESTION: &[Case] = &[
    may("CNP.SENT.1", "A packet marked by a router is told to its sender by a CNP", "IBTA A17.9.2", |b| {
        let mut c = b.rc()?;
        let psn = c.tx(c.write(0, &[1; 8]).tos(0x03))?;
        c.acked(psn)?;
        c.wait_calm()?;
        let count = c.world.borrow().notified.len();
        check(count == 1, || format!("{count} CNPs came"))
    }),
    must(
        "CNP.SENT.2",
        "A CNP has opcode 0x81, BECN, 16 zero bytes and the sender's queue pair",
        "IBTA A17.9.3",
        |b| {
            let mut c = b.rc()?;
            let psn = c.tx(c.write(0, &[1; 8]).tos(0x03))?;
            c.acked(psn)?;
            c.wait_calm()?;
            let world = c.world.borrow();
            let Some(cnp) = world.notified.first() else {
                return Err(Fail::Skip("it sends none".into()));
            };
            let expected = Packet::of(op::CNP).becn(true).data(vec![0; 16]).dest_qp(c.qpn).ack_req(false);
            let wrong = expected.mismatches(&cnp.packet);
            check(wrong.is_empty(), || format!("{wrong:?}"))
        },
    ),
    must("CNP.SENT.3", "Packets that no router has marked bring no CNP", "IBTA A17.9.2", |b| {
        let mut c = b.rc()?;
        for tos in [0, 1, 2] {
            let psn = c.tx(c.write(0, &[1; 8]).tos(tos))?;
            c.acked(psn)?;
        }
        c.wait_calm()?;
        same("CNPs", c.world.borrow().notified.len(), 0)
    }),
    must("CNP.TAKEN.1", "A CNP changes nothing but the pace", "IBTA A17.9.4", |b| {
        let mut c = b.rc()?;
        let wr = c.post(WrOp::Send, 2000)?;
        c.raw(Packet::of(op::CNP).becn(true).migreq(false).psn(0).data(vec![0; 16]))?;
        c.request(Packet::of(op::SEND_FIRST))?;
        let got = c.request(Packet::of(op::SEND_LAST))?;
        c.ack(got.at_psn())?;
        c.done(Kind::Send, wr)?;
        c.alive().map(|_| ())
    }),
    must("CNP.TAKEN.2", "A CNP for a queue pair that does not exist is dropped", "IBTA A17.9.4", |b| {
        let mut c = b.rc()?;
        c.raw(
            Packet::of(op::CNP).becn(true).migreq(false).psn(0).dest_qp(c.qp.qpn ^ 0x10).data(vec![0; 16]),
        )?;
        c.alive().map(|_| ())
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_gone_has_refused_nothing() {
        assert!(not_allowed(Err(Fail::Broken("EINVAL".into()))).is_ok());
        assert!(matches!(not_allowed(Err(Fail::Gone("no agent".into()))), Err(Fail::Gone(_))));
        assert!(matches!(not_allowed(Err(Fail::Skip("no such call".into()))), Err(Fail::Skip(_))));
        assert!(matches!(not_allowed(Ok(())), Err(Fail::Broken(_))));
    }
}
