//! Datagram services and groups by the API.

mod api_common;

use api_common::{Host, PORT, pair};
use rxe_cm::{
    ConnParams, DatagramTerms, EventKind, Offer, UDP_QKEY,
    proto::{PortSpace, SidrStatus},
};
use rxe_verbs::{Gid, QpState, RecvWr, SendOp, SendWr, UdDest, WcStatus, net::InprocNet};
use std::net::IpAddr;

fn dest(terms: &DatagramTerms) -> Option<UdDest> {
    Some(UdDest { av: terms.av, remote_qpn: terms.qpn, remote_qkey: terms.qkey, pkey: None })
}

/// One datagram; the 40 bytes in front are the network header's.
fn datagram(from: &Host, by: &rxe_cm::CmId, terms: &DatagramTerms, to: &Host, at: &rxe_cm::CmId) {
    at.qp().unwrap().post_recv(&RecvWr { wr_id: 1, sges: &[to.memory.sge(1024, 512)] }).unwrap();
    from.memory.write_at(0, b"a datagram").unwrap();
    let sges = [from.memory.sge(0, 10)];
    let wr = SendWr { dest: dest(terms), ..SendWr::new(2, SendOp::Send, &sges) };
    by.qp().unwrap().post_send(&wr).unwrap();
    assert_eq!(from.completion().status, WcStatus::Success);
    let received = to.completion();
    assert_eq!((received.wr_id, received.byte_len), (1, 50));
    assert_eq!(to.memory.read_vec(1064, 10).unwrap(), b"a datagram");
}

#[test]
fn a_service_is_found_and_used() {
    let (a, b) = pair();
    let _listener = b.listen(PortSpace::Udp, PORT, 0);
    let asker = a.resolved(PortSpace::Udp, b.at(PORT));
    a.qp(&asker);
    assert_eq!(asker.disconnect().unwrap_err().errno(), libc::EINVAL, "nothing was asked for yet");
    asker.connect(&ConnParams { private_data: &[3; 180], ..ConnParams::default() }).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    assert!(matches!(request.kind, EventKind::ConnectRequest(Offer::Datagram(None))));
    assert_eq!(*request.private_data, [3; 180]);
    let qp = b.qp(&request.id);
    request.id.accept(&ConnParams { private_data: &[4; 136], ..ConnParams::default() }).unwrap();
    let found = a.expect("ESTABLISHED");
    let EventKind::Established(Offer::Datagram(Some(terms))) = found.kind else { panic!("{found:?}") };
    assert_eq!((terms.qpn, terms.qkey, terms.av.dst), (qp.qpn(), UDP_QKEY, b.address));
    assert_eq!(*found.private_data, [4; 136]);
    datagram(&a, &asker, &terms, &b, &request.id);
    // There is no connection, but to end it is no error.
    asker.disconnect().unwrap();
    request.id.disconnect().unwrap();
    assert_eq!(asker.qp().unwrap().state(), QpState::Error);
}

#[test]
fn services_that_are_not_there_or_say_no() {
    let (a, b) = pair();
    let asker = a.resolved(PortSpace::Udp, b.at(PORT));
    asker.connect(&ConnParams::default()).unwrap();
    let event = a.expect("UNREACHABLE");
    assert!(matches!(event.kind, EventKind::NoService(SidrStatus::UNSUPPORTED)), "{event:?}");
    let _listener = b.listen(PortSpace::Udp, PORT, 0);
    for by_dropping in [false, true] {
        asker.connect(&ConnParams::default()).unwrap();
        let request = b.expect("CONNECT_REQUEST");
        if !by_dropping {
            request.id.reject(&[8; 136]).unwrap();
        }
        drop(request);
        let event = a.expect("UNREACHABLE");
        assert_eq!(event.status(), 2, "{event:?}");
        assert_eq!(event.private_data[0], if by_dropping { 0 } else { 8 });
    }
}

#[test]
fn lost_requests_are_repeated() {
    let net = InprocNet::new();
    let (a, b) =
        (Host::lossy(&net, "10.0.0.1", "loss=300,seed=3"), Host::lossy(&net, "10.0.0.2", "loss=300,seed=4"));
    let _listener = b.listen(PortSpace::Udp, PORT, 0);
    let ids: Vec<_> = (0..20)
        .map(|_| {
            let asker = a.resolved(PortSpace::Udp, b.at(PORT));
            asker.connect(&ConnParams::default()).unwrap();
            asker
        })
        .collect();
    let answers: Vec<_> = ids
        .iter()
        .map(|_| {
            let request = b.expect("CONNECT_REQUEST");
            b.qp(&request.id);
            request.id.accept(&ConnParams::default()).unwrap();
            request.id
        })
        .collect();
    for _ in &answers {
        a.expect("ESTABLISHED");
    }
    b.is_silent();
}

#[test]
fn groups_of_both_families() {
    let net = InprocNet::new();
    for (own, peer, group) in [("10.0.0.1", "10.0.0.2", "239.1.2.3"), ("fd00::1", "fd00::2", "ff0e::1:2")] {
        let (a, b) = (Host::new(&net, own), Host::new(&net, peer));
        let group: IpAddr = group.parse().unwrap();
        let join = |host: &Host| {
            let id = host.id(PortSpace::Udp);
            id.bind(host.at(0)).unwrap();
            host.qp(&id);
            id.join_multicast(group).unwrap();
            let event = host.expect("MULTICAST_JOIN");
            let EventKind::MulticastJoin(terms) = event.kind else { panic!("{event:?}") };
            assert_eq!((terms.av.dst, terms.qkey), (group, UDP_QKEY));
            (id, terms)
        };
        let ((sender, terms), (receiver, _)) = (join(&a), join(&b));
        sender.leave_multicast(group).unwrap();
        datagram(&a, &sender, &terms, &b, &receiver);
        assert!(sender.leave_multicast(group).is_err());
        sender.join_multicast(group).unwrap();
        sender.leave_multicast(group).unwrap();
        assert!(a.channel.try_get_event().is_none(), "who has left is not told of the join");
        assert!(sender.join_multicast(own.parse().unwrap()).is_err());
        drop(receiver.leave_multicast(group));
        assert!(receiver.qp().unwrap().detach_multicast(Gid::from(group)).is_err(), "left");
    }
}

/// For programs that wait for edges (`epoll(7)`, EPOLLET): the second event is one, although nobody has fetched the first.
#[test]
fn each_event_is_an_edge() {
    use nix::{
        errno::Errno,
        sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    };
    let (a, b) = pair();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    epoll.add(&a.channel, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).unwrap();
    let ids: Vec<_> = (0..2)
        .map(|_| {
            let id = a.manager.create_id(&a.channel, PortSpace::Udp).unwrap();
            id.resolve_addr(None, b.at(PORT)).unwrap();
            let patience = EpollTimeout::try_from(api_common::PATIENCE).unwrap();
            // EINTR: this process was stopped, and goes on (signal(7)).
            let mut woken = core::iter::repeat_with(|| epoll.wait(&mut [EpollEvent::empty()], patience));
            assert_eq!(woken.find(|woken| *woken != Err(Errno::EINTR)), Some(Ok(1)));
            id
        })
        .collect();
    for _ in ids {
        a.expect("ADDR_RESOLVED");
    }
}
