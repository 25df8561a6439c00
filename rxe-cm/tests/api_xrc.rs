//! XRC by the connection manager: an initiator connects to a target, as kernels do it (their cm.c).

mod api_common;

use api_common::{Host, PORT, pair};
use rxe_cm::{
    CmError, CmId, ConnParams, EventKind, ForeignQp, Offer,
    proto::{Message, PortSpace, RejectReason, Transport},
};
use rxe_verbs::{Qp, QpInit, QpState, QpType, RecvWr, SendOp, SendWr, WcStatus};
use std::sync::{Arc, Mutex};

const SPACE: PortSpace = PortSpace::Ib;

fn id_of(host: &Host, kind: QpType) -> CmId {
    host.manager.create_id_for(&host.channel, SPACE, kind).unwrap()
}

fn listener(host: &Host, kind: QpType) -> CmId {
    let id = id_of(host, kind);
    id.bind(host.at(PORT)).unwrap();
    id.listen(0).unwrap();
    id
}

fn resolved(host: &Host, to: &Host, kind: QpType) -> CmId {
    let id = id_of(host, kind);
    id.resolve_addr(None, to.at(PORT)).unwrap();
    host.expect("ADDR_RESOLVED");
    id.resolve_route().unwrap();
    host.expect("ROUTE_RESOLVED");
    id
}

fn with(qp: &Qp) -> ConnParams<'static> {
    ConnParams { qp: Some(ForeignQp { qpn: qp.qpn(), srq: false }), ..ConnParams::default() }
}

fn move_on(id: &CmId, qp: &Qp) {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        qp.modify(&id.qp_change(state).unwrap()).unwrap();
    }
}

#[test]
fn an_initiator_reaches_a_queue_behind_a_target() {
    let (a, b) = pair();
    let _listener = listener(&b, QpType::XrcTarget);
    let said = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&said);
    a.manager.watch(move |crossing| log.lock().unwrap().push(crossing.datagram.message));
    let active = resolved(&a, &b, QpType::XrcInitiator);
    let initiator = a.pd.create_qp(&QpInit::new(QpType::XrcInitiator, &a.cq)).unwrap();
    active.connect(&with(&initiator)).unwrap();

    let request = b.expect("CONNECT_REQUEST");
    let domain = b.context.open_xrcd(None, true, false).unwrap();
    let target = domain.create_target().unwrap();
    let srq = domain.create_srq(&b.pd, &b.cq, 4, 1).unwrap();
    srq.post_recv(&RecvWr { wr_id: 1, sges: &[b.memory.sge(1024, 64)] }).unwrap();
    request.id.accept(&with(&target)).unwrap();
    move_on(&request.id, &target);
    let answer = a.expect("CONNECT_RESPONSE");
    let EventKind::ConnectResponse(terms) = &answer.kind else { panic!("{answer:?}") };
    assert_eq!(terms.qpn, target.qpn());
    move_on(&active, &initiator);
    active.establish().unwrap();
    let told = b.expect("ESTABLISHED");
    assert!(matches!(told.kind, EventKind::Established(Offer::Connection(_))), "{told:?}");

    // What crossed is what kernels send: the target's number where end-to-end contexts are.
    let said = said.lock().unwrap().clone();
    let req = said
        .iter()
        .find_map(|message| if let Message::Req(req) = message { Some(*req) } else { None })
        .unwrap();
    assert_eq!((req.transport, req.extended_transport, req.responder_resources), (Transport::Extended, 1, 0));
    let rep = said
        .iter()
        .find_map(|message| if let Message::Rep(rep) = message { Some(*rep) } else { None })
        .unwrap();
    assert_eq!((rep.local_qpn.value(), rep.local_eecn, rep.srq), (0, target.qpn().value(), true));

    a.memory.write_at(0, b"over the connection").unwrap();
    let sges = [a.memory.sge(0, 19)];
    let wr = SendWr { xrc_srq: srq.number().unwrap(), ..SendWr::new(2, SendOp::Send, &sges) };
    initiator.post_send(&wr).unwrap();
    assert_eq!(a.completion().status, WcStatus::Success);
    let received = b.completion();
    assert_eq!((received.wr_id, received.status, received.qpn), (1, WcStatus::Success, target.qpn()));
    assert_eq!(b.memory.read_vec(1024, 19).unwrap(), b"over the connection");

    active.disconnect().unwrap();
    b.expect("DISCONNECTED");
    request.id.disconnect().unwrap();
    a.expect("DISCONNECTED");
}

#[test]
fn kinds_that_do_not_belong_together_are_refused() {
    let (a, b) = pair();
    for (listening, connecting) in [(QpType::Rc, QpType::XrcInitiator), (QpType::XrcTarget, QpType::Rc)] {
        let listener = listener(&b, listening);
        let active = resolved(&a, &b, connecting);
        let qp = a.pd.create_qp(&QpInit::new(connecting, &a.cq)).unwrap();
        active.connect(&with(&qp)).unwrap();
        let told = a.expect("REJECTED");
        let EventKind::Rejected(why) = &told.kind else { panic!("{told:?}") };
        assert_eq!(*why, RejectReason::INVALID_TRANSPORT);
        drop((listener, active));
    }
    let _listener = listener(&b, QpType::XrcTarget);
    let wrong = resolved(&a, &b, QpType::XrcTarget);
    let qp = a.pd.create_qp(&QpInit::new(QpType::XrcInitiator, &a.cq)).unwrap();
    assert!(matches!(wrong.connect(&with(&qp)), Err(CmError::Argument(_))));
}
