//! The ICRC against frames that others sent, and against its definition.

mod wire_common;

use rxe_core::wire::icrc::{self, DONT_FRAGMENT, Route, RouteCrc};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire_common::{Frame, frames, rocev1_frames, vectors};

fn holds(frame: &Frame) -> bool {
    icrc::check(&frame.route, frame.ident, frame.fragment, &frame.packet)
}

#[test]
fn known_vectors() {
    for frame in vectors() {
        assert!(holds(&frame), "{frame:?}");
    }
}

#[test]
fn frames_of_hardware_and_kernel() {
    let frames = frames();
    assert_eq!(frames.len(), 13);
    for frame in &frames {
        assert_eq!(frame.fragment, DONT_FRAGMENT);
        assert!(holds(frame), "{frame:?}");
    }
}

#[test]
fn rocev1_frames_of_hardware() {
    let frames = rocev1_frames();
    assert_eq!(frames.len(), 8);
    for (route, packet) in frames {
        assert!(route.src.is_ipv4() && icrc::check(&route, 0, 0, &packet), "{route:?}");
        // A change of an address, a port or the RoCE version is noticed.
        assert!(!icrc::check(&Route::v1(route.dst, route.src), 0, 0, &packet));
        assert!(!icrc::check(&Route::v2(route.src, route.dst, 0), 0, DONT_FRAGMENT, &packet));
        for bit in (0..8 * packet.len()).step_by(7) {
            let mut bad = packet.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(icrc::check(&route, 0, 0, &bad), bit / 8 == 4, "bit {bit}");
        }
        let mut sealed = packet.clone();
        let end = sealed.len() - 4;
        sealed[end..].fill(0);
        icrc::seal(&route, 0, &mut sealed);
        assert_eq!(sealed, packet);
    }
}

#[test]
fn seal_reproduces_received_icrcs() {
    for frame in frames().into_iter().chain(vectors()) {
        let mut packet = frame.packet.clone();
        let at = packet.len() - 4;
        packet[at..].fill(0);
        icrc::seal(&frame.route, frame.ident, &mut packet);
        assert_eq!(packet, frame.packet);
    }
}

/// Routers may change the congestion byte, nothing else of the packet and none of the covered header fields.
#[test]
fn covers_all_but_the_congestion_byte() {
    for frame in frames().into_iter().chain(vectors()) {
        for bit in 0..frame.packet.len() * 8 {
            let mut bad = frame.clone();
            bad.packet[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(holds(&bad), bit / 8 == 4, "bit {bit} of {frame:?}");
        }
        let port =
            Frame { route: Route { src_port: frame.route.src_port ^ 1, ..frame.route }, ..frame.clone() };
        let dst = Frame {
            route: Route {
                dst: if frame.route.is_ipv4() {
                    Ipv4Addr::LOCALHOST.into()
                } else {
                    Ipv6Addr::LOCALHOST.into()
                },
                ..frame.route
            },
            ..frame.clone()
        };
        assert!(!holds(&port) && !holds(&dst));
        if frame.route.is_ipv4() {
            assert!(!holds(&Frame { ident: frame.ident ^ 0x100, ..frame.clone() }));
            assert!(!holds(&Frame { fragment: 0, ..frame.clone() }));
        }
    }
}

/// The definition, a bit at a time: what the quick code is compared with at every length.
fn by_definition(route: &Route, ident: u16, fragment: u16, packet: &[u8]) -> u32 {
    let mut bytes = vec![0xff; 8];
    let udp_len = (packet.len() + 12) as u16;
    match (route.src, route.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes.extend([0x45, 0xff]);
            bytes.extend((udp_len + 20).to_be_bytes());
            bytes.extend(ident.to_be_bytes());
            bytes.extend(fragment.to_be_bytes());
            bytes.extend([0xff, 17, 0xff, 0xff]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            bytes.extend([0x6f, 0xff, 0xff, 0xff]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, 0xff]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        _ => unreachable!("one family"),
    }
    bytes.extend(route.src_port.to_be_bytes());
    bytes.extend(4791_u16.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    bytes.extend(packet);
    let congestion = bytes.len() - packet.len() + 4;
    if packet.len() > 4 {
        bytes[congestion] = 0xff;
    }
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn every_length_equals_the_definition() {
    let v4 = Route::v2(Ipv4Addr::new(10, 1, 2, 3).into(), Ipv4Addr::new(10, 9, 8, 7).into(), 51234);
    let v6 = Route::v2(
        "fe80::1:2:3".parse::<Ipv6Addr>().unwrap().into(),
        "2001:db8::77".parse::<Ipv6Addr>().unwrap().into(),
        49152,
    );
    let bytes: Vec<u8> = (0..4200_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for route in [v4, v6] {
        let crc = RouteCrc::new(&route);
        for len in (0..=300).chain([1040, 2064, 4112, 4124, 4200]) {
            let packet = &bytes[..len];
            assert_eq!(
                crc.compute(0xbeef, 0x4000, packet),
                by_definition(&route, 0xbeef, 0x4000, packet),
                "{len} bytes"
            );
        }
    }
}

/// Kernel rxe's value for FLUSH, written out: the three headers twice, the second time as they are.
#[test]
fn flush_of_kernel_rxe() {
    let route = vectors()[1].route;
    let packet: Vec<u8> = (0..32).collect();
    let icrc = icrc::compute(&route, 7, DONT_FRAGMENT, &packet);
    let mut crc = !icrc;
    for byte in &packet {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    assert_eq!(icrc::rxe_flush(icrc, &packet), !crc);
}

#[test]
fn too_short_is_never_whole() {
    let route = vectors()[0].route;
    for len in 0..4 {
        assert!(!icrc::check(&route, 0, DONT_FRAGMENT, &[0; 4][..len]));
        icrc::seal(&route, 0, &mut [0; 4][..len]);
    }
}
