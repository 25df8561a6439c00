//! Modifying through the endpoint: the table's refusals, and the ones that need the endpoint's knowledge.

use crate::bench::Bench;
use rxe_core::{
    num::Qpn,
    qp::{ModifyError, PostError, QpChange, QpState},
    work::{RecvWr, SendOp, SendWr, WcStatus},
};

#[test]
fn refusals_change_nothing() {
    let mut bench = Bench::new("modify");
    let options = bench.options;
    let qpn = bench.pair.create_qp(0, &options);
    let init = bench.pair.step_to(0, Qpn::new(5), &options, QpState::Init);
    let wrong = [
        QpChange { port: Some(2), ..init },
        QpChange { pkey_index: None, ..init },
        QpChange { pkey_index: Some(1), ..init },
        QpChange { qkey: Some(rxe_core::num::Qkey(1)), ..init },
        QpChange { current_state: Some(QpState::Rts), ..init },
        QpChange { state: Some(QpState::Rtr), ..init },
    ];
    let before = bench.pair.sides[0].endpoint.query_qp(qpn);
    for change in wrong {
        assert!(bench.pair.modify(0, qpn, &change).is_err(), "{change:?}");
        assert_eq!(bench.pair.sides[0].endpoint.query_qp(qpn), before, "{change:?}");
    }
    let stranger = bench.pair.modify(0, Qpn::new(0xabcd), &init);
    assert_eq!(stranger, Err(ModifyError::NoSuchQp));
    bench.pair.modify(0, qpn, &init).expect("right");
}

/// Receives from INIT on, sends from RTS on.
#[test]
fn what_each_state_takes() {
    let mut bench = Bench::new("post-states");
    let options = bench.options;
    let qpn = bench.pair.create_qp(0, &options);
    let peer = bench.qpn(1);
    let sges = [bench.sge(0, 0, 1)];
    let recv = RecvWr { wr_id: 1, sges: &sges };
    let send = SendWr::new(1, SendOp::Send, &sges);
    assert_eq!(bench.pair.post_recv(0, qpn, &recv), Err(PostError::State(QpState::Reset)));
    assert_eq!(bench.pair.post_send(0, qpn, &send), Err(PostError::State(QpState::Reset)));
    for state in [QpState::Init, QpState::Rtr] {
        let change = bench.pair.step_to(0, peer, &options, state);
        bench.pair.modify(0, qpn, &change).expect("a step");
        assert_eq!(bench.pair.post_recv(0, qpn, &recv), Ok(()));
        assert_eq!(bench.pair.post_send(0, qpn, &send), Err(PostError::State(state)));
    }
    let change = bench.pair.step_to(0, peer, &options, QpState::Rts);
    bench.pair.modify(0, qpn, &change).expect("a step");
    assert_eq!(bench.pair.post_send(0, qpn, &send), Ok(()));
}

/// A queue pair is connected without anybody asking for packets in between: what is posted then leaves all the same.
#[test]
fn connected_in_one_go() {
    let mut bench = Bench::new("connected-in-one-go");
    let options = bench.options;
    let qpn = bench.pair.create_qp(0, &options);
    let peer = bench.pair.create_qp(1, &options);
    bench.pair.bring_up(1, peer, qpn, &options, QpState::Rts);
    let now = bench.pair.now;
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let change = bench.pair.step_to(0, peer, &options, state);
        let side = &mut bench.pair.sides[0];
        side.endpoint.modify_qp(now, qpn, &change, &side.heap).expect("a step");
    }
    let sges = [bench.sge(0, 0, 100)];
    let write = SendWr::new(1, SendOp::Write(bench.remote(1, 0)), &sges);
    bench.pair.post_send(0, qpn, &write).unwrap();
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
}
