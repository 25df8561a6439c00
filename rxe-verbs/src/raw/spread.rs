//! Frames spread over several queues by a hash of their addresses (receive side scaling).

use super::queue::RawQueue;
use std::sync::Arc;

/// Which fields of a frame are hashed (ibv_rx_hash_fields, with the same bits).
pub mod fields {
    /// IPv4 source address.
    pub const SRC_IPV4: u64 = 1;
    /// IPv4 destination address.
    pub const DST_IPV4: u64 = 1 << 1;
    /// IPv6 source address.
    pub const SRC_IPV6: u64 = 1 << 2;
    /// IPv6 destination address.
    pub const DST_IPV6: u64 = 1 << 3;
    /// TCP source port.
    pub const SRC_PORT_TCP: u64 = 1 << 4;
    /// TCP destination port.
    pub const DST_PORT_TCP: u64 = 1 << 5;
    /// UDP source port.
    pub const SRC_PORT_UDP: u64 = 1 << 6;
    /// UDP destination port.
    pub const DST_PORT_UDP: u64 = 1 << 7;
    /// All of them.
    pub const ALL: u64 = 0xff;
}

/// Queues, and the hash that spreads frames over them (ibv_rwq_ind_table, ibv_rx_hash_conf).
#[derive(Clone, Debug)]
pub struct Spread {
    queues: Vec<Arc<RawQueue>>,
    key: Vec<u8>,
    fields: u64,
}

impl Spread {
    /// Spreads frames over `queues` by the Toeplitz hash of `fields` (bits of the module [`fields`]) with this key. `None` if
    /// the number of queues is not a power of two (0 is none), or the key is not 40 bytes long.
    #[must_use]
    pub fn new(queues: Vec<Arc<RawQueue>>, key: Vec<u8>, fields: u64) -> Option<Self> {
        (queues.len().is_power_of_two() && key.len() == 40).then_some(Self { queues, key, fields })
    }

    /// The queue that a frame goes to.
    pub(super) fn queue_of(&self, frame: &[u8]) -> &RawQueue {
        let hash = toeplitz(&self.key, &chosen(frame, self.fields));
        &self.queues[hash as usize & (self.queues.len() - 1)]
    }
}

/// The bytes of a frame to hash, in the order in which adapters hash them.
fn chosen(frame: &[u8], wanted: u64) -> Vec<u8> {
    const IP: usize = 14;
    let mut bytes = Vec::new();
    let mut add = |field, range: core::ops::Range<usize>| {
        if wanted & field != 0 {
            bytes.extend_from_slice(frame.get(range).unwrap_or_default());
        }
    };
    let (protocol, ports) = match frame.get(12..14) {
        Some([8, 0]) => {
            add(fields::SRC_IPV4, IP + 12..IP + 16);
            add(fields::DST_IPV4, IP + 16..IP + 20);
            (frame.get(IP + 9), IP + usize::from(frame.get(IP).map_or(5, |first| first & 15)) * 4)
        }
        Some([0x86, 0xdd]) => {
            add(fields::SRC_IPV6, IP + 8..IP + 24);
            add(fields::DST_IPV6, IP + 24..IP + 40);
            (frame.get(IP + 6), IP + 40)
        }
        _ => return bytes,
    };
    match protocol {
        Some(6) => {
            add(fields::SRC_PORT_TCP, ports..ports + 2);
            add(fields::DST_PORT_TCP, ports + 2..ports + 4);
        }
        Some(17) => {
            add(fields::SRC_PORT_UDP, ports..ports + 2);
            add(fields::DST_PORT_UDP, ports + 2..ports + 4);
        }
        _ => {}
    }
    bytes
}

/// The Toeplitz hash: the XOR, over all set bits of `bytes`, of the 32 bits of the key that begin at the bit's position.
fn toeplitz(key: &[u8], bytes: &[u8]) -> u32 {
    let bit = |at: usize| key.get(at / 8).map_or(0, |byte| u32::from(byte >> (7 - at % 8) & 1));
    let mut window = (0..32).fold(0, |window, at| window << 1 | bit(at));
    let mut hash = 0;
    for (index, byte) in bytes.iter().enumerate() {
        for place in 0..8 {
            if byte >> (7 - place) & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | bit(32 + index * 8 + place);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of "Verifying the RSS Hash Calculation" (Microsoft's documentation of NDIS).
    #[test]
    fn known_hashes() {
        const KEY: [u8; 40] = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        // 66.9.149.187:2794 to 161.142.100.80:1766.
        let mut frame = vec![0; 42];
        (frame[12], frame[14], frame[23]) = (8, 0x45, 6);
        frame[26..34].copy_from_slice(&[66, 9, 149, 187, 161, 142, 100, 80]);
        frame[34..38].copy_from_slice(&[0x0a, 0xea, 0x06, 0xe6]);
        let addresses = fields::SRC_IPV4 | fields::DST_IPV4;
        assert_eq!(toeplitz(&KEY, &chosen(&frame, addresses)), 0x323e_8fc2);
        assert_eq!(toeplitz(&KEY, &chosen(&frame, fields::ALL)), 0x51cc_c178);
        assert_eq!(chosen(&frame[..20], fields::ALL), []);
    }
}
