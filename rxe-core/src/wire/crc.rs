//! The CRC-32 of Ethernet, computed in one of two ways that give the same.
//!
//! crc32fast multiplies without carry where the processor can, 64 bits in an instruction. Where it cannot, and where that
//! instruction is a subroutine (an emulated processor), words are quicker: CRC-32's polynomial divides
//! 1 + x^145 + x^183 + x^211 + x^300, so a word of the message may be struck out and added to four places further on, by
//! shifts (the "Chorba" algorithm, arXiv 2412.16398). The last words are left to tables, eight bytes at a time.

use super::gf::times_x;
use core::sync::atomic::{AtomicBool, Ordering};
use crc32fast::Hasher;

/// Bytes of a word.
const WORD: usize = 8;
/// How many words further on one word is added to the last time.
const REACH: usize = 5;
/// The bytes of as many words.
const STRIDE: usize = REACH * WORD;
/// Shorter messages are left to the tables. At least two strides.
const LEAST: usize = 160;

/// How the process computes CRCs. It changes no result.
static BY_WORDS: AtomicBool = AtomicBool::new(false);

/// How CRCs are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// By crc32fast: carry-less multiplication where the processor has it.
    Multiply,
    /// By shifting words.
    Words,
}

/// Has all CRCs of the process computed by `method` from now on; [`Method::Multiply`] before.
pub fn use_method(method: Method) {
    BY_WORDS.store(method == Method::Words, Ordering::Relaxed);
}

/// Continues `crc`, the CRC of what comes before `parts`, in the way chosen by [`use_method`].
#[must_use]
#[inline]
pub fn update<const N: usize>(crc: u32, parts: [&[u8]; N]) -> u32 {
    Front::new(crc).update(parts)
}

/// The CRC of what comes before every packet: a packet's is continued from there without another look at the processor.
#[derive(Debug)]
pub struct Front {
    crc: u32,
    hasher: Hasher,
}

impl Front {
    /// Of something whose CRC is `crc`.
    #[must_use]
    #[inline]
    pub fn new(crc: u32) -> Self {
        Self { crc, hasher: Hasher::new_with_initial(crc) }
    }

    /// Continues it in the way chosen by [`use_method`].
    #[must_use]
    #[inline]
    pub fn update<const N: usize>(&self, parts: [&[u8]; N]) -> u32 {
        if BY_WORDS.load(Ordering::Relaxed) {
            return update_by(Method::Words, self.crc, parts);
        }
        multiply(self.hasher.clone(), parts)
    }
}

#[inline]
fn multiply<const N: usize>(mut hasher: Hasher, parts: [&[u8]; N]) -> u32 {
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        hasher.update(part);
    }
    hasher.finalize()
}

/// The same by `method`.
#[must_use]
#[inline]
pub fn update_by<const N: usize>(method: Method, crc: u32, parts: [&[u8]; N]) -> u32 {
    match method {
        Method::Multiply => multiply(Hasher::new_with_initial(crc), parts),
        Method::Words => !parts.iter().fold(!crc, |register, part| by_words(register, part)),
    }
}

/// The register after any number of bytes.
#[inline(never)]
fn by_words(register: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LEAST {
        return by_tables(register, bytes);
    }
    // A stride is left for what the last words are added to.
    let (strides, _) = bytes[..bytes.len() - STRIDE].as_chunks::<STRIDE>();
    // What is to be added to the next words, in the places of the words before them.
    let mut carry = [u64::from(register), 0, 0, 0, 0];
    for stride in strides {
        let (words, _) = stride.as_chunks::<WORD>();
        for (i, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word) ^ carry[i];
            carry[(i + 2) % REACH] ^= word << 17 ^ word << 55;
            carry[(i + 3) % REACH] ^= word >> 47 ^ word >> 9 ^ word << 19;
            carry[(i + 4) % REACH] ^= word >> 45 ^ word << 44;
            carry[i] = word >> 20;
        }
    }
    let rest = &bytes[strides.len() * STRIDE..];
    let mut last = [0; 2 * STRIDE];
    last[..rest.len()].copy_from_slice(rest);
    let (words, _) = last.as_chunks_mut::<WORD>();
    for (word, carry) in words.iter_mut().zip(carry) {
        *word = (u64::from_le_bytes(*word) ^ carry).to_le_bytes();
    }
    by_tables(0, &last[..rest.len()])
}

/// What a byte leaves in the register, once so many bytes have followed it.
static TABLES: [[u32; 256]; WORD] = tables();

const fn tables() -> [[u32; 256]; WORD] {
    let mut tables = [[0; 256]; WORD];
    let mut i = 0;
    while i < WORD * 256 {
        let (table, byte) = (i / 256, i % 256);
        let mut register = if table == 0 { byte as u32 } else { tables[table - 1][byte] };
        let mut bits = 0;
        while bits < 8 {
            register = times_x(register);
            bits += 1;
        }
        tables[table][byte] = register;
        i += 1;
    }
    tables
}

/// The same, one word after the other.
fn by_tables(mut register: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<WORD>();
    for word in words {
        let bytes = (u64::from_le_bytes(*word) ^ u64::from(register)).to_be_bytes();
        register = bytes.iter().zip(&TABLES).fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)]);
    }
    rest.iter()
        .fold(register, |register, byte| register >> 8 ^ TABLES[0][usize::from(register as u8 ^ *byte)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn both_methods_give_the_same() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let lengths = (0..700).chain(4000..4200).chain([8192, 65_535, 65_536, 69_999]);
        for (len, crc) in lengths.zip((0_u32..).map(|i| i.wrapping_mul(0x9e37_79b9))) {
            for start in [0, 1] {
                let parts = [&bytes[..start + len / 9], &bytes[start..start + len]];
                let right = update_by(Method::Multiply, crc, parts);
                assert_eq!(update_by(Method::Words, crc, parts), right, "{len} bytes from {start} on");
            }
        }
    }

    #[test]
    fn the_value_that_the_definition_has() {
        // "123456789" (the check value of the catalogue of CRCs), and after 591 zeroes: by zlib.
        assert_eq!(update_by(Method::Words, 0, [b"123456789"]), 0xcbf4_3926);
        let mut bytes = [0; 600];
        bytes[591..].copy_from_slice(b"123456789");
        assert_eq!(update_by(Method::Words, 0, [&bytes]), 0x5a10_8fab);
    }
}
