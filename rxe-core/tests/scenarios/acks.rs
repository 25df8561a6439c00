//! Acknowledgements: owed ones wait a little for company, never long, and are never forgotten.

use crate::bench::Bench;
use rxe_core::{
    endpoint::Acks,
    testing::{ConnectOptions, PairConfig},
    wire::Class,
    work::{SendOp, WcStatus},
};
use std::time::Duration;

/// With nothing to keep it company an acknowledgement leaves within 50 us.
#[test]
fn alone_within_fifty_microseconds() {
    let mut bench = Bench::new("ack-alone");
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 10);
    let sent = bench.wire(0)[0].at;
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    let acks = bench.wire_of(1, Class::Acknowledge);
    assert_eq!(acks.len(), 1);
    let arrived = sent + bench.pair.sides[0].link.config().latency;
    assert!(acks[0].at.since(arrived) <= Duration::from_micros(50), "{:?}", acks[0].at.since(arrived));
}

/// Asked to, it leaves at once.
#[test]
fn at_once_when_flushed() {
    let config = PairConfig { name: "ack-flush", acks: Acks::Flush, ..PairConfig::default() };
    let mut bench = Bench::with(config, ConnectOptions::default());
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 10);
    let arrival = bench.wire(0)[0].at + bench.pair.sides[0].link.config().latency;
    bench.pair.run_until_idle();
    assert_eq!(bench.wire_of(1, Class::Acknowledge)[0].at, arrival);
}

/// A reply posted at once takes the acknowledgement along, behind its data.
#[test]
fn behind_the_reply() {
    let mut bench = Bench::new("ack-reply");
    bench.recv(1, 5, 0, 100);
    bench.recv(0, 6, 0, 100);
    bench.send(0, 1, SendOp::Send, 0, 100);
    let now = bench.pair.now;
    while bench.pair.completions_waiting(1) == 0 {
        assert!(bench.pair.step(now + Duration::from_secs(1)), "the message arrives");
    }
    assert!(bench.wire(1).is_empty(), "the acknowledgement waits");
    bench.send(1, 2, SendOp::Send, 0, 100);
    let wire = bench.wire(1);
    let classes: Vec<_> = wire.iter().map(|seen| seen.class).collect();
    assert_eq!(classes, [Class::Send, Class::Acknowledge], "data first, in one go");
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.sent_statuses(1), [(2, WcStatus::Success)]);
}

/// Many messages need few acknowledgements: one may stand for all before it.
#[test]
fn one_for_many() {
    let mut bench = Bench::new("ack-coalesced");
    for wr_id in 0..100 {
        bench.send(0, wr_id, SendOp::Write(bench.remote(1, 0)), 0, 10);
    }
    bench.pair.run_until_idle();
    assert_eq!(bench.sent(0).len(), 100);
    let acks = bench.wire_of(1, Class::Acknowledge).len();
    assert!(acks <= 50, "{acks} acknowledgements for 100 messages in a row");
}

/// The last packet of every message asks for an acknowledgement: else a lost one would never be missed.
#[test]
fn the_end_of_a_message_asks() {
    let mut bench = Bench::new("ack-req");
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 100_000);
    bench.pair.run_until_idle();
    let writes = bench.wire_of(0, Class::Write);
    assert!(writes.last().is_some_and(|seen| seen.ack_req));
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
}

/// Destroying a queue pair that owes an acknowledgement does not leave its peer waiting.
#[test]
fn not_forgotten_by_destroy() {
    let mut bench = Bench::new("ack-destroy");
    bench.recv(1, 5, 0, 100);
    bench.send(0, 1, SendOp::Send, 0, 100);
    let now = bench.pair.now;
    while bench.pair.completions_waiting(1) == 0 {
        assert!(bench.pair.step(now + Duration::from_secs(1)), "the message arrives");
    }
    let qpn = bench.qpn(1);
    bench.pair.sides[1].endpoint.destroy_qp(qpn).expect("it exists");
    bench.pair.drain(1);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.stats(0).timeouts, 0);
}

/// A repeated WRITE is acknowledged, but never past a READ or atomic behind it: their answers may have been lost too, and
/// kernel rxe takes an acknowledgement with their number for the answer.
#[test]
fn never_past_an_unanswered_read() {
    for atomic in [false, true] {
        let mut bench = Bench::new("ack-past-read");
        bench.cut(1);
        bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 10);
        match atomic {
            true => bench.send(0, 2, SendOp::FetchAdd { remote: bench.remote(1, 64), add: 1 }, 100, 8),
            false => bench.send(0, 2, SendOp::Read(bench.remote(1, 0)), 100, 10),
        }
        bench.send(0, 3, SendOp::Write(bench.remote(1, 128)), 0, 10);
        let second = bench.options.psn[0].plus(1);
        bench.pair.run_for(Duration::from_millis(1));
        let before = bench.wire(1).len();
        // Only the first WRITE comes again.
        bench.pair.sides[0].link.set_rule(move |crossing| match crossing.packet {
            Some(packet) if packet.bth.psn.is_before(second) => rxe_core::testing::Verdict::Pass,
            _ => rxe_core::testing::Verdict::Drop,
        });
        bench.pair.run_for(Duration::from_millis(30));
        let acks = &bench.wire(1)[before..];
        assert!(!acks.is_empty(), "a repeated WRITE is acknowledged");
        assert!(acks.iter().all(|seen| seen.psn.is_before(second)), "{acks:?}");
    }
}
