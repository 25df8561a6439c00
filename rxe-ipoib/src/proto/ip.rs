//! What an interface has to know of the IP packets that it carries, and the one message it makes itself: "packet too big".

use super::bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes at the front of a packet that [`Head::parse`] looks at.
pub const PEEK: usize = 48;

/// The interesting part of a packet's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Whether it tells of group memberships (IGMP, MLD): a program has joined or left a group.
    pub is_membership: bool,
}

impl Head {
    /// Reads the header of a packet from its first bytes; `len` is the length of all of it. `None` if it is no IP packet, or
    /// not a whole one.
    #[must_use]
    pub fn parse(front: &[u8], len: usize) -> Option<Self> {
        match front.first()? >> 4 {
            4 => {
                let words = front[0] & 15;
                let total = usize::from(u16::from_be_bytes(bytes(front, 2)?));
                if words < 5 || total > len || total < 20 {
                    return None;
                }
                Some(Self {
                    source: Ipv4Addr::from(bytes::<4>(front, 12)?).into(),
                    destination: Ipv4Addr::from(bytes::<4>(front, 16)?).into(),
                    is_membership: front[9] == 2,
                })
            }
            6 => {
                let total = usize::from(u16::from_be_bytes(bytes(front, 4)?));
                if 40 + total > len {
                    return None;
                }
                // MLD is ICMPv6 behind a hop-by-hop option of 8 bytes (router alert).
                let is_membership = *front.get(6)? == 0 && front.get(40) == Some(&58);
                Some(Self {
                    source: Ipv6Addr::from(bytes::<16>(front, 8)?).into(),
                    destination: Ipv6Addr::from(bytes::<16>(front, 24)?).into(),
                    is_membership,
                })
            }
            _ => None,
        }
    }
}

/// The Internet checksum (RFC 1071) of these parts, each of which but the last has an even length.
#[must_use]
pub fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    !(sum as u16)
}

/// Bytes of a refused packet that its sender is told: enough to find the connection, whatever options there are.
const QUOTED: usize = 128;

/// The message by which the host's own stack hears that a packet is too long for the way to its neighbour: ICMP "fragmentation
/// needed" (RFC 1191) or ICMPv6 "packet too big". It comes from the destination itself, because a message from an address of
/// the host's own would be dropped. `None` for groups, and for what is no IP packet.
#[must_use]
pub fn too_big(front: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let quote = &front[..front.len().min(QUOTED)];
    let head = Head::parse(front, usize::MAX)?;
    match (head.source, head.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) if !destination.is_multicast() => {
            let mut out = vec![0; 28];
            out.extend_from_slice(quote);
            let total = out.len() as u16;
            out[0] = 0x45;
            out[2..4].copy_from_slice(&total.to_be_bytes());
            (out[8], out[9]) = (64, 1);
            out[12..16].copy_from_slice(&destination.octets());
            out[16..20].copy_from_slice(&source.octets());
            let sum = internet_checksum(&[&out[..20]]);
            out[10..12].copy_from_slice(&sum.to_be_bytes());
            (out[20], out[21]) = (3, 4);
            out[26..28].copy_from_slice(&mtu.to_be_bytes());
            let sum = internet_checksum(&[&out[20..]]);
            out[22..24].copy_from_slice(&sum.to_be_bytes());
            Some(out)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) if !destination.is_multicast() => {
            let mut out = vec![0; 48];
            out.extend_from_slice(quote);
            let length = (out.len() - 40) as u16;
            out[0] = 0x60;
            out[4..6].copy_from_slice(&length.to_be_bytes());
            (out[6], out[7]) = (58, 64);
            out[8..24].copy_from_slice(&destination.octets());
            out[24..40].copy_from_slice(&source.octets());
            out[40] = 2;
            out[44..48].copy_from_slice(&u32::from(mtu).to_be_bytes());
            let length = u32::from(length).to_be_bytes();
            let sum = internet_checksum(&[&out[8..40], &length, &[0, 0, 0, 58], &out[40..]]);
            out[42..44].copy_from_slice(&sum.to_be_bytes());
            Some(out)
        }
        _ => None,
    }
}
