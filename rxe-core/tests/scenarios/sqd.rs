//! SQD: what was begun ends, nothing new begins, and the program is told when it has drained.

use crate::bench::Bench;
use rxe_core::{
    qp::{ModifyError, QpChange, QpState, QpType},
    testing::{ConnectOptions, PairConfig},
    wire::Class,
    work::{AddressVector, AsyncEvent, SendOp, WcStatus},
};
use std::time::Duration;

const TO_SQD: QpChange = QpChange { state: Some(QpState::Sqd), sqd_notify: Some(true), ..NOTHING };
const NOTHING: QpChange = QpChange {
    state: None,
    current_state: None,
    sqd_notify: None,
    access: None,
    pkey_index: None,
    port: None,
    qkey: None,
    av: None,
    path_mtu: None,
    timeout: None,
    retry_count: None,
    rnr_retry: None,
    rq_psn: None,
    max_rd_atomic: None,
    alternate: None,
    min_rnr_timer: None,
    sq_psn: None,
    max_dest_rd_atomic: None,
    migration: None,
    caps: None,
    dest_qpn: None,
};

#[test]
fn drains_tells_and_goes_on() {
    let mut bench = Bench::new("sqd");
    let qpn = bench.qpn(0);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 20_000);
    bench.pair.modify(0, qpn, &TO_SQD).expect("a transition");
    bench.send(0, 2, SendOp::Write(bench.remote(1, 30_000)), 0, 100);
    let early = bench.pair.modify(0, qpn, &QpChange { state: Some(QpState::Rts), ..NOTHING });
    assert_eq!(early, Err(ModifyError::Draining));
    assert!(bench.events(0).is_empty(), "told before it has drained");
    bench.pair.run_until_idle();
    assert_eq!(bench.events(0), [AsyncEvent::SqDrained(qpn)]);
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    bench.pair.run_for(Duration::from_secs(1));
    assert!(bench.sent(0).is_empty(), "nothing new begins in SQD");
    bench.go_to(0, QpState::Rts);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(2, WcStatus::Success)]);
    assert!(bench.events(0).is_empty(), "told once");
}

#[test]
fn an_idle_queue_is_drained_at_once() {
    let mut bench = Bench::new("sqd-idle");
    let qpn = bench.qpn(0);
    bench.pair.modify(0, qpn, &TO_SQD).expect("a transition");
    bench.pair.run_until_idle();
    assert_eq!(bench.events(0), [AsyncEvent::SqDrained(qpn)]);
    bench.go_to(0, QpState::Rts);
    bench.go_to(0, QpState::Sqd);
    bench.pair.run_until_idle();
    assert!(bench.events(0).is_empty(), "not asked for this time");
}

/// A queue pair in SQD still answers its peer.
#[test]
fn the_responder_goes_on() {
    let mut bench = Bench::new("sqd-responder");
    bench.go_to(0, QpState::Sqd);
    let data = bench.fill(1, 0, 3000, 1);
    bench.recv(0, 5, 0, 4000);
    bench.send(1, 1, SendOp::Send, 0, 3000);
    bench.send(1, 2, SendOp::Read(bench.remote(0, 0)), 50_000, 3000);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(1), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(bench.received_statuses(0), [(5, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 50_000, 3000), data);
}

/// Draining goes on through losses.
#[test]
fn a_lost_packet_is_sent_again_while_draining() {
    let mut bench = Bench::new("sqd-loss");
    let qpn = bench.qpn(0);
    bench.cut(0);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 5000);
    assert!(!bench.pair.sides[0].endpoint.is_draining(qpn), "it is in RTS");
    bench.pair.modify(0, qpn, &TO_SQD).expect("a transition");
    bench.pair.run_for(Duration::from_millis(20));
    assert!(bench.pair.sides[0].endpoint.is_draining(qpn));
    bench.mend(0);
    bench.pair.run_until_idle();
    assert!(!bench.pair.sides[0].endpoint.is_draining(qpn));
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.events(0), [AsyncEvent::SqDrained(qpn)]);
    assert_eq!(bench.bytes(1, 0, 5000), bench.bytes(0, 0, 5000));
}

/// The unreliable services tell it, too: when what was begun has left.
#[test]
fn unreliable_services_drain() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let options = ConnectOptions { qp_type, ..ConnectOptions::default() };
        let mut bench = Bench::with(PairConfig { name: "sqd-unreliable", ..PairConfig::default() }, options);
        let qpn = bench.qpn(0);
        bench.pair.modify(0, qpn, &TO_SQD).expect("a transition");
        bench.pair.run_until_idle();
        assert_eq!(bench.events(0), [AsyncEvent::SqDrained(qpn)], "{qp_type:?}");
        bench.go_to(0, QpState::Rts);
        bench.go_to(0, QpState::Sqd);
        bench.pair.run_until_idle();
        assert!(bench.events(0).is_empty(), "not asked for this time");
    }
}

/// An acknowledgement that waits for data to leave with is not forgotten if the peer gets another address meanwhile.
#[test]
fn an_owed_acknowledgement_follows_the_peer_to_its_new_address() {
    let mut bench = Bench::new("sqd-address");
    bench.recv(1, 5, 0, 100);
    bench.send(0, 1, SendOp::Send, 0, 100);
    let now = bench.pair.now;
    while bench.pair.completions_waiting(1) == 0 {
        assert!(bench.pair.step(now + Duration::from_secs(1)), "the message arrives");
    }
    assert!(bench.wire(1).is_empty(), "the acknowledgement waits");
    let qpn = bench.qpn(1);
    bench.pair.modify(1, qpn, &TO_SQD).expect("a transition");
    let av = AddressVector { dst: "10.9.9.9".parse().unwrap(), ..bench.pair.path(1) };
    bench
        .pair
        .modify(1, qpn, &QpChange { state: Some(QpState::Sqd), av: Some(av), ..NOTHING })
        .expect("drained");
    bench.pair.run_for(Duration::from_millis(1));
    assert_eq!(bench.wire_of(1, Class::Acknowledge).len(), 1);
}

/// It owes an acknowledgement, which still leaves.
#[test]
fn who_is_reset_while_it_drains_is_not_told_of_the_end() {
    let mut bench = Bench::new("sqd-reset");
    let qpn = bench.qpn(0);
    bench.cut(0);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 20_000);
    bench.pair.run_for(Duration::from_millis(1));
    bench.pair.modify(0, qpn, &TO_SQD).expect("a transition");
    bench.recv(0, 5, 0, 100);
    bench.send(1, 2, SendOp::Send, 0, 100);
    let now = bench.pair.now;
    while bench.pair.completions_waiting(0) == 0 {
        assert!(bench.pair.step(now + Duration::from_secs(1)), "the message arrives");
    }
    bench.go_to(0, QpState::Reset);
    assert!(bench.events(0).is_empty(), "it has not drained");
}
