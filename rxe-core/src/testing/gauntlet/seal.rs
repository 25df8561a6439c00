//! A second implementation of the ICRC, to check the first one. The two share no code, except for the CRC-32 itself.

use crate::wire::{Encapsulation, ICRC_LEN};
use alloc::vec;
use core::net::IpAddr;

/// The ICRC (IBTA vol. 1, 7.8.1) of `packet` (BTH to pad), sent with these source and destination addresses and UDP source port.
pub(super) fn icrc_of(
    encapsulation: Encapsulation,
    (src, dst, port): (IpAddr, IpAddr, u16),
    ident: u16,
    packet: &[u8],
) -> u32 {
    let udp_len = (packet.len() + ICRC_LEN + 8) as u16;
    let mut covered = vec![0xff; 8];
    match (src, dst) {
        (src, dst) if encapsulation == Encapsulation::V1 => {
            covered.extend([0x6f, 0xff, 0xff, 0xff]);
            covered.extend((udp_len - 8).to_be_bytes());
            covered.extend([0x1b, 0xff]);
            for gid in [src, dst] {
                match gid {
                    IpAddr::V4(mapped) => {
                        covered.extend([0; 10]);
                        covered.extend([0xff; 2]);
                        covered.extend(mapped.octets());
                    }
                    IpAddr::V6(gid) => covered.extend(gid.octets()),
                }
            }
        }
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            covered.extend([0x45, 0xff]);
            covered.extend((udp_len + 20).to_be_bytes());
            covered.extend(ident.to_be_bytes());
            covered.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
            covered.extend(src.octets());
            covered.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            covered.extend([0x6f, 0xff, 0xff, 0xff]);
            covered.extend(udp_len.to_be_bytes());
            covered.extend([17, 0xff]);
            covered.extend(src.octets());
            covered.extend(dst.octets());
        }
        _ => {}
    }
    if encapsulation != Encapsulation::V1 {
        covered.extend(port.to_be_bytes());
        covered.extend(4791_u16.to_be_bytes());
        covered.extend(udp_len.to_be_bytes());
        covered.extend([0xff, 0xff]);
    }
    let headers = covered.len();
    covered.extend(packet);
    if let Some(congestion) = covered.get_mut(headers + 4) {
        *congestion = 0xff;
    }
    crc32fast::hash(&covered)
}
