//! Datagrams between two hosts: by UDP at first, then between queue pairs.

mod common;

use common::{Host, PATIENCE, PORT, pattern};
use rxe_rsocket::{
    DatagramSocket, Domain, Flags, Name, Settings, SocketError, Value,
    proto::datagram::{Introduction, Kind},
};
use rxe_verbs::net::InprocNet;
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, Barrier, mpsc},
    thread,
    time::{Duration, Instant},
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
    // Threads of theirs tell each other of the queue pairs. As soon as one knows the other's, what it sends goes there.
    let sent = || a.context.port_stats().packets_sent;
    let by_packets = (0..5000).find_map(|_| {
        let before = sent();
        one.send_to(&[b"again"], Some(at_two), Flags::NONE).unwrap();
        assert_eq!(two.receive_from(&mut out, Flags::NONE).unwrap().0, 5);
        let count = sent() - before;
        if count == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        (count > 0).then_some(count)
    });
    assert_eq!(by_packets, Some(1));
    let most = two.send_to(&[&[0; 3000]], Some(at_one), Flags::NONE);
    assert!(matches!(most, Err(SocketError::TooLong { len: 3000, .. })), "{most:?}");
    let none = two.receive_from(&mut out, Flags::DONTWAIT);
    assert!(matches!(none, Err(SocketError::WouldBlock)));
    one.close();
    two.close();
}

/// Nothing tells a sender that the queue pair which it knows has ended, or that it was told of a wrong one.
#[test]
fn a_peer_that_starts_anew_is_reached() {
    let (a, b) = hosts();
    let (one, at_one) = socket(&a);
    let two = || {
        let two = DatagramSocket::new(&b.stack, Domain::V4).unwrap();
        two.bind(b.at(PORT)).unwrap();
        two
    };
    let is_heard = |two: &DatagramSocket| {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            one.send_to(&[b"hello"], Some(b.at(PORT)), Flags::NONE).unwrap();
            thread::sleep(Duration::from_millis(50));
            if two.receive_from(&mut [0; 8], Flags::DONTWAIT).is_ok() {
                return true;
            }
        }
        false
    };
    let first = two();
    assert!((0..5).all(|_| is_heard(&first)));
    first.close();
    drop(first);
    let second = two();
    assert!(is_heard(&second), "the second is never reached");
    second.close();
    drop(second);
    let liar = UdpSocket::bind(b.at(PORT)).unwrap();
    let answer = Introduction { kind: Kind::Answer, qpn: 0x77_7777, from: b.address }.encode();
    liar.send_to(&answer, at_one).unwrap();
    drop(liar);
    assert!(is_heard(&two()), "the third is never reached");
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

/// connect(2): the peer is the only one from whom datagrams are received.
#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let (a, b) = hosts();
    let ((one, at_one), (two, at_two), (stranger, _)) = (socket(&a), socket(&b), socket(&b));
    let mut out = [0; 16];
    // The stranger knows the queue pair from before.
    for _ in 0..3 {
        stranger.send_to(&[b"before"], Some(at_one), Flags::NONE).unwrap();
        one.receive_from(&mut out, Flags::NONE).unwrap();
    }
    one.connect(at_two).unwrap();
    let late = UdpSocket::bind("127.0.0.2:0").unwrap();
    let header = Introduction { kind: Kind::Data, qpn: 77, from: b.address }.encode();
    for _ in 0..20 {
        stranger.send_to(&[b"stranger"], Some(at_one), Flags::NONE).unwrap();
        late.send_to(&[&header[..], b"stranger"].concat(), at_one).unwrap();
        two.send_to(&[b"peer"], Some(at_one), Flags::NONE).unwrap();
        let (count, from) = one.receive_from(&mut out, Flags::NONE).unwrap();
        assert_eq!((&out[..count], from), (&b"peer"[..], at_two));
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

/// IPv4 as IPv6 sockets have it.
fn mapped(address: SocketAddr) -> SocketAddr {
    let IpAddr::V4(ip) = address.ip() else { return address };
    SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())
}

#[test]
fn a_socket_of_ipv6_has_peers_of_ipv4() {
    let (a, b) = hosts();
    let (one, at_one) = socket(&a);
    let two = DatagramSocket::new(&b.stack, Domain::V6).unwrap();
    two.bind(mapped(b.at(0))).unwrap();
    let at_two = SocketAddr::new(b.address, two.local_addr().port());
    let mut out = [0; 2048];
    // By UDP at first, then between queue pairs.
    for _ in 0..3 {
        one.send_to(&[b"there"], Some(at_two), Flags::NONE).unwrap();
        let (count, from) = two.receive_from(&mut out, Flags::NONE).unwrap();
        assert_eq!((&out[..count], from), (&b"there"[..], mapped(at_one)));
        two.send_to(&[b"and back"], Some(from), Flags::NONE).unwrap();
        let (count, from) = one.receive_from(&mut out, Flags::NONE).unwrap();
        assert_eq!((&out[..count], from), (&b"and back"[..], at_two));
    }
}

/// The header that the data get here is not as long as the one that they came with.
#[test]
fn data_by_udp_that_are_too_long_are_dropped() {
    let (a, b) = hosts();
    let two = DatagramSocket::new(&b.stack, Domain::V6).unwrap();
    two.bind(mapped(b.at(0))).unwrap();
    let at_two = SocketAddr::new(b.address, two.local_addr().port());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let header = Introduction { kind: Kind::Data, qpn: 77, from: a.address }.encode();
    let fits = |len: usize| {
        // The second comes, and behind the first.
        for data in [&pattern(len)[..], b"next"] {
            stranger.send_to(&[&header[..], data].concat(), at_two).unwrap();
        }
        let mut out = [0; 4096];
        let (count, _) = two.receive_from(&mut out, Flags::NONE).unwrap();
        if count == len {
            assert_eq!(out[..len], pattern(len));
            two.receive_from(&mut out, Flags::NONE).unwrap();
        }
        assert!(count == len || &out[..count] == b"next");
        count == len
    };
    assert!(fits(200), "what is short comes");
    let longest = (200..2100).step_by(8).take_while(|len| fits(*len)).last().unwrap();
    assert!(longest >= 1016, "{longest}");
    assert!(!fits(2064) && fits(200), "and others afterwards");
}

#[test]
fn closing_wakes_who_waits() {
    let (a, b) = hosts();
    let ((one, _), (two, at_two)) = (socket(&a), socket(&b));
    one.set_option(Name::ReceiveTimeout, &Value::Time(Some(Duration::from_secs(i64::MAX as u64)))).unwrap();
    // It has a queue pair.
    one.send_to(&[b"x"], Some(at_two), Flags::NONE).unwrap();
    two.receive_from(&mut [0], Flags::NONE).unwrap();
    let (told, hear) = mpsc::channel();
    let waiting = Arc::clone(&one);
    let waiter = thread::spawn(move || told.send(waiting.receive_from(&mut [0], Flags::NONE)));
    // Whether it sleeps by now or not: it hears.
    one.close();
    let outcome = hear.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(outcome, Err(SocketError::NoSocket(_))), "{outcome:?}");
    waiter.join().unwrap().unwrap();
}

#[test]
fn first_sends_of_two_threads_are_both_sent() {
    let (a, b) = hosts();
    let (_other, to) = socket(&b);
    for round in 0..300 {
        let socket = DatagramSocket::new(&a.stack, Domain::V4).unwrap();
        let both = Barrier::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    both.wait();
                    let sent = socket.send_to(&[b"x"], Some(to), Flags::NONE);
                    assert!(sent.is_ok(), "round {round}: {sent:?}");
                });
            }
        });
        socket.close();
    }
}

/// The second process of the test below, because it uses up the descriptors.
#[test]
#[ignore = "run by close_wakes_who_waits_if_no_descriptor_is_left"]
fn closes_without_descriptors() {
    let (a, _b) = hosts();
    let (socket, _) = socket(&a);
    let waiting = {
        let socket = Arc::clone(&socket);
        thread::spawn(move || socket.receive_from(&mut [0; 8], Flags::NONE).map(drop))
    };
    thread::sleep(Duration::from_millis(200));
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
    socket.close();
    let start = Instant::now();
    while !waiting.is_finished() {
        assert!(start.elapsed() < PATIENCE, "it still waits");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(waiting.join().unwrap(), Err(SocketError::NoSocket(_))));
    // Also when it would send.
    assert!(matches!(socket.send_to(&[b"x"], None, Flags::NONE), Err(SocketError::NoDestination)));
}

#[test]
fn close_wakes_who_waits_if_no_descriptor_is_left() {
    let mut second = std::process::Command::new(std::env::current_exe().unwrap());
    let status = second.args(["--exact", "closes_without_descriptors", "--ignored"]).status().unwrap();
    assert!(status.success(), "{status}");
}
