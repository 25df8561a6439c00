//! The invariant CRC (IBTA vol. 1, annex A17.3.3). It is a CRC-32 with eight bytes of ones in front, and with ones for all
//! fields that routers may change.

/// The ICRC of a packet, in the byte order of the wire. `ip` is the IP header or GRH; `behind` is everything after it, up to
/// the last byte of padding.
#[must_use]
pub fn icrc(ip: &[u8], behind: &[u8]) -> [u8; 4] {
    let (mut ip, mut behind) = (ip.to_vec(), behind.to_vec());
    mask(&mut ip, &[1, 8, 10, 11], &[1, 2, 3, 7]);
    // The UDP checksum; FECN, BECN and the reserved bits beside them. RoCEv1 has no UDP header.
    let masked: &[usize] = if super::codec::is_grh(&ip) { &[4] } else { &[6, 7, 12] };
    for &at in masked {
        if let Some(byte) = behind.get_mut(at) {
            *byte = 0xff;
        }
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(&ip);
    crc.update(&behind);
    crc.finalize().to_le_bytes()
}

/// Sets bytes of an IP header to ones: TOS, TTL and checksum of IPv4; traffic class, flow label and hop limit of IPv6.
fn mask(ip: &mut [u8], v4: &[usize], v6: &[usize]) {
    let is_v4 = ip.first().is_some_and(|first| first >> 4 == 4);
    if !is_v4 && let Some(first) = ip.first_mut() {
        *first |= 0x0f;
    }
    for &at in if is_v4 { v4 } else { v6 } {
        if let Some(byte) = ip.get_mut(at) {
            *byte = 0xff;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// A packet published with scapy's RoCE layer: UC SEND ONLY over IPv4. The header checksum does not count.
    #[test]
    fn of_a_published_packet() {
        let ip = bytes("450100400478400040110000c0a80007c0a80007");
        let behind = bytes(concat!(
            "c00012b7002c0000",
            "2460ffff000000d300cf1710",
            "4630818be28935d90e9a95505401be885e500000"
        ));
        assert_eq!(icrc(&ip, &behind), [0x78, 0xf3, 0x53, 0xf3]);
    }

    /// An acknowledgement of RoCEv1, from a capture of two ConnectX cards.
    #[test]
    fn of_a_card_without_ip() {
        let grh = bytes(concat!(
            "6020000000141b40",
            "00000000000000000000ffffc0a8f239",
            "00000000000000000000ffffc0a8f238"
        ));
        let behind = bytes("1140ffff00001312007d4a1a1f000000");
        assert_eq!(icrc(&grh, &behind), [0x46, 0x0e, 0xb2, 0xdd]);
    }

    /// An acknowledgement over IPv6. Its ICRC was confirmed by two other programs.
    #[test]
    fn over_ipv6() {
        let ip = bytes(concat!(
            "60000000001c1140",
            "fd000000000000000000000000000001",
            "fd000000000000000000000000000002"
        ));
        let behind = bytes("c00012b7001c00001100ffff00000012001234561f000001");
        assert_eq!(icrc(&ip, &behind), [0x52, 0x07, 0x41, 0x76]);
    }
}
