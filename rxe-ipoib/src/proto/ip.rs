//! Parts of IP packets that an interface has to read, and the one message that it creates itself: "packet too big".

use super::bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes at the beginning of a packet that [`Head::parse`] reads.
pub const PEEK: usize = 48;

/// The relevant part of a packet's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Whether it reports group memberships (IGMP, MLD): a program has joined or left a group.
    pub is_membership: bool,
}

impl Head {
    /// Parses the header of a packet from its first bytes. `len` is the length of the whole packet. `None` if it is not a
    /// complete IP packet.
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

/// The Internet checksum (RFC 1071) of these parts. All parts except the last must have an even length.
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

/// Bytes of a refused packet that the ICMP message contains: enough to find the connection, with any options.
const QUOTED: usize = 128;

/// The message to the host's IP stack for a packet that is too long for the path to its neighbour: ICMP "fragmentation needed"
/// (RFC 1191) or ICMPv6 "packet too big". Its source is the destination of the packet, because a message from one of the host's
/// own addresses would be dropped. `None` for packets to groups, and if this is not an IP packet.
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
