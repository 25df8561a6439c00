//! The CRC-32 of Ethernet, computed by one of two methods with the same result.
//!
//! The crate crc32fast uses the processor's carry-less multiplication of 64 bits, if there is one. If there is none, or if the processor
//! is emulated and so the instruction is slow, another method is faster. CRC-32's polynomial divides 1 + x^145 + x^183 + x^211 + x^300.
//! So a word of the message can be replaced by zero if it is added, shifted, at four later places; the CRC stays the same (the "Chorba"
//! algorithm, arXiv 2412.16398). The CRC of the last words is computed with tables, eight bytes at a time.

use super::gf::times_x;
use core::sync::atomic::{AtomicBool, Ordering};
use crc32fast::Hasher;

/// Size of a word, bytes.
const WORD: usize = 8;
/// A word is added to words that are at most this many places behind it (300 bits).
const REACH: usize = 5;
/// Size of `REACH` words, bytes.
const STRIDE: usize = REACH * WORD;
/// Messages with fewer bytes are computed with tables alone. At least two strides.
const LEAST: usize = 160;

/// Whether CRCs are computed by [`Method::Words`] in this process. The results are the same.
static BY_WORDS: AtomicBool = AtomicBool::new(false);

/// How CRCs are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// By crc32fast: carry-less multiplication if the processor has it.
    Multiply,
    /// By shifting words ("Chorba").
    Words,
}

/// Has all CRCs of the process computed by `method` from now on. Until it is called the method is [`Method::Multiply`].
pub fn use_method(method: Method) {
    BY_WORDS.store(method == Method::Words, Ordering::Relaxed);
}

/// The CRC of some bytes whose CRC is `crc`, followed by `parts`. Computed by the method of [`use_method`].
#[must_use]
#[inline]
pub fn update<const N: usize>(crc: u32, parts: [&[u8]; N]) -> u32 {
    Front::new(crc).update(parts)
}

/// The CRC of bytes that precede every packet. The CRC of each packet continues it, without asking again what the processor can do.
#[derive(Debug)]
pub struct Front {
    crc: u32,
    hasher: Hasher,
}

impl Front {
    /// For bytes whose CRC is `crc`.
    #[must_use]
    #[inline]
    pub fn new(crc: u32) -> Self {
        Self { crc, hasher: Hasher::new_with_initial(crc) }
    }

    /// The CRC of those bytes followed by `parts`. Computed by the method of [`use_method`].
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

/// As [`update`], by this method.
#[must_use]
#[inline]
pub fn update_by<const N: usize>(method: Method, crc: u32, parts: [&[u8]; N]) -> u32 {
    match method {
        Method::Multiply => multiply(Hasher::new_with_initial(crc), parts),
        Method::Words => !parts.iter().fold(!crc, |register, part| by_words(register, part)),
    }
}

/// The CRC register (the CRC's complement) after `bytes`, by shifting words.
#[inline(never)]
fn by_words(register: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LEAST {
        return by_tables(register, bytes);
    }
    // At least one stride is left over: the last words here are added to words in it.
    let (strides, _) = bytes[..bytes.len() - STRIDE].as_chunks::<STRIDE>();
    // What is to be added to the next words, by word number modulo `REACH`.
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

/// `TABLES[n][byte]` is the register after `byte` and `n` zero bytes, if it was 0 before.
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

/// The register after `bytes`, by tables.
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
        // The check value of "123456789" in the catalogue of CRCs, and that of 591 zeroes in front of it (computed by zlib).
        assert_eq!(update_by(Method::Words, 0, [b"123456789"]), 0xcbf4_3926);
        let mut bytes = [0; 600];
        bytes[591..].copy_from_slice(b"123456789");
        assert_eq!(update_by(Method::Words, 0, [&bytes]), 0x5a10_8fab);
    }
}
