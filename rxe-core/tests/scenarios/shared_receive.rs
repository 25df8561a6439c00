//! Shared receive queues: order, the limit event, and the last request of a queue pair in error.

use crate::bench::Bench;
use rxe_core::{
    endpoint::{MAX_QPS, MAX_SRQS, ObjectError},
    qp::{QpCaps, QpConfig, QpState, QpType},
    testing::{
        ConnectOptions, Pair, PairConfig,
        connect::{PD, RECV_CQ, SEND_CQ},
    },
    work::{AsyncEvent, RecvWr, SendOp, SrqId, WcStatus},
};

/// Two connections whose ends on side 1 share a queue: the bench's own, and one more.
fn bench(name: &'static str) -> (Bench, SrqId, rxe_core::testing::Connection) {
    let mut probe = Pair::new(PairConfig::default());
    let expected = probe.sides[1].endpoint.create_srq(PD, 16, 4).expect("made");
    let mut bench = Bench::new(name);
    let srq = bench.pair.sides[1].endpoint.create_srq(PD, 16, 4).expect("made");
    assert_eq!(srq, expected, "numbers follow from what was made before");
    let options = ConnectOptions { srq: [None, Some(srq)], ..bench.options };
    bench.connection = bench.pair.connect(&options);
    let second = bench.pair.connect(&options);
    (bench, srq, second)
}

fn post(bench: &mut Bench, srq: SrqId, wr_id: u64) {
    let sges = [bench.sge(1, 1000 * wr_id, 1000)];
    bench.pair.post_srq_recv(1, srq, &RecvWr { wr_id, sges: &sges }).expect("posted");
}

#[test]
fn drawn_in_order_by_whoever_comes() {
    let (mut bench, srq, second) = bench("srq");
    for wr_id in 0..6 {
        post(&mut bench, srq, wr_id);
    }
    let first = bench.connection;
    for round in 0..6_u64 {
        bench.connection = if round % 2 == 0 { first } else { second };
        let data = bench.fill(0, 0, 900, round);
        bench.send(0, round, SendOp::Send, 0, 900);
        bench.pair.run_until_idle();
        let received = bench.received(1);
        assert_eq!((received[0].wr_id, received[0].status), (round, WcStatus::Success));
        assert_eq!(received[0].qpn, bench.qpn(1));
        assert_eq!(bench.bytes(1, 1000 * round, 900), data);
    }
}

#[test]
fn the_limit_is_told_once() {
    let (mut bench, srq, _) = bench("srq-limit");
    for wr_id in 0..6 {
        post(&mut bench, srq, wr_id);
    }
    bench.pair.sides[1].endpoint.modify_srq(srq, None, Some(3)).expect("armed");
    for (round, told) in [false, false, false, true, false].into_iter().enumerate() {
        bench.send(0, round as u64, SendOp::Send, 0, 10);
        bench.pair.run_until_idle();
        let expected = if told { vec![AsyncEvent::SrqLimitReached(srq)] } else { vec![] };
        assert_eq!(bench.events(1), expected, "after message {round}");
    }
    bench.pair.sides[1].endpoint.modify_srq(srq, None, Some(1)).expect("armed");
    bench.send(0, 9, SendOp::Send, 0, 10);
    bench.pair.run_until_idle();
    assert_eq!(bench.events(1), [AsyncEvent::SrqLimitReached(srq)]);
}

/// A limit that is armed when the queue holds less already is reached at once, and told once.
#[test]
fn a_limit_above_the_count_is_reached_at_once() {
    let (mut bench, srq, _) = bench("srq-limit-late");
    for wr_id in 0..3 {
        post(&mut bench, srq, wr_id);
    }
    for (limit, told) in [(3, false), (4, true), (4, true)] {
        bench.pair.sides[1].endpoint.modify_srq(srq, None, Some(limit)).expect("armed");
        bench.pair.drain(1);
        let expected = if told { vec![AsyncEvent::SrqLimitReached(srq)] } else { vec![] };
        assert_eq!(bench.events(1), expected, "limit {limit}");
        let left = if told { 0 } else { limit };
        assert_eq!(bench.pair.sides[1].endpoint.query_srq(srq).map(|known| known.1), Some(left));
    }
    bench.send(0, 0, SendOp::Send, 0, 10);
    bench.pair.run_until_idle();
    assert_eq!(bench.events(1), []);
}

/// An empty shared queue is not ready, like any other.
#[test]
fn empty_is_not_ready() {
    let (mut bench, srq, _) = bench("srq-rnr");
    bench.send(0, 1, SendOp::Send, 0, 10);
    bench.pair.run_for(std::time::Duration::from_millis(3));
    assert!(bench.sent(0).is_empty() && bench.stats(1).rnr_naks_sent > 0);
    post(&mut bench, srq, 1);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
}

/// A queue pair that fails leaves the shared requests to the others, and says when it has drawn its last.
#[test]
fn one_in_error_leaves_the_rest() {
    let (mut bench, srq, second) = bench("srq-error");
    for wr_id in 0..3 {
        post(&mut bench, srq, wr_id);
    }
    bench.go_to(1, QpState::Error);
    bench.pair.run_until_idle();
    assert!(bench.received(1).is_empty());
    let qpn = bench.qpn(1);
    assert_eq!(bench.events(1), [AsyncEvent::LastWqeReached(qpn)]);
    bench.connection = second;
    bench.send(0, 1, SendOp::Send, 0, 10);
    bench.pair.run_until_idle();
    assert_eq!(bench.received_statuses(1), [(0, WcStatus::Success)]);
}

#[test]
fn in_use_it_is_not_destroyed() {
    let (mut bench, srq, second) = bench("srq-busy");
    let endpoint = &mut bench.pair.sides[1].endpoint;
    assert!(endpoint.destroy_srq(srq).is_err());
    endpoint.destroy_qp(second.qpns[1]).expect("it exists");
    endpoint.destroy_qp(bench.connection.qpns[1]).expect("it exists");
    endpoint.destroy_srq(srq).expect("free now");
}

/// As many as the device says, and not one more.
#[test]
fn as_many_as_there_may_be() {
    let mut pair = Pair::new(PairConfig::default());
    let endpoint = &mut pair.sides[0].endpoint;
    let mut srqs = Vec::new();
    let refused = loop {
        match endpoint.create_srq(PD, 1, 1) {
            Ok(srq) => srqs.push(srq),
            Err(error) => break error,
        }
    };
    assert_eq!((refused, srqs.len()), (ObjectError::Exhausted, MAX_SRQS as usize));
    let mut qps = 0;
    let config = QpConfig {
        qp_type: QpType::Ud,
        pd: PD,
        send_cq: SEND_CQ,
        recv_cq: RECV_CQ,
        srq: None,
        xrcd: None,
        caps: QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 },
        signal_all: false,
    };
    let refused = loop {
        match endpoint.create_qp(config) {
            Ok(_) => qps += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused, qps), (ObjectError::Exhausted, MAX_QPS));
}
