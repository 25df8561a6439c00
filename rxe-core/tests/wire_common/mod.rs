//! Shared by the wire tests: hex, the recorded frames and a small parser for Ethernet, VLAN, IP and UDP.
#![allow(dead_code, unreachable_pub, reason = "shared by several test programs, each of which uses a part")]

use rxe_core::wire::icrc::{ROCE_PORT, Route};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a string of hex digits; blanks are skipped.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(byte).to_digit(16).expect("hex digit") as u8)
        .collect();
    assert!(digits.len().is_multiple_of(2), "odd number of hex digits");
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A RoCEv2 datagram taken out of its frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Addresses and source port.
    pub route: Route,
    /// IPv4 ID, 0 for IPv6.
    pub ident: u16,
    /// IPv4 flags and offset, 0 for IPv6.
    pub fragment: u16,
    /// The IP header as it was.
    pub ip: Vec<u8>,
    /// The UDP payload: BTH to ICRC.
    pub packet: Vec<u8>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Takes a datagram that starts at its IP header.
pub fn datagram(ip: &[u8]) -> Frame {
    let (src, dst, ident, fragment, udp): (IpAddr, IpAddr, _, _, _) = match ip[0] >> 4 {
        4 => {
            assert_eq!((ip[0], ip[9]), (0x45, 17), "no options, UDP");
            let addr = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
            let end = u16_at(ip, 2) as usize;
            (addr(12).into(), addr(16).into(), u16_at(ip, 4), u16_at(ip, 6), &ip[20..end])
        }
        6 => {
            assert_eq!(ip[6], 17, "UDP");
            let addr = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
            let end = 40 + u16_at(ip, 4) as usize;
            (addr(8).into(), addr(24).into(), 0, 0, &ip[40..end])
        }
        other => panic!("IP version {other}"),
    };
    assert_eq!(u16_at(udp, 2), ROCE_PORT);
    assert_eq!(u16_at(udp, 4) as usize, udp.len(), "UDP length");
    let route = Route::v2(src, dst, u16_at(udp, 0));
    let header = if src.is_ipv4() { 20 } else { 40 };
    Frame { route, ident, fragment, ip: ip[..header].to_vec(), packet: udp[8..].to_vec() }
}

/// Takes a whole Ethernet frame, with or without VLAN tags.
pub fn ethernet(frame: &[u8]) -> Frame {
    let mut at = 12;
    while u16_at(frame, at) == 0x8100 {
        at += 4;
    }
    assert!(matches!(u16_at(frame, at), 0x0800 | 0x86dd), "ethertype");
    datagram(&frame[at + 2..])
}

/// Every RoCEv1 frame of the recording: its route and the packet, BTH to ICRC. The header's length rules, whatever is behind.
pub fn rocev1_frames() -> Vec<(Route, Vec<u8>)> {
    let frame = |line: &str| {
        let frame = hex(line);
        assert_eq!((u16_at(&frame, 12), frame[14] >> 4, frame[20]), (0x8915, 6, 0x1b));
        let gid =
            |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap()).to_canonical();
        (Route::v1(gid(22), gid(38)), frame[54..54 + usize::from(u16_at(&frame, 18))].to_vec())
    };
    let lines = include_str!("../data/rocev1.txt").lines();
    lines.filter(|line| !line.starts_with('#')).map(frame).collect()
}

/// Every frame of the recording.
pub fn frames() -> Vec<Frame> {
    include_str!("../data/frames.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| ethernet(&hex(line)))
        .collect()
}

/// The three vectors whose value is known from elsewhere: scapy's test of its RoCE layer, and two of our own computed
/// with Python's zlib.
pub fn vectors() -> [Frame; 3] {
    [
        "4501 0040 0478 4000 4011 0000 c0a80007 c0a80007 c000 12b7 002c 0000 2460ffff000000d300cf1710 \
         4630818be28935d90e9a95505401be885e50 0000 78f353f3",
        "4500003400004000401126b70a0000010a000002 c72212b700200000 0430ffff00000011 80123456 68656c6c6f000000 c9b12485",
        "60000000001c1140 fd000000000000000000000000000001 fd000000000000000000000000000002 c00012b7001c0000 \
         1100ffff00000012 00123456 1f000001 52074176",
    ]
    .map(|text| datagram(&hex(text)))
}
