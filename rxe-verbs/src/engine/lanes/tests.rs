//! Shares of lanes, in virtual time.

use crate::host::{HostConfig, LiveSettings, Own, Settings};
use rxe_core::{
    endpoint::EndpointConfig,
    num::{Key, Qpn},
    testing::{
        ConnectOptions, LinkConfig, Pair, PairConfig,
        connect::{PD, REGION_ALL, SEND_CQ},
    },
    work::{Remote, SendFlags, SendOp, SendWr, Sge, WcStatus},
};
use std::time::Duration;

/// Bytes per second of the wires.
const RATE: u64 = 1_000_000_000;
/// Bytes of a message.
const LONG: u32 = 128 * 1024;

/// Two hosts whose policy has these options of opensm.conf.
struct Stage {
    pair: Pair,
    buffers: [(u64, Key); 2],
}

impl Stage {
    fn new(name: &'static str, options: &str) -> Self {
        let config = HostConfig::with_opensm_conf(options);
        let settings = LiveSettings::new(Settings::of(&config), Own::default());
        // Like a socket's send buffer: the sender is held up, so batches wait in the endpoint.
        let wire = LinkConfig {
            rate: RATE,
            hold: 70_000,
            latency: Duration::from_micros(10),
            ..LinkConfig::default()
        };
        let endpoint = || EndpointConfig { max_segments: 16, ..EndpointConfig::default() };
        let endpoints = [endpoint(), endpoint()];
        let mut pair =
            Pair::new(PairConfig { name, links: [wire; 2], endpoints, trace: 0, ..PairConfig::default() });
        pair.sides.iter_mut().for_each(|side| side.endpoint.set_lanes(settings.lanes()));
        let buffers =
            [0, 1].map(|side: usize| pair.sides[side].heap.alloc_registered(PD, LONG.into(), REGION_ALL));
        Self { pair, buffers }
    }

    fn connect(&mut self, service_level: u8) -> Qpn {
        let options = ConnectOptions { service_level, timeout: 18, ..ConnectOptions::default() };
        self.pair.connect(&options).qpns[0]
    }

    fn write(&mut self, qpn: Qpn, wr_id: u64, len: u32) {
        let (addr, key) = self.buffers[0];
        let sges = [Sge { addr, len, lkey: key }];
        let (addr, rkey) = self.buffers[1];
        let wr = SendWr {
            flags: SendFlags::SIGNALED,
            ..SendWr::new(wr_id, SendOp::Write(Remote { addr, rkey }), &sges)
        };
        self.pair.post_send(0, qpn, &wr).unwrap();
    }

    /// Keeps all of these busy for a time. What a message tells is its queue pair's place in the list.
    fn busy(&mut self, qpns: &[Qpn], time: Duration) {
        for (at, qpn) in (0..).zip(qpns) {
            (0..3).for_each(|_| self.write(*qpn, at, LONG));
        }
        let end = self.pair.now + time;
        while self.pair.now < end && self.pair.step(end) {
            for wc in self.pair.take_completions(0, SEND_CQ) {
                assert_eq!(wc.status, WcStatus::Success);
                self.write(qpns[wc.wr_id as usize], wc.wr_id, LONG);
            }
        }
    }

    /// Bytes that each lane has sent.
    fn sent(&self) -> Vec<(u8, u64)> {
        self.pair.sides[0].endpoint.lane_stats().map(|(lane, stats)| (lane, stats.bytes_sent)).collect()
    }
}

const THREE: &str = "qos TRUE\nqos_high_limit 0\nqos_vlarb_high 0:0\nqos_vlarb_low 1:64,2:16,3:4\n";

#[test]
fn shares_follow_weights() {
    let mut stage = Stage::new("lane-shares", THREE);
    let qpns = [1, 2, 3].map(|level| stage.connect(level));
    stage.busy(&qpns, Duration::from_millis(400));
    let sent = stage.sent();
    let total: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
    assert!(total > RATE / 10 * 4 * 8 / 10, "{total} bytes in all");
    for ((lane, bytes), weight) in sent.iter().zip([64.0, 16.0, 4.0]) {
        let (share, due) = (*bytes as f64 / total as f64, weight / 84.0);
        assert!((share / due - 1.0).abs() < 0.05, "lane {lane} has {share:.4}, {due:.4} is due: {sent:?}");
    }
}

/// The number of queue pairs in a lane makes no difference to the lane, and within it all have the same.
#[test]
fn a_lane_of_many_has_no_more() {
    let mut stage = Stage::new("lane-many", THREE);
    let mut qpns: Vec<Qpn> = (0..12).map(|_| stage.connect(3)).collect();
    qpns.push(stage.connect(2));
    stage.busy(&qpns, Duration::from_millis(300));
    let sent = stage.sent();
    let ratio = sent[0].1 as f64 / sent[1].1 as f64;
    assert!((ratio / 4.0 - 1.0).abs() < 0.05, "{sent:?}");
    let each: Vec<u64> = qpns[..12]
        .iter()
        .map(|qpn| stage.pair.sides[0].endpoint.qp_stats(*qpn).unwrap().bytes_sent)
        .collect();
    let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
    assert!(least * 10 > most * 8, "{each:?}");
}

/// What a lane leaves goes to the others.
#[test]
fn an_idle_lane_leaves_its_share() {
    let mut stage = Stage::new("lane-idle", THREE);
    let qpns = [stage.connect(3)];
    stage.busy(&qpns, Duration::from_millis(50));
    let sent = stage.sent();
    assert!(sent[0].1 > RATE / 20 * 8 / 10, "{sent:?}");
}

/// A message in a lane of high priority waits for the batch that is leaving and for what is in the buffers, however much waits
/// in the low one. One of a single packet goes past those who wait in whatever lane it is.
#[test]
fn a_high_lane_does_not_wait_behind_a_low_one() {
    let options = "qos TRUE\nqos_high_limit 255\nqos_vlarb_high 4:64\nqos_vlarb_low 0:4\n";
    let mut stage = Stage::new("lane-latency", options);
    let low: Vec<Qpn> = (0..16).map(|_| stage.connect(0)).collect();
    let (high, beside) = (stage.connect(4), stage.connect(0));
    let mut worst = [Duration::ZERO; 4];
    for (at, (qpn, len)) in [(high, 8192), (beside, 8192), (high, 64), (beside, 64)].into_iter().enumerate() {
        for _ in 0..20 {
            stage.busy(&low, Duration::from_micros(700));
            let start = stage.pair.now;
            stage.write(qpn, 99, len);
            let limit = start + Duration::from_millis(100);
            while !stage.pair.take_completions(0, SEND_CQ).iter().any(|wc| wc.wr_id == 99) {
                assert!(stage.pair.step(limit), "no answer");
            }
            worst[at] = worst[at].max(stage.pair.now.since(start));
            stage.pair.run_until_idle_for(Duration::from_secs(1));
            stage.pair.take_completions(0, SEND_CQ);
        }
    }
    // 70 kB in the wire's buffer, and a batch of 18 kB, at 1 GB/s; the wires' latency of 20 us; an acknowledgement that waits for
    // company, for 50 us. A message of 8 packets takes 9 us itself.
    let (most, own) = (Duration::from_micros(160), Duration::from_micros(9));
    assert!(worst[0] < most + own && worst[2] < most && worst[3] < most, "{worst:?}");
    assert!(worst[1] > 2 * most, "{worst:?}");
}
