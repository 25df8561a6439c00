//! Services that are named by their IDs, as IPoIB's connected mode is.

mod api_common;

use api_common::{Host, connect, pair, send, until};
use rxe_cm::{
    CmError, CmOptions, ConnParams, EventKind,
    proto::{PortSpace, RejectReason, ServiceId},
};
use rxe_verbs::{ContextOptions, Pkey, net::InprocNet};
use std::net::{IpAddr, SocketAddr};

/// RFC 4755, 3.5, for queue pair 0x020304.
const SERVICE: ServiceId = ServiceId(0x0100_0000_0002_0304);

fn named(host: &Host, service: ServiceId) -> rxe_cm::CmId {
    let id = host.id(PortSpace::Ib);
    id.name_service(service).unwrap();
    id
}

fn ask(from: &Host, to: &Host, service: ServiceId, data: &[u8]) -> rxe_cm::CmId {
    let id = named(from, service);
    id.resolve_addr(Some(from.at(0)), to.at(0)).unwrap();
    from.expect("ADDR_RESOLVED");
    id.resolve_route().unwrap();
    from.expect("ROUTE_RESOLVED");
    from.qp(&id);
    id.connect(&ConnParams { private_data: data, ..ConnParams::default() }).unwrap();
    id
}

#[test]
fn a_service_is_found_by_its_id() {
    let (a, b) = pair();
    let listener = named(&b, SERVICE);
    listener.bind(b.at(0)).unwrap();
    assert_eq!(listener.local_addr(), Some(b.at(0)), "no port was taken");
    listener.listen(0).unwrap();
    // All 92 bytes are the program's.
    let data: Vec<u8> = (1..=92).collect();
    let active = ask(&a, &b, SERVICE, &data);
    let request = b.expect("CONNECT_REQUEST");
    assert_eq!(&*request.private_data, data);
    assert_eq!(request.id.peer_addr().map(|at| at.ip()), Some(a.address));
    b.qp(&request.id);
    request.id.accept(&ConnParams { private_data: b"back", ..ConnParams::default() }).unwrap();
    let established = a.expect("ESTABLISHED");
    assert_eq!(&established.private_data[..4], b"back");
    b.expect("ESTABLISHED");
    send(&a, &active, &b, &request.id);
    // A port of rdma_cm beside it is another service.
    let port = b.listen(PortSpace::Tcp, 0x0304, 0);
    let (one, other) = connect(&a, &b, &port);
    send(&a, &one, &b, &other);
}

#[test]
fn nobody_listens_to_another_id() {
    let (a, b) = pair();
    let listener = named(&b, SERVICE);
    listener.bind(b.at(0)).unwrap();
    let asks = |service| {
        let _active = ask(&a, &b, service, b"");
        let EventKind::Rejected(reason) = until(&a, "REJECTED") else { panic!() };
        reason
    };
    assert_eq!(asks(SERVICE), RejectReason::INVALID_SERVICE_ID, "it does not listen yet");
    listener.listen(0).unwrap();
    assert_eq!(asks(ServiceId(SERVICE.0 + 1)), RejectReason::INVALID_SERVICE_ID);
    let other = named(&b, SERVICE);
    other.bind(b.at(0)).unwrap();
    assert!(matches!(other.listen(0), Err(CmError::Argument(_))), "it is taken");
    drop(listener);
    other.listen(0).unwrap();
}

#[test]
fn what_cannot_be_named() {
    let (a, _b) = pair();
    let id = a.id(PortSpace::Tcp);
    assert!(matches!(id.name_service(ServiceId(0x106_1234)), Err(CmError::Argument(_))), "it is a port");
    assert!(matches!(a.id(PortSpace::Udp).name_service(SERVICE), Err(CmError::Argument(_))));
    id.bind(a.at(0)).unwrap();
    assert!(matches!(id.name_service(SERVICE), Err(CmError::State { .. })), "it has a port");
}

#[test]
fn a_connection_is_in_the_partition_that_was_asked_for() {
    let net = InprocNet::new();
    let host = |address: &str| {
        let address: IpAddr = address.parse().unwrap();
        let options = ContextOptions::new().pkeys([0xffff, 0x8012].map(Pkey).to_vec());
        Host::of(options.open_inproc(&net, &[address]).unwrap(), address)
    };
    let (a, b) = (host("10.0.0.1"), host("10.0.0.2"));
    let listener = named(&b, SERVICE);
    listener.bind(b.at(0)).unwrap();
    listener.listen(0).unwrap();
    let resolve = |key| {
        let id = named(&a, SERVICE);
        id.set_options(CmOptions { pkey: Some(Pkey(key)), ..CmOptions::default() }).unwrap();
        id.resolve_addr(None, SocketAddr::new(b.address, 0)).unwrap();
        a.expect("ADDR_RESOLVED");
        id.resolve_route().map(|()| id)
    };
    let id = resolve(0x8012).unwrap();
    a.expect("ROUTE_RESOLVED");
    a.qp(&id);
    id.connect(&ConnParams::default()).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    assert_eq!(request.id.path().unwrap().pkey_index, 1);
    assert!(matches!(resolve(0x8013), Err(CmError::Argument(_))), "not in the table");
}
