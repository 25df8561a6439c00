//! Fences: a request that may not start before earlier READs and atomics are done.

use crate::bench::Bench;
use rxe_core::{
    testing::{ConnectOptions, LinkConfig, PairConfig},
    wire::Class,
    work::{SendFlags, SendOp, WcStatus},
};
use std::time::Duration;

fn slow(name: &'static str) -> Bench {
    let link = LinkConfig { latency: Duration::from_millis(1), ..LinkConfig::default() };
    Bench::with(PairConfig { name, links: [link; 2], ..PairConfig::default() }, ConnectOptions::default())
}

/// With a fence, data that a READ brings can be sent on by a request that is posted together with the READ.
#[test]
fn a_read_result_sent_on() {
    let mut bench = slow("fence");
    let data = bench.fill(1, 0, 5000, 1);
    bench.send(0, 1, SendOp::Read(bench.remote(1, 0)), 0, 5000);
    let fenced = SendFlags::FENCE | SendFlags::SIGNALED;
    bench.send_with(0, 2, SendOp::Write(bench.remote(1, 20_000)), 0, 5000, fenced);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 20_000, 5000), data);
}

/// With a fence the WRITE waits for the READ's answer; without it does not.
#[test]
fn waits_only_when_asked() {
    for (flags, waits) in [(SendFlags::SIGNALED, false), (SendFlags::SIGNALED | SendFlags::FENCE, true)] {
        for atomic in [false, true] {
            let mut bench = slow("fence-time");
            let start = bench.pair.now;
            match atomic {
                true => bench.send(0, 1, SendOp::FetchAdd { remote: bench.remote(1, 0), add: 1 }, 0, 8),
                false => bench.send(0, 1, SendOp::Read(bench.remote(1, 0)), 0, 100),
            }
            bench.send_with(0, 2, SendOp::Write(bench.remote(1, 20_000)), 0, 10, flags);
            bench.pair.run_until_idle();
            let left = bench.wire_of(0, Class::Write)[0].at.since(start);
            assert_eq!(left >= Duration::from_millis(2), waits, "{left:?}");
        }
    }
}

/// A fence does not wait for WRITEs and SENDs.
#[test]
fn writes_are_not_waited_for() {
    let mut bench = slow("fence-writes");
    let start = bench.pair.now;
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 10);
    bench.send_with(0, 2, SendOp::Write(bench.remote(1, 0)), 0, 10, SendFlags::FENCE | SendFlags::SIGNALED);
    bench.pair.run_until_idle();
    assert!(bench.wire_of(0, Class::Write).iter().all(|seen| seen.at == start));
}
