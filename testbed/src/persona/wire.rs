//! RoCEv2 frames, written and read without rxe's own code: Ethernet, IPv4 or IPv6, UDP, BTH and what RC SEND, WRITE, READ
//! and CNP carry behind it (IBTA vol. 1, 9.2-9.6 and annex A17).

use std::net::IpAddr;

/// UDP port of RoCEv2.
pub const PORT: u16 = 4791;

/// Opcodes (IBTA vol. 1, table 38), those of the reliable connection that the persona speaks, and CNP (annex A17).
#[allow(missing_docs, reason = "named as in the table")]
pub mod op {
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_LAST_IMM: u8 = 0x03;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMM: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_LAST_IMM: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMM: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_FIRST: u8 = 0x0d;
    pub const READ_MIDDLE: u8 = 0x0e;
    pub const READ_LAST: u8 = 0x0f;
    pub const READ_ONLY: u8 = 0x10;
    pub const ACK: u8 = 0x11;
    pub const CNP: u8 = 0x81;
}

/// RDMA extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u32,
}

/// Acknowledge extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Syndrome: 0x00-0x1f ACK with credits, 0x20-0x3f RNR NAK, 0x60 and up NAK.
    pub syndrome: u8,
    /// Message sequence number.
    pub msn: u32,
}

/// A RoCEv2 packet, with all that the persona looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// IPv4: ID and the word of flags and fragment offset.
    pub ident: Option<(u16, u16)>,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// UDP source port.
    pub sport: u16,
    /// BTH opcode.
    pub opcode: u8,
    /// BTH byte 1: SE 0x80, MigReq 0x40, pad count 0x30, version 0x0f. The builder puts the pad count in.
    pub flags: u8,
    /// Partition key.
    pub pkey: u16,
    /// BTH byte 4: FECN 0x80, BECN 0x40, reserved 0x3f.
    pub congestion: u8,
    /// Destination queue pair.
    pub qpn: u32,
    /// BTH byte 8: AckReq 0x80, reserved 0x7f.
    pub ack: u8,
    /// Packet sequence number.
    pub psn: u32,
    /// RETH of WRITE and READ requests.
    pub reth: Option<Reth>,
    /// AETH of answers.
    pub aeth: Option<Aeth>,
    /// Immediate data.
    pub imm: Option<[u8; 4]>,
    /// Payload without pad.
    pub payload: Vec<u8>,
}

impl Packet {
    /// Filled as a ConnectX fills it: ECT(0), TTL 64, MigReq 1, the default partition, nothing reserved set.
    #[must_use]
    pub const fn new(opcode: u8, qpn: u32, psn: u32, sport: u16) -> Self {
        Self {
            ident: None,
            tos: 0x02,
            ttl: 64,
            sport,
            opcode,
            flags: 0x40,
            pkey: 0xffff,
            congestion: 0,
            qpn,
            ack: 0,
            psn,
            reth: None,
            aeth: None,
            imm: None,
            payload: Vec::new(),
        }
    }

    /// A congestion notification as ConnectX-4 Lx sends it: TOS 0xc2, source port 0, MigReq 0, BECN, 16 zero bytes.
    #[must_use]
    pub fn cnp(qpn: u32) -> Self {
        let payload = vec![0; 16];
        Self { tos: 0xc2, flags: 0, congestion: 0x40, payload, ..Self::new(op::CNP, qpn, 0, 0) }
    }

    /// Whether it asks for an acknowledgement.
    #[must_use]
    pub const fn asks(&self) -> bool {
        self.ack & 0x80 != 0
    }
}

/// Ethernet and IP addresses of the two ends, as the sender sees them.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Own Ethernet address.
    pub own_mac: [u8; 6],
    /// The peer's Ethernet address.
    pub peer_mac: [u8; 6],
    /// Own IP address.
    pub own: IpAddr,
    /// The peer's IP address.
    pub peer: IpAddr,
}

/// Which headers follow the BTH: RETH, AETH, immediate data. `None` for opcodes that the persona does not speak.
const fn layout(opcode: u8) -> Option<(bool, bool, bool)> {
    Some(match opcode {
        op::WRITE_FIRST | op::WRITE_ONLY | op::READ_REQUEST => (true, false, false),
        op::WRITE_ONLY_IMM => (true, false, true),
        op::SEND_LAST_IMM | op::SEND_ONLY_IMM | op::WRITE_LAST_IMM => (false, false, true),
        op::READ_FIRST | op::READ_LAST | op::READ_ONLY | op::ACK => (false, true, false),
        0x00..=op::READ_MIDDLE | op::CNP => (false, false, false),
        _ => return None,
    })
}

/// The ICRC over an IP header and what follows it, without the ICRC itself: CRC-32 with eight bytes of ones in front and
/// ones for all that routers may change (annex A17.3.3), as the bytes go on the wire.
#[must_use]
pub fn icrc(ip: &[u8], behind: &[u8]) -> [u8; 4] {
    let (mut ip, mut behind) = (ip.to_vec(), behind.to_vec());
    if ip[0] >> 4 == 4 {
        // TOS, TTL, header checksum.
        for at in [1, 8, 10, 11] {
            ip[at] = 0xff;
        }
    } else {
        // Traffic class, flow label, hop limit.
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
    }
    // UDP checksum; FECN, BECN and what is reserved beside them.
    for at in [6, 7, 12] {
        behind[at] = 0xff;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(&ip);
    crc.update(&behind);
    crc.finalize().to_le_bytes()
}

fn ones_complement(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The frame of `packet`; UDP checksum 0, as every NIC and kernel rxe send it.
#[must_use]
pub fn build(ends: &Ends, packet: &Packet) -> Vec<u8> {
    let pad = packet.payload.len().wrapping_neg() & 3;
    let mut bth = vec![packet.opcode, packet.flags & !0x30 | (pad as u8) << 4];
    bth.extend(packet.pkey.to_be_bytes());
    bth.push(packet.congestion);
    bth.extend(&packet.qpn.to_be_bytes()[1..]);
    bth.push(packet.ack);
    bth.extend(&packet.psn.to_be_bytes()[1..]);
    if let Some(reth) = packet.reth {
        bth.extend(reth.addr.to_be_bytes());
        bth.extend(reth.rkey.to_be_bytes());
        bth.extend(reth.len.to_be_bytes());
    }
    if let Some(aeth) = packet.aeth {
        bth.push(aeth.syndrome);
        bth.extend(&aeth.msn.to_be_bytes()[1..]);
    }
    bth.extend(packet.imm.iter().flatten());
    bth.extend(&packet.payload);
    bth.extend(&[0; 3][..pad]);
    let udp_len = 8 + bth.len() + 4;
    let mut behind = Vec::with_capacity(udp_len);
    for word in [packet.sport, PORT, udp_len as u16, 0] {
        behind.extend(word.to_be_bytes());
    }
    behind.extend(bth);
    let ip = ip_header(ends, packet, udp_len as u16);
    let mut frame = [&ends.peer_mac[..], &ends.own_mac[..]].concat();
    frame.extend(if ends.own.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(&ip);
    frame.extend(&behind);
    frame.extend(icrc(&ip, &behind));
    frame
}

fn ip_header(ends: &Ends, packet: &Packet, udp_len: u16) -> Vec<u8> {
    match (ends.own, ends.peer) {
        (IpAddr::V4(own), IpAddr::V4(peer)) => {
            let (ident, fragment) = packet.ident.unwrap_or((0, 0x4000));
            let mut ip = vec![0x45, packet.tos];
            for word in [udp_len + 20, ident, fragment] {
                ip.extend(word.to_be_bytes());
            }
            ip.extend([packet.ttl, 17, 0, 0]);
            ip.extend(own.octets());
            ip.extend(peer.octets());
            let sum = ones_complement(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip
        }
        (IpAddr::V6(own), IpAddr::V6(peer)) => {
            let first = 0x6000_0000 | u32::from(packet.tos) << 20;
            let mut ip = first.to_be_bytes().to_vec();
            ip.extend(udp_len.to_be_bytes());
            ip.extend([17, packet.ttl]);
            ip.extend(own.octets());
            ip.extend(peer.octets());
            ip
        }
        _ => unreachable!("both ends are of one family"),
    }
}

/// A received frame taken apart, with what is wrong with its form.
#[derive(Debug)]
pub struct Parsed {
    /// The packet.
    pub packet: Packet,
    /// Form laws and whether they hold.
    pub laws: Vec<(&'static str, bool)>,
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Takes a frame apart. `None` if it is not RoCEv2 from the peer to us; an error if it is, but cannot be taken apart.
#[must_use]
pub fn parse(ends: &Ends, frame: &[u8]) -> Option<Result<Parsed, String>> {
    let ip = frame.get(14..)?;
    let header = if ends.own.is_ipv4() { 20 } else { 40 };
    if ip.len() < header + 8 {
        return None;
    }
    let (src, dst, protocol) = match (word(frame, 12), ends.own) {
        (0x0800, IpAddr::V4(_)) => {
            let at = |from: usize| IpAddr::from([ip[from], ip[from + 1], ip[from + 2], ip[from + 3]]);
            (at(12), at(16), ip[9])
        }
        (0x86dd, IpAddr::V6(_)) => {
            let at = |from: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[from..from + 16]).unwrap());
            (at(8), at(24), ip[6])
        }
        _ => return None,
    };
    if src != ends.peer || dst != ends.own || protocol != 17 || word(ip, header + 2) != PORT {
        return None;
    }
    Some(take_apart(&ip[..header], &ip[header..]).ok_or_else(|| format!("not to be understood: {ip:02x?}")))
}

fn take_apart(ip: &[u8], udp: &[u8]) -> Option<Parsed> {
    let total = usize::from(word(udp, 4));
    let bth = udp.get(8..total.checked_sub(4)?)?;
    if bth.len() < 12 {
        return None;
    }
    let opcode = bth[0];
    let (has_reth, has_aeth, has_imm) = layout(opcode)?;
    let mut at = 12;
    let mut take = |wanted: bool, len: usize| {
        let from = at;
        at += if wanted { len } else { 0 };
        (wanted, from)
    };
    let (reth_at, aeth_at, imm_at) = (take(has_reth, 16), take(has_aeth, 4), take(has_imm, 4));
    let pad = usize::from(bth[1] >> 4 & 3);
    let body = bth.get(at..)?;
    let payload = body.get(..body.len().checked_sub(pad)?)?;
    let v4 = ip[0] >> 4 == 4;
    let packet = Packet {
        ident: v4.then(|| (word(ip, 4), word(ip, 6))),
        tos: if v4 { ip[1] } else { (word(ip, 0) >> 4) as u8 },
        ttl: if v4 { ip[8] } else { ip[7] },
        sport: word(udp, 0),
        opcode,
        flags: bth[1],
        pkey: word(bth, 2),
        congestion: bth[4],
        qpn: long(bth, 4) & 0xff_ffff,
        ack: bth[8],
        psn: long(bth, 8) & 0xff_ffff,
        reth: reth_at.0.then(|| Reth {
            addr: u64::from(long(bth, reth_at.1)) << 32 | u64::from(long(bth, reth_at.1 + 4)),
            rkey: long(bth, reth_at.1 + 8),
            len: long(bth, reth_at.1 + 12),
        }),
        aeth: aeth_at.0.then(|| Aeth { syndrome: bth[aeth_at.1], msn: long(bth, aeth_at.1) & 0xff_ffff }),
        imm: imm_at.0.then(|| long(bth, imm_at.1).to_be_bytes()),
        payload: payload.to_vec(),
    };
    let mut laws = vec![
        ("ICRC right", icrc(ip, &udp[..total - 4])[..] == udp[total - 4..total]),
        ("UDP length is the packet's", total == udp.len()),
        ("MigReq 1", bth[1] & 0x40 != 0),
        ("transport version 0", bth[1] & 0x0f == 0),
        ("P_Key 0xffff", packet.pkey == 0xffff),
        ("reserved, FECN and BECN bits 0", bth[4] == 0 && bth[8] & 0x7f == 0),
        (
            "pad count right, pad zero",
            (payload.len() + pad) % 4 == 0 && body[payload.len()..].iter().all(|&b| b == 0),
        ),
        ("TTL or hop limit 64", packet.ttl == 64),
        ("source port 0xc000 or above", packet.sport >= 0xc000),
    ];
    if v4 {
        laws.push(("IPv4: DF, no fragment, no options", word(ip, 6) == 0x4000 && ip[0] == 0x45));
        laws.push(("IPv4: total length right", usize::from(word(ip, 2)) == ip.len() + udp.len()));
        laws.push(("IPv4: header checksum right", ones_complement(ip) == 0));
    } else {
        laws.push(("IPv6: payload length right", usize::from(word(ip, 4)) == udp.len()));
    }
    Some(Parsed { packet, laws })
}

/// The UDP source port of a connection made without a connection manager, as upstream drivers compute it: both QPNs
/// multiplied, folded to a flow label, folded to 14 bits.
#[must_use]
pub const fn source_port(own_qpn: u32, peer_qpn: u32) -> u16 {
    let mut value = own_qpn as u64 * peer_qpn as u64;
    value ^= value >> 20;
    value ^= value >> 40;
    fold(value as u32 & 0xf_ffff)
}

/// The source port that stands for a flow label.
#[must_use]
pub const fn fold(flow_label: u32) -> u16 {
    0xc000 | ((flow_label & 0x3fff) ^ (flow_label >> 14)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// A packet published with scapy's RoCE layer: UC SEND ONLY, IPv4.
    #[test]
    fn icrc_of_a_published_packet() {
        let mut ip = bytes("450100400478400040110000c0a80007c0a80007");
        let sum = ones_complement(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let behind = bytes(concat!(
            "c00012b7002c0000",
            "2460ffff000000d300cf1710",
            "4630818be28935d90e9a95505401be885e500000"
        ));
        assert_eq!(icrc(&ip, &behind), [0x78, 0xf3, 0x53, 0xf3]);
    }

    #[test]
    fn icrc_ignores_what_routers_change() {
        let ends = Ends {
            own_mac: [2; 6],
            peer_mac: [4; 6],
            own: "fd00::1".parse().unwrap(),
            peer: "fd00::2".parse().unwrap(),
        };
        let packet = Packet { payload: vec![7; 5], ..Packet::new(op::SEND_ONLY, 0x11, 3, 0xc000) };
        let marked = Packet { tos: 0xff, ttl: 3, congestion: 0xff, ..packet.clone() };
        let (one, other) = (build(&ends, &packet), build(&ends, &marked));
        assert_eq!(one[one.len() - 4..], other[other.len() - 4..]);
        let other = build(&ends, &Packet { psn: 4, ..packet });
        assert_ne!(one[one.len() - 4..], other[other.len() - 4..]);
    }

    /// Flow labels of captured connection requests and the ports that the connections used.
    #[test]
    fn ports_of_captured_connections() {
        assert_eq!((fold(0x5_ba59), fold(0x2_bba0)), (64079, 64426));
    }

    #[test]
    fn what_is_built_is_taken_apart_again() {
        let ends = Ends {
            own_mac: [2; 6],
            peer_mac: [4; 6],
            own: "10.0.0.1".parse().unwrap(),
            peer: "10.0.0.2".parse().unwrap(),
        };
        let back = Ends { own: ends.peer, peer: ends.own, ..ends };
        let packet = Packet {
            ident: Some((0x1234, 0x4000)),
            reth: Some(Reth { addr: 0x1122_3344_5566_7788, rkey: 9, len: 5 }),
            imm: Some(*b"abcd"),
            payload: vec![1, 2, 3, 4, 5],
            ack: 0x80,
            ..Packet::new(op::WRITE_ONLY_IMM, 0x12_3456, 0xff_ffff, 0xc123)
        };
        let frame = build(&ends, &packet);
        let parsed = parse(&back, &frame).unwrap().unwrap();
        assert_eq!(parsed.laws.iter().find(|law| !law.1), None);
        assert_eq!(parsed.packet, Packet { flags: 0x70, ..packet });
        assert!(parse(&ends, &frame).is_none(), "not for us");

        // Every bit of the IP packet matters to one law or another, but for those that routers change.
        for bit in (14 + 28) * 8..frame.len() * 8 {
            let mut broken = frame.clone();
            broken[bit / 8] ^= 0x80 >> (bit % 8);
            let found = parse(&back, &broken);
            let fine = matches!(&found, Some(Ok(parsed)) if parsed.laws.iter().all(|law| law.1));
            assert!(!fine, "bit {bit}");
        }
    }

    #[test]
    fn a_cnp_has_the_length_of_captured_ones() {
        let ends = Ends {
            own_mac: [2; 6],
            peer_mac: [4; 6],
            own: "10.0.0.1".parse().unwrap(),
            peer: "10.0.0.2".parse().unwrap(),
        };
        let frame = build(&ends, &Packet::cnp(5));
        assert_eq!(
            (frame.len(), frame[15], &frame[34..36], frame[42], frame[46]),
            (74, 0xc2, &[0, 0][..], 0x81, 0x40)
        );
    }
}
