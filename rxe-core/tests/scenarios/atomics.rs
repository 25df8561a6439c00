//! Atomics: values, byte order of the host, once only.

use crate::bench::Bench;
use rxe_core::{
    testing::Verdict,
    wire::Class,
    work::{SendOp, WcOpcode, WcStatus},
};
use std::time::Duration;

fn number(bench: &Bench, side: usize, offset: u64) -> u64 {
    u64::from_ne_bytes(bench.bytes(side, offset, 8).try_into().expect("8 bytes"))
}

#[test]
fn values() {
    let mut bench = Bench::new("atomics");
    let remote = bench.remote(1, 64);
    bench.send(0, 1, SendOp::FetchAdd { remote, add: 0x1_0000_0001 }, 0, 8);
    bench.send(0, 2, SendOp::CompareSwap { remote, compare: 0x1_0000_0001, swap: 7 }, 8, 8);
    bench.send(0, 3, SendOp::CompareSwap { remote, compare: 8, swap: 9 }, 16, 8);
    bench.send(0, 4, SendOp::FetchAdd { remote, add: u64::MAX }, 24, 8);
    bench.pair.run_until_idle();
    let sent = bench.sent(0);
    let expected = [WcOpcode::FetchAdd, WcOpcode::CompareSwap, WcOpcode::CompareSwap, WcOpcode::FetchAdd];
    assert!(sent.iter().all(|wc| wc.status == WcStatus::Success && wc.byte_len == 8), "{sent:?}");
    assert_eq!(sent.iter().map(|wc| wc.opcode).collect::<Vec<_>>(), expected);
    let results: Vec<_> = (0..4).map(|index| number(&bench, 0, 8 * index)).collect();
    assert_eq!(results, [0, 0x1_0000_0001, 7, 7]);
    assert_eq!(number(&bench, 1, 64), 6);
}

/// Lost answers, doubled requests: each addition counts once, each result is the right one.
#[test]
fn once_only() {
    let mut bench = Bench::new("atomics-once");
    bench.pair.sides[1].link.set_rule(|crossing| match crossing.index % 3 {
        0 => Verdict::Drop,
        _ => Verdict::Pass,
    });
    bench.pair.sides[0].link.set_rule(|crossing| match crossing.index % 2 {
        0 => Verdict::Duplicate(Duration::from_millis(1)),
        _ => Verdict::Pass,
    });
    let remote = bench.remote(1, 0);
    for wr_id in 0..40 {
        bench.send(0, wr_id, SendOp::FetchAdd { remote, add: 3 }, 8 * wr_id, 8);
    }
    bench.pair.run_until_idle();
    let expected: Vec<_> = (0..40).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(bench.sent_statuses(0), expected);
    assert_eq!(number(&bench, 1, 0), 120);
    for index in 0..40 {
        assert_eq!(number(&bench, 0, 8 * index), 3 * index, "result {index}");
    }
    assert!(bench.stats(1).duplicates > 0);
}

/// The result is scattered like any other data.
#[test]
fn a_result_in_two_elements() {
    let mut bench = Bench::new("atomics-scatter");
    bench.fill(1, 0, 8, 9);
    let sges = [bench.sge(0, 100, 3), bench.sge(0, 200, 5)];
    let op = SendOp::CompareSwap { remote: bench.remote(1, 0), compare: 0, swap: 1 };
    let qpn = bench.qpn(0);
    bench.pair.post_send(0, qpn, &rxe_core::work::SendWr::new(1, op, &sges)).expect("posted");
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    let found = [bench.bytes(0, 100, 3), bench.bytes(0, 200, 5)].concat();
    assert_eq!(found, bench.bytes(1, 0, 8));
}

#[test]
fn atomic_write_and_flush() {
    let mut bench = Bench::new("atomic-write");
    let remote = bench.remote(1, 32);
    bench.send(0, 1, SendOp::AtomicWrite { remote, value: *b"ABCDEFGH" }, 0, 0);
    bench.send(0, 2, SendOp::Flush { remote, len: 8, placement: 1, selectivity: 0 }, 0, 0);
    bench.send(0, 3, SendOp::Flush { remote, len: 0, placement: 3, selectivity: 1 }, 0, 0);
    bench.pair.run_until_idle();
    let sent = bench.sent(0);
    assert_eq!(
        sent.iter().map(|wc| wc.opcode).collect::<Vec<_>>(),
        [WcOpcode::AtomicWrite, WcOpcode::Flush, WcOpcode::Flush]
    );
    assert!(sent.iter().all(|wc| wc.status == WcStatus::Success), "{sent:?}");
    assert_eq!(bench.bytes(1, 32, 8), b"ABCDEFGH");
    assert_eq!(bench.pair.sides[1].heap.flushes(), 2);
    // As kernel rxe answers them: a READ response without data.
    assert_eq!(bench.wire_of(1, Class::ReadResponse).len(), 3);
}
