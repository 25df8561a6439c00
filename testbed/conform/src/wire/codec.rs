//! Encodes partial packets into bytes (an IP packet), and decodes such bytes.

use super::{MASK24, Packet, icrc, opcode};
use opcode::Header;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// UDP port of RoCEv2.
pub const PORT: u16 = 4791;
/// Don't fragment.
const DONT_FRAGMENT: u16 = 0x4000;
/// The IPv4 IDs that are tried if a UDP socket has hidden them: a segmentation batch numbers its packets from 0.
const IDENTS: u16 = 256;

/// The encapsulation of the transport headers (the RoCE version).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Roce {
    /// RoCEv1: a GRH behind Ethernet (IBTA vol. 1, annex A16).
    V1,
    /// RoCEv2: IP and UDP (annex A17).
    #[default]
    V2,
}

/// Next header of a GRH: the base transport header (IBTA vol. 1, 8.3).
const BTH: u8 = 0x1b;

/// Whether a network header is a GRH. A GRH has the form of an IPv6 header.
pub(super) fn is_grh(head: &[u8]) -> bool {
    head.len() >= 40 && head[0] >> 4 == 6 && head[6] == BTH
}

/// The addresses between which a packet travels, and the source port for packets that set none.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// UDP source port; without meaning in RoCEv1.
    pub sport: u16,
    /// The RoCE version.
    pub roce: Roce,
}

/// Appends one of the headers between BTH and payload.
fn extension(packet: &Packet, header: Header, out: &mut Vec<u8>) {
    let long = |value: Option<u32>| value.unwrap_or(0).to_be_bytes();
    match header {
        Header::Xrceth => out.extend((packet.xrc_srq.unwrap_or(0) & MASK24).to_be_bytes()),
        Header::Deth => {
            out.extend(long(packet.qkey));
            out.extend((packet.src_qp.unwrap_or(0) & MASK24).to_be_bytes());
        }
        Header::Feth => out.extend(long(packet.feth)),
        Header::Reth => {
            out.extend(packet.va.unwrap_or(0).to_be_bytes());
            out.extend(long(packet.rkey));
            out.extend(packet.dma_len.unwrap_or_else(|| packet.data_len() as u32).to_be_bytes());
        }
        Header::AtomicEth => {
            out.extend(packet.va.unwrap_or(0).to_be_bytes());
            out.extend(long(packet.rkey));
            out.extend(packet.swap_add.unwrap_or(0).to_be_bytes());
            out.extend(packet.compare.unwrap_or(0).to_be_bytes());
        }
        Header::Aeth => {
            out.push(packet.syndrome.unwrap_or(0x1f));
            out.extend(&packet.msn.unwrap_or(0).to_be_bytes()[1..]);
        }
        Header::AtomicAckEth => out.extend(packet.original.unwrap_or(0).to_be_bytes()),
        Header::Imm => out.extend(long(packet.imm)),
        Header::Ieth => out.extend(long(packet.inv_rkey)),
    }
}

impl Packet {
    /// The bytes from the BTH to the last byte of padding.
    fn transport(&self) -> Vec<u8> {
        let opcode = self.opcode.unwrap_or(0x04);
        let right_pad = self.data_len().wrapping_neg() & 3;
        let pad = self.pad.unwrap_or(right_pad as u8);
        let bit = |set: Option<bool>, mask: u8| if set.unwrap_or(false) { mask } else { 0 };
        let mut out = vec![opcode];
        out.push(
            bit(self.solicited, 0x80)
                | bit(self.migreq.or(Some(opcode != opcode::op::CNP)), 0x40)
                | (pad & 3) << 4
                | self.tver.unwrap_or(0) & 0x0f,
        );
        out.extend(self.pkey.unwrap_or(0xffff).to_be_bytes());
        out.push(bit(self.fecn, 0x80) | bit(self.becn, 0x40) | self.resv6.unwrap_or(0) & 0x3f);
        out.extend(&self.dest_qp.unwrap_or(0).to_be_bytes()[1..]);
        out.push(bit(self.ack_req, 0x80) | self.resv7.unwrap_or(0) & 0x7f);
        out.extend(&self.psn.unwrap_or(0).to_be_bytes()[1..]);
        for header in opcode::headers(opcode).unwrap_or_default() {
            extension(self, header, &mut out);
        }
        out.extend(self.data.iter().flatten());
        match &self.pad_bytes {
            Some(bytes) => out.extend(bytes),
            None => out.extend(&[0; 3][..right_pad]),
        }
        out
    }

    /// The whole IP packet between `ends`. In RoCEv1, the GRH and everything behind it.
    #[must_use]
    pub fn encode(&self, ends: &Ends) -> Vec<u8> {
        let transport = self.transport();
        if ends.roce == Roce::V1 {
            let grh = self.v6_header(ends, BTH, transport.len() as u16 + 4);
            return self.sealed(grh, transport, 0);
        }
        let udp_len = self.udp_len.unwrap_or((8 + transport.len() + 4) as u16);
        let mut behind = Vec::with_capacity(transport.len() + 12);
        let ports = [self.sport.unwrap_or(ends.sport), self.dport.unwrap_or(PORT)];
        for word in [ports[0], ports[1], udp_len, self.udp_sum.unwrap_or(0)] {
            behind.extend(word.to_be_bytes());
        }
        behind.extend(transport);
        let ip = self.ip_header(ends, behind.len() as u16 + 4);
        self.sealed(ip, behind, 8)
    }

    /// Appends the ICRC, or a wrong one, and applies the other errors that are set for the end of the packet. `transport` is
    /// the offset of the BTH, behind the network headers.
    fn sealed(&self, ip: Vec<u8>, mut behind: Vec<u8>, transport: usize) -> Vec<u8> {
        let crc = u32::from_le_bytes(icrc(&ip, &behind)) ^ self.icrc_xor.unwrap_or(0);
        behind.extend(crc.to_le_bytes());
        if let Some(byte) = self.damaged.and_then(|at| behind.get_mut(transport + usize::from(at))) {
            *byte ^= 0x01;
        }
        behind.truncate(behind.len().saturating_sub(usize::from(self.cut.unwrap_or(0))));
        [ip, behind].concat()
    }

    fn ip_header(&self, ends: &Ends, behind: u16) -> Vec<u8> {
        let (tos, ttl) = (self.tos.unwrap_or(0x02), self.ttl.unwrap_or(64));
        match (ends.src, ends.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ip = vec![0x45, tos];
                let total = self.ip_len.unwrap_or(behind + 20);
                for word in [total, self.ident.unwrap_or(0), self.fragment.unwrap_or(DONT_FRAGMENT)] {
                    ip.extend(word.to_be_bytes());
                }
                ip.extend([ttl, 17, 0, 0]);
                ip.extend(src.octets());
                ip.extend(dst.octets());
                let sum = checksum(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                ip
            }
            _ => self.v6_header(ends, 17, behind),
        }
    }

    /// An IPv6 header, or a GRH, which has the same form.
    fn v6_header(&self, ends: &Ends, next: u8, behind: u16) -> Vec<u8> {
        let (tos, ttl) = (self.tos.unwrap_or(0x02), self.ttl.unwrap_or(64));
        let first = 0x6000_0000 | u32::from(tos) << 20 | self.flow.unwrap_or(0) & 0xf_ffff;
        let mut ip = first.to_be_bytes().to_vec();
        ip.extend(self.ip_len.unwrap_or(behind).to_be_bytes());
        ip.extend([next, ttl]);
        for address in [ends.src, ends.dst] {
            ip.extend(match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            });
        }
        ip
    }
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two.get(1).copied().unwrap_or(0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Changes the TOS (or traffic class) and the TTL (or hop limit) of an IP packet as a router may, and updates the header
/// checksum.
pub fn set_header(ip: &mut [u8], change: impl FnOnce(&mut u8, &mut u8)) {
    match ip.first().map(|first| first >> 4) {
        Some(4) if ip.len() >= 20 => {
            let (mut tos, mut ttl) = (ip[1], ip[8]);
            change(&mut tos, &mut ttl);
            (ip[1], ip[8]) = (tos, ttl);
            let header = (usize::from(ip[0] & 0x0f) * 4).clamp(20, ip.len());
            ip[10..12].fill(0);
            let sum = checksum(&ip[..header]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Some(6) if ip.len() >= 40 => {
            let mut class = (u16::from_be_bytes([ip[0], ip[1]]) >> 4) as u8;
            change(&mut class, &mut ip[7]);
            ip[0] = 0x60 | class >> 4;
            ip[1] = class << 4 | ip[1] & 0x0f;
        }
        _ => {}
    }
}

/// A received packet: its fields, and which laws of form it kept or broke.
#[derive(Clone, Debug)]
pub struct Seen {
    /// All fields of the packet.
    pub packet: Packet,
    /// Each law that was checked, and whether it holds.
    pub laws: Vec<(&'static str, bool)>,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u24(&mut self) -> Option<u32> {
        self.take::<3>().map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

/// The size of an IP packet's header. `None` if it is neither IPv4 nor IPv6.
fn header_len(ip: &[u8]) -> Option<usize> {
    match ip.first()? >> 4 {
        4 => Some(usize::from(ip[0] & 0x0f) * 4).filter(|&len| len >= 20 && ip.len() >= len + 8),
        6 => Some(40).filter(|&len| ip.len() >= len + 8),
        _ => None,
    }
}

/// The addresses between which a RoCE packet travels; `None` for any other packet.
#[must_use]
pub fn ends_of(ip: &[u8]) -> Option<Ends> {
    let header = header_len(ip)?;
    let (src, dst, protocol): (IpAddr, IpAddr, u8) = if header == 40 && ip[0] >> 4 == 6 {
        let at = |from: usize| <[u8; 16]>::try_from(&ip[from..from + 16]).ok().map(IpAddr::from);
        if is_grh(ip) {
            // The addresses are GIDs. IPv4 addresses are mapped into IPv6.
            let ends =
                Ends { src: at(8)?.to_canonical(), dst: at(24)?.to_canonical(), sport: 0, roce: Roce::V1 };
            return Some(ends);
        }
        (at(8)?, at(24)?, ip[6])
    } else {
        let at = |from: usize| <[u8; 4]>::try_from(&ip[from..from + 4]).ok().map(IpAddr::from);
        (at(12)?, at(16)?, ip[9])
    };
    let mut udp = Reader(&ip[header..]);
    let (sport, dport) = (udp.u16()?, udp.u16()?);
    (protocol == 17 && dport == PORT).then_some(Ends { src, dst, sport, roce: Roce::V2 })
}

/// Parses an IP packet. `ident_known` is false if a UDP socket has hidden the IPv4 ID. The ICRC then counts as right if it
/// is right for any of the IDs that a segmentation batch uses.
///
/// # Errors
/// A text that says where the packet stops being a valid RoCE packet.
pub fn take_apart(ip: &[u8], ident_known: bool) -> Result<Seen, String> {
    let ends = ends_of(ip).ok_or("no GRH, and no UDP packet to port 4791")?;
    let header = header_len(ip).ok_or("no IP packet")?;
    let (head, udp) = ip.split_at(header);
    if ends.roce == Roce::V1 {
        let (mut packet, mut laws) = (Packet::default(), Vec::new());
        ip_fields(head, udp.len(), ident_known, &mut packet, &mut laws);
        return transport_of(head, udp, 0, (packet, laws), true);
    }
    let mut packet = Packet::default().sport(ends.sport).dport(PORT);
    let mut laws = Vec::new();
    ip_fields(head, udp.len(), ident_known, &mut packet, &mut laws);
    let mut reader = Reader(&udp[4..]);
    let udp_len = reader.u16().ok_or("no UDP header")?;
    packet.udp_len = Some(udp_len);
    packet.udp_sum = reader.u16();
    laws.push(("UDP length is the packet's", usize::from(udp_len) == udp.len()));
    transport_of(head, udp, 8, (packet, laws), ident_known)
}

/// The rest of [`take_apart`]: parses the BTH, which begins at `start` behind the network header, and everything behind it.
fn transport_of(
    head: &[u8],
    behind: &[u8],
    start: usize,
    (mut packet, mut laws): (Packet, Vec<(&'static str, bool)>),
    ident_known: bool,
) -> Result<Seen, String> {
    let body_len =
        behind.len().checked_sub(start + 4).filter(|&len| len >= 12).ok_or("shorter than BTH and ICRC")?;
    let (body, sum) = behind[start..].split_at(body_len);
    transport_fields(body, &mut packet, &mut laws)
        .ok_or_else(|| format!("headers of {} cut short", opcode::name(body[0])))?;
    laws.push(("ICRC right", is_sealed(head, &behind[..start + body_len], sum, ident_known)));
    Ok(Seen { packet, laws })
}

fn is_sealed(head: &[u8], behind: &[u8], sum: &[u8], ident_known: bool) -> bool {
    if ident_known || head[0] >> 4 != 4 {
        return icrc(head, behind)[..] == *sum;
    }
    let mut head = head.to_vec();
    (0..IDENTS).any(|ident| {
        head[4..6].copy_from_slice(&ident.to_be_bytes());
        icrc(&head, behind)[..] == *sum
    })
}

fn ip_fields(
    head: &[u8],
    behind: usize,
    ident_known: bool,
    packet: &mut Packet,
    laws: &mut Vec<(&'static str, bool)>,
) {
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    if head[0] >> 4 == 4 {
        packet.tos = Some(head[1]);
        if ident_known {
            packet.ttl = Some(head[8]);
            packet.ident = Some(word(4));
            packet.fragment = Some(word(6));
            packet.ip_len = Some(word(2));
            laws.push(("IPv4: do not fragment, no fragment", word(6) == DONT_FRAGMENT));
            laws.push(("IPv4: no options", head.len() == 20));
            laws.push(("IPv4: total length right", usize::from(word(2)) == head.len() + behind));
            laws.push(("IPv4: header checksum right", checksum(head) == 0));
        }
    } else {
        packet.tos = Some((word(0) >> 4) as u8);
        if ident_known {
            packet.ttl = Some(head[7]);
            packet.flow = Some(u32::from(head[1] & 0x0f) << 16 | u32::from(word(2)));
            packet.ip_len = Some(word(4));
            laws.push(("IPv6: payload length right", usize::from(word(4)) == behind));
        }
    }
}

/// Splits the headers into fields; `None` if they end too early.
fn transport_fields(body: &[u8], packet: &mut Packet, laws: &mut Vec<(&'static str, bool)>) -> Option<()> {
    let mut reader = Reader(body);
    let (code, flags) = (reader.u8()?, reader.u8()?);
    packet.opcode = Some(code);
    packet.solicited = Some(flags & 0x80 != 0);
    packet.migreq = Some(flags & 0x40 != 0);
    let pad = usize::from(flags >> 4 & 3);
    packet.pad = Some(pad as u8);
    packet.tver = Some(flags & 0x0f);
    packet.pkey = reader.u16();
    let marks = reader.u8()?;
    packet.fecn = Some(marks & 0x80 != 0);
    packet.becn = Some(marks & 0x40 != 0);
    packet.resv6 = Some(marks & 0x3f);
    packet.dest_qp = reader.u24();
    let ask = reader.u8()?;
    packet.ack_req = Some(ask & 0x80 != 0);
    packet.resv7 = Some(ask & 0x7f);
    packet.psn = reader.u24();
    let known = opcode::headers(code);
    laws.push(("opcode defined", known.is_some()));
    for header in known.unwrap_or_default() {
        header_fields(header, &mut reader, packet)?;
    }
    let rest = reader.0;
    let (data, padding) = rest.split_at(rest.len().checked_sub(pad)?);
    packet.data = Some(data.to_vec());
    packet.pad_bytes = Some(padding.to_vec());
    laws.push(("transport version 0", flags & 0x0f == 0));
    laws.push(("reserved bits of the BTH 0", marks & 0x3f == 0 && ask & 0x7f == 0));
    laws.push(("pad completes four bytes", rest.len() % 4 == 0));
    laws.push(("pad bytes are zero", padding.iter().all(|&byte| byte == 0)));
    Some(())
}

fn header_fields(header: Header, reader: &mut Reader<'_>, packet: &mut Packet) -> Option<()> {
    match header {
        Header::Xrceth => packet.xrc_srq = Some(reader.u32()? & MASK24),
        Header::Deth => {
            packet.qkey = Some(reader.u32()?);
            packet.src_qp = Some(reader.u32()? & MASK24);
        }
        Header::Feth => packet.feth = Some(reader.u32()?),
        Header::Reth => {
            packet.va = Some(reader.u64()?);
            packet.rkey = Some(reader.u32()?);
            packet.dma_len = Some(reader.u32()?);
        }
        Header::AtomicEth => {
            packet.va = Some(reader.u64()?);
            packet.rkey = Some(reader.u32()?);
            packet.swap_add = Some(reader.u64()?);
            packet.compare = Some(reader.u64()?);
        }
        Header::Aeth => {
            packet.syndrome = Some(reader.u8()?);
            packet.msn = Some(reader.u24()?);
        }
        Header::AtomicAckEth => packet.original = Some(reader.u64()?),
        Header::Imm => packet.imm = Some(reader.u32()?),
        Header::Ieth => packet.inv_rkey = Some(reader.u32()?),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use opcode::op;

    fn ends(src: &str, dst: &str) -> Ends {
        Ends { src: src.parse().unwrap(), dst: dst.parse().unwrap(), sport: 0xc123, roce: Roce::V2 }
    }

    fn without_ip(ends: Ends) -> Ends {
        Ends { roce: Roce::V1, ..ends }
    }

    #[test]
    fn what_is_made_is_taken_apart_again() {
        let (v4, v6) = (ends("10.0.0.1", "10.0.0.2"), ends("fd00::1", "fd00::2"));
        for ends in [v4, v6, without_ip(v4), without_ip(v6)] {
            let found = ends_of(&Packet::of(op::ACK).encode(&ends)).unwrap();
            assert_eq!((found.src, found.dst, found.roce), (ends.src, ends.dst, ends.roce));
            for opcode in (0..=255).filter(|&opcode| opcode::headers(opcode).is_some()) {
                let sent = Packet::of(opcode)
                    .dest_qp(0x12_3456)
                    .psn(0xab_cdef)
                    .reth(0x1122_3344_5566_7788, 0x99aa_bbcc, 77)
                    .swap_add(5)
                    .compare(6)
                    .original(7)
                    .syndrome(0x62)
                    .msn(0x10_2030)
                    .qkey(0x8001_0000)
                    .src_qp(0x44)
                    .imm(0xdead_beef)
                    .inv_rkey(8)
                    .feth(0x11)
                    .xrc_srq(9)
                    .data(vec![1, 2, 3, 4, 5]);
                let seen = take_apart(&sent.encode(&ends), true).unwrap();
                assert_eq!(seen.laws.iter().find(|law| !law.1), None, "{opcode:#x}");
                let mut expected = sent.clone();
                let headers = opcode::headers(opcode).unwrap();
                let has = |some: &[Header]| headers.iter().any(|header| some.contains(header));
                for (field, there) in [
                    (&mut expected.va, has(&[Header::Reth, Header::AtomicEth])),
                    (&mut expected.swap_add, has(&[Header::AtomicEth])),
                    (&mut expected.compare, has(&[Header::AtomicEth])),
                    (&mut expected.original, has(&[Header::AtomicAckEth])),
                ] {
                    *field = field.filter(|_| there);
                }
                for (field, there) in [
                    (&mut expected.rkey, has(&[Header::Reth, Header::AtomicEth])),
                    (&mut expected.dma_len, has(&[Header::Reth])),
                    (&mut expected.msn, has(&[Header::Aeth])),
                    (&mut expected.qkey, has(&[Header::Deth])),
                    (&mut expected.src_qp, has(&[Header::Deth])),
                    (&mut expected.imm, has(&[Header::Imm])),
                    (&mut expected.inv_rkey, has(&[Header::Ieth])),
                    (&mut expected.feth, has(&[Header::Feth])),
                    (&mut expected.xrc_srq, has(&[Header::Xrceth])),
                ] {
                    *field = field.filter(|_| there);
                }
                expected.syndrome = expected.syndrome.filter(|_| has(&[Header::Aeth]));
                assert_eq!(expected.mismatches(&seen.packet), [], "{opcode:#x}");
            }
        }
    }

    #[test]
    fn what_a_router_changes_breaks_no_law() {
        for ends in [ends("10.0.0.1", "10.0.0.2"), ends("fd00::1", "fd00::2")] {
            let mut ip = Packet::of(op::SEND_ONLY).tos(2).ttl(9).data(vec![7; 5]).encode(&ends);
            set_header(&mut ip, |tos, ttl| (*tos, *ttl) = (*tos | 3, *ttl - 1));
            let seen = take_apart(&ip, true).unwrap();
            assert_eq!((seen.packet.tos, seen.packet.ttl), (Some(3), Some(8)));
            assert_eq!(seen.laws.iter().find(|law| !law.1), None);
        }
    }

    #[test]
    fn falsified_fields_show() {
        let ends = ends("10.0.0.1", "10.0.0.2");
        let broken = |packet: Packet| {
            let seen = take_apart(&packet.encode(&ends), true).unwrap();
            seen.laws.into_iter().filter(|law| !law.1).map(|law| law.0).collect::<Vec<_>>()
        };
        let send = || Packet::of(op::SEND_ONLY).data(vec![9; 6]);
        assert_eq!(broken(send().icrc_xor(1)), ["ICRC right"]);
        assert_eq!(broken(send().tver(1)), ["transport version 0"]);
        assert_eq!(broken(send().resv7(1)), ["reserved bits of the BTH 0"]);
        assert_eq!(broken(send().pad_bytes(vec![0, 1])), ["pad bytes are zero"]);
        assert_eq!(broken(send().pad_bytes(vec![0; 3])), ["pad completes four bytes"]);
        assert_eq!(broken(send().fragment(0)), ["IPv4: do not fragment, no fragment"]);
        assert_eq!(broken(send().udp_len(99)), ["UDP length is the packet's"]);
        assert!(take_apart(&send().cut(12).encode(&ends), true).is_err());
    }
}
