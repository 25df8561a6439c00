//! Acknowledgements that are owed wait a little for data to leave with, never long, and are never forgotten.

use crate::bench::Bench;
use rxe_core::{
    endpoint::Acks,
    qp::QpState,
    testing::{ConnectOptions, PairConfig},
    wire::Class,
    work::{SendOp, SendWr, WcStatus},
};
use std::time::Duration;

/// If no data leaves, an acknowledgement leaves by itself within 50 us.
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

/// If the endpoint is told to send what is owed, it leaves at once.
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

/// The window is not filled with batches of a packet or two, and each full batch asks once, as does the end of each message.
#[test]
fn a_long_message_leaves_in_full_batches() {
    let mut bench = Bench::new("full-batches");
    for wr_id in 0..8 {
        bench.send(0, wr_id, SendOp::Write(bench.remote(1, 0)), 0, 256 << 10);
    }
    bench.pair.run_until_idle();
    assert_eq!(bench.sent(0).len(), 8);
    let stats = bench.pair.sides[0].endpoint.port_stats();
    let packet = bench.options.mtu.bytes() as u64 + 40;
    let full = 65_000 / packet;
    // The first packet of a WRITE may be longer than the rest: with it goes one more, and the message may end in the middle.
    let most = stats.packets_sent / full + 2 * 8;
    assert!(stats.batches_sent <= most, "{} packets in {} batches", stats.packets_sent, stats.batches_sent);
    let asked = bench.wire_of(0, Class::Write).iter().filter(|seen| seen.ack_req).count() as u64;
    assert!(
        asked <= stats.batches_sent + 8,
        "{asked} requests to acknowledge, {} batches",
        stats.batches_sent
    );
}

/// The last packet of a message with an immediate is longer than those before it, so it begins a batch of its own: it does
/// not wait for an acknowledgement that those before it have not asked for.
#[test]
fn a_longer_last_packet_does_not_wait() {
    for packets in 30..100 {
        let mut bench = Bench::new("long-last");
        bench.recv(1, 5, 0, 100);
        let len = packets * bench.options.mtu.bytes();
        bench.send(0, 1, SendOp::WriteImm(bench.remote(1, 0), [7; 4]), 0, len);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)], "{packets} packets");
        assert_eq!((bench.stats(0).timeouts, bench.stats(0).retransmitted), (0, 0), "{packets} packets");
    }
}

/// Many queue pairs share a window: none waits for room that only its own acknowledgements can make if none of its packets has asked
/// for one.
#[test]
fn nobody_waits_for_what_nobody_asked() {
    let mut bench = Bench::new("shared-window");
    let options = bench.options;
    let more: Vec<_> = (0..15).map(|_| bench.pair.connect(&options).qpns[0]).collect();
    let (remote, sge) = (bench.remote(1, 0), bench.sge(0, 0, 200_000));
    for wr_id in 0..4 {
        for &qpn in &more {
            let wr = SendWr::new(wr_id, SendOp::Write(remote), core::slice::from_ref(&sge));
            bench.pair.post_send(0, qpn, &wr).expect("room in the queue");
        }
    }
    bench.pair.run_until_idle();
    for qpn in more {
        let stats = bench.pair.sides[0].endpoint.qp_stats(qpn).expect("it exists");
        assert_eq!((stats.timeouts, stats.retransmitted), (0, 0));
        assert!(stats.bytes_sent == 800_000, "{stats:?}");
    }
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

/// The program has the message, and resets its queue pair at once.
#[test]
fn not_forgotten_by_reset() {
    for state in [QpState::Error, QpState::Reset] {
        let mut bench = Bench::new("ack-reset");
        bench.recv(1, 5, 0, 100);
        bench.send(0, 1, SendOp::Send, 0, 100);
        let now = bench.pair.now;
        while bench.pair.completions_waiting(1) == 0 {
            assert!(bench.pair.step(now + Duration::from_secs(1)), "the message arrives");
        }
        bench.go_to(1, state);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)], "{state:?}");
    }
}
