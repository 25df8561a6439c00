//! Connections by the API: established, refused, ended, given up.

mod api_common;

use api_common::{Host, PORT, connect, pair, send};
use rxe_cm::{
    CmError, CmOptions, ConnParams, Direction, Ece, EventChannel, EventKind, Manager, Offer,
    proto::{Message, PortSpace, RejectReason},
};
use rxe_verbs::{ContextOptions, GidType, QpState, net::InprocNet};
use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

#[test]
fn a_connection_carries_data_and_ends() {
    let (a, b) = pair();
    let listener = b.listen(PortSpace::Tcp, PORT, 0);
    let (active, passive) = connect(&a, &b, &listener);
    send(&a, &active, &b, &passive);
    send(&b, &passive, &a, &active);
    let (attrs, _) = active.qp().unwrap().query();
    assert_eq!(attrs.state, QpState::Rts);
    assert_eq!(attrs.min_rnr_timer, 12, "not rdma_cm's 655 ms");

    active.disconnect().unwrap();
    assert_eq!(active.qp().unwrap().state(), QpState::Error);
    let told = b.expect("DISCONNECTED");
    assert!(told.id.is_same(&passive));
    passive.disconnect().unwrap();
    a.expect("DISCONNECTED");
    a.expect("TIMEWAIT_EXIT");
    b.expect("TIMEWAIT_EXIT");
    assert_eq!((a.manager.connections(), b.manager.connections()), (0, 0));
    // A side that learns late that the connection has ended may still disconnect.
    active.disconnect().unwrap();
}

/// A peer that gives up some day gets the time that rdma_cm gives it.
#[test]
fn a_peer_that_may_retry_three_times_has_long_to_wait() {
    let (a, b) = pair();
    let listener = b.listen(PortSpace::Tcp, PORT, 0);
    let params = ConnParams { rnr_retry_count: 3, ..ConnParams::default() };
    let active = a.resolved(PortSpace::Tcp, b.at(PORT));
    let _own = a.qp(&active);
    active.connect(&params).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    let _theirs = b.qp(&request.id);
    request.id.accept(&params).unwrap();
    a.expect("ESTABLISHED");
    for id in [&active, &request.id] {
        let (attrs, _) = id.qp().unwrap().query();
        assert_eq!((attrs.rnr_retry, attrs.min_rnr_timer), (3, 0));
    }
    drop(listener);
}

/// rdma_set_option with RDMA_OPTION_ID_ACK_TIMEOUT, on both sides, once queue pairs and routes are there.
#[test]
fn an_ack_timeout_may_be_wished_late() {
    let (a, b) = pair();
    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let options = CmOptions { ack_timeout: Some(21), ..CmOptions::default() };
    let active = a.resolved(PortSpace::Tcp, b.at(PORT));
    let _own = a.qp(&active);
    active.set_options(options).unwrap();
    active.connect(&ConnParams::default()).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    let _theirs = b.qp(&request.id);
    request.id.set_options(options).unwrap();
    request.id.accept(&ConnParams::default()).unwrap();
    a.expect("ESTABLISHED");
    for id in [&active, &request.id] {
        assert_eq!(id.qp().unwrap().query().0.timeout, 21);
        assert_eq!(id.qp_change(QpState::Rts).unwrap().timeout, Some(21));
    }
}

/// As with a kernel: to resolve the route a second time is an error.
#[test]
fn a_route_is_resolved_once() {
    let (a, b) = pair();
    let id = a.resolved(PortSpace::Tcp, b.at(PORT));
    assert!(matches!(id.resolve_route(), Err(CmError::State { .. })));
    a.is_silent();
}

/// A program may end right behind rdma_destroy_id: the peer hears of it all the same, whoever is at work just then.
#[test]
fn when_an_id_is_destroyed_the_peer_has_been_told() {
    let (a, b) = pair();
    let listener = b.listen(PortSpace::Tcp, PORT, 0);
    let (_active, passive) = connect(&a, &b, &listener);
    let (busy, is_busy) = mpsc::channel();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&sent);
    b.manager.watch(move |crossing| {
        if crossing.direction == Direction::Sent {
            let message = crossing.datagram.message;
            log.lock().unwrap().push(message);
            if matches!(message, Message::Rej(_)) {
                let _ = busy.send(());
                thread::sleep(Duration::from_millis(300));
            }
        }
    });
    // Nobody listens there: b's thread is busy with the refusal when the id is destroyed.
    let stray = a.resolved(PortSpace::Tcp, b.at(PORT + 1));
    let _own = a.qp(&stray);
    stray.connect(&ConnParams::default()).unwrap();
    is_busy.recv().unwrap();
    passive.destroy();
    let told = sent.lock().unwrap().iter().any(|message| matches!(message, Message::Dreq(_)));
    assert!(told, "{:?}", sent.lock().unwrap());
}

/// The peer may end a connection while our message is on its way. The program cannot know that.
#[test]
fn to_end_what_is_ending_does_no_harm() {
    let (a, b) = pair();
    let listener = b.listen(PortSpace::Tcp, PORT, 0);
    let (active, passive) = connect(&a, &b, &listener);
    active.disconnect().unwrap();
    active.disconnect().unwrap();
    b.expect("DISCONNECTED");
    passive.disconnect().unwrap();
    a.expect("DISCONNECTED");
    active.disconnect().unwrap();
    passive.disconnect().unwrap();
    assert_eq!(passive.qp().unwrap().state(), QpState::Error);
}

#[test]
fn addresses_and_terms_are_seen_from_each_side() {
    let (a, b) = pair();
    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let active = a.resolved(PortSpace::Tcp, b.at(PORT));
    let qp = a.qp(&active);
    let private_data = [7; 56];
    let params = ConnParams {
        private_data: &private_data,
        responder_resources: Some(3),
        initiator_depth: Some(5),
        retry_count: 4,
        rnr_retry_count: 6,
        ece: Ece { vendor_id: 0xa0b0_c0d0, options: 0xdead_beef },
        ..ConnParams::default()
    };
    active.connect(&params).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    let EventKind::ConnectRequest(Offer::Connection(terms)) = &request.kind else { panic!("{request:?}") };
    assert_eq!((terms.responder_resources, terms.initiator_depth), (5, 3), "mirrored");
    assert_eq!((terms.retry_count, terms.rnr_retry_count, terms.qpn), (4, 6, qp.qpn()));
    assert_eq!(terms.ece, Ece { vendor_id: 0xb0_c0d0, options: 0xdead_beef }, "a vendor has three bytes");
    assert_eq!(*request.private_data, private_data);
    assert_eq!(request.id.local_addr(), Some(b.at(PORT)));
    assert_eq!(request.id.peer_addr(), active.local_addr());
    b.qp(&request.id);
    let ece = Ece { vendor_id: 0x10_2030, options: 7 };
    let answer =
        ConnParams { private_data: &[9; 196], initiator_depth: Some(2), ece, ..ConnParams::default() };
    request.id.accept(&answer).unwrap();
    let established = a.expect("ESTABLISHED");
    let EventKind::Established(Offer::Connection(terms)) = &established.kind else {
        panic!("{established:?}")
    };
    assert_eq!((terms.responder_resources, terms.initiator_depth, terms.ece), (2, 5, ece));
    assert_eq!(*established.private_data, [9; 196]);
    b.expect("ESTABLISHED");
    let attrs = |id: &rxe_cm::CmId| id.qp().unwrap().query().0;
    let (ours, theirs) = (attrs(&active), attrs(&request.id));
    assert_eq!((ours.max_rd_atomic, ours.max_dest_rd_atomic), (5, 2));
    assert_eq!((theirs.max_rd_atomic, theirs.max_dest_rd_atomic), (2, 5));
    assert_eq!((ours.retry_count, theirs.retry_count), (4, 4));
    assert_eq!((ours.rnr_retry, theirs.rnr_retry), (7, 6));
    assert_eq!(ours.path_mtu, theirs.path_mtu);
}

#[test]
fn refusals_tell_why() {
    let (a, b) = pair();
    let nobody = a.resolved(PortSpace::Tcp, b.at(PORT));
    a.qp(&nobody);
    nobody.connect(&ConnParams::default()).unwrap();
    let event = a.expect("REJECTED");
    assert!(matches!(event.kind, EventKind::Rejected(RejectReason::INVALID_SERVICE_ID)), "{event:?}");
    assert_eq!(event.status(), 8);

    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let refused = a.resolved(PortSpace::Tcp, b.at(PORT));
    a.qp(&refused);
    refused.connect(&ConnParams::default()).unwrap();
    b.expect("CONNECT_REQUEST").id.reject(&[5; 148]).unwrap();
    let event = a.expect("REJECTED");
    assert_eq!((event.status(), &*event.private_data), (28, &[5; 148][..]));
    // The id may try again.
    refused.connect(&ConnParams::default()).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    request.id.reject_because(RejectReason::VENDOR_OPTION_NOT_SUPPORTED, &[]).unwrap();
    assert_eq!(a.expect("REJECTED").status(), 35);
    // A program that drops a request refuses it.
    refused.connect(&ConnParams::default()).unwrap();
    drop(b.expect("CONNECT_REQUEST"));
    assert_eq!(a.expect("REJECTED").status(), 28);
}

#[test]
fn both_ends_may_hang_up_at_once() {
    let (a, b) = pair();
    let listener = b.listen(PortSpace::Tcp, PORT, 0);
    for _ in 0..20 {
        let (active, passive) = connect(&a, &b, &listener);
        active.disconnect().unwrap();
        // This either crosses the other's request to end, or agrees to it.
        passive.disconnect().unwrap();
        a.expect("DISCONNECTED");
        b.expect("DISCONNECTED");
        a.expect("TIMEWAIT_EXIT");
        b.expect("TIMEWAIT_EXIT");
    }
}

#[test]
fn a_destroyed_id_ends_its_connection_and_says_no_more() {
    let (a, b) = pair();
    let listener = b.listen(PortSpace::Tcp, PORT, 0);
    let (active, passive) = connect(&a, &b, &listener);
    drop(active);
    b.expect("DISCONNECTED");
    passive.destroy();
    a.is_silent();
    b.is_silent();
}

/// Events have handles of their id. Neither one that waits nor one that comes while the id is being destroyed keeps it.
#[test]
fn events_do_not_keep_a_destroyed_id() {
    let (a, _b) = pair();
    let user = || EventKind::User { status: 0, arg: 0 };
    for _ in 0..2 {
        let id = a.id(PortSpace::Tcp);
        id.bind(a.at(PORT)).unwrap();
        id.tell(user()).unwrap();
        let other = id.clone();
        id.destroy();
        other.tell(user()).unwrap();
        drop(other);
        assert!(a.channel.try_get_event().is_none());
    }
}

/// rdma_migrate_id of a listener: the ids of requests that wait go along, and what has become of them since.
#[test]
fn the_ids_of_waiting_requests_migrate_with_their_listener() {
    let (a, b) = pair();
    let old = EventChannel::new().unwrap();
    let listener = b.manager.create_id(&old, PortSpace::Tcp).unwrap();
    listener.bind(b.at(PORT)).unwrap();
    listener.listen(0).unwrap();
    let [active, hasty] = [0, 1].map(|_| {
        let id = a.resolved(PortSpace::Tcp, b.at(PORT));
        a.qp(&id);
        id.connect(&ConnParams::default()).unwrap();
        id
    });
    // Two requests, and what the end of one of them says.
    let (gone, is_gone) = mpsc::channel();
    b.manager.watch(move |crossing| {
        if matches!(crossing.datagram.message, Message::Rej(_)) {
            let _ = gone.send(());
        }
    });
    while b.manager.connections() < 2 {
        thread::yield_now();
    }
    drop(hasty);
    is_gone.recv().unwrap();
    listener.migrate(&b.channel).unwrap();
    drop(old);
    let request = b.expect("CONNECT_REQUEST");
    b.expect("CONNECT_REQUEST");
    b.expect("REJECTED");
    b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    assert!(a.expect("ESTABLISHED").id.is_same(&active));
    assert!(b.expect("ESTABLISHED").id.is_same(&request.id));
}

#[test]
fn a_queue_pair_of_the_programs_own() {
    let (a, b) = pair();
    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let own = |host: &Host| {
        let init = rxe_verbs::QpInit::new(rxe_verbs::QpType::Rc, &host.cq);
        let qp = host.pd.create_qp(&init).unwrap();
        let foreign = Some(rxe_cm::ForeignQp { qpn: qp.qpn(), srq: false });
        (qp, ConnParams { qp: foreign, ..ConnParams::default() })
    };
    let all = [QpState::Init, QpState::Rtr, QpState::Rts];
    let active = a.resolved(PortSpace::Tcp, b.at(PORT));
    let (ours, params) = own(&a);
    assert!(matches!(active.connect(&ConnParams::default()), Err(CmError::NoQueuePair)));
    active.connect(&params).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    let (theirs, params) = own(&b);
    all.iter().for_each(|state| theirs.modify(&request.id.qp_change(*state).unwrap()).unwrap());
    request.id.accept(&params).unwrap();
    a.expect("CONNECT_RESPONSE");
    all.iter().for_each(|state| ours.modify(&active.qp_change(*state).unwrap()).unwrap());
    active.establish().unwrap();
    b.expect("ESTABLISHED");
    theirs.post_recv(&rxe_verbs::RecvWr { wr_id: 1, sges: &[b.memory.sge(0, 8)] }).unwrap();
    let wr = rxe_verbs::SendWr::new(2, rxe_verbs::SendOp::Send, &[]);
    ours.post_send(&wr).unwrap();
    assert_eq!(a.completion().status, rxe_verbs::WcStatus::Success);
    assert_eq!(b.completion().wr_id, 1);
}

#[test]
fn a_full_backlog_leaves_requests_without_an_answer() {
    let (a, b) = pair();
    let _listener = b.listen(PortSpace::Tcp, PORT, 2);
    let ids: Vec<_> = (0..5)
        .map(|_| {
            let id = a.resolved(PortSpace::Tcp, b.at(PORT));
            a.qp(&id);
            id.connect(&ConnParams::default()).unwrap();
            id
        })
        .collect();
    // Two wait; the others are heard when they ask again.
    while b.manager.counters().backlog_full < 3 {
        thread::yield_now();
    }
    let (mut accepted, mut stand) = (Vec::new(), 0);
    while stand < ids.len() {
        let event = b.next();
        match event.kind {
            EventKind::ConnectRequest(_) => {
                b.qp(&event.id);
                event.id.accept(&ConnParams::default()).unwrap();
                accepted.push(event.id);
            }
            EventKind::Established(_) => stand += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(b.manager.connections(), accepted.len());
}

#[test]
fn with_one_packet_in_ten_lost_all_connections_are_made() {
    let net = InprocNet::new();
    let plan = "loss=100,dup=50,reorder=50,seed=5";
    let (a, b) = (Host::lossy(&net, "10.0.0.1", plan), Host::lossy(&net, "10.0.0.2", plan));
    let listener = b.listen(PortSpace::Tcp, PORT, 0);
    const COUNT: usize = 40;
    let mut open = Vec::new();
    for _ in 0..COUNT {
        let id = a.resolved(PortSpace::Tcp, listener.local_addr().unwrap());
        a.qp(&id);
        id.connect(&ConnParams::default()).unwrap();
        open.push(id);
    }
    let (mut requests, mut stand) = (Vec::new(), 0);
    while stand < COUNT {
        let event = b.next();
        match event.kind {
            EventKind::ConnectRequest(_) => {
                b.qp(&event.id);
                event.id.accept(&ConnParams::default()).unwrap();
                requests.push(event.id);
            }
            EventKind::Established(_) => stand += 1,
            other => panic!("{other:?}"),
        }
    }
    for _ in 0..COUNT {
        a.expect("ESTABLISHED");
    }
    open.iter().for_each(|id| id.disconnect().unwrap());
    for _ in 0..COUNT {
        let event = loop {
            let event = b.next();
            if event.kind.name() != "TIMEWAIT_EXIT" {
                break event;
            }
        };
        assert_eq!(event.kind.name(), "DISCONNECTED");
        event.id.disconnect().unwrap();
    }
}

#[test]
fn a_peer_that_is_gone_is_unreachable() {
    let net = InprocNet::new();
    let a = Host::new(&net, "10.0.0.1");
    let id = a.id(PortSpace::Tcp);
    let hurry = CmOptions { ack_timeout: Some(1), response_timeout: Some(10), ..CmOptions::default() };
    id.set_options(hurry).unwrap();
    id.resolve_addr(None, "10.0.0.9:7174".parse().unwrap()).unwrap();
    a.expect("ADDR_RESOLVED");
    id.resolve_route().unwrap();
    a.expect("ROUTE_RESOLVED");
    let qp = a.qp(&id);
    id.connect(&ConnParams::default()).unwrap();
    let event = a.next();
    assert!(matches!(event.kind, EventKind::Unreachable(GidType::RoceV2)), "{event:?}");
    assert_eq!(event.status(), -libc::ETIMEDOUT);
    // As in Linux programs may clean up by this call, whatever became of the connection.
    id.disconnect().unwrap();
    assert_eq!(qp.query().0.state, QpState::Error);
}

/// The peer's program has been told that we end the connection, and does not answer.
#[test]
fn an_end_that_is_not_answered_has_a_status() {
    let (a, b) = pair();
    let listener = b.listen(PortSpace::Tcp, PORT, 0);
    let active = a.resolved(PortSpace::Tcp, b.at(PORT));
    let hurry = CmOptions { ack_timeout: Some(1), response_timeout: Some(10), ..CmOptions::default() };
    active.set_options(hurry).unwrap();
    let _qp = a.qp(&active);
    active.connect(&ConnParams::default()).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    let _theirs = b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    a.expect("ESTABLISHED");
    b.expect("ESTABLISHED");
    active.disconnect().unwrap();
    assert_eq!(b.expect("DISCONNECTED").status(), 0);
    assert_eq!(a.expect("DISCONNECTED").status(), -libc::ETIMEDOUT);
    drop(listener);
}

#[test]
fn a_manager_may_follow_another_at_once() {
    let context =
        ContextOptions::new().open_inproc(&InprocNet::new(), &["10.0.0.1".parse().unwrap()]).unwrap();
    for turn in 0..3000 {
        drop(Manager::on(&context).unwrap_or_else(|error| panic!("{turn}: {error}")));
        // Until the first one's thread is about to end, or has just ended.
        thread::sleep(Duration::from_micros(turn % 100));
    }
}

#[test]
fn ports_are_taken_once() {
    let (a, b) = pair();
    let first = b.listen(PortSpace::Tcp, PORT, 0);
    let second = b.id(PortSpace::Tcp);
    let error = second.bind(b.at(PORT)).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
    b.id(PortSpace::Udp).bind(b.at(PORT)).unwrap();
    drop(first);
    second.bind(b.at(PORT)).unwrap();
    for twice in [b.at(PORT), a.at(PORT)] {
        let error = second.bind(twice).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
    }
    let error = b.id(PortSpace::Tcp).bind(a.at(PORT)).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{error}");
    let any = b.id(PortSpace::Tcp);
    any.bind(b.at(0)).unwrap();
    assert_ne!(any.local_addr().unwrap().port(), 0);
    for port in [99, 0] {
        let shared = [0, 1].map(|_| b.id(PortSpace::Tcp));
        for id in &shared {
            id.set_options(CmOptions { reuse_addr: true, ..CmOptions::default() }).unwrap();
        }
        shared[0].bind(SocketAddr::new([0; 4].into(), port)).unwrap();
        shared[1].bind(b.at(shared[0].local_addr().unwrap().port())).unwrap();
    }
}

/// So many that some would be drawn twice.
#[test]
fn ports_that_are_drawn_are_different() {
    let (a, b) = pair();
    let places = [[0; 4].into(), a.address].map(|ip| SocketAddr::new(ip, 0));
    let shares = |place: &SocketAddr| {
        let id = a.id(PortSpace::Tcp);
        id.set_options(CmOptions { reuse_addr: true, ..CmOptions::default() }).unwrap();
        id.bind(*place).unwrap();
        id
    };
    let resolves = || {
        let id = a.id(PortSpace::Tcp);
        id.resolve_addr(None, b.at(PORT)).unwrap();
        a.expect("ADDR_RESOLVED").id
    };
    // Those of ids that are gone can be drawn again, although there are not so many.
    (0..40_000).for_each(|_| drop(resolves()));
    let mut ids: Vec<_> = places.iter().cycle().take(1000).map(shares).collect();
    ids.extend((0..1000).map(|_| resolves()));
    let ports: HashSet<_> = ids.iter().map(|id| id.local_addr().unwrap().port()).collect();
    assert_eq!(ports.len(), ids.len());
}

#[test]
fn wrong_calls_and_values_are_told() {
    let (a, b) = pair();
    let id = a.id(PortSpace::Tcp);
    for error in [
        id.connect(&ConnParams::default()).unwrap_err(),
        id.accept(&ConnParams::default()).unwrap_err(),
        id.reject(&[]).unwrap_err(),
        id.disconnect().unwrap_err(),
        id.establish().unwrap_err(),
        id.resolve_route().unwrap_err(),
        id.connect(&ConnParams { retry_count: 8, ..ConnParams::default() }).unwrap_err(),
        id.connect(&ConnParams { responder_resources: Some(200), ..ConnParams::default() }).unwrap_err(),
        id.set_options(CmOptions { tos: Some(1), ..CmOptions::default() }).unwrap_err(),
        id.set_options(CmOptions { ack_timeout: Some(32), ..CmOptions::default() }).unwrap_err(),
        id.resolve_addr(Some(a.at(0)), "[fd00::1]:1".parse().unwrap()).unwrap_err(),
    ] {
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
        assert!(!error.to_string().is_empty());
    }
    let id = a.resolved(PortSpace::Tcp, b.at(PORT));
    a.qp(&id);
    let error = id.connect(&ConnParams { private_data: &[0; 57], ..ConnParams::default() }).unwrap_err();
    assert_eq!(error.to_string(), "57 bytes of private data, at most 56 fit");
    let lonely = a.id(PortSpace::Tcp);
    lonely.resolve_addr(None, "[fd00::1]:1".parse().unwrap()).unwrap();
    let event = a.expect("ADDR_ERROR");
    assert!(event.status() < 0);
}
