//! Virtual lanes: which lane has the turn, the DSCP of its packets, and that a lane that cannot send keeps no other waiting.

use crate::bench::Bench;
use rxe_core::{
    endpoint::{Arbitration, LANES, Lanes, NO_LANE},
    num::Qpn,
    qp::{ModifyError, QpChange, QpState, QpType},
    testing::{
        ConnectOptions, LinkConfig, PairConfig,
        connect::{RECV_CQ, SEND_CQ},
        link::Verdict,
        trace::{Entry, Record},
    },
    work::{AddressVector, RecvWr, SendFlags, SendOp, SendWr, UdDest, WcStatus},
};
use std::time::Duration;

/// The highest lane that waits always has the turn.
#[derive(Debug)]
struct HighestFirst;

impl Arbitration for HighestFirst {
    fn next(&mut self, waiting: u16) -> Option<u8> {
        Some(15 - waiting.leading_zeros() as u8)
    }

    fn sent(&mut self, _: u8, _: usize) {}
}

/// Service level n has lane n but for 15, which has none; lane n has DSCP 8n where that is one.
fn lanes() -> Lanes {
    let mut of_level = [0; 16];
    (0..).zip(&mut of_level).for_each(|(level, lane)| *lane = level);
    of_level[15] = NO_LANE;
    let mut classes = [0; LANES];
    (0..8).for_each(|lane: u8| classes[usize::from(lane)] = lane << 5);
    Lanes::new(of_level, classes, Box::new(HighestFirst))
}

/// A bench with lanes on both sides and slow wires.
fn bench(name: &'static str) -> Bench {
    let wire = LinkConfig {
        rate: 1_000_000_000,
        hold: 40_000,
        latency: Duration::from_micros(10),
        ..LinkConfig::default()
    };
    let mut bench = Bench::with(
        PairConfig { name, links: [wire; 2], ..PairConfig::default() },
        ConnectOptions { timeout: 18, ..ConnectOptions::default() },
    );
    bench.pair.sides.iter_mut().for_each(|side| side.endpoint.set_lanes(lanes()));
    bench
}

/// A connection in a service level; side 0's end.
fn connect(bench: &mut Bench, service_level: u8) -> [Qpn; 2] {
    let options = ConnectOptions { service_level, ..bench.options };
    bench.pair.connect(&options).qpns
}

fn write(bench: &mut Bench, qpn: Qpn, wr_id: u64, len: u32) {
    let (sges, remote) = ([bench.sge(0, 0, len)], bench.remote(1, 0));
    let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, SendOp::Write(remote), &sges) };
    bench.pair.post_send(0, qpn, &wr).expect("posted");
}

#[test]
fn the_lane_in_turn_goes_first_with_its_own_dscp() {
    let mut bench = bench("lanes");
    let (low, high) = (connect(&mut bench, 1)[0], connect(&mut bench, 6)[0]);
    for _ in 0..8 {
        write(&mut bench, low, 1, 128 * 1024);
    }
    bench.pair.run_for(Duration::from_micros(300));
    write(&mut bench, high, 6, 64 * 1024);
    bench.pair.run_until_idle_for(Duration::from_secs(1));
    let done: Vec<_> = bench.pair.take_completions(0, SEND_CQ);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success) && done.len() == 9);
    let place = done.iter().position(|wc| wc.wr_id == 6).unwrap();
    assert!(place < 4, "it came as number {place}, behind what was posted before it");
    // What has left, and come to the other side, is counted by lane.
    for side in [0, 1] {
        let counted: Vec<_> = bench.pair.sides[side].endpoint.lane_stats().collect();
        assert_eq!(counted.iter().map(|(lane, _)| *lane).collect::<Vec<_>>(), [1, 6]);
        let bytes =
            |lane: usize| if side == 0 { counted[lane].1.bytes_sent } else { counted[lane].1.bytes_received };
        assert!(bytes(0) > 1 << 20 && (65_536..80_000).contains(&bytes(1)), "{counted:?}");
    }
    let tos = |record: &Record| match &record.entry {
        Entry::Packet { datagram, .. } => Some(datagram.tos),
        Entry::Note(_) => None,
    };
    let classes: Vec<u8> = bench.pair.trace.records().filter_map(tos).collect();
    assert!(classes.contains(&0x20) && classes.contains(&0xc0), "{classes:?}");
    assert!(classes.iter().all(|tos| [0x20, 0xc0].contains(tos)), "{classes:?}");
}

/// Beside a lane that fills the link without end a message in a higher one waits for the batch that has the turn and then leaves at
/// once; in the busy lane it waits for its turn among the others, again and again.
#[test]
fn a_message_in_a_high_lane_waits_for_one_batch() {
    /// Bytes of a batch at most, and their headers.
    const BATCH: usize = 68_000;
    const TURNS: usize = 6;
    let mut bench = bench("lanes-latency");
    let busy: Vec<Qpn> = (0..16).map(|_| connect(&mut bench, 1)[0]).collect();
    let (low, high) = (connect(&mut bench, 1), connect(&mut bench, 6));
    // What the others send before the first packet of a message in the high lane, before its last, and before that in the low one.
    let mut before = [const { Vec::new() }; 3];
    for turn in 0..TURNS as u64 {
        busy.iter().for_each(|qpn| write(&mut bench, *qpn, 0, 128 * 1024));
        bench.pair.run_for(Duration::from_micros(700 + 37 * turn));
        // The trace forgets its oldest records.
        let since = bench.pair.trace.forgotten() as usize + bench.pair.trace.records().count();
        write(&mut bench, low[0], 1, 64 * 1024);
        write(&mut bench, high[0], 6, 64 * 1024);
        bench.pair.run_until_idle_for(Duration::from_secs(1));
        let (mut bytes, mut found) = (0, [None; 3]);
        let trace = &bench.pair.trace;
        let new = trace.records().skip(since - trace.forgotten() as usize);
        for record in new.filter(|record| record.side == 0) {
            let Entry::Packet { datagram, .. } = &record.entry else { continue };
            let to = u32::from_be_bytes(datagram.bytes[4..8].try_into().unwrap()) & 0xff_ffff;
            if to == high[1].value() {
                found[0].get_or_insert(bytes);
                found[1] = Some(bytes);
            } else if to == low[1].value() {
                found[2] = Some(bytes);
            } else {
                bytes += datagram.bytes.len();
            }
        }
        before.iter_mut().zip(found).for_each(|(all, found)| all.extend(found));
        let done = bench.pair.take_completions(0, SEND_CQ);
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success) && done.len() == 18, "{done:?}");
    }
    assert!(before.iter().all(|all| all.len() == TURNS), "{before:?}");
    let [first, high, low] = before;
    assert!(first.iter().all(|bytes| *bytes <= BATCH), "{first:?}");
    assert!(low.iter().sum::<usize>() > 3 * high.iter().sum::<usize>(), "{low:?} beside {high:?}");
}

#[test]
fn a_lane_that_nobody_answers_keeps_nobody_waiting() {
    let mut bench = bench("lanes-dead");
    let (dead, live) = (connect(&mut bench, 6)[0], connect(&mut bench, 1)[0]);
    bench.pair.sides[0].link.set_rule(move |crossing| match crossing.datagram.tos {
        0xc0 => Verdict::Drop,
        _ => Verdict::Pass,
    });
    for _ in 0..8 {
        write(&mut bench, dead, 6, 128 * 1024);
        write(&mut bench, live, 1, 128 * 1024);
    }
    bench.pair.run_for(Duration::from_millis(40));
    let done = bench.pair.take_completions(0, SEND_CQ);
    assert_eq!(
        done.iter().filter(|wc| wc.wr_id == 1 && wc.status == WcStatus::Success).count(),
        8,
        "{done:?}"
    );
}

/// A queue pair that waits in the line of its lane leaves it when it is reset.
#[test]
fn a_reset_queue_pair_leaves_the_line_of_its_lane() {
    let mut bench = bench("lanes-reset");
    let qpns = [connect(&mut bench, 6)[0], connect(&mut bench, 6)[0]];
    bench.pair.sides[0].link.set_rule(|_| Verdict::Drop);
    for qpn in qpns {
        write(&mut bench, qpn, 1, 1024 * 1024);
        write(&mut bench, qpn, 1, 1024 * 1024);
    }
    bench.pair.run_for(Duration::from_millis(10));
    bench.pair.sides[0].endpoint.check_admission();
    for qpn in qpns {
        bench.pair.modify(0, qpn, &QpChange { state: Some(QpState::Reset), ..QpChange::default() }).unwrap();
        bench.pair.sides[0].endpoint.check_admission();
    }
}

#[test]
fn levels_without_a_lane_are_refused() {
    let mut bench = bench("lanes-none");
    let options = ConnectOptions { service_level: 15, ..bench.options };
    let qpn = bench.pair.create_qp(0, &options);
    let peer = bench.pair.create_qp(1, &options);
    bench.pair.bring_up(0, qpn, peer, &options, QpState::Init);
    let change = bench.pair.step_to(0, peer, &options, QpState::Rtr);
    let refused = bench.pair.modify(0, qpn, &change).unwrap_err();
    assert!(matches!(refused, ModifyError::Value { attribute: "AV", value: 15, .. }), "{refused:?}");
}

/// One datagram queue pair sends to several lanes; each datagram is in that of its own address handle.
#[test]
fn datagrams_are_in_the_lane_of_their_address_handle() {
    let mut bench = bench("lanes-datagrams");
    let options = ConnectOptions { qp_type: QpType::Ud, ..bench.options };
    let qpns = bench.pair.connect(&options).qpns;
    for wr_id in 0..12 {
        let sges = [bench.sge(1, wr_id * 2048, 1088)];
        bench.pair.post_recv(1, qpns[1], &RecvWr { wr_id, sges: &sges }).unwrap();
    }
    for wr_id in 0..12u8 {
        let av = AddressVector { service_level: wr_id % 3, ..bench.pair.path(0) };
        let dest = UdDest { av, remote_qpn: qpns[1], remote_qkey: options.qkey, pkey: None };
        let sges = [bench.sge(0, 0, 1000)];
        let wr = SendWr { dest: Some(dest), ..SendWr::new(wr_id.into(), SendOp::Send, &sges) };
        bench.pair.post_send(0, qpns[0], &wr).unwrap();
    }
    bench.pair.run_until_idle_for(Duration::from_secs(1));
    assert_eq!(bench.pair.take_completions(1, RECV_CQ).len(), 12);
    let counted: Vec<_> =
        bench.pair.sides[0].endpoint.lane_stats().map(|(lane, stats)| (lane, stats.packets_sent)).collect();
    assert_eq!(counted, [(0, 4), (1, 4), (2, 4)]);
}

/// A queue pair whose service level has lost its lane can be put into the error state, as any other.
#[test]
fn it_ends_without_its_lane() {
    let mut bench = Bench::new("lane-lost");
    let nothing = Lanes::new([NO_LANE; 16], [0; LANES], Box::new(HighestFirst));
    bench.pair.sides[0].endpoint.set_lanes(nothing);
    bench.go_to(0, QpState::Error);
}
