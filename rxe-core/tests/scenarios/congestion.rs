//! Congestion: routers mark packets, receivers tell senders, senders slow down before anything is lost.

use crate::bench::Bench;
use rxe_core::{
    endpoint::EndpointConfig,
    qp::Mtu,
    testing::{ConnectOptions, Faults, LinkConfig, PairConfig, link::LinkStats},
    wire::Class,
    work::{SendOp, WcStatus},
};
use std::time::Duration;

/// ECN-capable transport, ECT(0) (RFC 3168, 5).
const ECT: u8 = 2;
/// Bytes of each request.
const SIZE: u32 = 64 * 1024;
/// The narrow wire: 1 GB a second. Marks begin where three batches of packets find room.
const NARROW: LinkConfig = LinkConfig {
    rate: 1_000_000_000,
    queue: 800_000,
    hold: 0,
    mark: 200_000,
    latency: Duration::from_micros(20),
    reorder_delay: Duration::ZERO,
    faults: Faults { loss: 0, duplicate: 0, reorder: 0, corrupt: 0 },
};

/// A connection whose requests cross `wire`, with a window that is larger than the wire's queue.
fn bench(name: &'static str, wire: LinkConfig, traffic_class: u8) -> Bench {
    let endpoint = EndpointConfig { send_window: (96 * 1024, 2 << 20), ..EndpointConfig::default() };
    let config = PairConfig {
        name,
        links: [wire, LinkConfig::default()],
        endpoints: [endpoint.clone(), endpoint],
        ..PairConfig::default()
    };
    Bench::with(config, ConnectOptions { traffic_class, mtu: Mtu::M4096, ..ConnectOptions::default() })
}

/// Keeps 64 requests waiting for `time`; gives bytes that were acknowledged in it.
fn load(bench: &mut Bench, time: Duration) -> u64 {
    let (mut waiting, mut done, mut wr_id) = (0, 0, 0);
    let end = bench.pair.now + time;
    while bench.pair.now < end {
        while waiting < 64 {
            let remote = bench.remote(1, 0);
            bench.send(0, wr_id, SendOp::Write(remote), 0, SIZE);
            (waiting, wr_id) = (waiting + 1, wr_id + 1);
        }
        assert!(bench.pair.step(end + Duration::from_secs(1)), "nothing is to come");
        for (id, status) in bench.sent_statuses(0) {
            assert_eq!(status, WcStatus::Success, "request {id}");
            (waiting, done) = (waiting - 1, done + u64::from(SIZE));
        }
    }
    bench.pair.run_until_idle();
    assert_eq!(bench.sent(0).len(), waiting);
    done
}

fn wire(bench: &Bench) -> LinkStats {
    *bench.pair.sides[0].link.stats()
}

/// Marked requests bring notifications, as hardware sends them and no more often than every 50 us.
#[test]
fn marks_are_told_of() {
    let mut bench = bench("congestion-told", NARROW, ECT);
    load(&mut bench, Duration::from_millis(2));
    let told = bench.wire_of(1, Class::Congestion);
    assert!(told.len() > 2, "{told:?}");
    for gap in told.windows(2).map(|pair| pair[1].at.since(pair[0].at)) {
        assert!(gap >= Duration::from_micros(50), "{gap:?} between two");
    }
    let port = bench.pair.sides[1].endpoint.port_stats();
    assert_eq!((port.ecn_marked, bench.stats(1).cnps_sent), (wire(&bench).marked, told.len() as u64));
    assert_eq!(bench.stats(0).cnps_received, bench.stats(1).cnps_sent);
}

/// Packets without ECT, whose sender would not react to marks, are not marked, so it gets no notifications.
#[test]
fn without_ect_nobody_is_told() {
    let mut bench = bench("congestion-not-ect", NARROW, 0);
    load(&mut bench, Duration::from_millis(2));
    assert_eq!((wire(&bench).marked, bench.stats(1).cnps_sent), (0, 0));
}

/// With marks the queue hardly ever overflows, and the wire is used nearly as well as it can be; without them packets are
/// lost all the time.
#[test]
fn marks_save_the_queue() {
    let time = Duration::from_millis(50);
    let run = |name, traffic_class| {
        let mut bench = bench(name, NARROW, traffic_class);
        let done = load(&mut bench, time);
        (done as f64 / time.as_secs_f64() / NARROW.rate as f64, wire(&bench))
    };
    let ((marked, with), (_, without)) = (run("congestion-with", ECT), run("congestion-without", 0));
    assert!(marked > 0.8, "only {marked:.2} of the wire is used: {with:?}");
    assert!(with.overflowed * 20 < without.overflowed, "{} against {}", with.overflowed, without.overflowed);
}

/// When the wire is no longer narrow, the window grows back to its size on a wire that never was.
#[test]
fn what_was_taken_is_given_back() {
    let wide = LinkConfig { rate: 10 * NARROW.rate, queue: 0, mark: 0, ..NARROW };
    let time = Duration::from_millis(20);
    let used = |name, first| {
        let mut bench = bench(name, first, ECT);
        load(&mut bench, time);
        bench.pair.sides[0].link.set_config(wide);
        load(&mut bench, time);
        load(&mut bench, time)
    };
    let (after, always) = (used("congestion-over", NARROW), used("congestion-never", wide));
    assert!(after * 10 > always * 9, "{after} bytes after congestion, {always} without");
}
