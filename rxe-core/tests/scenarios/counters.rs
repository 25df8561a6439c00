//! The counters of a queue pair, compared with what was on the wire.

use crate::bench::Bench;
use rxe_core::{
    wire::Class,
    work::{SendOp, WcStatus},
};
use std::time::Duration;

/// Every packet of a side is counted once, whichever half of the machine made it: requests, acknowledgements, READ
/// responses, atomic results, RNR NAKs and refusals.
#[test]
fn all_packets_are_counted() {
    let mut bench = Bench::new("counters");
    bench.fill(1, 0, 10_000, 7);
    bench.send(0, 1, SendOp::Send, 0, 3000);
    bench.pair.run_for(Duration::from_micros(200));
    bench.recv(1, 10, 0, 4000);
    bench.send(0, 2, SendOp::Write(bench.remote(1, 0)), 0, 5000);
    bench.send(0, 3, SendOp::Read(bench.remote(1, 0)), 0, 10_000);
    bench.send(0, 4, SendOp::FetchAdd { remote: bench.remote(1, 64), add: 1 }, 0, 8);
    let mut bad = bench.remote(1, 0);
    bad.rkey = bad.rkey.rotated();
    bench.send(0, 5, SendOp::Write(bad), 0, 8);
    bench.pair.run_until_idle();
    let statuses = bench.sent_statuses(0);
    assert_eq!(statuses.last(), Some(&(5, WcStatus::RemoteAccess)), "{statuses:?}");
    assert!(bench.wire_of(1, Class::ReadResponse).len() > 8);
    for side in [0, 1] {
        assert_eq!(bench.stats(side).packets_sent, bench.wire(side).len() as u64, "side {side}");
    }
}

/// A FLUSH without an answer is tried with the other ICRC; the timeout of anything else changes nothing.
#[test]
fn only_a_flush_changes_the_form_of_flushes() {
    let mut bench = Bench::new("flush-form");
    let write = SendOp::Write(bench.remote(1, 0));
    time_out(&mut bench, write);
    let flush = SendOp::Flush { remote: bench.remote(1, 0), len: 8, placement: 1, selectivity: 0 };
    bench.send(0, 2, flush, 0, 0);
    bench.pair.run_until_idle();
    assert_eq!(bench.rxe_flushes(0), [false]);
    time_out(&mut bench, flush);
    assert_eq!(bench.rxe_flushes(0), [false, false, true]);
}

/// `op` is answered only when it was sent a second time.
fn time_out(bench: &mut Bench, op: SendOp) {
    let (before, qpn) = (bench.stats(0).timeouts, bench.qpn(0));
    bench.cut(1);
    bench.send(0, 1, op, 0, 8);
    bench.pair.run_while(Duration::from_secs(1), |pair| {
        pair.sides[0].endpoint.qp_stats(qpn).is_some_and(|stats| stats.timeouts == before)
    });
    bench.mend(1);
    bench.pair.run_until_idle();
    assert_eq!(bench.stats(0).timeouts, before + 1);
}
