//! The private data of REQ and REP, by which both ends describe themselves when a connection is established.

use super::iomap::{scaled, unscaled};

/// The only version.
const VERSION: u8 = 1;
/// Flag: numbers in the sender's memory are big-endian.
const BIG_ENDIAN: u8 = 1;
/// Flag: the sender has a table for mapped buffers behind its directory.
const IOMAP: u8 = 2;

/// A range of memory, as the peer addresses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Piece {
    /// Address of the first byte.
    pub addr: u64,
    /// R_Key.
    pub key: u32,
    /// Length in bytes, or for a directory in entries.
    pub len: u32,
}

impl Piece {
    /// Bytes of an entry in a directory.
    pub const LEN: usize = 16;

    /// An entry of a directory, in the byte order of the host whose memory it is in.
    #[must_use]
    pub fn encode(self, big_endian: bool) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let (addr, key, len) = if big_endian {
            (self.addr.to_be_bytes(), self.key.to_be_bytes(), self.len.to_be_bytes())
        } else {
            (self.addr.to_le_bytes(), self.key.to_le_bytes(), self.len.to_le_bytes())
        };
        out[..8].copy_from_slice(&addr);
        out[8..12].copy_from_slice(&key);
        out[12..].copy_from_slice(&len);
        out
    }

    /// An entry of this host's directory.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (addr, rest) = bytes.split_at(8);
        let (key, len) = rest.split_at(4);
        Self {
            addr: u64::from_ne_bytes(addr.try_into().unwrap_or_default()),
            key: u32::from_ne_bytes(key.try_into().unwrap_or_default()),
            len: u32::from_ne_bytes(len.try_into().unwrap_or_default()),
        }
    }
}

/// The description of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Whether numbers in its memory are big-endian.
    pub big_endian: bool,
    /// Messages with immediate data that it can receive at first.
    pub credits: u16,
    /// Entries of its table for mapped buffers; 0 if it has none. At most 128, or a multiple of 256 up to 32,512.
    pub iomap: u16,
    /// Its directory, to which the peer writes the addresses of receive buffers.
    pub directory: Piece,
    /// The first half of its receive buffer.
    pub buffer: Piece,
}

/// Why private data was not understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HelloError {
    /// There are too few bytes.
    #[error("the peer sent {0} bytes where an rsocket sends 40: it is none")]
    Short(usize),
    /// It is of another version.
    #[error("the peer speaks version {0} of the rsocket protocol, and only 1 is known")]
    Version(u8),
    /// It has no directory.
    #[error("the peer has no directory for receive buffers")]
    Directory,
}

impl Hello {
    /// Bytes.
    pub const LEN: usize = 40;

    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = VERSION;
        out[1] = IOMAP | if self.big_endian { BIG_ENDIAN } else { 0 };
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = scaled(self.iomap);
        out[8..24].copy_from_slice(&self.directory.encode(true));
        out[24..].copy_from_slice(&self.buffer.encode(true));
        out
    }

    /// Parses private data. Zeroes may follow.
    ///
    /// # Errors
    /// [`HelloError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let Some(bytes) = bytes.first_chunk::<{ Self::LEN }>() else {
            return Err(HelloError::Short(bytes.len()));
        };
        if bytes[0] != VERSION {
            return Err(HelloError::Version(bytes[0]));
        }
        let piece = |at: usize| Piece {
            addr: u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap_or_default()),
            key: u32::from_be_bytes(bytes[at + 8..at + 12].try_into().unwrap_or_default()),
            len: u32::from_be_bytes(bytes[at + 12..at + 16].try_into().unwrap_or_default()),
        };
        let hello = Self {
            big_endian: bytes[1] & BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            iomap: if bytes[1] & IOMAP != 0 { unscaled(bytes[7]) } else { 0 },
            directory: piece(8),
            buffer: piece(24),
        };
        if hello.directory.len == 0 {
            return Err(HelloError::Directory);
        }
        Ok(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_place() {
        let hello = Hello {
            big_endian: false,
            credits: 384,
            iomap: 512,
            directory: Piece { addr: 0x0102_0304_0506_0708, key: 0x1112_1314, len: 2 },
            buffer: Piece { addr: 0x2122_2324_2526_2728, key: 0x3132_3334, len: 65536 },
        };
        let bytes = hello.encode();
        let wanted = [
            1, 2, 1, 0x80, 0, 0, 0, 0x82, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2, 0x21,
            0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0,
        ];
        assert_eq!(bytes, wanted);
        let mut field = bytes.to_vec();
        field.extend([0; 16]);
        assert_eq!(Hello::decode(&field), Ok(hello));
    }

    #[test]
    fn what_is_not_understood() {
        let bytes = Hello {
            big_endian: true,
            credits: 1,
            iomap: 0,
            directory: Piece { addr: 0, key: 0, len: 1 },
            buffer: Piece::default(),
        }
        .encode();
        assert_eq!(Hello::decode(&bytes[..39]), Err(HelloError::Short(39)));
        let with = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            Hello::decode(&bytes)
        };
        assert_eq!(with(0, 2), Err(HelloError::Version(2)));
        assert_eq!(with(23, 0), Err(HelloError::Directory));
        // This field is not read for an end without a table.
        assert_eq!(with(1, 0).map(|hello| (hello.iomap, hello.big_endian)), Ok((0, false)));
    }
}
