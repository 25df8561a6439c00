//! Neighbour discovery for IPv6 (RFC 4861) with link-layer addresses of IPoIB. The option has 24 bytes: its header, two zero
//! bytes, and the address (RFC 4391, 9.3).

use super::{
    address::{self, LinkAddress},
    bytes,
    ip::internet_checksum,
};
use core::net::Ipv6Addr;

/// Bytes of a solicitation or advertisement with its option, behind the IPv6 header.
const BODY: usize = 24 + OPTION;
const OPTION: usize = 24;

const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// Flags of an advertisement: solicited, and override.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// The hop limit of neighbour discovery, which proves that no router has forwarded the packet.
const HOP_LIMIT: u8 = 255;
/// Most options of a packet that are read.
const MOST_OPTIONS: usize = 16;

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A solicitation for `target`. A node that checks whether an address is free does not give its own address.
    Solicitation {
        /// The address that is asked for.
        target: Ipv6Addr,
        /// The sender's link-layer address.
        source: Option<LinkAddress>,
    },
    /// An advertisement for `target`.
    Advertisement {
        /// The advertised IP address.
        target: Ipv6Addr,
        /// Its link-layer address.
        address: LinkAddress,
        /// It answers a solicitation.
        solicited: bool,
        /// It replaces a known address.
        replaces: bool,
    },
}

/// A message with its IPv6 addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Source.
    pub source: Ipv6Addr,
    /// Destination.
    pub destination: Ipv6Addr,
    /// The message itself.
    pub message: Message,
}

/// Whether an IPv6 packet is a solicitation or an advertisement. TUN interfaces must not get these, because they have no
/// link-layer addresses.
#[must_use]
pub fn is_ours(packet: &[u8]) -> bool {
    packet.get(6) == Some(&ICMPV6) && matches!(packet.get(40), Some(&(SOLICITATION | ADVERTISEMENT)))
}

impl Packet {
    /// The IPv6 packet.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let anonymous = matches!(self.message, Message::Solicitation { source: None, .. });
        let body = if anonymous { BODY - OPTION } else { BODY };
        let mut out = vec![0; 40 + body];
        out[0] = 0x60;
        out[4..6].copy_from_slice(&(body as u16).to_be_bytes());
        (out[6], out[7]) = (ICMPV6, HOP_LIMIT);
        out[8..24].copy_from_slice(&self.source.octets());
        out[24..40].copy_from_slice(&self.destination.octets());
        let mut option = |kind, address: LinkAddress| {
            (out[64], out[65]) = (kind, (OPTION / 8) as u8);
            out[68..68 + address::LEN].copy_from_slice(&address.emit());
        };
        let (kind, target) = match self.message {
            Message::Solicitation { target, source } => {
                if let Some(source) = source {
                    option(SOURCE_OPTION, source);
                }
                (SOLICITATION, target)
            }
            Message::Advertisement { target, address, solicited, replaces } => {
                option(TARGET_OPTION, address);
                out[44] = if solicited { SOLICITED } else { 0 } | if replaces { OVERRIDE } else { 0 };
                (ADVERTISEMENT, target)
            }
        };
        out[40] = kind;
        out[48..64].copy_from_slice(&target.octets());
        let sum = checksum(&out);
        out[42..44].copy_from_slice(&sum.to_be_bytes());
        out
    }

    /// Parses an IPv6 packet with the checks of RFC 4861 (7.1): hop limit 255, correct checksum, a target that is not a group,
    /// valid options. `None` otherwise.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let length = usize::from(u16::from_be_bytes(bytes(packet, 4)?));
        let packet = packet.get(..40 + length)?;
        if packet[0] >> 4 != 6 || (packet[6], packet[7]) != (ICMPV6, HOP_LIMIT) || length < 24 {
            return None;
        }
        // The sum of a packet including its checksum is zero.
        if packet[41] != 0 || checksum(packet) != 0 {
            return None;
        }
        let [source, destination, target] =
            [8, 24, 48].map(|at| bytes(packet, at).map_or(Ipv6Addr::UNSPECIFIED, Ipv6Addr::from));
        if target.is_multicast() || target.is_unspecified() || source.is_multicast() {
            return None;
        }
        let message = match packet[40] {
            SOLICITATION => {
                let asker = link_address(&packet[64..], SOURCE_OPTION)?;
                Message::Solicitation { target, source: asker.filter(|_| !source.is_unspecified()) }
            }
            ADVERTISEMENT => Message::Advertisement {
                target,
                address: link_address(&packet[64..], TARGET_OPTION)??,
                solicited: packet[44] & SOLICITED != 0 && !destination.is_multicast(),
                replaces: packet[44] & OVERRIDE != 0,
            },
            _ => return None,
        };
        Some(Self { source, destination, message })
    }
}

/// The link-layer address among a message's options; `None` if the options are invalid.
#[expect(clippy::option_option, reason = "broken is not the same as missing")]
fn link_address(mut options: &[u8], wanted: u8) -> Option<Option<LinkAddress>> {
    let mut found = None;
    for _ in 0..MOST_OPTIONS {
        let Some(&kind) = options.first() else { return Some(found) };
        let len = usize::from(*options.get(1)?) * 8;
        if len == 0 || len > options.len() {
            return None;
        }
        let (option, rest) = options.split_at(len);
        if kind == wanted && len == OPTION {
            found = found.or_else(|| LinkAddress::parse(&option[4..]));
        }
        options = rest;
    }
    None
}

/// The ICMPv6 checksum, including the pseudo header (RFC 4443, 2.3). For a message with a correct checksum it is 0.
fn checksum(packet: &[u8]) -> u16 {
    let body = &packet[40..];
    let length = (body.len() as u32).to_be_bytes();
    internet_checksum(&[&packet[8..40], &length, &[0, 0, 0, ICMPV6], body])
}
