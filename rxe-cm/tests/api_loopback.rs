//! Loopback addresses: what a wildcard covers, that only the own host reaches them, and that no other host is told of them.

mod api_common;

use api_common::{Host, PORT, pair};
use rxe_cm::{CmError, ConnParams, EventKind, Offer, proto::PortSpace};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn listens_on_loopback(host: &Host) -> rxe_cm::CmId {
    let id = host.id(PortSpace::Tcp);
    id.bind(loopback(PORT)).unwrap();
    id.listen(0).unwrap();
    id
}

#[test]
fn a_listener_on_loopback_is_there_for_its_host_only() {
    let (a, b) = pair();
    let listener = listens_on_loopback(&b);
    assert!(listener.context().is_none(), "it is for all devices");

    let stranger = a.resolved(PortSpace::Tcp, b.at(PORT));
    let _qp = a.qp(&stranger);
    stranger.connect(&ConnParams::default()).unwrap();
    a.expect("REJECTED");
    b.is_silent();

    for to in [b.at(PORT), loopback(PORT)] {
        let own = b.resolved(PortSpace::Tcp, to);
        let _qp = b.qp(&own);
        own.connect(&ConnParams::default()).unwrap();
        let request = b.expect("CONNECT_REQUEST");
        assert!(matches!(request.kind, EventKind::ConnectRequest(Offer::Connection(_))));
        assert_eq!(request.id.peer_addr().unwrap().ip(), b.address, "what the header says");
        request.id.reject(&[]).unwrap();
        b.expect("REJECTED");
    }
}

#[test]
fn from_loopback_to_elsewhere_it_is_the_real_address() {
    let (a, b) = pair();
    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let id = a.id(PortSpace::Tcp);
    id.bind(loopback(0)).unwrap();
    id.resolve_addr(None, b.at(PORT)).unwrap();
    a.expect("ADDR_RESOLVED");
    assert_eq!(id.local_addr().unwrap().ip(), a.address);
    id.resolve_route().unwrap();
    a.expect("ROUTE_RESOLVED");
    let _qp = a.qp(&id);
    id.connect(&ConnParams::default()).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    assert_eq!(request.id.peer_addr().unwrap().ip(), a.address);
}

/// cma_check_port in Linux.
#[test]
fn who_stands_in_the_way_of_whom() {
    let (a, _b) = pair();
    let claim = |address: SocketAddr, family_only: bool| {
        let id = a.id(PortSpace::Tcp);
        id.set_options(rxe_cm::CmOptions { family_only, ..rxe_cm::CmOptions::default() }).unwrap();
        id.bind(address).map(|()| id)
    };
    let any4: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
    let any6: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
    let first = claim(a.at(PORT), false).unwrap();
    assert!(matches!(claim(a.at(PORT), false), Err(CmError::InUse { .. })));
    assert!(matches!(claim(any4, false), Err(CmError::Overlap { .. })));
    assert!(matches!(claim(any6, false), Err(CmError::Overlap { .. })));
    assert!(claim(any6, true).is_ok());
    first.destroy();
    let four = claim(any4, true).unwrap();
    let six = claim(any6, true).unwrap();
    assert!(matches!(claim(a.at(PORT), false), Err(CmError::Overlap { .. })));
    drop((four, six));
    let _loopback = claim(loopback(PORT), false).unwrap();
    let taken = claim(loopback(PORT), false).unwrap_err();
    assert_eq!(taken.errno(), libc::EADDRNOTAVAIL);
}
