//! What a responder refuses: the status that each side gets, the event, and that no byte changes.

use crate::bench::{BUFFER, Bench};
use rxe_core::{
    qp::{QpChange, QpState},
    testing::{
        ConnectOptions, PairConfig,
        connect::{PD, REGION_ALL, REMOTE_ALL},
        link::Verdict,
    },
    wire::Class,
    work::{Access, AsyncEvent, PdId, Remote, SendOp, WcStatus},
};
use std::time::Duration;

/// Side 0 does `op` to side 1 and must fail with `expected`; side 1's memory stays as it was.
fn refused(bench: &mut Bench, op: SendOp, len: u32, expected: WcStatus) {
    let before = bench.pair.sides[1].heap.snapshot();
    let own = bench.pair.sides[0].heap.snapshot();
    bench.send(0, 1, op, 0, len);
    bench.send(0, 2, SendOp::Write(bench.remote(1, 0)), 0, 8);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, expected), (2, WcStatus::WorkRequestFlushed)], "{op:?}");
    assert_eq!((bench.state(0), bench.state(1)), (QpState::Error, QpState::Error), "{op:?}");
    assert!(bench.pair.sides[1].heap.snapshot() == before, "{op:?} touched the responder's memory");
    assert!(bench.pair.sides[0].heap.snapshot() == own, "{op:?} touched the requester's memory");
    let qpn = bench.qpn(1);
    let event = match expected {
        WcStatus::RemoteAccess => AsyncEvent::QpAccessError(qpn),
        _ => AsyncEvent::QpRequestError(qpn),
    };
    assert_eq!(bench.events(1), [event], "{op:?}");
    assert_eq!(bench.stats(1).refusals_sent, 1, "{op:?}");
}

fn remote_ops(remote: Remote) -> [SendOp; 6] {
    [
        SendOp::Write(remote),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        SendOp::AtomicWrite { remote, value: [1; 8] },
        SendOp::Flush { remote, len: 8, placement: 1, selectivity: 0 },
    ]
}

#[test]
fn unknown_keys() {
    for which in 0..6 {
        let mut bench = Bench::new("access-key");
        bench.fill(0, 0, 64, 1);
        let good = bench.remote(1, 0);
        let op = remote_ops(Remote { rkey: good.rkey.rotated(), ..good })[which];
        refused(&mut bench, op, 8, WcStatus::RemoteAccess);
    }
}

#[test]
fn ranges() {
    for which in 0..6 {
        for (offset, back) in [(BUFFER - 4, true), (BUFFER, true), (0, false)] {
            let mut bench = Bench::new("access-range");
            bench.fill(0, 0, 64, 1);
            let mut remote = bench.remote(1, offset & !7);
            if !back {
                remote.addr -= 8;
            } else if which < 2 || which == 5 {
                remote = bench.remote(1, offset);
            } else {
                remote = bench.remote(1, BUFFER);
            }
            refused(&mut bench, remote_ops(remote)[which], 8, WcStatus::RemoteAccess);
        }
    }
}

#[test]
fn an_address_that_wraps() {
    for which in 0..2 {
        let mut bench = Bench::new("access-wrap");
        let remote = Remote { addr: u64::MAX - 3, ..bench.remote(1, 0) };
        refused(&mut bench, remote_ops(remote)[which], 8, WcStatus::RemoteAccess);
    }
}

/// Each right of a region, taken away alone.
#[test]
fn rights_of_the_region() {
    let needs = [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_WRITE,
        Access::FLUSH_GLOBAL,
    ];
    for (which, need) in needs.into_iter().enumerate() {
        let mut bench = Bench::new("access-rights");
        let (addr, rkey) = bench.pair.sides[1].heap.alloc_registered(PD, 64, REGION_ALL - need);
        refused(&mut bench, remote_ops(Remote { addr, rkey })[which], 8, WcStatus::RemoteAccess);
    }
}

/// Each right of the queue pair, taken away alone: the request itself is invalid then.
#[test]
fn rights_of_the_queue_pair() {
    let needs = [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_WRITE,
    ];
    for (which, need) in needs.into_iter().enumerate() {
        let options = ConnectOptions { access: REMOTE_ALL - need, ..ConnectOptions::default() };
        let mut bench = Bench::with(PairConfig { name: "access-qp", ..PairConfig::default() }, options);
        let op = remote_ops(bench.remote(1, 0))[which];
        refused(&mut bench, op, 8, WcStatus::RemoteInvalidRequest);
    }
}

#[test]
fn another_domain() {
    for which in 0..6 {
        let mut bench = Bench::new("access-domain");
        let (addr, rkey) = bench.pair.sides[1].heap.alloc_registered(PdId(2), 64, REGION_ALL);
        refused(&mut bench, remote_ops(Remote { addr, rkey })[which], 8, WcStatus::RemoteAccess);
    }
}

#[test]
fn misaligned_atomics() {
    for which in [2, 3] {
        let mut bench = Bench::new("access-align");
        let op = remote_ops(bench.remote(1, 4))[which];
        refused(&mut bench, op, 8, WcStatus::RemoteInvalidRequest);
    }
}

/// A long WRITE or READ that starts inside and ends outside is refused before its first byte is placed or sent.
#[test]
fn the_whole_range_counts_from_the_first_packet() {
    let mut bench = Bench::new("access-whole");
    bench.fill(0, 0, 10_000, 1);
    let op = SendOp::Write(bench.remote(1, BUFFER - 9_999));
    refused(&mut bench, op, 10_000, WcStatus::RemoteAccess);
    let mut bench = Bench::new("access-whole-read");
    let op = SendOp::Read(bench.remote(1, BUFFER - 9_999));
    refused(&mut bench, op, 10_000, WcStatus::RemoteAccess);
    assert!(bench.wire_of(1, Class::ReadResponse).is_empty(), "part of it was given away");
}

/// Memory that the application has unmapped: the peer's request is refused, and nothing else happens.
#[test]
fn memory_that_is_gone() {
    for which in 0..2 {
        let mut bench = Bench::new("access-gone");
        let addr = bench.addr(1, 4096);
        bench.pair.sides[1].heap.take_away(addr, 4096);
        let remote = bench.remote(1, 4096);
        bench.send(0, 1, remote_ops(remote)[which], 0, 100);
        bench.pair.run_until_idle();
        let sent = bench.sent(0);
        assert!(matches!(sent[0].status, WcStatus::RemoteAccess | WcStatus::RemoteOperation), "{sent:?}");
        assert_eq!(bench.state(1), QpState::Error);
    }
}

/// The sender's own memory: told on its side, nothing on the wire.
#[test]
fn local_keys_and_ranges() {
    let mut bench = Bench::new("access-local");
    bench.send(0, 1, SendOp::Send, BUFFER - 5, 10);
    bench.send(0, 2, SendOp::Send, 0, 10);
    bench.pair.run_until_idle();
    let expected = [(1, WcStatus::LocalProtection), (2, WcStatus::WorkRequestFlushed)];
    assert_eq!(bench.sent_statuses(0), expected);
    assert!(bench.wire(0).is_empty());
    assert_eq!((bench.state(0), bench.state(1)), (QpState::Error, QpState::Rts));
}

/// A local failure does not swallow what was posted before it.
#[test]
fn a_local_failure_waits_for_its_turn() {
    let mut bench = Bench::new("access-local-order");
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 3000);
    bench.send(0, 2, SendOp::Write(bench.remote(1, 0)), BUFFER - 5, 10);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]);
}

/// Where a READ is to land is checked too.
#[test]
fn a_read_into_memory_that_may_not_be_written() {
    let mut bench = Bench::new("access-read-local");
    let (addr, lkey) = bench.pair.sides[0].heap.alloc_registered(PD, 64, Access::REMOTE_READ);
    let sges = [rxe_core::work::Sge { addr, len: 64, lkey }];
    bench.fill(1, 0, 64, 1);
    let wr = rxe_core::work::SendWr::new(1, SendOp::Read(bench.remote(1, 0)), &sges);
    let qpn = bench.qpn(0);
    bench.pair.post_send(0, qpn, &wr).expect("posted");
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::LocalProtection)]);
    assert_eq!(bench.pair.sides[0].heap.get(addr, 64), vec![0; 64]);
}

/// The acknowledgement of a WRITE was lost. Then the program took the right back. The repeated WRITE is acknowledged all the same, because
/// it has been executed.
#[test]
fn a_write_from_before_its_right_was_taken_back() {
    let mut bench = Bench::new("access-taken-back");
    let mut is_first = true;
    bench.pair.sides[1]
        .link
        .set_rule(move |_| if core::mem::take(&mut is_first) { Verdict::Drop } else { Verdict::Pass });
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 100);
    bench.pair.run_for(Duration::from_millis(1));
    let change = QpChange { state: Some(QpState::Rts), access: Some(Access::empty()), ..QpChange::default() };
    let qpn = bench.qpn(1);
    bench.pair.modify(1, qpn, &change).expect("modified");
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
}
