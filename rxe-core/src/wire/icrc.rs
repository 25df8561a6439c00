//! The invariant CRC over everything that routers do not change (IBTA vol. 1, 7.8.1; RoCEv2 annex A17).

use super::{opcode::BTH_LEN, packet::ICRC_LEN};
use core::net::IpAddr;
use crc32fast::Hasher;

/// The UDP port of RoCEv2 (IANA "roce").
pub const ROCE_PORT: u16 = 4791;
/// The IPv4 flags-and-offset word of every RoCEv2 peer seen: don't fragment, offset 0.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// The parts of a datagram's IP and UDP headers that the ICRC covers and the packet itself does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Source address; the family of both decides between IPv4 and IPv6.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
}

/// Computes the ICRC of `packet` (BTH to pad, without the ICRC) sent over `route`. `ident` is the IPv4 ID and
/// `fragment` the IPv4 flags-and-offset word; both are ignored for IPv6.
#[must_use]
pub fn compute(route: &Route, ident: u16, fragment: u16, packet: &[u8]) -> u32 {
    let mut head = [0xff_u8; 8 + 40 + 8 + BTH_LEN];
    let udp_len = (packet.len() + ICRC_LEN + 8) as u16;
    let ip_len = match (route.src, route.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut head[8..28];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&(udp_len.wrapping_add(20)).to_be_bytes());
            ip[4..6].copy_from_slice(&ident.to_be_bytes());
            ip[6..8].copy_from_slice(&fragment.to_be_bytes());
            ip[9] = 17;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            20
        }
        (src, dst) => {
            let ip = &mut head[8..48];
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[6] = 17;
            ip[8..24].copy_from_slice(&v6_octets(src));
            ip[24..40].copy_from_slice(&v6_octets(dst));
            40
        }
    };
    let udp = 8 + ip_len;
    head[udp..udp + 2].copy_from_slice(&route.src_port.to_be_bytes());
    head[udp + 2..udp + 4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    head[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
    let bth = udp + 8;
    let masked = packet.len().min(BTH_LEN);
    head[bth..bth + masked].copy_from_slice(&packet[..masked]);
    head[bth + 4] = 0xff;
    let mut crc = Hasher::new();
    crc.update(&head[..bth + masked]);
    crc.update(&packet[masked..]);
    crc.finalize()
}

fn v6_octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Computes the ICRC of a complete packet about to be sent and stores it in its last four bytes.
pub fn seal(route: &Route, ident: u16, packet: &mut [u8]) {
    if let Some(at) = packet.len().checked_sub(ICRC_LEN) {
        let crc = compute(route, ident, DONT_FRAGMENT, &packet[..at]);
        packet[at..].copy_from_slice(&crc.to_le_bytes());
    }
}
