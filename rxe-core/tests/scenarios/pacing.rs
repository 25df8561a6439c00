//! A paced queue pair sends at its rate, keeps to its window, and asks for acknowledgements as often as it is told.

use crate::bench::Bench;
use core::time::Duration;
use rxe_core::{
    endpoint::EndpointConfig,
    qp::{CongestionControl, Pacing, Timing},
    testing::PairConfig,
    time::Instant,
    wire::Class,
    work::{SendOp, WcStatus},
};

/// Always the same rate, bits per second.
#[derive(Debug)]
struct Fixed(u64);

impl CongestionControl for Fixed {
    fn rate(&mut self, _: Instant) -> u64 {
        self.0
    }
}

fn paced(name: &'static str, rate: u64, window: u32, ask_after: u32) -> Bench {
    paced_by(
        name,
        Pacing {
            control: Box::new(Fixed(rate)),
            window,
            ask_after,
            catch_up: Duration::ZERO,
            timing: Timing::default(),
        },
    )
}

fn paced_by(name: &'static str, pacing: Pacing) -> Bench {
    let endpoint = EndpointConfig {
        send_window: (u32::MAX, u32::MAX),
        max_segments: 1,
        parts: false,
        ..EndpointConfig::default()
    };
    let mut bench = Bench::with(
        PairConfig { name, endpoints: [endpoint.clone(), endpoint], ..PairConfig::default() },
        Default::default(),
    );
    let qpn = bench.qpn(0);
    assert!(bench.pair.sides[0].endpoint.pace(qpn, pacing));
    bench
}

#[test]
fn packets_leave_at_the_rate() {
    let mut bench = paced("packets_leave_at_the_rate", 1_000_000_000, u32::MAX, u32::MAX);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 100 * 1024);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    let packets = bench.wire_of(0, Class::Write);
    assert_eq!(packets.len(), 100);
    // A packet counts its payload and 64 bytes.
    let gap = (1024 + 64) * 8;
    for pair in packets.windows(2) {
        assert_eq!(pair[1].at.nanos() - pair[0].at.nanos(), gap);
    }
    assert!(packets[..99].iter().all(|packet| !packet.ack_req) && packets[99].ack_req);
}

/// Who was late, or had nothing to send, makes up for a part of that; then the gaps are as ever.
#[test]
fn what_left_late_is_made_up_for() {
    let pacing = Pacing {
        control: Box::new(Fixed(1_000_000_000)),
        window: u32::MAX,
        ask_after: u32::MAX,
        catch_up: Duration::from_micros(50),
        timing: Timing::default(),
    };
    let mut bench = paced_by("what_left_late_is_made_up_for", pacing);
    bench.pair.run_for(Duration::from_millis(1));
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 20 * 1024);
    bench.pair.run_until_idle();
    let packets = bench.wire_of(0, Class::Write);
    let gap = (1024 + 64) * 8;
    // 50 us at this rate are 5.7 packets, and one more may always leave.
    let gaps: Vec<u64> = packets.windows(2).map(|pair| pair[1].at.nanos() - pair[0].at.nanos()).collect();
    assert!(gaps[..5].iter().all(|gap| *gap == 0), "{gaps:?}");
    assert!(gaps[6..].iter().all(|between| *between == gap), "{gaps:?}");
}

#[test]
fn no_more_is_under_way_than_the_window() {
    let mut bench = paced("no_more_is_under_way_than_the_window", u64::MAX, 4 * 1088, 0);
    bench.cut(1);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 100 * 1024);
    bench.pair.run_for(Duration::from_millis(1));
    let packets = bench.wire_of(0, Class::Write);
    assert_eq!(packets.len(), 4);
    assert!(packets.iter().all(|packet| packet.ack_req), "each is to be acknowledged");
    bench.mend(1);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
}
