//! Paths of a program's own, and the partition that comes with them.

mod api_common;

use api_common::{Host, PORT};
use rxe_cm::{
    CmError, CmId, ConnParams, EventKind, OwnPath,
    proto::{PortSpace, RejectReason},
};
use rxe_verbs::{ContextOptions, Mtu, Pkey, net::InprocNet};
use std::net::IpAddr;

/// Two hosts with these P_Key tables.
fn hosts(one: &[u16], other: &[u16]) -> (Host, Host) {
    let net = InprocNet::new();
    let host = |address: &str, keys: &[u16]| {
        let address: IpAddr = address.parse().unwrap();
        let options = ContextOptions::new().pkeys(keys.iter().copied().map(Pkey).collect());
        Host::of(options.open_inproc(&net, &[address]).unwrap(), address)
    };
    (host("10.0.0.1", one), host("10.0.0.2", other))
}

const BLUE: OwnPath = OwnPath {
    service_level: 5,
    traffic_class: 0x68,
    flow_label: 0x1_2345,
    hop_limit: 9,
    pkey: Pkey(0x8012),
    mtu: Mtu::M512,
    rate: 3,
    packet_lifetime: 12,
};

/// An id of `a` that has asked `b` for a connection with that path.
fn asked_in_blue(a: &Host, b: &Host) -> CmId {
    let id = a.id(PortSpace::Tcp);
    id.resolve_addr(None, b.at(PORT)).unwrap();
    a.expect("ADDR_RESOLVED");
    id.set_path(&BLUE).unwrap();
    a.expect("ROUTE_RESOLVED");
    a.qp(&id);
    id.connect(&ConnParams::default()).unwrap();
    id
}

#[test]
fn a_connection_has_the_path_that_the_program_gives() {
    let (a, b) = hosts(&[0xffff, 0x8012], &[0xffff, 0x0013, 0x0012]);
    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let id = a.id(PortSpace::Tcp);
    assert!(matches!(id.set_path(&BLUE), Err(CmError::State { .. })));
    id.resolve_addr(None, b.at(PORT)).unwrap();
    a.expect("ADDR_RESOLVED");
    for wrong in [
        OwnPath { pkey: Pkey(0x8014), ..BLUE },
        OwnPath { service_level: 16, ..BLUE },
        OwnPath { flow_label: 1 << 20, ..BLUE },
        OwnPath { packet_lifetime: 32, ..BLUE },
    ] {
        assert!(matches!(id.set_path(&wrong), Err(CmError::Argument(_))), "{wrong:?}");
    }
    id.set_path(&BLUE).unwrap();
    a.expect("ROUTE_RESOLVED");
    assert!(matches!(id.set_path(&BLUE), Err(CmError::State { .. })), "it has one");
    let qp = a.qp(&id);
    id.connect(&ConnParams::default()).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    let path = request.id.path().unwrap();
    assert_eq!((path.av.service_level, path.av.traffic_class, path.av.flow_label), (5, 0x68, 0x1_2345));
    assert_eq!((path.mtu, path.rate, path.pkey_index), (Mtu::M512, 3, 2));
    let other = b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    a.expect("ESTABLISHED");
    b.expect("ESTABLISHED");
    let ((here, _), (there, _)) = (qp.query(), other.query());
    assert_eq!((here.pkey_index, there.pkey_index), (1, 2));
    assert_eq!(here.path_mtu, Mtu::M512);
}

/// As Linux refuses it: the reason is that of a wrong GID (12).
#[test]
fn limited_members_are_refused() {
    let (a, b) = hosts(&[0xffff, 0x0012], &[0xffff, 0x0012]);
    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let _id = asked_in_blue(&a, &b);
    let refused = a.next();
    assert!(matches!(refused.kind, EventKind::Rejected(RejectReason::INVALID_GID)), "{refused:?}");
    b.is_silent();
}

/// All are full members of Blue and limited members of the default partition, as OpenSM's default is. Messages of the connection manager are
/// in the partition of the connection, so they arrive.
#[test]
fn limited_members_of_the_default_partition_connect_in_another_one() {
    let (a, b) = hosts(&[0x7fff, 0x8012], &[0x7fff, 0x0013, 0x8012]);
    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let id = asked_in_blue(&a, &b);
    let request = b.expect("CONNECT_REQUEST");
    let _other = b.qp(&request.id);
    request.id.accept(&ConnParams::default()).unwrap();
    a.expect("ESTABLISHED");
    b.expect("ESTABLISHED");
    id.disconnect().unwrap();
    b.expect("DISCONNECTED");
}

/// Kernels know the default partition alone. A host that lists another one first hears them nevertheless.
#[test]
fn any_partition_of_the_table_is_heard() {
    let (a, b) = hosts(&[0xffff], &[0x8123, 0xffff]);
    let _listener = b.listen(PortSpace::Tcp, PORT, 0);
    let id = a.resolved(PortSpace::Tcp, b.at(PORT));
    let _qp = a.qp(&id);
    id.connect(&ConnParams::default()).unwrap();
    let request = b.expect("CONNECT_REQUEST");
    assert_eq!(request.id.path().unwrap().pkey_index, 1);
    request.id.reject(&[]).unwrap();
    let refused = a.next();
    assert!(matches!(refused.kind, EventKind::Rejected(RejectReason::CONSUMER_DEFINED)), "{refused:?}");
}
