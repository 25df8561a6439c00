//! The invariant CRC over everything that routers do not change (IBTA vol. 1, 7.8.1; RoCEv2 annex A17).
//!
//! It is the CRC-32 of Ethernet over
//! - eight 0xff bytes, in place of a masked LRH,
//! - the headers in front of the packet (IP and UDP, or RoCEv1's GRH), with all bits set in the fields that routers change,
//! - the BTH with all bits set in its congestion byte, and the rest of the packet.
//!
//! On the wire its least significant byte comes first.

use super::{
    crc,
    encap::Encapsulation,
    gf,
    grh::{GRH_LEN, NEXT_HEADER_BTH},
    opcode::BTH_LEN,
    packet::ICRC_LEN,
};
use alloc::boxed::Box;
use core::net::IpAddr;
use once_cell::race::OnceBox;

/// The UDP port of RoCEv2 (IANA "roce").
pub const ROCE_PORT: u16 = 4791;
/// The IPv4 word of flags and fragment offset that every RoCEv2 peer seen sends: don't fragment, offset 0.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// Size of a UDP header, bytes.
pub const UDP_LEN: usize = 8;
/// Size of an IPv4 header without options, bytes.
pub const IPV4_LEN: usize = 20;
/// Size of an IPv6 header without extensions, bytes.
pub const IPV6_LEN: usize = 40;

/// CRC-32 of the eight 0xff bytes at the front.
const AFTER_LRH: u32 = 0x2144_df1c;
/// The CRC that every ICRC continues. Made when the first ICRC is computed.
static FRONT: OnceBox<crc::Front> = OnceBox::new();
/// Which byte of the BTH routers may change.
const CONGESTION: usize = 4;
/// Packets up to this size are copied behind the headers and hashed in one call. For larger ones a second call is cheaper than the copy.
const WHOLE: usize = 128;

/// The header fields in front of a packet that the ICRC covers and that are the same for all packets of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Source address. RoCEv2: packets travel in IPv4 if both addresses are IPv4, else in IPv6. RoCEv1: the GID; IPv4 is mapped.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port of RoCEv2.
    pub src_port: u16,
    /// What carries the packets.
    pub encapsulation: Encapsulation,
}

impl Route {
    /// RoCEv2 from `src` and its port `src_port` to `dst`.
    #[must_use]
    pub const fn v2(src: IpAddr, dst: IpAddr, src_port: u16) -> Self {
        Self { src, dst, src_port, encapsulation: Encapsulation::V2 }
    }

    /// RoCEv1 from `src` to `dst`.
    #[must_use]
    pub const fn v1(src: IpAddr, dst: IpAddr) -> Self {
        Self { src, dst, src_port: 0, encapsulation: Encapsulation::V1 }
    }

    /// Whether packets travel in IPv4: RoCEv2 between IPv4 addresses.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        matches!((self.encapsulation, self.src, self.dst), (Encapsulation::V2, IpAddr::V4(_), IpAddr::V4(_)))
    }
}

/// Which headers are in front of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Headers {
    Ipv4,
    Ipv6,
    Grh,
}

/// The masked headers of one [`Route`], ready to be hashed in front of any number of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteCrc {
    /// Masked headers. Lengths, and IPv4's ID, flags and fragment offset, are filled in for each packet.
    head: [u8; IPV6_LEN + UDP_LEN],
    headers: Headers,
}

impl RouteCrc {
    /// Prepares the headers of `route`. Packets in memory have no headers and no ICRC: the result is as for RoCEv1 and not used.
    #[must_use]
    // Inlined into its callers it takes a fifth more instructions.
    #[inline(never)]
    pub fn new(route: &Route) -> Self {
        let (IpAddr::V4(src), IpAddr::V4(dst), Encapsulation::V2) =
            (route.src, route.dst, route.encapsulation)
        else {
            return Self::with_gids(route);
        };
        let mut head = [0xff_u8; IPV6_LEN + UDP_LEN];
        head[0] = 0x45;
        head[9] = 17;
        head[12..16].copy_from_slice(&src.octets());
        head[16..20].copy_from_slice(&dst.octets());
        head[20..22].copy_from_slice(&route.src_port.to_be_bytes());
        head[22..24].copy_from_slice(&ROCE_PORT.to_be_bytes());
        Self { head, headers: Headers::Ipv4 }
    }

    /// The same for headers with addresses of 16 bytes: IPv6 and GRH.
    #[inline(never)]
    fn with_gids(route: &Route) -> Self {
        let mut head = [0xff_u8; IPV6_LEN + UDP_LEN];
        head[0] = 0x6f;
        head[8..24].copy_from_slice(&v6_octets(route.src));
        head[24..40].copy_from_slice(&v6_octets(route.dst));
        if route.encapsulation != Encapsulation::V2 {
            head[6] = NEXT_HEADER_BTH;
            return Self { head, headers: Headers::Grh };
        }
        head[6] = 17;
        head[40..42].copy_from_slice(&route.src_port.to_be_bytes());
        head[42..44].copy_from_slice(&ROCE_PORT.to_be_bytes());
        Self { head, headers: Headers::Ipv6 }
    }

    /// Whether the packets travel in IPv4.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        matches!(self.headers, Headers::Ipv4)
    }

    /// Computes the ICRC of `packet` (BTH to pad, without the ICRC). `ident` is the IPv4 ID, `fragment` the IPv4 word of flags and
    /// fragment offset. Both are ignored for IPv6 and RoCEv1.
    #[must_use]
    pub fn compute(&self, ident: u16, fragment: u16, packet: &[u8]) -> u32 {
        let mut buf = [0; IPV6_LEN + UDP_LEN + WHOLE];
        buf[..IPV6_LEN + UDP_LEN].copy_from_slice(&self.head);
        let udp_len = (packet.len() + UDP_LEN + ICRC_LEN) as u16;
        let bth = match self.headers {
            Headers::Ipv4 => {
                buf[2..4].copy_from_slice(&udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes());
                buf[4..6].copy_from_slice(&ident.to_be_bytes());
                buf[6..8].copy_from_slice(&fragment.to_be_bytes());
                buf[IPV4_LEN + 4..IPV4_LEN + 6].copy_from_slice(&udp_len.to_be_bytes());
                IPV4_LEN + UDP_LEN
            }
            Headers::Ipv6 => {
                buf[4..6].copy_from_slice(&udp_len.to_be_bytes());
                buf[IPV6_LEN + 4..IPV6_LEN + 6].copy_from_slice(&udp_len.to_be_bytes());
                IPV6_LEN + UDP_LEN
            }
            Headers::Grh => {
                let len = udp_len.wrapping_sub(UDP_LEN as u16);
                buf[4..6].copy_from_slice(&len.to_be_bytes());
                GRH_LEN
            }
        };
        let front = if packet.len() <= WHOLE { packet.len() } else { BTH_LEN };
        buf[bth..bth + front].copy_from_slice(&packet[..front]);
        if front > CONGESTION {
            buf[bth + CONGESTION] = 0xff;
        }
        let parts = [&buf[..bth + front], &packet[front..]];
        FRONT.get_or_init(|| Box::new(crc::Front::new(AFTER_LRH))).update(parts)
    }

    /// Whether the last four bytes of `packet` (BTH to ICRC) are its ICRC.
    #[must_use]
    pub fn check(&self, ident: u16, fragment: u16, packet: &[u8]) -> bool {
        packet
            .split_last_chunk::<ICRC_LEN>()
            .is_some_and(|(body, icrc)| self.compute(ident, fragment, body) == u32::from_le_bytes(*icrc))
    }

    /// Writes the ICRC of a complete packet into its last four bytes. In IPv4 the packet has this ID and forbids fragments.
    pub fn seal(&self, ident: u16, packet: &mut [u8]) {
        if let Some((body, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
            *icrc = self.compute(ident, DONT_FRAGMENT, body).to_le_bytes();
        }
    }
}

/// Computes the ICRC of `packet` (BTH to pad, without the ICRC) sent over `route`. `ident` is the IPv4 ID, `fragment` the IPv4 word of
/// flags and fragment offset. Both are ignored for IPv6 and RoCEv1.
#[must_use]
pub fn compute(route: &Route, ident: u16, fragment: u16, packet: &[u8]) -> u32 {
    RouteCrc::new(route).compute(ident, fragment, packet)
}

/// Whether the last four bytes of `packet` (BTH to ICRC), received over `route`, are its ICRC.
#[must_use]
pub fn check(route: &Route, ident: u16, fragment: u16, packet: &[u8]) -> bool {
    RouteCrc::new(route).check(ident, fragment, packet)
}

/// Writes the ICRC of a complete packet sent over `route` into its last four bytes. In IPv4 the packet has this ID and forbids fragments.
pub fn seal(route: &Route, ident: u16, packet: &mut [u8]) {
    RouteCrc::new(route).seal(ident, packet);
}

/// Which change (exclusive or) of the four bytes in front of a packet would explain why its ICRC is not the computed one. `len` is the
/// size of the packet, BTH to pad. If something changes the headers of all packets in the same way, address translation for instance,
/// the result is the same for all of them. For corrupt packets it differs each time. `None` if `len` is more than 131,067.
#[must_use]
pub fn header_difference(received: u32, computed: u32, len: usize) -> Option<[u8; 4]> {
    gf::difference(received ^ computed, len)
}

/// The ICRC that kernel rxe gives a FLUSH. `icrc` is the specification's; kernel rxe continues it with `packet` (BTH, FETH and RETH) a
/// second time, unmasked. Kernels 6.12 and maybe others send and accept FLUSH only with this value.
#[must_use]
pub fn rxe_flush(icrc: u32, packet: &[u8]) -> u32 {
    crc::update(icrc, [packet])
}

/// An address as 16 bytes; IPv4 mapped.
pub(super) fn v6_octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
