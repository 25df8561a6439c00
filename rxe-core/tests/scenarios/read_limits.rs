//! max_rd_atomic: no more READs and atomics outstanding than the two sides agreed on.

use crate::bench::Bench;
use rxe_core::{
    qp::QpState,
    testing::{ConnectOptions, PairConfig},
    wire::{Class, Opcode},
    work::{SendOp, WcStatus},
};

fn outstanding_at_most(bench: &Bench) -> i32 {
    let is_request = |class| matches!(class, Class::ReadRequest | Class::CompareSwap | Class::FetchAdd);
    let last = Opcode(0x0f);
    let mut all: Vec<_> =
        bench.wire(0).iter().filter(|seen| is_request(seen.class)).map(|seen| (seen.at, 1, 1)).collect();
    let latency = bench.pair.sides[1].link.config().latency;
    // An answer ends its request when it arrives; at one instant answers count first.
    all.extend(
        bench
            .wire(1)
            .iter()
            .filter(|seen| {
                seen.opcode == Opcode::RC_READ_RESPONSE_ONLY
                    || seen.opcode == last
                    || seen.class == Class::AtomicAcknowledge
            })
            .map(|seen| (seen.at + latency, 0, -1)),
    );
    all.sort();
    let (mut now, mut most) = (0, 0);
    for (_, _, change) in all {
        now += change;
        most = most.max(now);
    }
    most
}

#[test]
fn the_limit_is_used_and_not_passed() {
    for limit in [1, 2, 5] {
        let options = ConnectOptions {
            max_rd_atomic: [limit; 2],
            max_dest_rd_atomic: [limit; 2],
            ..ConnectOptions::default()
        };
        let mut bench = Bench::with(PairConfig { name: "rd-atomic", ..PairConfig::default() }, options);
        for wr_id in 0..20 {
            let at = 8 * wr_id;
            match wr_id % 3 {
                0 => bench.send(0, wr_id, SendOp::FetchAdd { remote: bench.remote(1, at), add: 1 }, at, 8),
                _ => bench.send(0, wr_id, SendOp::Read(bench.remote(1, at)), 4096 + 2048 * wr_id, 2000),
            }
        }
        bench.pair.run_until_idle();
        let expected: Vec<_> = (0..20).map(|wr_id| (wr_id, WcStatus::Success)).collect();
        assert_eq!(bench.sent_statuses(0), expected);
        assert_eq!(outstanding_at_most(&bench), i32::from(limit));
    }
}

/// WRITEs behind a READ that waits for its turn wait too: order on the wire is order of posting.
#[test]
fn what_comes_later_does_not_overtake() {
    let options = ConnectOptions { max_rd_atomic: [1; 2], ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name: "rd-atomic-order", ..PairConfig::default() }, options);
    bench.send(0, 1, SendOp::Read(bench.remote(1, 0)), 0, 8000);
    bench.send(0, 2, SendOp::Read(bench.remote(1, 0)), 8000, 8000);
    bench.send(0, 3, SendOp::Write(bench.remote(1, 90_000)), 0, 10);
    bench.pair.run_until_idle();
    let psns: Vec<_> = bench
        .wire(0)
        .iter()
        .filter(|seen| seen.class != Class::Acknowledge)
        .map(|seen| seen.psn.value())
        .collect();
    assert!(psns.is_sorted(), "{psns:?}");
}

/// A responder that allows none refuses, and both ends know why.
#[test]
fn none_allowed() {
    let options = ConnectOptions { max_dest_rd_atomic: [0; 2], ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name: "rd-atomic-none", ..PairConfig::default() }, options);
    bench.send(0, 1, SendOp::Read(bench.remote(1, 0)), 0, 100);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::RemoteInvalidRequest)]);
    assert_eq!((bench.state(0), bench.state(1)), (QpState::Error, QpState::Error));
}
