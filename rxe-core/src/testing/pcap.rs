//! Writes simulated traffic as a capture file for Wireshark: pcapng (draft-ietf-opsawg-pcapng). Packets have the headers that they would
//! have on a network: IP and UDP (link type raw IP), or Ethernet and a GRH (link type Ethernet). The comment of a packet says what the
//! simulated link did to it.

use super::{
    link::{Datagram, Verdict},
    trace::{Entry, Record, Trace},
};
use crate::wire::{
    Encapsulation, Grh,
    icrc::{DONT_FRAGMENT, ROCE_PORT},
};
use alloc::{format, string::String, vec::Vec};
use core::net::IpAddr;

/// LINKTYPE_RAW: the packet starts with its IP header.
const LINKTYPE_RAW: u16 = 101;
/// LINKTYPE_ETHERNET: the packet starts with its Ethernet header.
const LINKTYPE_ETHERNET: u16 = 1;
/// Ethertype of RoCEv1.
const ROCE_V1: u16 = 0x8915;

/// The capture file of all packets in `trace`. Packets sent by side A are marked outbound, those of side B inbound.
#[must_use]
pub fn pcapng(trace: &Trace) -> Vec<u8> {
    let mut out = Vec::new();
    // Section header: byte order, version 1.0, unknown length.
    let mut body = Vec::new();
    body.extend_from_slice(&0x1a2b_3c4d_u32.to_le_bytes());
    body.extend_from_slice(&[1, 0, 0, 0]);
    body.extend_from_slice(&u64::MAX.to_le_bytes());
    block(&mut out, 0x0a0d_0d0a, &body);
    let is_v1 = |record: &Record| matches!(&record.entry, Entry::Packet { datagram, .. } if datagram.encapsulation == Encapsulation::V1);
    let v1 = trace.records().any(is_v1);
    // Interface: nanosecond time stamps.
    body.clear();
    body.extend_from_slice(&(if v1 { LINKTYPE_ETHERNET } else { LINKTYPE_RAW }).to_le_bytes());
    body.extend_from_slice(&[0; 6]);
    option(&mut body, 9, &[9]);
    option(&mut body, 0, &[]);
    block(&mut out, 1, &body);
    for record in trace.records() {
        let Entry::Packet { datagram, fate } = &record.entry else { continue };
        let packet = if v1 { rocev1_frame(datagram) } else { ip_packet(datagram) };
        let nanos = record.at.nanos();
        body.clear();
        body.extend_from_slice(&0_u32.to_le_bytes());
        body.extend_from_slice(&((nanos >> 32) as u32).to_le_bytes());
        body.extend_from_slice(&(nanos as u32).to_le_bytes());
        body.extend_from_slice(&(packet.len() as u32).to_le_bytes());
        body.extend_from_slice(&(packet.len() as u32).to_le_bytes());
        body.extend_from_slice(&packet);
        pad(&mut body);
        if let Some(comment) = comment(*fate) {
            option(&mut body, 1, comment.as_bytes());
        }
        let direction: u32 = if record.side == 0 { 2 } else { 1 };
        option(&mut body, 2, &direction.to_le_bytes());
        option(&mut body, 0, &[]);
        block(&mut out, 6, &body);
    }
    out
}

fn comment(fate: Verdict) -> Option<String> {
    match fate {
        Verdict::Pass | Verdict::Chance => None,
        Verdict::Drop => Some("lost".into()),
        Verdict::Duplicate(later) => Some(format!("delivered twice, {later:?} apart")),
        Verdict::Delay(later) => Some(format!("late by {later:?}")),
        Verdict::Flip(bit) => Some(format!("delivered with bit {bit} of the BTH on flipped")),
    }
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out);
}

fn block(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let total = (body.len() as u32 + 12).to_le_bytes();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&total);
    out.extend_from_slice(body);
    out.extend_from_slice(&total);
}

/// The whole IP packet that carries a datagram. The UDP checksum is 0, as RoCEv2 NICs send it.
#[must_use]
pub fn ip_packet(datagram: &Datagram) -> Vec<u8> {
    let udp_len = datagram.bytes.len() as u16 + 8;
    let mut out = Vec::with_capacity(datagram.bytes.len() + 48);
    match (datagram.src, datagram.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out.extend_from_slice(&[0x45, datagram.tos]);
            out.extend_from_slice(&(udp_len + 20).to_be_bytes());
            out.extend_from_slice(&datagram.ident.to_be_bytes());
            out.extend_from_slice(&DONT_FRAGMENT.to_be_bytes());
            out.extend_from_slice(&[datagram.hop_limit, 17, 0, 0]);
            out.extend_from_slice(&src.octets());
            out.extend_from_slice(&dst.octets());
            let checksum = internet_checksum(&out);
            out[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (src, dst) => {
            let octets = |addr| match addr {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            out.extend_from_slice(&(6_u32 << 28 | u32::from(datagram.tos) << 20).to_be_bytes());
            out.extend_from_slice(&udp_len.to_be_bytes());
            out.extend_from_slice(&[17, datagram.hop_limit]);
            out.extend_from_slice(&octets(src));
            out.extend_from_slice(&octets(dst));
        }
    }
    out.extend_from_slice(&datagram.src_port.to_be_bytes());
    out.extend_from_slice(&ROCE_PORT.to_be_bytes());
    out.extend_from_slice(&udp_len.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&datagram.bytes);
    out
}

/// The whole Ethernet frame that carries a RoCEv1 packet. The Ethernet addresses are made up.
#[must_use]
pub fn rocev1_frame(datagram: &Datagram) -> Vec<u8> {
    let mut out = Vec::with_capacity(datagram.bytes.len() + 54);
    out.extend_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    out.extend_from_slice(&ROCE_V1.to_be_bytes());
    let len = datagram.bytes.len();
    out.extend_from_slice(&Grh::new(&datagram.route(), datagram.tos, datagram.hop_limit, len).emit());
    out.extend_from_slice(&datagram.bytes);
    out
}

fn internet_checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use core::net::Ipv4Addr;

    /// A whole file is checked against the description of the format.
    #[test]
    fn one_packet() {
        let addr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let bytes = alloc::vec![0x11, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 2, 0x1f, 0, 0, 0, 1, 2, 3, 4];
        let datagram = Datagram {
            src: addr,
            dst: addr,
            src_port: 0xc000,
            tos: 2,
            hop_limit: 64,
            ident: 7,
            encapsulation: Encapsulation::V2,
            bytes,
        };
        let mut trace = Trace::new(10);
        trace.note(Instant::ZERO, 0, "not in the file".into());
        let entry = Entry::Packet { datagram: datagram.clone(), fate: Verdict::Drop };
        trace.push(Record { at: Instant::from_nanos(5_000_000_123), side: 1, entry });
        let file = pcapng(&trace);
        let word = |at: usize| u32::from_le_bytes([file[at], file[at + 1], file[at + 2], file[at + 3]]);
        assert_eq!((word(0), word(4), word(8), word(24)), (0x0a0d_0d0a, 28, 0x1a2b_3c4d, 28));
        assert_eq!((word(28), word(32), word(36)), (1, 32, 101));
        assert_eq!(file[44..56], [9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        let packet = 60;
        assert_eq!((word(packet), word(packet + 20), word(packet + 24)), (6, 48, 48));
        assert_eq!(u64::from(word(packet + 12)) << 32 | u64::from(word(packet + 16)), 5_000_000_123);
        let ip = &file[packet + 28..packet + 76];
        assert_eq!(ip, ip_packet(&datagram));
        assert_eq!(internet_checksum(&ip[..20]), 0, "a header with its checksum sums to nothing");
        assert_eq!(
            file[packet + 76..packet + 96],
            [1, 0, 4, 0, b'l', b'o', b's', b't', 2, 0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(word(file.len() - 4) as usize, file.len() - packet);
    }
}
