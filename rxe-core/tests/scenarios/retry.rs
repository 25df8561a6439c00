//! Timeouts and retry counts: how often, when, and what follows.

use crate::bench::Bench;
use rxe_core::{
    qp::{QpChange, QpState},
    testing::{ConnectOptions, PairConfig, Verdict},
    wire::{Class, Syndrome},
    work::{SendOp, WcStatus},
};
use std::time::Duration;

fn unanswered(name: &'static str, retry_count: u8) -> Bench {
    let options = ConnectOptions { retry_count, ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name, ..PairConfig::default() }, options);
    bench.cut(0);
    bench.recv(0, 50, 0, 100);
    bench.send(0, 1, SendOp::Send, 0, 100);
    bench.send(0, 2, SendOp::Send, 0, 100);
    bench
}

/// A dead peer: the request leaves once and `n` times more, a timeout apart each; then it fails, the rest is flushed.
#[test]
fn a_dead_peer_is_given_up_after_as_many_retries_as_asked() {
    for retry_count in [0_u8, 1, 3, 7] {
        let mut bench = unanswered("retry", retry_count);
        let start = bench.pair.now;
        bench.pair.run_until_idle();
        let flushed = WcStatus::WorkRequestFlushed;
        assert_eq!(bench.sent_statuses(0), [(1, WcStatus::RetryExceeded), (2, flushed)]);
        assert_eq!(bench.received_statuses(0), [(50, flushed)]);
        assert_eq!(bench.state(0), QpState::Error);
        let first = bench.options.psn[0];
        let times: Vec<_> =
            bench.wire(0).iter().filter(|seen| seen.psn == first).map(|seen| seen.at).collect();
        assert_eq!(times.len(), usize::from(retry_count) + 1, "{retry_count} retries");
        // 4.096 us times 2^12; the specification allows up to four times the nominal value.
        let timeout = Duration::from_nanos(4096 << 12);
        for gap in times.windows(2).map(|pair| pair[1].since(pair[0])) {
            assert!(gap >= timeout && gap <= timeout * 4, "{gap:?} between tries");
        }
        let took = bench.pair.now.since(start);
        assert!(took >= timeout * (u32::from(retry_count) + 1), "gave up after {took:?}");
        assert_eq!(bench.stats(0).timeouts, u64::from(retry_count) + 1);
        assert_eq!(bench.state(1), QpState::Rts, "the peer knows nothing of it");
    }
}

/// Timeout 0 waits for ever.
#[test]
fn no_timeout_never_gives_up() {
    let options = ConnectOptions { timeout: 0, ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name: "no-timeout", ..PairConfig::default() }, options);
    bench.cut(0);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 100);
    bench.pair.run_for(Duration::from_secs(3600));
    assert_eq!(bench.wire(0).len(), 1);
    assert!(bench.sent(0).is_empty());
}

/// The last permitted try still succeeds, and progress gives the full number of tries back.
#[test]
fn progress_renews_the_retries() {
    let options = ConnectOptions { retry_count: 2, ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name: "retry-renewed", ..PairConfig::default() }, options);
    // Of each message, the first two tries are lost.
    let mut tries = std::collections::BTreeMap::new();
    bench.pair.sides[0].link.set_rule(move |crossing| {
        let psn = crossing.packet.expect("a packet").bth.psn.value();
        let count = tries.entry(psn).or_insert(0);
        *count += 1;
        if *count <= 2 { Verdict::Drop } else { Verdict::Pass }
    });
    for wr_id in 0..10 {
        let data = bench.fill(0, 0, 100, wr_id);
        bench.send(0, wr_id, SendOp::Write(bench.remote(1, 0)), 0, 100);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(wr_id, WcStatus::Success)]);
        assert_eq!(bench.bytes(1, 0, 100), data);
    }
}

/// A lost packet in the middle is asked for by the peer's NAK, long before the timeout.
#[test]
fn a_sequence_nak_is_answered_at_once() {
    let mut bench = Bench::new("psn-nak");
    let lost = bench.options.psn[0].plus(3);
    let mut once = true;
    bench.pair.sides[0].link.set_rule(move |crossing| {
        let hit = crossing.packet.is_some_and(|packet| packet.bth.psn == lost) && std::mem::take(&mut once);
        if hit { Verdict::Drop } else { Verdict::Pass }
    });
    let data = bench.fill(0, 0, 10 * 1024, 1);
    let start = bench.pair.now;
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 10 * 1024);
    while bench.pair.completions_waiting(0) == 0 {
        assert!(bench.pair.step(start + Duration::from_secs(1)), "it completes");
    }
    let took = bench.pair.now.since(start);
    assert!(took < Duration::from_millis(1), "took {took:?}, the timeout is 16.8 ms");
    assert_eq!(bench.bytes(1, 0, 10 * 1024), data);
    bench.pair.run_until_idle();
    assert_eq!((bench.stats(0).timeouts, bench.stats(1).psn_naks_sent), (0, 1));
    let again = bench.wire(0).iter().filter(|seen| seen.psn.distance(lost) < 0).count();
    assert_eq!(again, 3, "packets before the lost one leave once");
}

/// When acknowledgements are lost the peer does not take anything twice.
#[test]
fn lost_acknowledgements_do_not_repeat_anything() {
    let mut bench = Bench::new("lost-acks");
    let mut left = 3;
    bench.pair.sides[1].link.set_rule(move |_| {
        left -= i32::from(left > 0);
        if left > 0 { Verdict::Drop } else { Verdict::Pass }
    });
    for wr_id in 0..3 {
        bench.recv(1, wr_id, 0, 100);
    }
    bench.send(0, 1, SendOp::Send, 0, 100);
    bench.send(0, 2, SendOp::FetchAdd { remote: bench.remote(1, 4096), add: 5 }, 200, 8);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(bench.received_statuses(1), [(0, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 4096, 8), 5_u64.to_ne_bytes());
    assert_eq!(bench.bytes(0, 200, 8), 0_u64.to_ne_bytes());
    assert!(bench.stats(1).duplicates > 0);
    assert!(!bench.wire_of(1, Class::AtomicAcknowledge).is_empty());
}

/// The timeout of the present attributes counts, also when it was changed in SQD.
#[test]
fn a_timeout_changed_while_drained_counts() {
    let mut bench = Bench::new("timeout-changed");
    bench.go_to(0, QpState::Sqd);
    bench.pair.run_until_idle();
    let qpn = bench.qpn(0);
    let change = QpChange { timeout: Some(15), retry_count: Some(0), ..QpChange::default() };
    bench.pair.modify(0, qpn, &change).expect("possible in SQD");
    bench.go_to(0, QpState::Rts);
    bench.cut(0);
    let start = bench.pair.now;
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 1);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::RetryExceeded)]);
    assert!(bench.pair.now.since(start) >= Duration::from_nanos(4096 << 15));
}

/// A connection that has lost a packet, of which a NAK told.
fn suspicious(name: &'static str, retry_count: u8) -> Bench {
    let options = ConnectOptions { timeout: 18, retry_count, ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name, ..PairConfig::default() }, options);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 100);
    bench.pair.run_until_idle();
    let mut count = 0;
    bench.pair.sides[0].link.set_rule(move |_| {
        count += 1;
        if count == 1 { Verdict::Drop } else { Verdict::Pass }
    });
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 5000);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success); 2]);
    assert_eq!(bench.stats(0).psn_naks_received, 1);
    bench.pair.sides[0].link.clear_rule();
    bench
}

/// Where packets are lost, a lost last one, of which no NAK can tell, is sent again long before the timeout, and that is no
/// retry.
#[test]
fn a_lost_end_is_sent_again_soon() {
    let mut bench = suspicious("probe", 1);
    // Twice: the copy is lost too.
    let mut left = 2;
    bench.pair.sides[0].link.set_rule(move |crossing| match crossing.packet {
        Some(packet) if packet.bth.ack_req && left > 0 => {
            left -= 1;
            Verdict::Drop
        }
        _ => Verdict::Pass,
    });
    let data = bench.fill(0, 0, 5000, 7);
    let before = bench.wire(0).len();
    let start = bench.pair.now;
    bench.send(0, 2, SendOp::Write(bench.remote(1, 0)), 0, 5000);
    bench.pair.run_for(Duration::from_millis(50));
    assert_eq!(bench.sent_statuses(0), [(2, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 0, 5000), data);
    let stats = bench.stats(0);
    assert_eq!((stats.probes, stats.timeouts), (2, 0));
    let again: Vec<_> = bench.wire(0).iter().skip(before + 5).map(|seen| seen.at.since(start)).collect();
    assert!(again[0] >= Duration::from_micros(500), "{again:?}");
}

/// A peer that has become slow is probed a few times, then known to be slow: else every message would leave several times,
/// and make it slower.
#[test]
fn a_slow_peer_is_learnt() {
    let mut bench = suspicious("slow-peer", 1);
    for side in &mut bench.pair.sides {
        side.link.set_rule(|_| Verdict::Delay(Duration::from_millis(20)));
    }
    let before = bench.wire(0).len();
    for wr_id in 0..200 {
        bench.send(0, wr_id, SendOp::Write(bench.remote(1, 0)), 0, 100);
        bench.pair.run_until_idle();
    }
    assert_eq!(bench.sent(0).len(), 200);
    let stats = bench.stats(0);
    assert_eq!(stats.timeouts, 0);
    assert!(stats.probes <= 8, "{} probes", stats.probes);
    assert!(bench.wire(0).len() - before <= 200 + 8);
}

/// Silence alone is no reason, however long it is compared with answers before.
#[test]
fn without_a_loss_nothing_is_sent_early() {
    let options = ConnectOptions { timeout: 18, retry_count: 1, ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name: "no-probe", ..PairConfig::default() }, options);
    for wr_id in 0..100 {
        bench.send(0, wr_id, SendOp::Write(bench.remote(1, 0)), 0, 100);
        bench.pair.run_until_idle();
    }
    bench.cut(0);
    let before = bench.wire(0).len();
    bench.send(0, 100, SendOp::Write(bench.remote(1, 0)), 0, 100);
    bench.pair.run_for(Duration::from_millis(1000));
    assert_eq!(bench.wire(0).len() - before, 1);
    assert_eq!(bench.stats(0).probes, 0);
}

/// Probes have an end: then the timeout decides.
#[test]
fn a_dead_peer_is_not_probed_for_ever() {
    let mut bench = suspicious("probe-end", 1);
    bench.cut(0);
    let before = bench.wire(0).len();
    bench.send(0, 2, SendOp::Write(bench.remote(1, 0)), 0, 100);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(2, WcStatus::RetryExceeded)]);
    let stats = bench.stats(0);
    assert_eq!((stats.probes, stats.timeouts), (4, 2));
    assert_eq!(bench.wire(0).len() - before, 1 + 4 + 1);
}

/// A READ response that is lost, and whose copy is lost too, is asked for once more as soon as answers to the second request
/// show that, without a pause.
#[test]
fn a_response_lost_twice_is_missed_at_once() {
    let mut bench = suspicious("read-twice", 1);
    let data = bench.fill(1, 0, 20_000, 3);
    let mut lost = 0;
    let mut first = None;
    bench.pair.sides[1].link.set_rule(move |crossing| match crossing.packet {
        Some(packet) if packet.info.class == Class::ReadResponse && lost < 2 => {
            let psn = *first.get_or_insert_with(|| packet.bth.psn.plus(3));
            if packet.bth.psn == psn {
                lost += 1;
                return Verdict::Drop;
            }
            Verdict::Pass
        }
        _ => Verdict::Pass,
    });
    let start = bench.pair.now;
    bench.send(0, 2, SendOp::Read(bench.remote(1, 0)), 0, 20_000);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(2, WcStatus::Success)]);
    assert_eq!(bench.bytes(0, 0, 20_000), data);
    let stats = bench.stats(0);
    assert_eq!((stats.probes, stats.timeouts), (1, 0));
    let asked: Vec<_> =
        bench.wire_of(0, Class::ReadRequest).iter().map(|seen| seen.at.since(start)).collect();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked[2] < Duration::from_micros(100), "{asked:?}");
}

/// The same request lost twice: silence is noticed long before the timeout, as with a WRITE.
#[test]
fn a_read_request_lost_twice_is_sent_again_soon() {
    let mut bench = suspicious("read-request", 1);
    let data = bench.fill(1, 0, 5000, 4);
    let mut left = 2;
    bench.pair.sides[0].link.set_rule(move |_| {
        left -= i32::from(left > 0);
        if left > 0 { Verdict::Drop } else { Verdict::Pass }
    });
    bench.send(0, 2, SendOp::Read(bench.remote(1, 0)), 0, 5000);
    bench.pair.run_for(Duration::from_millis(50));
    assert_eq!(bench.sent_statuses(0), [(2, WcStatus::Success)]);
    assert_eq!(bench.bytes(0, 0, 5000), data);
    assert_eq!(bench.stats(0).timeouts, 0);
}

/// A NAK told of a lost READ request, then the answer to the second one is lost: the answers behind it tell.
#[test]
fn an_answer_lost_after_a_nak_is_missed_at_once() {
    let options = ConnectOptions { timeout: 18, retry_count: 1, ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name: "read-nak", ..PairConfig::default() }, options);
    let data = bench.fill(1, 0, 5000, 5);
    bench.recv(1, 1, 100_000, 100);
    for (side, class) in [(0, Class::ReadRequest), (1, Class::ReadResponse)] {
        let mut left = 1;
        bench.pair.sides[side].link.set_rule(move |crossing| match crossing.packet {
            Some(packet) if packet.info.class == class && left > 0 => {
                left -= 1;
                Verdict::Drop
            }
            _ => Verdict::Pass,
        });
    }
    let start = bench.pair.now;
    bench.send(0, 1, SendOp::Read(bench.remote(1, 0)), 0, 5000);
    bench.send(0, 2, SendOp::Send, 0, 100);
    while bench.pair.completions_waiting(0) < 2 {
        assert!(bench.pair.step(start + Duration::from_micros(200)), "both are done soon");
    }
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(bench.bytes(0, 0, 5000), data);
    let stats = bench.stats(0);
    assert_eq!((stats.psn_naks_received, stats.probes, stats.timeouts), (1, 1, 0));
}

/// Memory is gone when a request is to be sent again, and then the answer to its first copy comes: nothing has failed, not
/// the next request either.
#[test]
fn a_late_answer_saves_what_cannot_be_sent_again() {
    let mut bench = Bench::new("late-answer");
    let first = bench.options.psn[0];
    // The first request is lost once, so the second one is asked for, too; but a copy of it is late, and comes in time.
    bench.pair.sides[0].link.set_rule(move |crossing| match crossing.index {
        0 => Verdict::Drop,
        1 => Verdict::Duplicate(Duration::from_micros(100)),
        _ => Verdict::Pass,
    });
    bench.pair.sides[1].link.set_rule(move |crossing| match crossing.packet {
        Some(packet) if packet.bth.psn == first && matches!(packet.ext.aeth.syndrome, Syndrome::Ack(_)) => {
            Verdict::Drop
        }
        _ => Verdict::Pass,
    });
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 100);
    bench.send(0, 2, SendOp::Write(bench.remote(1, 0)), 1000, 100);
    let second = bench.addr(0, 1000);
    bench.pair.sides[0].heap.take_away(second, 100);
    bench.pair.run_for(Duration::from_millis(1));
    assert_eq!(bench.wire_of(0, Class::Write).len(), 3, "the second one cannot be read again");
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    bench.send(0, 3, SendOp::Write(bench.remote(1, 0)), 0, 100);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(3, WcStatus::Success)]);
}
