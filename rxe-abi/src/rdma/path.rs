//! Paths that programs provide: struct ibv_path_data, whose record has the format of the wire (IBTA vol. 1, 15.2.5.16).

use crate::border::{Bytes, INVALID, Result};
use rxe_cm::OwnPath;
use rxe_verbs::{Mtu, Pkey};

/// Bytes of struct ibv_path_data: flags, four without meaning, the record.
const DATA: usize = 8 + 64;
/// Most elements that are read.
const MOST: usize = 64;
/// IBV_PATH_FLAG_GMP, _PRIMARY and _BIDIRECTIONAL: the only kind of path that the kernel accepts.
const FLAGS: u32 = 1 | 2 | 0x28;

/// The path in the value of RDMA_OPTION_IB_PATH: the first that is the primary one, for both directions. As in the kernel it is
/// EINVAL if there is none.
pub(super) fn own(wish: Bytes, len: usize) -> Result<OwnPath> {
    if len == 0 || !len.is_multiple_of(DATA) {
        return Err(INVALID);
    }
    let bytes = wish.read(len.min(DATA * MOST));
    let is_it = |data: &&[u8]| data.first_chunk().is_some_and(|flags| u32::from_ne_bytes(*flags) == FLAGS);
    let record = bytes.chunks_exact(DATA).find(is_it).and_then(|data| data.get(8..)).ok_or(INVALID)?;
    let pair = |at: usize| u16::from_be_bytes([record[at], record[at + 1]]);
    let flow = u32::from_be_bytes([record[44], record[45], record[46], record[47]]);
    // The upper two bits are a selector.
    let value = |at: usize| record[at] & 0x3f;
    Ok(OwnPath {
        service_level: (pair(52) & 0xf) as u8,
        traffic_class: record[48],
        flow_label: flow >> 8 & 0xf_ffff,
        hop_limit: flow as u8,
        pkey: Pkey(pair(50)),
        mtu: Mtu::from_code(value(54)).ok_or(INVALID)?,
        rate: value(55),
        packet_lifetime: value(56),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the format that librdmacm's users write and the kernel's ib_sa_unpack_path reads.
    fn data(flags: u32) -> [u8; DATA] {
        let mut data = [0; DATA];
        data[..4].copy_from_slice(&flags.to_ne_bytes());
        let record = &mut data[8..];
        record[44..48].copy_from_slice(&(0x1_2345_u32 << 8 | 9).to_be_bytes());
        record[48] = 0x68;
        record[50..52].copy_from_slice(&0x8012_u16.to_be_bytes());
        record[52..54].copy_from_slice(&0x0075_u16.to_be_bytes());
        (record[54], record[55], record[56]) = (0x84, 0x83, 0x92);
        data
    }

    fn read(data: &[u8]) -> Result<OwnPath> {
        own(Bytes::new(data.as_ptr().cast()), data.len())
    }

    #[test]
    fn the_primary_path_is_read() {
        let mut two = data(FLAGS | 4).to_vec();
        two.extend(data(FLAGS));
        let path = read(&two).ok().unwrap();
        assert_eq!((path.service_level, path.traffic_class, path.pkey), (5, 0x68, Pkey(0x8012)));
        assert_eq!((path.flow_label, path.hop_limit, path.mtu), (0x1_2345, 9, Mtu::M2048));
        assert_eq!((path.rate, path.packet_lifetime), (3, 18));
    }

    #[test]
    fn others_are_not() {
        for wrong in [&data(1)[..], &data(FLAGS)[..71], &[]] {
            assert!(read(wrong).is_err());
        }
        let mut mtu = data(FLAGS);
        mtu[8 + 54] = 0x80;
        assert!(read(&mtu).is_err());
    }
}
