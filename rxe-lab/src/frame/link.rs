//! Link layers: Ethernet and its tags, cooked and raw captures, BSD loopback.

use super::{Frame, MOST_TAGS, Other, Seen, ip};
use crate::capture::LinkType;
use std::fmt;

const ETHERNET_LEN: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// RoCEv1.
const ROCE: u16 = 0x8915;
const TAGS: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Other> {
    let two = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>());
    two.map(|two| u16::from_be_bytes(*two)).ok_or(Other::Cut)
}

pub(super) fn start<'a>(link: LinkType, bytes: &'a [u8], mut seen: Seen) -> Result<Frame<'a>, Other> {
    match link {
        LinkType::Ethernet => ethernet(bytes, seen),
        LinkType::RawIp => raw(bytes, seen),
        // Type 2, hardware 2, address length 2, address 8, protocol 2.
        LinkType::Sll => {
            seen.direction = *bytes.get(1).ok_or(Other::Cut)?;
            let protocol = u16_at(bytes, 14)?;
            typed(protocol, bytes, 16, seen)
        }
        // Protocol 2, reserved 2, interface 4, hardware 2, type 1, address length 1, address 8.
        LinkType::Sll2 => {
            seen.direction = *bytes.get(10).ok_or(Other::Cut)?;
            seen.interface ^= u32::from(u16_at(bytes, 6)?) << 8;
            let protocol = u16_at(bytes, 0)?;
            typed(protocol, bytes, 20, seen)
        }
        LinkType::Null => raw(bytes.get(4..).ok_or(Other::Cut)?, seen.past(4)),
        LinkType::Other(_) => Err(Other::Link),
    }
}

pub(super) fn ethernet(bytes: &[u8], mut seen: Seen) -> Result<Frame<'_>, Other> {
    let head = bytes.first_chunk::<ETHERNET_LEN>().ok_or(Other::Cut)?;
    let mac =
        |at: usize| Mac([head[at], head[at + 1], head[at + 2], head[at + 3], head[at + 4], head[at + 5]]);
    seen.macs = Some([mac(6), mac(0)]);
    typed(u16::from_be_bytes([head[12], head[13]]), bytes, ETHERNET_LEN, seen)
}

/// IPv4 or IPv6, without a field for the version outside of the packet.
pub(super) fn raw(bytes: &[u8], seen: Seen) -> Result<Frame<'_>, Other> {
    match bytes.first().ok_or(Other::Cut)? >> 4 {
        4 => ip::v4(bytes, seen),
        6 => ip::v6(bytes, seen),
        _ => Err(Other::NotRoce),
    }
}

/// Continues by the EtherType at offset `at`, perhaps behind VLAN tags.
pub(super) fn typed(
    mut protocol: u16,
    bytes: &[u8],
    mut at: usize,
    mut seen: Seen,
) -> Result<Frame<'_>, Other> {
    while TAGS.contains(&protocol) {
        let count = usize::from(seen.tag_count);
        if count == MOST_TAGS {
            return Err(Other::Malformed("more than four VLAN tags"));
        }
        seen.tci[count] = u16_at(bytes, at)?;
        seen.tag_count += 1;
        protocol = u16_at(bytes, at + 2)?;
        at += 4;
    }
    let rest = bytes.get(at..).ok_or(Other::Cut)?;
    let seen = seen.past(at);
    match protocol {
        IPV4 => ip::v4(rest, seen),
        IPV6 => ip::v6(rest, seen),
        ROCE => ip::grh(rest, seen),
        _ => Err(Other::NotRoce),
    }
}
