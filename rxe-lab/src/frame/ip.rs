//! IPv4, IPv6, UDP, the GRH of RoCEv1, and the tunnels that mirrored frames come in.

use super::{Frame, MOST_TUNNELS, Net, Other, Seen, Tunnel, link};
use rxe_core::wire::{GRH_LEN, icrc::ROCE_PORT};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const UDP: u8 = 17;
const GRE: u8 = 47;
const UDP_LEN: usize = 8;
const IPV6_LEN: usize = 40;
const VXLAN_PORT: u16 = 4789;
const VXLAN_LEN: usize = 8;
/// The next header of RoCEv1's GRH: InfiniBand's base transport header.
const IBA: u8 = 0x1b;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// IPv6 extension headers that are skipped: hop by hop, routing, destination options.
const SKIPPED: [u8; 3] = [0, 43, 60];
const FRAGMENT: u8 = 44;
const MOST_EXTENSIONS: usize = 8;

fn u16_of(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn v4_at(bytes: &[u8], at: usize) -> IpAddr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).into()
}

pub(super) fn v6_at(bytes: &[u8; GRH_LEN], at: usize) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    Ipv6Addr::from(octets).into()
}

pub(super) fn v4(bytes: &[u8], seen: Seen) -> Result<Frame<'_>, Other> {
    let head = bytes.first_chunk::<20>().ok_or(Other::Cut)?;
    let len = usize::from(head[0] & 15) * 4;
    if head[0] >> 4 != 4 || len < head.len() {
        return Err(Other::Malformed("no IPv4 header where there should be one"));
    }
    let (total, fragment) = (usize::from(u16_of(head, 2)), u16_of(head, 6));
    let net = Net::V4 {
        src: v4_at(head, 12),
        dst: v4_at(head, 16),
        tos: head[1],
        ident: u16_of(head, 4),
        fragment,
        ttl: head[8],
        options: len > head.len(),
    };
    let rest = bytes.get(len..).ok_or(Other::Cut)?;
    let seen = seen.past(len);
    // Captures of large segments at the sender have no length here.
    let inside = if total == 0 { seen.wire_len } else { total.saturating_sub(len) };
    if head[9] == UDP && fragment & (MORE_FRAGMENTS | OFFSET) != 0 {
        return Err(Other::Fragment);
    }
    transport(head[9], rest, inside, net, seen)
}

pub(super) fn v6(bytes: &[u8], seen: Seen) -> Result<Frame<'_>, Other> {
    let head = bytes.first_chunk::<IPV6_LEN>().ok_or(Other::Cut)?;
    if head[0] >> 4 != 6 {
        return Err(Other::Malformed("no IPv6 header where there should be one"));
    }
    let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let net = Net::V6 {
        src: v6_at(head, 8),
        dst: v6_at(head, 24),
        traffic_class: (word >> 20) as u8,
        flow_label: word & 0xf_ffff,
        hop_limit: head[7],
    };
    let (mut next, mut at) = (head[6], IPV6_LEN);
    for _ in 0..MOST_EXTENSIONS {
        if next == FRAGMENT {
            return Err(Other::Fragment);
        }
        if !SKIPPED.contains(&next) {
            break;
        }
        let extension = bytes.get(at..at + 2).ok_or(Other::Cut)?;
        next = extension[0];
        at += 8 + 8 * usize::from(extension[1]);
    }
    let rest = bytes.get(at..).ok_or(Other::Cut)?;
    let payload = usize::from(u16_of(head, 4));
    let seen = seen.past(at);
    let inside = if payload == 0 { seen.wire_len } else { (payload + IPV6_LEN).saturating_sub(at) };
    transport(next, rest, inside, net, seen)
}

fn transport(protocol: u8, bytes: &[u8], inside: usize, net: Net, seen: Seen) -> Result<Frame<'_>, Other> {
    match protocol {
        UDP => udp(bytes, inside, net, seen),
        GRE => gre(bytes, seen),
        _ => Err(Other::NotRoce),
    }
}

fn udp(bytes: &[u8], inside: usize, net: Net, mut seen: Seen) -> Result<Frame<'_>, Other> {
    let head = bytes.first_chunk::<UDP_LEN>().ok_or(Other::Cut)?;
    let rest = &bytes[UDP_LEN..];
    match u16_of(head, 2) {
        ROCE_PORT => {
            let told = usize::from(u16_of(head, 4));
            let len = if told == 0 { inside } else { told };
            if len < UDP_LEN || len > inside {
                return Err(Other::Malformed("the UDP length contradicts that of IP"));
            }
            seen.past(UDP_LEN).packet(rest, len - UDP_LEN, net, u16_of(head, 0))
        }
        VXLAN_PORT => {
            let vxlan = rest.first_chunk::<VXLAN_LEN>().ok_or(Other::Cut)?;
            deeper(&mut seen, Tunnel::Vxlan(u32::from_be_bytes([0, vxlan[4], vxlan[5], vxlan[6]])))?;
            link::ethernet(&rest[VXLAN_LEN..], seen.past(UDP_LEN + VXLAN_LEN))
        }
        _ => Err(Other::NotRoce),
    }
}

fn deeper(seen: &mut Seen, tunnel: Tunnel) -> Result<(), Other> {
    if seen.tunnels == MOST_TUNNELS {
        return Err(Other::Malformed("tunnels in tunnels in tunnels"));
    }
    seen.tunnels += 1;
    seen.tunnel = Some(tunnel);
    // The outer tags belong to the tunnel.
    seen.tag_count = 0;
    seen.tci = Default::default();
    Ok(())
}

/// GRE (RFC 2784, 2890), and in it Ethernet, IP, or the mirrors of switches (ERSPAN types I to III).
fn gre(bytes: &[u8], mut seen: Seen) -> Result<Frame<'_>, Other> {
    const CHECKSUM: u8 = 0x80;
    const KEY: u8 = 0x20;
    const SEQUENCE: u8 = 0x10;
    let head = bytes.first_chunk::<4>().ok_or(Other::Cut)?;
    let optional = [CHECKSUM, KEY, SEQUENCE].iter().filter(|flag| head[0] & **flag != 0).count();
    let at = head.len() + 4 * optional;
    let rest = bytes.get(at..).ok_or(Other::Cut)?;
    let session = |bytes: &[u8]| bytes.get(2..4).map(|two| u16_of(two, 0) & 0x3ff).ok_or(Other::Cut);
    // The header between GRE and the mirrored frame.
    let (tunnel, skip) = match u16_of(head, 2) {
        0x88be if head[0] & SEQUENCE == 0 => (Tunnel::Erspan(0), 0),
        0x88be => (Tunnel::Erspan(session(rest)?), 8),
        0x22eb => {
            let more = rest.get(11).ok_or(Other::Cut)? & 1 != 0;
            (Tunnel::Erspan(session(rest)?), if more { 20 } else { 12 })
        }
        0x6558 => (Tunnel::Gre, 0),
        protocol => {
            deeper(&mut seen, Tunnel::Gre)?;
            return link::typed(protocol, bytes, at, seen);
        }
    };
    deeper(&mut seen, tunnel)?;
    link::ethernet(rest.get(skip..).ok_or(Other::Cut)?, seen.past(at + skip))
}

/// RoCEv1: a GRH, and the packet behind it. The length in the GRH excludes the padding of short frames.
pub(super) fn grh(bytes: &[u8], seen: Seen) -> Result<Frame<'_>, Other> {
    let head = bytes.first_chunk::<GRH_LEN>().ok_or(Other::Cut)?;
    if head[0] >> 4 != 6 || head[6] != IBA {
        return Err(Other::Malformed("no GRH of RoCEv1 behind its EtherType"));
    }
    let len = usize::from(u16_of(head, 4));
    seen.past(GRH_LEN).packet(&bytes[GRH_LEN..], len, Net::Grh { bytes: *head }, 0)
}
