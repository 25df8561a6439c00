//! Datagrams between two hosts: by UDP at first, then between queue pairs.

mod common;

use common::{Host, pattern};
use rxe_rsocket::{DatagramSocket, Domain, Flags, Settings, SocketError};
use rxe_verbs::net::InprocNet;
use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

/// Addresses that the system has, too: the first datagrams go by its UDP.
fn hosts() -> (Host, Host) {
    let net = InprocNet::new();
    (Host::new(&net, "127.0.0.1", Settings::default()), Host::new(&net, "127.0.0.2", Settings::default()))
}

fn socket(host: &Host) -> (Arc<DatagramSocket>, SocketAddr) {
    let socket = DatagramSocket::new(&host.stack, Domain::V4).unwrap();
    socket.bind(host.at(0)).unwrap();
    let address = socket.local_addr();
    (socket, address)
}

#[test]
fn datagrams_come_whole_and_say_where_from() {
    let (a, b) = hosts();
    let ((one, at_one), (two, at_two)) = (socket(&a), socket(&b));
    let mut out = [0; 2048];
    for len in [1, 100, 900, 0] {
        let data = pattern(len);
        assert_eq!(one.send_to(&[&data], Some(at_two), Flags::NONE).unwrap(), len);
        let (count, from) = two.receive_from(&mut out, Flags::NONE).unwrap();
        assert_eq!((&out[..count], from), (&data[..], at_one));
        two.send_to(&[&data[..len / 2], &data[len / 2..]], Some(from), Flags::NONE).unwrap();
        let (count, from) = one.receive_from(&mut out, Flags::NONE).unwrap();
        assert_eq!((&out[..count], from), (&data[..], at_two));
    }
    // By now both know the other's queue pair, and what is sent goes there.
    let sent = || a.context.port_stats().packets_sent;
    let before = sent();
    one.send_to(&[b"again"], Some(at_two), Flags::NONE).unwrap();
    assert_eq!(two.receive_from(&mut out, Flags::NONE).unwrap().0, 5);
    assert_eq!(sent(), before + 1);
    let most = two.send_to(&[&[0; 3000]], Some(at_one), Flags::NONE);
    assert!(matches!(most, Err(SocketError::TooLong { len: 3000, .. })), "{most:?}");
    let none = two.receive_from(&mut out, Flags::DONTWAIT);
    assert!(matches!(none, Err(SocketError::WouldBlock)));
    one.close();
    two.close();
}

#[test]
fn a_connected_socket_has_a_peer() {
    let (a, b) = hosts();
    let ((one, _), (two, at_two)) = (socket(&a), socket(&b));
    assert!(matches!(one.send_to(&[b"x"], None, Flags::NONE), Err(SocketError::NoDestination)));
    one.connect(at_two).unwrap();
    assert_eq!(one.peer_addr().unwrap(), at_two);
    let mut out = [0; 3];
    for _ in 0..300 {
        one.send_to(&[b"abcdef"], None, Flags::NONE).unwrap();
        // What does not fit is lost.
        assert_eq!(two.receive_from(&mut out, Flags::PEEK).unwrap().0, 3);
        assert_eq!(two.receive_from(&mut out, Flags::NONE).unwrap().0, 3);
        assert_eq!(&out, b"abc");
    }
}

/// Anybody may send to a UDP port.
#[test]
fn strangers_words_are_dropped() {
    let (a, b) = hosts();
    let ((one, _), (two, at_two)) = (socket(&a), socket(&b));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for bytes in [&b""[..], b"hello", &[0x55; 3], &[0x55; 16], &[0x55, 0x55, 0x55, 0x55, 4, 9, 16, 0]] {
        stranger.send_to(bytes, at_two).unwrap();
    }
    one.send_to(&[b"mine"], Some(at_two), Flags::NONE).unwrap();
    let mut out = [0; 64];
    assert_eq!(two.receive_from(&mut out, Flags::NONE).unwrap().0, 4);
}
