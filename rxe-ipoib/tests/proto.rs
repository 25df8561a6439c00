//! Frames and addresses byte by byte as the RFCs draw them; what is not sound is refused.

use rxe_ipoib::proto::{
    address::LinkAddress,
    arp::{Arp, Operation},
    connected::{self, PrivateData},
    encap::Protocol,
    group,
    ip::{self, Head, internet_checksum},
    nd::{self, Message, Packet},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ONE: LinkAddress = LinkAddress {
    connected: true,
    qpn: 0x01_0203,
    gid: Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0202, 0xc9ff, 0xfe00, 1),
};
const OTHER: LinkAddress =
    LinkAddress { connected: false, qpn: 0xab_cdef, gid: Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a00, 2) };

/// RFC 4391, 9.1.1: a byte of flags (the highest is RFC 4755's "RC"), the queue pair, the GID.
const ONE_BYTES: [u8; 20] = [0x80, 1, 2, 3, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 2, 0xc9, 0xff, 0xfe, 0, 0, 1];
const OTHER_BYTES: [u8; 20] = [0, 0xab, 0xcd, 0xef, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2];

#[test]
fn link_addresses() {
    for (address, bytes) in [(ONE, ONE_BYTES), (OTHER, OTHER_BYTES)] {
        assert_eq!(address.emit(), bytes);
        assert_eq!(LinkAddress::parse(&bytes), Some(address));
    }
    assert_eq!(ONE.to_string(), "80:01:02:03:fe:80:00:00:00:00:00:00:02:02:c9:ff:fe:00:00:01");
    // Unreliable connections and reserved flags are passed by.
    let mut bytes = ONE_BYTES;
    bytes[0] = 0x7f;
    assert_eq!(LinkAddress::parse(&bytes), Some(LinkAddress { connected: false, ..ONE }));
    let with = |at: usize, data: &[u8]| {
        let mut bytes = ONE_BYTES;
        bytes[at..at + data.len()].copy_from_slice(data);
        LinkAddress::parse(&bytes)
    };
    assert_eq!(with(1, &[0, 0, 0]), None, "queue pair 0");
    assert_eq!(with(1, &[0, 0, 1]), None, "queue pair 1");
    assert_eq!(with(1, &[0xff; 3]), None, "the queue pair of groups");
    assert_eq!(with(4, &[0xff, 0x12]), None, "a group");
    assert_eq!(with(4, &[0; 16]), None, "nobody");
    assert_eq!(with(4, &Ipv4Addr::BROADCAST.to_ipv6_mapped().octets()), None, "everybody");
    assert_eq!(LinkAddress::parse(&ONE_BYTES[..19]), None);
}

#[test]
fn headers() {
    for (protocol, bytes) in [
        (Protocol::Ipv4, [0x08, 0x00, 0, 0]),
        (Protocol::Ipv6, [0x86, 0xdd, 0, 0]),
        (Protocol::Arp, [0x08, 0x06, 0, 0]),
    ] {
        assert_eq!(protocol.header(), bytes);
        assert_eq!(Protocol::of(&bytes), Some(protocol));
    }
    assert_eq!(Protocol::of(&[0x08, 0x00, 0xff, 0xff]), Some(Protocol::Ipv4), "reserved bytes are ignored");
    assert_eq!(Protocol::of(&[0x80, 0x35, 0, 0]), None, "RARP");
    assert_eq!(Protocol::of(&[0x08, 0x00, 0]), None);
}

/// RFC 4391, 9.1: hardware type 32, lengths 20 and 4.
#[test]
fn arp_packets() {
    let request = Arp {
        operation: Operation::Request,
        sender: (ONE, Ipv4Addr::new(10, 9, 0, 1)),
        target: (None, Ipv4Addr::new(10, 9, 0, 2)),
    };
    let mut bytes = vec![0, 32, 8, 0, 20, 4, 0, 1];
    bytes.extend(ONE_BYTES);
    bytes.extend([10, 9, 0, 1]);
    bytes.extend([0; 20]);
    bytes.extend([10, 9, 0, 2]);
    assert_eq!(request.emit()[..], bytes);
    assert_eq!(Arp::parse(&bytes), Some(request));
    let reply = Arp {
        operation: Operation::Reply,
        sender: (OTHER, Ipv4Addr::new(10, 9, 0, 2)),
        target: (Some(ONE), Ipv4Addr::new(10, 9, 0, 1)),
    };
    assert_eq!(Arp::parse(&reply.emit()), Some(reply));
    for (at, value) in [(1, 1), (3, 1), (4, 6), (5, 16), (7, 3), (28, 224)] {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        assert_eq!(Arp::parse(&wrong), None, "byte {at}");
    }
    for len in 0..bytes.len() {
        assert_eq!(Arp::parse(&bytes[..len]), None);
    }
}

/// RFC 4391, 4: figures of the broadcast group, of IPv4's all-hosts group, and of an IPv6 solicited-node group.
#[test]
fn groups() {
    let mgid = |group: &str| group::mgid(0x8002, group.parse().unwrap()).map(|gid| gid.to_string());
    assert_eq!(group::broadcast(0x7fff).to_string(), "ff12:401b:ffff::ffff:ffff");
    assert_eq!(mgid("255.255.255.255").as_deref(), Some("ff12:401b:8002::ffff:ffff"));
    assert_eq!(mgid("224.0.0.1").as_deref(), Some("ff12:401b:8002::1"));
    assert_eq!(mgid("239.255.1.2").as_deref(), Some("ff12:401b:8002::fff:102"));
    assert_eq!(mgid("ff02::1").as_deref(), Some("ff12:601b:8002::1"));
    assert_eq!(mgid("ff05:1:2:3:4:5:6:7").as_deref(), Some("ff12:601b:8002:3:4:5:6:7"));
    assert_eq!((mgid("10.0.0.1"), mgid("fe80::1")), (None, None));
    let address = "fe80::1234:5678:9abc:def0".parse().unwrap();
    assert_eq!(group::solicited_node(address).to_string(), "ff02::1:ffbc:def0");
    let carriers: std::collections::HashSet<_> =
        (0..100).map(|key| group::carrier(group::broadcast(key))).collect();
    assert_eq!(carriers.len(), 100, "partitions have carriers of their own");
    assert!(carriers.iter().all(|ip| ip.octets()[0] == 239 && ip.octets()[1] & 0xfc == 192));
}

/// RFC 4755, 3.5 and 6.
#[test]
fn connected_mode() {
    assert_eq!(connected::service_id(0x02_0304), 0x0100_0000_0002_0304);
    let data = PrivateData { qpn: 0x02_0304, receive_mtu: 65_524 };
    let bytes = [0, 2, 3, 4, 0, 0, 0xff, 0xf4];
    assert_eq!(data.emit(), bytes);
    assert_eq!(PrivateData::parse(&bytes), Some(data));
    assert_eq!(
        PrivateData::parse(&[0xff, 2, 3, 4, 0, 0, 0xff, 0xf4, 9]),
        Some(data),
        "the first byte is reserved"
    );
    assert_eq!(PrivateData::parse(&[0, 2, 3, 4, 0, 0, 0, 71]), None, "no room for IPv4");
    assert_eq!(PrivateData::parse(&bytes[..7]), None);
    assert_eq!(PrivateData::parse(&[0; 92]), None);
}

const HERE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const THERE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

fn advertisement() -> Packet {
    let message = Message::Advertisement { target: HERE, address: ONE, solicited: true, replaces: true };
    Packet { source: HERE, destination: THERE, message }
}

#[test]
fn neighbour_discovery() {
    let bytes = advertisement().emit();
    assert_eq!(bytes[..8], [0x60, 0, 0, 0, 0, 48, 58, 255]);
    assert_eq!((bytes[40], bytes[44]), (136, 0x60));
    // RFC 4391, 9.3: type, length in units of 8, two bytes of zero, the address.
    assert_eq!(bytes[64..68], [2, 3, 0, 0]);
    assert_eq!(bytes[68..], ONE_BYTES);
    assert_eq!(Packet::parse(&bytes), Some(advertisement()));
    assert!(nd::is_ours(&bytes));
    let destination = group::solicited_node(THERE);
    for source in [Some(OTHER), None] {
        let packet =
            Packet { source: HERE, destination, message: Message::Solicitation { target: THERE, source } };
        assert_eq!(Packet::parse(&packet.emit()), Some(packet));
    }
}

#[test]
fn broken_neighbour_discovery_is_refused() {
    let bytes = advertisement().emit();
    for at in 0..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x11;
        // Traffic class and flow label may have any value. The checksum or a check covers all else.
        let parsed = Packet::parse(&wrong);
        assert_eq!(
            parsed.is_some(),
            (1..4).contains(&at) || parsed == Some(advertisement()),
            "byte {at}: {parsed:?}"
        );
    }
    for len in 0..bytes.len() {
        assert_eq!(Packet::parse(&bytes[..len]), None);
    }
    // With a right checksum: options without length, beyond the end, a link-layer address of Ethernet.
    for option in [[2, 0, 0, 0], [2, 4, 0, 0], [2, 1, 0, 0]] {
        let mut wrong = bytes.clone();
        wrong[64..68].copy_from_slice(&option);
        wrong[42..44].fill(0);
        let body = &wrong[40..];
        let sum =
            internet_checksum(&[&wrong[8..40], &(body.len() as u32).to_be_bytes(), &[0, 0, 0, 58], body]);
        wrong[42..44].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(Packet::parse(&wrong), None, "{option:?}");
    }
}

#[test]
fn ip_headers() {
    let mut v4 = [0_u8; 48];
    v4[..4].copy_from_slice(&[0x45, 0, 0, 48]);
    v4[9] = 2;
    v4[12..20].copy_from_slice(&[10, 9, 0, 1, 224, 0, 0, 22]);
    let head = Head::parse(&v4, 48).unwrap();
    assert_eq!((head.destination, head.is_membership), (IpAddr::from([224, 0, 0, 22]), true));
    assert_eq!(Head::parse(&v4, 47), None, "it is not all there");
    v4[0] = 0x44;
    assert_eq!(Head::parse(&v4, 48), None);
    assert_eq!((Head::parse(&[], 0), Head::parse(&[0x50; 48], 48)), (None, None));
    let v6 = advertisement().emit();
    let head = Head::parse(&v6, v6.len()).unwrap();
    assert_eq!((head.source, head.destination, head.is_membership), (HERE.into(), THERE.into(), false));
    assert_eq!(Head::parse(&v6[..39], v6.len()), None);
}

#[test]
fn too_big() {
    let mut packet = vec![0_u8; 3000];
    packet[..4].copy_from_slice(&[0x45, 0, 0x0b, 0xb8]);
    packet[12..20].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
    let told = ip::too_big(&packet, 1020).unwrap();
    assert_eq!(told.len(), 28 + 128);
    assert_eq!(told[12..20], [10, 9, 0, 2, 10, 9, 0, 1], "from the destination, to us");
    assert_eq!((told[20], told[21], &told[26..28]), (3, 4, &[0x03, 0xfc][..]));
    assert_eq!((internet_checksum(&[&told[..20]]), internet_checksum(&[&told[20..]])), (0, 0));
    assert_eq!(told[28..], packet[..128]);
    let v6 = advertisement().emit();
    let told = ip::too_big(&v6, 1280).unwrap();
    assert_eq!((told[40], &told[44..48]), (2, &[0, 0, 5, 0][..]));
    let length = ((told.len() - 40) as u32).to_be_bytes();
    assert_eq!(internet_checksum(&[&told[8..40], &length, &[0, 0, 0, 58], &told[40..]]), 0);
    packet[16] = 224;
    assert_eq!((ip::too_big(&packet, 1020), ip::too_big(&[0x45], 1020)), (None, None), "not for groups");
}
