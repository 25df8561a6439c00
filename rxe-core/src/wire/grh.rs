//! The 40 bytes in front of every datagram that a UD queue pair receives: they say where it came from.
//!
//! With InfiniBand and RoCEv1 they are the global route header (IBTA vol. 1, 8.3). With RoCEv2 they hold the IP header of the datagram
//! (annex A17.4.5): an IPv6 header as it is, or 20 zero bytes and then an IPv4 header.

use super::{
    encap::Encapsulation,
    icrc::{DONT_FRAGMENT, IPV4_LEN, Route, UDP_LEN, v6_octets},
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Size of the area, bytes.
pub const GRH_LEN: usize = 40;
/// Where an IPv4 header starts in the area.
const IPV4_AT: usize = GRH_LEN - IPV4_LEN;
/// The protocol number of UDP (IPv4) and its next-header value (IPv6).
const UDP: u8 = 17;
/// The GRH's next-header value if a BTH follows (IBTA vol. 1, 8.3).
pub const NEXT_HEADER_BTH: u8 = 0x1b;

/// The values in the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh {
    /// What carried the packet. Memory is reported as RoCEv2.
    pub encapsulation: Encapsulation,
    /// Source address. RoCEv2: the area has an IPv4 header if both addresses are IPv4, else IPv6. RoCEv1: the GID. A mapped one is IPv4.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits. 0 for IPv4, and for packets from an ordinary UDP socket, which does not show it.
    pub flow_label: u32,
    /// IPv4 ID; 0 for IPv6.
    pub ident: u16,
    /// Bytes behind the header. RoCEv2: UDP header and payload. RoCEv1: the packet with its ICRC.
    pub len: u16,
}

impl Grh {
    /// The area for a packet that arrived over `route`. `packet`: its bytes, BTH to ICRC.
    #[must_use]
    pub fn new(route: &Route, traffic_class: u8, hop_limit: u8, packet: usize) -> Self {
        let (encapsulation, more) = match route.encapsulation {
            Encapsulation::V1 => (Encapsulation::V1, 0),
            Encapsulation::V2 | Encapsulation::Memory => (Encapsulation::V2, UDP_LEN),
        };
        let len = u16::try_from(packet + more).unwrap_or(u16::MAX);
        let (src, dst) = (route.src, route.dst);
        Self { encapsulation, src, dst, traffic_class, hop_limit, flow_label: 0, ident: 0, len }
    }

    /// Writes the area. An IPv4 header gets its checksum, because some consumers use it to distinguish IPv4 from IPv6.
    #[must_use]
    pub fn emit(&self) -> [u8; GRH_LEN] {
        let mut out = [0; GRH_LEN];
        if let (Encapsulation::V2, IpAddr::V4(src), IpAddr::V4(dst)) =
            (self.encapsulation, self.src, self.dst)
        {
            let ip = &mut out[IPV4_AT..];
            ip[0] = 0x45;
            ip[1] = self.traffic_class;
            ip[2..4].copy_from_slice(&self.len.saturating_add(IPV4_LEN as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&self.ident.to_be_bytes());
            ip[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
            ip[8] = self.hop_limit;
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = !ones_complement_sum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
            out[..4].copy_from_slice(&word.to_be_bytes());
            out[4..6].copy_from_slice(&self.len.to_be_bytes());
            out[6] = if self.encapsulation == Encapsulation::V1 { NEXT_HEADER_BTH } else { UDP };
            out[7] = self.hop_limit;
            out[8..24].copy_from_slice(&v6_octets(self.src));
            out[24..].copy_from_slice(&v6_octets(self.dst));
        }
        out
    }

    /// Reads an area as verbs consumers do to answer a datagram. It is IPv6 (or a GRH) if it starts like an IPv6 header and does not end
    /// with an IPv4 header whose checksum is right. `None` if it starts like neither.
    #[must_use]
    pub fn parse(area: &[u8; GRH_LEN]) -> Option<Self> {
        let ip = &area[IPV4_AT..];
        let like_ipv6 = area[0] >> 4 == 6;
        if ip[0] == 0x45 && (!like_ipv6 || ones_complement_sum(ip) == u16::MAX) {
            return Some(Self {
                encapsulation: Encapsulation::V2,
                src: Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]).into(),
                dst: Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]).into(),
                traffic_class: ip[1],
                hop_limit: ip[8],
                flow_label: 0,
                ident: u16::from_be_bytes([ip[4], ip[5]]),
                len: u16::from_be_bytes([ip[2], ip[3]]).saturating_sub(IPV4_LEN as u16),
            });
        }
        if !like_ipv6 {
            return None;
        }
        let (src, dst) = (area[8..24].first_chunk::<16>()?, area.last_chunk::<16>()?);
        let word = u32::from_be_bytes([area[0], area[1], area[2], area[3]]);
        let v1 = area[6] == NEXT_HEADER_BTH;
        let address = |octets: [u8; 16]| Ipv6Addr::from(octets).to_canonical();
        Some(Self {
            encapsulation: if v1 { Encapsulation::V1 } else { Encapsulation::V2 },
            src: address(*src),
            dst: address(*dst),
            traffic_class: (word >> 20) as u8,
            hop_limit: area[7],
            flow_label: word & 0x000f_ffff,
            ident: 0,
            len: u16::from_be_bytes([area[4], area[5]]),
        })
    }
}

/// The one's complement sum, whose complement is the Internet checksum (RFC 1071). Of a header with a right checksum: all ones.
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
