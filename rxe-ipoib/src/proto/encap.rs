//! The header in front of each packet (RFC 4391, 6): its Ethertype and two bytes of zero.

use super::bytes;

/// Bytes of the header.
pub const LEN: usize = 4;

/// The protocol of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// An IPv4 packet.
    Ipv4,
    /// An IPv6 packet.
    Ipv6,
    /// An ARP packet.
    Arp,
}

impl Protocol {
    /// The header. (RFC 4391 also has RARP, which is not in use any more.)
    #[must_use]
    pub const fn header(self) -> [u8; LEN] {
        let ethertype: u16 = match self {
            Self::Ipv4 => 0x0800,
            Self::Ipv6 => 0x86dd,
            Self::Arp => 0x0806,
        };
        let [high, low] = ethertype.to_be_bytes();
        [high, low, 0, 0]
    }

    /// The protocol of a frame; `None` if it is another one. The reserved bytes are ignored, as RFC 4391 requires.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Self> {
        match bytes::<LEN>(frame, 0)? {
            [0x08, 0x00, ..] => Some(Self::Ipv4),
            [0x86, 0xdd, ..] => Some(Self::Ipv6),
            [0x08, 0x06, ..] => Some(Self::Arp),
            _ => None,
        }
    }
}
