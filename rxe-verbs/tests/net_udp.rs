//! The UDP link over real sockets, in private network namespaces.

mod netns;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use netns::{Namespace, PATIENCE, captured, packets, pair, receive};
use rxe_verbs::net::{
    BufferSize, Features, Holder, Ident, Link, OpenError, RecvBatch, SendError, Sharing, SlotTable, Transmit,
    UdpConfig, UdpLink,
};
use socket2::{Domain, Protocol, Socket, Type};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn open(namespace: &Namespace, config: &UdpConfig) -> UdpLink {
    let config = config.clone();
    namespace.run(move || UdpLink::open(&config)).unwrap()
}

fn transmit(link: &UdpLink, src: IpAddr, dst: IpAddr, segment_size: usize) -> Transmit {
    let source_port = link.capabilities().source_ports[0];
    Transmit {
        src,
        dst,
        ifindex: 0,
        source_port,
        tos: 0,
        hop_limit: 0,
        encapsulation: rxe_verbs::net::Encapsulation::V2,
        segment_size,
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn batches_arrive_as_runs_with_all_that_is_known_of_them() {
    let Some(namespace) = Namespace::new() else { return };
    let mut link = open(&namespace, &UdpConfig::default());
    let capabilities = link.capabilities().clone();
    assert!(capabilities.ipv4 && capabilities.ipv6);
    assert!(capabilities.gso && capabilities.gro && capabilities.steering, "{capabilities:?}");
    assert_eq!((capabilities.max_segments, capabilities.ident), (128, Ident::Sequential));
    assert_eq!(capabilities.source_ports.len(), 4);
    assert!(capabilities.source_ports.iter().all(|port| *port >= 0xc000));

    for (own, other) in [(V4, address("127.0.0.2")), (V6, V6)] {
        let bytes = packets(15, 4128, 1000);
        for &source_port in &capabilities.source_ports {
            let batch =
                Transmit { source_port, tos: 0xb9, hop_limit: 77, ..transmit(&link, own, other, 4128) };
            link.send(&batch, &bytes).unwrap();
            let got = receive(&mut link, 15);
            assert_eq!(got.len(), 15);
            for (packet, sent) in got.iter().zip(bytes.chunks(4128)) {
                assert_eq!((packet.src, packet.dst, packet.src_port), (own, other, source_port));
                assert_eq!((packet.tos, packet.ttl, packet.ifindex), (0xb9, 77, 1));
                assert_eq!(packet.run, 15, "they came apart");
                assert!(packet.bytes == sent);
            }
        }
        // The system's own TTL and no ECN when nothing is asked for, and the smallest and largest batches.
        for (count, size) in [(1, 1), (1, 24), (2, 16), (128, 100), (128, 511), (15, 4128)] {
            let bytes = packets(count, size, 0);
            link.send(&transmit(&link, own, other, size), &bytes).unwrap();
            let got = receive(&mut link, count);
            assert!(got.iter().flat_map(|packet| packet.bytes.clone()).eq(bytes), "{count} of {size}");
            assert!(got.iter().all(|packet| packet.tos == 0 && packet.ttl == 64));
        }
    }
    assert_eq!(receive(&mut link, 0), []);
    assert_eq!(link.drops(), 0);
}

#[test]
fn each_fallback_carries_the_same_packets() {
    let Some(namespace) = Namespace::new() else { return };
    for off in ["gso", "gro", "mmsg", "cbpf", "gso,gro", "gso,mmsg", "gso,gro,cbpf,mmsg"] {
        let features = Features::without(off).unwrap();
        let mut link = open(&namespace, &UdpConfig { features, ..UdpConfig::default() });
        let capabilities = link.capabilities().clone();
        assert_eq!((capabilities.gso, capabilities.gro), (features.gso, features.gro), "{off}");
        assert_eq!(capabilities.steering, features.steering, "{off}");
        let (most, ident) = match (features.gso, features.mmsg) {
            (true, _) => (128, Ident::Sequential),
            (false, true) => (32, Ident::Zero),
            (false, false) => (1, Ident::Zero),
        };
        assert_eq!((capabilities.max_segments, capabilities.ident), (most, ident), "{off}");
        for own in [V4, V6] {
            let count = usize::from(most).min(32);
            let bytes = packets(count, 500, 3);
            link.send(&transmit(&link, own, own, 500), &bytes).unwrap();
            let got = receive(&mut link, count);
            let received: Vec<u8> = got.iter().flat_map(|packet| packet.bytes.clone()).collect();
            assert!(received == bytes, "{off}: {} of {count} packets", got.len());
            let merged = features.gso && features.gro;
            assert!(got.iter().all(|packet| packet.run == if merged { count } else { 1 }), "{off}");
            // A batch beyond the capabilities is a caller's mistake, not a surprise.
            let error = link.send(&transmit(&link, own, own, 1), &packets(129, 1, 0)).unwrap_err();
            assert!(matches!(error, SendError::Other(ref e) if e.kind() == std::io::ErrorKind::InvalidInput));
        }
    }
}

/// IP identification, flags and fragment offset, TTL, TOS of a captured IPv4 packet.
fn ipv4_fields(packet: &[u8]) -> (u16, u16, u8, u8) {
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    (word(4), word(6), packet[8], packet[1])
}

#[test]
fn packets_on_the_wire_have_the_promised_identification() {
    const DONT_FRAGMENT: u16 = 0x4000;
    let Some((left, right)) = pair(4200) else { return };
    // The left end then cuts batches before they enter the wire.
    left.ip("link set v0 gso_max_segs 1");
    for off in ["", "gso", "gso,mmsg"] {
        let features = Features::without(off).unwrap();
        let mut link = open(&left, &UdpConfig { features, ..UdpConfig::default() });
        let wire = netns::capture(&right);
        let (own, other) = (address("10.9.0.1"), address("10.9.0.2"));
        let path = link.path(other, 0);
        let count = usize::from(path.max_segments).min(14);
        let bytes = packets(count, 4128, 28);
        for _ in 0..3 {
            let batch = Transmit { tos: 0x6a, hop_limit: 9, ..transmit(&link, own, other, 4128) };
            link.send(&batch, &bytes).unwrap();
            let seen = captured(&wire, count);
            assert_eq!(seen.len(), count, "without {off:?}");
            for (index, packet) in seen.iter().enumerate() {
                assert_eq!(
                    ipv4_fields(packet),
                    (path.ident.of(index), DONT_FRAGMENT, 9, 0x6a),
                    "without {off:?}"
                );
                assert_eq!(packet[28..], bytes[index * 4128..][..packet.len() - 28]);
            }
        }

        let wire = netns::capture(&right);
        let batch = Transmit {
            tos: 0x6a,
            hop_limit: 9,
            ..transmit(&link, address("fd09::1"), address("fd09::2"), 4128)
        };
        link.send(&batch, &bytes).unwrap();
        let seen = captured(&wire, count);
        assert_eq!(seen.len(), count);
        for packet in seen {
            // Version, class, flow label 0; next header UDP without a fragment header; hop limit.
            assert_eq!((&packet[..4], packet[6], packet[7]), (&[0x66, 0xa0, 0, 0][..], 17, 9));
        }
    }
}

#[test]
fn what_cannot_leave_is_told_apart() {
    let Some((left, _right)) = pair(1500) else { return };
    for off in ["", "gso", "gso,mmsg"] {
        let features = Features::without(off).unwrap();
        let mut link = open(&left, &UdpConfig { features, ..UdpConfig::default() });
        for (own, other) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
            let (own, other) = (address(own), address(other));
            let overhead = if own.is_ipv4() { 28 } else { 48 };
            for count in [1, usize::from(link.capabilities().max_segments).min(5)] {
                let fits = 1500 - overhead;
                link.send(&transmit(&link, own, other, fits), &packets(count, fits, 0)).unwrap();
                let error = link
                    .send(&transmit(&link, own, other, fits + 1), &packets(count, fits + 1, 0))
                    .unwrap_err();
                assert!(matches!(error, SendError::MessageTooLong { sent: 0 }), "{off:?} {count}: {error}");
                // That was no reason to give segmentation up.
                assert_eq!(link.path(other, 0).max_segments, link.capabilities().max_segments);
            }
        }
        for (own, other) in [
            ("10.9.0.1", "192.0.2.1"),
            ("10.9.0.7", "10.9.0.2"),
            ("fd09::1", "2001:db8::1"),
            ("fd09::7", "fd09::2"),
        ] {
            for count in [1, usize::from(link.capabilities().max_segments).min(3)] {
                let batch = transmit(&link, address(own), address(other), 100);
                let error = link.send(&batch, &packets(count, 100, 0)).unwrap_err();
                assert!(matches!(error, SendError::Unreachable { .. }), "{own} to {other}: {error:?}");
            }
        }
        let wrong = [
            Transmit { source_port: 1, ..transmit(&link, V4, V4, 10) },
            Transmit { dst: V6, ..transmit(&link, V4, V4, 10) },
            Transmit { segment_size: 0, ..transmit(&link, V4, V4, 10) },
        ];
        for batch in wrong {
            assert!(matches!(link.send(&batch, &[0; 10]).unwrap_err(), SendError::Other(_)), "{batch:?}");
        }
        assert!(matches!(link.send(&transmit(&link, V4, V4, 10), &[]).unwrap_err(), SendError::Other(_)));
    }
}

#[test]
fn link_local_addresses_work_with_their_interface() {
    let Some((left, right)) = pair(1500) else { return };
    let mut sender = open(&left, &UdpConfig::default());
    let mut receiver = open(&right, &UdpConfig::default());
    let index = |namespace: &Namespace, name: &'static str| {
        namespace.run(move || {
            let list = rxe_verbs::net::interfaces::interfaces().unwrap();
            let interface = list.iter().find(|interface| interface.name == name).expect("the interface");
            assert_eq!((interface.mtu, interface.up, interface.loopback), (1500, true, false));
            assert_eq!(interface.addresses.len(), 3, "{interface:?}");
            interface.index
        })
    };
    let (out, into) = (index(&left, "v0"), index(&right, "v1"));
    let batch = transmit(&sender, address("fe80::1"), address("fe80::2"), 50);
    assert!(matches!(sender.send(&batch, &[1; 50]).unwrap_err(), SendError::Unreachable { .. }));
    sender.send(&Transmit { ifindex: out, ..batch }, &packets(4, 50, 0)).unwrap();
    let got = receive(&mut receiver, 4);
    assert_eq!(got.len(), 4);
    assert_eq!((got[0].src, got[0].dst, got[0].ifindex), (batch.src, batch.dst, into));
    // And back, to the address it came from.
    let back = transmit(&receiver, got[0].dst, got[0].src, 50);
    receiver.send(&Transmit { ifindex: got[0].ifindex, ..back }, &[2; 50]).unwrap();
    assert_eq!(receive(&mut sender, 1)[0].bytes, [2; 50]);

    // A link bound to that address alone.
    drop(receiver);
    let config = UdpConfig::only(address("fe80::2"), into);
    let mut receiver = open(&right, &config);
    assert!(!receiver.capabilities().ipv4);
    sender.send(&Transmit { ifindex: out, ..batch }, &[3; 50]).unwrap();
    assert_eq!(receive(&mut receiver, 1)[0].bytes, [3; 50]);
    let error = right.run(|| UdpLink::open(&UdpConfig::only(address("fe80::2"), 0))).unwrap_err();
    assert!(matches!(error, OpenError::NotLocal { .. }), "{error}");
}

#[test]
fn multicast_reaches_those_who_joined() {
    let Some((left, right)) = pair(1500) else { return };
    let mut sender = open(&left, &UdpConfig::default());
    let mut receiver = open(&right, &UdpConfig::default());
    let index = |namespace: &Namespace, name: &'static str| {
        namespace.run(move || nix::net::if_::if_nametoindex(name).unwrap())
    };
    let (out, into) = (index(&left, "v0"), index(&right, "v1"));
    for (own, group) in [("10.9.0.1", "239.1.2.3"), ("fd09::1", "ff12::123")] {
        let (own, group) = (address(own), address(group));
        let batch = Transmit { ifindex: out, ..transmit(&sender, own, group, 64) };
        sender.send(&batch, &[1; 64]).unwrap();
        assert_eq!(receiver.leave(group, into).unwrap_err().kind(), std::io::ErrorKind::AddrNotAvailable);
        receiver.join(group, into).unwrap();
        assert_eq!(receiver.join(group, into).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        sender.send(&batch, &[2; 64]).unwrap();
        let got = receive(&mut receiver, 1);
        // The packet sent before joining is not among them.
        assert_eq!(got[0].bytes, [2; 64]);
        assert_eq!((got[0].src, got[0].dst, got[0].ifindex), (own, group, into));
        receiver.leave(group, into).unwrap();
        sender.send(&batch, &[3; 64]).unwrap();
        // What is sent to the receiver alone comes behind it.
        let alone = address(if own.is_ipv4() { "10.9.0.2" } else { "fd09::2" });
        sender.send(&transmit(&sender, own, alone, 64), &[4; 64]).unwrap();
        assert_eq!(receive(&mut receiver, 1)[0].bytes, [4; 64]);
    }
}

/// A sandbox may forbid the calls that send or receive several datagrams. Then packets go singly.
#[test]
fn calls_that_a_sandbox_forbids_are_done_without() {
    let Some(namespace) = Namespace::new() else { return };
    let features = Features::without("gso,gro").unwrap();
    let mut link = open(&namespace, &UdpConfig { features, ..UdpConfig::default() });
    // The filter is the thread's.
    let worker = std::thread::spawn(move || {
        forbid(&[libc::SYS_sendmmsg, libc::SYS_recvmmsg]);
        let batch = transmit(&link, V4, V4, 100);
        let bytes = packets(8, 100, 0);
        for _ in 0..3 {
            for chunk in bytes.chunks(100 * usize::from(link.path(V4, 0).max_segments)) {
                link.send(&batch, chunk).unwrap();
            }
            let got = receive(&mut link, 8);
            assert!(got.iter().flat_map(|packet| packet.bytes.clone()).eq(bytes.iter().copied()));
        }
        assert_eq!(link.path(V4, 0).max_segments, 1);
    });
    worker.join().unwrap();
}

/// These calls give EPERM in this thread from now on.
fn forbid(calls: &[libc::c_long]) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for call in calls {
        let is_it = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32);
        filter.push(libc::sock_filter { jf: 1, ..is_it });
        filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives as long as the call, and is about this thread.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

#[test]
fn packets_without_a_udp_checksum_are_taken() {
    let Some(namespace) = Namespace::new() else { return };
    let mut link = open(&namespace, &UdpConfig::default());
    for (to, domain) in [(V4, Domain::IPV4), (V6, Domain::IPV6)] {
        let socket = match namespace.run(move || Socket::new(domain, Type::RAW, Some(Protocol::UDP))) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return netns::skip("it needs a raw socket");
            }
            socket => socket.unwrap(),
        };
        let send = |payload: &[u8]| {
            let mut packet = vec![0xc1, 0x23, 0x12, 0xb7, 0, 8 + payload.len() as u8, 0, 0];
            packet.extend(payload);
            socket.send_to(&packet, &SocketAddr::new(to, 0).into()).unwrap();
        };
        for number in 0..20 {
            send(&[number; 100]);
        }
        let got = receive(&mut link, 20);
        assert!(got.iter().map(|packet| packet.bytes[0]).eq(0..20), "{to}");
        // These are never merged.
        assert!(got.iter().all(|packet| packet.run == 1 && packet.bytes.len() == 100));
        // An empty datagram is counted and is no packet.
        let mut batch = RecvBatch::new(4);
        send(&[]);
        let (start, mut taken) = (Instant::now(), 0);
        while batch.malformed() == 0 && start.elapsed() < PATIENCE {
            taken += link.recv(&mut batch).unwrap();
            assert!(batch.is_empty());
        }
        assert_eq!((taken, batch.malformed()), (1, 1), "so the caller looks once more");
    }
}

#[test]
fn a_held_port_is_explained() {
    let Some(namespace) = Namespace::new() else { return };
    let link = open(&namespace, &UdpConfig::default());
    for config in [UdpConfig::default(), UdpConfig::only(V4, 0), UdpConfig::only(V6, 0)] {
        let error = namespace.run(move || UdpLink::open(&config)).unwrap_err();
        let OpenError::PortHeld { ref holder, .. } = error else { panic!("{error}") };
        assert!(matches!(holder, Holder::Process { pid, .. } if *pid == std::process::id()), "{error}");
        let text = error.to_string();
        assert!(text.contains("4791") && text.contains(&std::process::id().to_string()), "{text}");
    }
    // A group of the same user's is what sharing is for.
    let config = UdpConfig { sharing: Sharing::Group, slots: None, ..UdpConfig::default() };
    let second = open(&namespace, &config);
    drop((link, second));

    // One address each: two links live side by side.
    let first = open(&namespace, &UdpConfig::only(V4, 0));
    let mut second = open(&namespace, &UdpConfig::only(address("127.0.0.2"), 0));
    let mut first = first;
    first.send(&transmit(&first, V4, address("127.0.0.2"), 30), &[5; 30]).unwrap();
    assert_eq!(receive(&mut second, 1)[0].bytes, [5; 30]);
    let error = namespace.run(|| UdpLink::open(&UdpConfig::only(address("10.1.2.3"), 0))).unwrap_err();
    assert!(matches!(error, OpenError::NotLocal { .. }), "{error}");
}

/// A link that has its address for itself uses control messages only for what differs from its sockets' own settings.
#[test]
fn one_address_alone() {
    let Some(namespace) = Namespace::new() else { return };
    for (own, other) in [(V4, address("127.0.0.2")), (V6, V6)] {
        let alone = |at| UdpConfig { sharing: Sharing::Sole, slots: None, ..UdpConfig::only(at, 0) };
        let mut link = open(&namespace, &alone(own));
        assert!(!link.capabilities().steering);
        let mut far = (own != other).then(|| open(&namespace, &alone(other)));
        for (tos, hop_limit, count) in
            [(0, 0, 1), (0x2e, 0, 1), (0, 9, 3), (0, 0, 3), (0xb9, 9, 1), (0, 0, 1)]
        {
            let batch = Transmit { tos, hop_limit, ..transmit(&link, own, other, 40) };
            link.send(&batch, &packets(count, 40, 7)).unwrap();
            let got = receive(far.as_mut().unwrap_or(&mut link), count);
            assert_eq!(got.len(), count);
            for packet in got {
                assert_eq!((packet.src, packet.dst, packet.src_port), (own, other, batch.source_port));
                assert_eq!((packet.tos, packet.ttl), (tos, if hop_limit == 0 { 64 } else { hop_limit }));
            }
        }
        // Nobody else may have the address: neither alone nor in a group.
        for sharing in [Sharing::Sole, Sharing::Exclusive, Sharing::Group] {
            let config = UdpConfig { sharing, ..alone(own) };
            let error = namespace.run(move || UdpLink::open(&config)).unwrap_err();
            assert!(matches!(error, OpenError::PortHeld { .. }), "{sharing:?}: {error}");
        }
    }
}

#[test]
fn buffers_are_as_large_as_asked_for() {
    let Some(namespace) = Namespace::new() else { return };
    let granted = |recv_buffer| {
        let config = UdpConfig { recv_buffer, ..UdpConfig::default() };
        open(&namespace, &config).capabilities().recv_buffer
    };
    let (default, largest) = (granted(BufferSize::Default), granted(BufferSize::Largest));
    let plain = namespace.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.recv_buffer_size().unwrap()
    });
    assert_eq!(default, plain);
    assert!(largest >= default, "{largest} {default}");
    assert_eq!(granted(BufferSize::Bytes(50_000)), 100_000);
}

#[test]
fn a_full_buffer_counts_drops() {
    let Some(namespace) = Namespace::new() else { return };
    let mut link = open(&namespace, &UdpConfig { recv_buffer: BufferSize::Default, ..UdpConfig::default() });
    for own in [V4, V6] {
        let before = link.drops();
        let bytes = packets(15, 4128, 0);
        for _ in 0..10 {
            link.send(&transmit(&link, own, own, 4128), &bytes).unwrap();
        }
        let mut received = 0;
        let mut batch = RecvBatch::default();
        // A busy machine may bring what was sent a moment later.
        let start = Instant::now();
        while received + link.drops() - before < 10 && start.elapsed() < PATIENCE {
            link.recv(&mut batch).unwrap();
            received += batch.iter().count() as u64;
        }
        assert!(received < 10, "nothing was dropped");
        assert_eq!(link.drops() - before, 10 - received);
    }
}

#[test]
fn without_a_program_a_group_is_not_steered() {
    let Some(namespace) = Namespace::new() else { return };
    let mut link = namespace.run(|| {
        let features = Features::without("cbpf").unwrap();
        UdpLink::open(&UdpConfig { features, ..UdpConfig::default() }).unwrap()
    });
    assert!(!link.capabilities().steering);
    assert_eq!(link.steer(&SlotTable::single()).unwrap_err().kind(), std::io::ErrorKind::Unsupported);
}
