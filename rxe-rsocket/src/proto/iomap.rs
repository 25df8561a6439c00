//! Mapped buffers: memory of a program to which its peer writes outside of the stream (riomap, riowrite).

use super::Piece;

/// An entry in the table of the peer's mapped buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoEntry {
    /// The offset of the first byte, as the peer's program calls it.
    pub offset: u64,
    /// The memory.
    pub piece: Piece,
}

impl IoEntry {
    /// Bytes of an entry.
    pub const LEN: usize = 8 + Piece::LEN;

    /// As it is stored, in the byte order of the host whose memory it is in.
    #[must_use]
    pub fn encode(self, big_endian: bool) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&if big_endian {
            self.offset.to_be_bytes()
        } else {
            self.offset.to_le_bytes()
        });
        out[8..].copy_from_slice(&self.piece.encode(big_endian));
        out
    }

    /// An entry of this host's table.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (offset, piece) = bytes.split_at(8);
        Self {
            offset: u64::from_ne_bytes(offset.try_into().unwrap_or_default()),
            piece: Piece::decode(piece.try_into().unwrap_or(&[0; Piece::LEN])),
        }
    }

    /// Bytes from `offset` to the end of the buffer; `None` if `offset` is outside of it.
    #[must_use]
    pub fn room(&self, offset: u64) -> Option<u32> {
        let inside = u32::try_from(offset.checked_sub(self.offset)?).ok()?;
        self.piece.len.checked_sub(inside).filter(|room| *room > 0)
    }
}

/// A number of entries as 8 bits: exact up to 128, larger ones in steps of 256.
#[must_use]
pub fn scaled(entries: u16) -> u8 {
    if entries <= 128 { entries as u8 } else { 0x80 | (entries >> 8) as u8 }
}

/// The number of entries for such 8 bits.
#[must_use]
pub fn unscaled(byte: u8) -> u16 {
    if byte <= 128 { byte.into() } else { u16::from(byte & 0x7f) << 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded() {
        for (entries, meant) in
            [(0, 0), (1, 1), (128, 128), (256, 256), (300, 256), (511, 256), (32_767, 32_512)]
        {
            assert_eq!(unscaled(scaled(entries)), meant, "{entries}");
        }
    }

    #[test]
    fn offsets_outside_have_no_room() {
        let entry = IoEntry { offset: 100, piece: Piece { addr: 0, key: 0, len: 10 } };
        assert_eq!([99, 100, 109, 110].map(|at| entry.room(at)), [None, Some(10), Some(1), None]);
        // Wrong offsets and lengths must not lead outside of the buffer.
        let entry = IoEntry { offset: u64::MAX, piece: Piece { addr: 0, key: 0, len: u32::MAX } };
        assert_eq!((entry.room(0), entry.room(u64::MAX)), (None, Some(u32::MAX)));
    }
}
