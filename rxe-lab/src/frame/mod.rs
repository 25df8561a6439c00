//! Finds the packet in a captured frame: Ethernet, VLANs, cooked and raw captures, tunnels of mirroring switches, IPv4, IPv6,
//! UDP, and the GRH of RoCEv1. Other traffic is distinguished from invalid and truncated frames.

mod ip;
mod link;

use crate::capture::Record;
use rxe_core::wire::GRH_LEN;
use std::{fmt, net::IpAddr};

pub use link::Mac;

/// Most VLAN tags of a frame that are read.
pub const MOST_TAGS: usize = 4;
/// Most nested tunnels that are read.
const MOST_TUNNELS: u8 = 3;

/// A packet's headers in front of its BTH, and its bytes from there on.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Source and destination, if they are in the capture.
    pub macs: Option<[Mac; 2]>,
    /// Tag control information of VLAN tags from the outermost in; [`Frame::tags`] are there.
    tci: [u16; MOST_TAGS],
    /// How many VLAN tags there are.
    tag_count: u8,
    /// The tunnel in which it was mirrored.
    pub tunnel: Option<Tunnel>,
    /// The network header.
    pub net: Net,
    /// UDP source port; 0 for RoCEv1.
    pub src_port: u16,
    /// The captured part of the packet, BTH to ICRC.
    pub packet: &'a [u8],
    /// Bytes of the packet on the wire, BTH to ICRC.
    pub len: usize,
    /// A number that differs between the places at which a mirror may capture the same packet.
    pub place: u64,
}

/// The tunnel of a mirrored packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tunnel {
    /// VXLAN with its network identifier.
    Vxlan(u32),
    /// ERSPAN (a switch's mirror) with its session.
    Erspan(u16),
    /// Another GRE tunnel.
    Gre,
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vxlan(id) => write!(f, "VXLAN {id}"),
            Self::Erspan(session) => write!(f, "ERSPAN session {session}"),
            Self::Gre => f.write_str("GRE"),
        }
    }
}

/// The network header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// IPv4.
    V4 {
        /// Source.
        src: IpAddr,
        /// Destination.
        dst: IpAddr,
        /// Type of service: DSCP and ECN.
        tos: u8,
        /// Identification.
        ident: u16,
        /// Flags and fragment offset.
        fragment: u16,
        /// Time to live.
        ttl: u8,
        /// Whether it has options, for which no ICRC is defined.
        options: bool,
    },
    /// IPv6.
    V6 {
        /// Source.
        src: IpAddr,
        /// Destination.
        dst: IpAddr,
        /// Traffic class: DSCP and ECN.
        traffic_class: u8,
        /// Flow label.
        flow_label: u32,
        /// Hop limit.
        hop_limit: u8,
    },
    /// The global routing header of RoCEv1.
    Grh {
        /// The whole header.
        bytes: [u8; GRH_LEN],
    },
}

impl Net {
    /// Source and destination; a RoCEv1 GID counts as an address, IPv4 if it is one that was mapped.
    #[must_use]
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        match self {
            Self::V4 { src, dst, .. } | Self::V6 { src, dst, .. } => (*src, *dst),
            Self::Grh { bytes } => (ip::v6_at(bytes, 8).to_canonical(), ip::v6_at(bytes, 24).to_canonical()),
        }
    }

    /// DSCP and ECN.
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V4 { tos, .. } => *tos,
            Self::V6 { traffic_class, .. } => *traffic_class,
            Self::Grh { bytes } => bytes[0] << 4 | bytes[1] >> 4,
        }
    }

    /// Whether a switch has marked it: "congestion experienced". RoCEv1 has no such mark.
    #[must_use]
    pub const fn is_marked(&self) -> bool {
        !matches!(self, Self::Grh { .. }) && self.traffic_class() & 3 == 3
    }

    /// TTL or hop limit.
    #[must_use]
    pub const fn hops(&self) -> u8 {
        match self {
            Self::V4 { ttl, .. } => *ttl,
            Self::V6 { hop_limit, .. } => *hop_limit,
            Self::Grh { bytes } => bytes[7],
        }
    }

    /// The IPv4 identification, 0 elsewhere.
    #[must_use]
    pub const fn ident(&self) -> u16 {
        match self {
            Self::V4 { ident, .. } => *ident,
            _ => 0,
        }
    }
}

/// Why a frame has no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Other {
    /// Traffic that is not RoCE.
    NotRoce,
    /// Truncated so much that it may or may not be RoCE.
    Cut,
    /// A fragment of an IP datagram: RoCE is never fragmented.
    Fragment,
    /// Headers that contradict themselves.
    Malformed(&'static str),
    /// An unknown link type.
    Link,
}

impl<'a> Frame<'a> {
    /// Finds the packet in a frame.
    ///
    /// # Errors
    /// [`Other`] if there is none.
    pub fn find(record: &Record<'a>) -> Result<Self, Other> {
        let Record { wire_len, interface, direction, .. } = *record;
        let seen = Seen { wire_len, interface, direction, ..Seen::default() };
        link::start(record.link, record.data, seen)
    }

    /// VLAN tags (priority, DEI and VLAN ID) from the outermost in.
    #[must_use]
    pub fn tags(&self) -> &[u16] {
        &self.tci[..usize::from(self.tag_count)]
    }

    /// The same frame for another packet in it.
    #[must_use]
    pub(crate) const fn with(&self, packet: &'a [u8], net: Net) -> Self {
        Self { packet, len: packet.len(), net, ..*self }
    }
}

/// The state of dissecting a frame.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Bytes on the wire from the present position on.
    wire_len: usize,
    interface: u32,
    macs: Option<[Mac; 2]>,
    tci: [u16; MOST_TAGS],
    tag_count: u8,
    tunnel: Option<Tunnel>,
    tunnels: u8,
    /// Sent, received, or for another host, in the numbers of the capture's format.
    direction: u8,
}

impl Seen {
    /// `bytes` begins with the BTH, and `len` is the length from there according to the headers.
    fn packet(self, bytes: &[u8], len: usize, net: Net, src_port: u16) -> Result<Frame<'_>, Other> {
        if len > self.wire_len {
            return Err(Other::Malformed("its headers speak of more bytes than there were"));
        }
        let packet = &bytes[..bytes.len().min(len)];
        let Self { macs, tci, tag_count, tunnel, .. } = self;
        Ok(Frame { macs, tci, tag_count, tunnel, net, src_port, packet, len, place: self.place() })
    }

    /// A mirror captures a packet when it arrives and when it leaves, with different MAC addresses, tags or interfaces. A
    /// process that sends to itself also records each packet twice, with different directions.
    fn place(&self) -> u64 {
        let [from, to] = self.macs.unwrap_or_default();
        let macs = from.0.iter().chain(&to.0);
        let tags = self.tci.iter().flat_map(|tci| tci.to_be_bytes());
        let rest = self.interface.to_be_bytes().into_iter().chain([self.direction, self.tunnels]);
        // FNV-1a, 64 bits.
        let bytes = macs.copied().chain(tags).chain(rest);
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// The state at `bytes` further on, of which `all` are present.
    fn past(mut self, bytes: usize) -> Self {
        self.wire_len = self.wire_len.saturating_sub(bytes);
        self
    }
}
