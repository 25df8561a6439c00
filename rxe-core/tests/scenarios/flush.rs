//! The error state: everything posted comes back flushed, in order, and so does what is posted later.

use crate::bench::Bench;
use rxe_core::{
    qp::QpState,
    work::{SendFlags, SendOp, WcStatus},
};
use std::time::Duration;

const FLUSHED: WcStatus = WcStatus::WorkRequestFlushed;

#[test]
fn everything_comes_back_in_order() {
    let mut bench = Bench::new("flush");
    bench.cut(0);
    for wr_id in 0..5 {
        bench.recv(0, 100 + wr_id, 0, 10);
        // Unsignaled ones too: an error is always told.
        bench.send_with(0, wr_id, SendOp::Write(bench.remote(1, 0)), 0, 10, SendFlags::empty());
    }
    bench.go_to(0, QpState::Error);
    assert_eq!(bench.sent_statuses(0), (0..5).map(|wr_id| (wr_id, FLUSHED)).collect::<Vec<_>>());
    assert_eq!(bench.received_statuses(0), (100..105).map(|wr_id| (wr_id, FLUSHED)).collect::<Vec<_>>());
    bench.send(0, 6, SendOp::Send, 0, 10);
    bench.recv(0, 106, 0, 10);
    assert_eq!(bench.sent_statuses(0), [(6, FLUSHED)]);
    assert_eq!(bench.received_statuses(0), [(106, FLUSHED)]);
    bench.mend(0);
    let before = bench.wire(0).len();
    bench.pair.run_until_idle();
    assert_eq!(bench.wire(0).len(), before, "silent in the error state");
}

/// A message half received is flushed too, once.
#[test]
fn an_open_receive_is_flushed() {
    let mut bench = Bench::new("flush-open");
    let second = bench.options.psn[0].plus(1);
    bench.pair.sides[0].link.set_rule(move |crossing| match crossing.packet {
        Some(packet) if packet.bth.psn.distance(second) >= 0 => rxe_core::testing::Verdict::Drop,
        _ => rxe_core::testing::Verdict::Pass,
    });
    bench.recv(1, 1, 0, 5000);
    bench.recv(1, 2, 0, 5000);
    bench.send(0, 1, SendOp::Send, 0, 4000);
    bench.pair.run_for(Duration::from_millis(1));
    bench.go_to(1, QpState::Error);
    assert_eq!(bench.received_statuses(1), [(1, FLUSHED), (2, FLUSHED)]);
}

/// A peer in the error state does not answer: the sender runs out of retries.
#[test]
fn a_peer_in_error_is_silent() {
    let mut bench = Bench::new("flush-peer");
    bench.go_to(1, QpState::Error);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 10);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::RetryExceeded)]);
    assert!(bench.wire(1).is_empty());
    assert!(bench.stats(1).dropped_state > 0);
}

/// What was completed before the error stays good; what failed comes first, the rest is flushed.
#[test]
fn good_then_bad_then_flushed() {
    let mut bench = Bench::new("flush-remote");
    let mut bad = bench.remote(1, 0);
    bad.rkey = bad.rkey.rotated();
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 3000);
    bench.send(0, 2, SendOp::Write(bad), 0, 10);
    bench.send(0, 3, SendOp::Write(bench.remote(1, 0)), 0, 10);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success), (2, WcStatus::RemoteAccess), (3, FLUSHED)]);
}
