//! IP and UDP headers for captured payloads, with correct checksums.

use core::net::IpAddr;

use super::{ROCE_PORT, Record};

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const IPV4_HEADER: usize = 20;
const DONT_FRAGMENT: u16 = 0x4000;

/// Builds the packet in `packet`, replacing its contents; false if the families differ or it is too long for IP.
pub(in crate::net) fn write(record: &Record<'_>, packet: &mut Vec<u8>) -> bool {
    let udp_len = UDP_HEADER + record.payload.len();
    let Ok(udp_len16) = u16::try_from(udp_len) else { return false };
    packet.clear();
    // The checksum of a pseudo-header covers addresses, protocol and length.
    let mut sum = Sum(u32::from(UDP) + u32::from(udp_len16));
    match (record.src, record.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let Some(total) = udp_len16.checked_add(IPV4_HEADER as u16) else { return false };
            packet.extend([0x45, record.tos]);
            packet.extend(total.to_be_bytes());
            packet.extend(record.ident.to_be_bytes());
            packet.extend(DONT_FRAGMENT.to_be_bytes());
            packet.extend([record.ttl, UDP, 0, 0]);
            packet.extend(src.octets());
            packet.extend(dst.octets());
            let mut header = Sum(0);
            header.add(packet);
            packet[10..12].copy_from_slice(&header.finish().to_be_bytes());
            sum.add(&src.octets());
            sum.add(&dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            packet.extend((0x6000_0000 | u32::from(record.tos) << 20).to_be_bytes());
            packet.extend(udp_len16.to_be_bytes());
            packet.extend([UDP, record.ttl]);
            packet.extend(src.octets());
            packet.extend(dst.octets());
            sum.add(&src.octets());
            sum.add(&dst.octets());
        }
        _ => return false,
    }
    let mut header = [0; UDP_HEADER];
    header[..2].copy_from_slice(&record.source_port.to_be_bytes());
    header[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    header[4..6].copy_from_slice(&udp_len16.to_be_bytes());
    sum.add(&header);
    sum.add(record.payload);
    // 0 would mean "no checksum" (RFC 768).
    let checksum = match sum.finish() {
        0 => 0xffff,
        other => other,
    };
    header[6..].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(header);
    packet.extend(record.payload);
    true
}

/// The Internet checksum (RFC 1071) in the making. Only the last part added may have an odd length.
struct Sum(u32);

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            self.0 += u32::from(word);
        }
    }

    const fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}
