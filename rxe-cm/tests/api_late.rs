//! Programs that are late: requests that arrive a moment before a program listens are not refused, and peers are asked for patience.

mod api_common;

use api_common::{PATIENCE, pair};
use rxe_cm::{
    ConnParams, Direction, EventKind, ForeignQp,
    proto::{Concerns, Message, PortSpace},
};
use rxe_verbs::Qpn;
use std::{
    net::SocketAddr,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// How often the listener may be too late, on a host that lets it wait for its turn.
const TRIES: u16 = 20;

#[test]
fn a_request_waits_for_its_listener() {
    let (a, b) = pair();
    for port in 7000..7000 + TRIES {
        let (seen, come) = mpsc::channel();
        b.manager.watch(move |crossing| {
            if crossing.direction == Direction::Received {
                let _ = seen.send(());
            }
        });
        let bound = b.id(PortSpace::Tcp);
        bound.bind(b.at(port)).unwrap();
        let active = a.resolved(PortSpace::Tcp, b.at(port));
        a.qp(&active);
        active.connect(&ConnParams::default()).unwrap();
        come.recv().unwrap();
        bound.listen(0).unwrap();
        // Refused, or asked for.
        let start = Instant::now();
        let request = loop {
            if let Some(refused) = a.channel.try_get_event() {
                assert_eq!(refused.kind.name(), "REJECTED", "{refused:?}");
                break None;
            }
            if let Some(request) = b.channel.try_get_event() {
                break Some(request);
            }
            assert!(start.elapsed() < PATIENCE, "neither refused nor asked for");
            thread::sleep(Duration::from_millis(1));
        };
        let Some(request) = request else { continue };
        assert_eq!(request.kind.name(), "CONNECT_REQUEST", "{request:?}");
        b.qp(&request.id);
        request.id.accept(&ConnParams::default()).unwrap();
        a.expect("ESTABLISHED");
        return;
    }
    panic!("{TRIES} times it was refused");
}

#[test]
fn those_that_wait_are_refused_in_the_end() {
    let (a, b) = pair();
    let bound = b.id(PortSpace::Tcp);
    bound.bind(b.at(7000)).unwrap();
    // More than may wait.
    const COUNT: usize = 300;
    let to = SocketAddr::new(b.address, 7000);
    let ids: Vec<_> = (0..COUNT)
        .map(|_| {
            let id = a.resolved(PortSpace::Tcp, to);
            a.qp(&id);
            id
        })
        .collect();
    ids.iter().for_each(|id| id.connect(&ConnParams::default()).unwrap());
    for _ in 0..COUNT {
        let event = a.next();
        assert!(matches!(event.kind, EventKind::Rejected { .. }), "{event:?}");
    }
    assert_eq!(b.manager.connections(), 0);
}

/// The peer repeats its REP, because the program does not fetch the event. As in Linux, it is asked to wait (cma_ib_handler).
#[test]
fn the_peer_waits_for_a_program_that_confirms_late() {
    let (a, b) = pair();
    let (tell, told) = mpsc::channel();
    a.manager.watch(move |crossing| {
        if let (Direction::Sent, Message::Mra(mra)) = (crossing.direction, crossing.datagram.message) {
            let _ = tell.send((mra.message, mra.service_timeout));
        }
    });
    let _listener = b.listen(PortSpace::Tcp, 7000, 0);
    let active = a.resolved(PortSpace::Tcp, b.at(7000));
    let qp = Some(ForeignQp { qpn: Qpn::new(77), srq: false });
    active.connect(&ConnParams { qp, ..ConnParams::default() }).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok((Concerns::Rep, 24)), "69 s");
    a.expect("CONNECT_RESPONSE");
    active.establish().unwrap();
    b.expect("ESTABLISHED");
}
