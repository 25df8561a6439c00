//! The invariant CRC over everything that routers do not change (IBTA vol. 1, 7.8.1; RoCEv2 annex A17).
//!
//! It is the CRC-32 of Ethernet over eight 0xff bytes (in place of a masked LRH), the IP and UDP headers with the fields
//! that routers change set to ones, the BTH with its congestion byte set to ones, and the rest of the packet. It goes on
//! the wire with its least significant byte first.

use super::{crc, opcode::BTH_LEN, packet::ICRC_LEN};
use core::net::IpAddr;

/// The UDP port of RoCEv2 (IANA "roce").
pub const ROCE_PORT: u16 = 4791;
/// The IPv4 flags-and-offset word of every RoCEv2 peer seen: don't fragment, offset 0.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// Size of a UDP header, bytes.
pub const UDP_LEN: usize = 8;
/// Size of an IPv4 header without options, bytes.
pub const IPV4_LEN: usize = 20;
/// Size of an IPv6 header without extensions, bytes.
pub const IPV6_LEN: usize = 40;

/// CRC-32 of the eight 0xff bytes at the front.
const AFTER_LRH: u32 = 0x2144_df1c;
/// The BTH's byte that routers may change.
const CONGESTION: usize = 4;
/// Up to here header and packet are hashed in one piece from the stack; beyond, a second call is cheaper than the copy.
const WHOLE: usize = 128;

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

impl Route {
    /// Whether the datagram travels in IPv4: both addresses are of that family.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        matches!((self.src, self.dst), (IpAddr::V4(_), IpAddr::V4(_)))
    }
}

/// The masked IP and UDP headers of one [`Route`], ready to be hashed in front of any number of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteCrc {
    /// Masked headers; lengths and the IPv4 ID are filled in per packet.
    head: [u8; IPV6_LEN + UDP_LEN],
    ipv4: bool,
}

impl RouteCrc {
    /// Prepares the headers of `route`.
    #[must_use]
    pub fn new(route: &Route) -> Self {
        let mut head = [0xff_u8; IPV6_LEN + UDP_LEN];
        let (ipv4, udp) = match (route.src, route.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                head[0] = 0x45;
                head[9] = 17;
                head[12..16].copy_from_slice(&src.octets());
                head[16..20].copy_from_slice(&dst.octets());
                (true, IPV4_LEN)
            }
            (src, dst) => {
                head[0] = 0x6f;
                head[6] = 17;
                head[8..24].copy_from_slice(&v6_octets(src));
                head[24..40].copy_from_slice(&v6_octets(dst));
                (false, IPV6_LEN)
            }
        };
        head[udp..udp + 2].copy_from_slice(&route.src_port.to_be_bytes());
        head[udp + 2..udp + 4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        Self { head, ipv4 }
    }

    /// Whether the headers are IPv4's.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.ipv4
    }

    /// Computes the ICRC of `packet` (BTH to pad, without the ICRC). `ident` is the IPv4 ID and `fragment` the IPv4
    /// flags-and-offset word; both are ignored for IPv6.
    #[must_use]
    pub fn compute(&self, ident: u16, fragment: u16, packet: &[u8]) -> u32 {
        let mut buf = [0; IPV6_LEN + UDP_LEN + WHOLE];
        buf[..IPV6_LEN + UDP_LEN].copy_from_slice(&self.head);
        let udp_len = (packet.len() + UDP_LEN + ICRC_LEN) as u16;
        let udp = if self.ipv4 {
            buf[2..4].copy_from_slice(&udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes());
            buf[4..6].copy_from_slice(&ident.to_be_bytes());
            buf[6..8].copy_from_slice(&fragment.to_be_bytes());
            IPV4_LEN
        } else {
            buf[4..6].copy_from_slice(&udp_len.to_be_bytes());
            IPV6_LEN
        };
        buf[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        let bth = udp + UDP_LEN;
        let front = if packet.len() <= WHOLE { packet.len() } else { BTH_LEN };
        buf[bth..bth + front].copy_from_slice(&packet[..front]);
        if front > CONGESTION {
            buf[bth + CONGESTION] = 0xff;
        }
        let parts = [&buf[..bth + front], &packet[front..]];
        crc::update(AFTER_LRH, parts)
    }

    /// Whether the last four bytes of `packet` (BTH to ICRC) are its ICRC.
    #[must_use]
    pub fn check(&self, ident: u16, fragment: u16, packet: &[u8]) -> bool {
        packet
            .split_last_chunk::<ICRC_LEN>()
            .is_some_and(|(body, icrc)| self.compute(ident, fragment, body) == u32::from_le_bytes(*icrc))
    }

    /// Computes the ICRC of a complete packet about to be sent without fragments and stores it in its last four bytes.
    pub fn seal(&self, ident: u16, packet: &mut [u8]) {
        if let Some((body, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
            *icrc = self.compute(ident, DONT_FRAGMENT, body).to_le_bytes();
        }
    }
}

/// Computes the ICRC of `packet` (BTH to pad, without the ICRC) sent over `route`. `ident` is the IPv4 ID and
/// `fragment` the IPv4 flags-and-offset word; both are ignored for IPv6.
#[must_use]
pub fn compute(route: &Route, ident: u16, fragment: u16, packet: &[u8]) -> u32 {
    RouteCrc::new(route).compute(ident, fragment, packet)
}

/// Whether the last four bytes of `packet` (BTH to ICRC), received over `route`, are its ICRC.
#[must_use]
pub fn check(route: &Route, ident: u16, fragment: u16, packet: &[u8]) -> bool {
    RouteCrc::new(route).check(ident, fragment, packet)
}

/// Computes the ICRC of a complete packet about to be sent and stores it in its last four bytes.
pub fn seal(route: &Route, ident: u16, packet: &mut [u8]) {
    RouteCrc::new(route).seal(ident, packet);
}

/// Continues an ICRC the way kernel rxe does for FLUSH: it hashes `packet` (BTH, FETH and RETH) once more, unmasked.
/// Kernels 6.12 and maybe others send and accept FLUSH only with this value in place of the specification's.
#[must_use]
pub fn rxe_flush(icrc: u32, packet: &[u8]) -> u32 {
    crc::update(icrc, [packet])
}

pub(super) fn v6_octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
