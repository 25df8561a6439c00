//! rping's only message, and the text of a ping.

use rxe_verbs::{Key, Remote};

/// Bytes of a message.
pub(super) const LEN: usize = 16;
/// Most bytes of a ping: rping takes one less than 64 KiB.
pub(super) const MOST: u32 = 65_535;
/// Fewest bytes of a ping: the text with the largest possible number.
pub(super) const LEAST: u32 = 26;

/// The sender's buffer (`struct rping_rdma_info` of rping.c): address, R_Key and length, big endian. The server also sends this
/// message as a go-ahead; its content is ignored then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Buffer {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) len: u32,
}

impl Buffer {
    pub(super) fn emit(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    pub(super) fn parse(bytes: [u8; LEN]) -> Self {
        let number = u128::from_be_bytes(bytes);
        Self { addr: (number >> 64) as u64, rkey: (number >> 32) as u32, len: number as u32 }
    }

    pub(super) const fn remote(self) -> Remote {
        Remote { addr: self.addr, rkey: Key(self.rkey) }
    }
}

/// The letters of a ping's text, in a cycle: `A` to `z`.
const LETTERS: core::ops::RangeInclusive<u8> = b'A'..=b'z';

/// The bytes of a ping: a text with its number, letters that begin one letter later in each ping, and a zero.
pub(super) fn text(ping: u32, len: u32) -> Vec<u8> {
    let round = usize::from(LETTERS.end() - LETTERS.start() + 1);
    let letters = LETTERS.cycle().skip(ping as usize % round);
    let mut bytes: Vec<u8> = format!("rdma-ping-{ping}: ").into_bytes();
    bytes.extend(letters.take((len as usize).saturating_sub(bytes.len())));
    bytes.truncate(len as usize);
    if let Some(last) = bytes.last_mut() {
        *last = 0;
    }
    bytes
}

/// A ping as text: up to its first zero, and without control characters, which could change the terminal.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default());
    text.chars().map(|letter| if letter.is_control() { '.' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_rping() {
        let buffer = Buffer { addr: 0x0102_0304_0506_0708, rkey: 0x1112_1314, len: 0x2122_2324 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24];
        assert_eq!(buffer.emit(), bytes);
        assert_eq!(Buffer::parse(bytes), buffer);
    }

    /// As rping of rdma-core 44 prints them with `-v -S 30`.
    #[test]
    fn the_texts_of_rping() {
        assert_eq!(text(0, 30), b"rdma-ping-0: ABCDEFGHIJKLMNOP\0");
        assert_eq!(text(1, 30), b"rdma-ping-1: BCDEFGHIJKLMNOPQ\0");
        assert_eq!(text(57, 30), b"rdma-ping-57: zABCDEFGHIJKLMN\0");
        assert_eq!(text(58, 30), b"rdma-ping-58: ABCDEFGHIJKLMNO\0");
        assert_eq!(shown(&text(10, 64)).len(), 63);
        assert_eq!(shown(b"\x1b[2J\xff\0rest"), ".[2J\u{fffd}");
        assert_eq!(text(i32::MAX as u32, LEAST), b"rdma-ping-2147483647: HIJ\0");
    }
}
