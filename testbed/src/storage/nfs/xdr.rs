//! External data representation (RFC 4506): big-endian words of 4 bytes, and byte strings padded to whole words.

use crate::storage::link::LinkError;

/// The text ends too early, or contains an invalid length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message that ends too soon, or says a wrong length")]
pub struct XdrError;

impl From<XdrError> for LinkError {
    fn from(error: XdrError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// The number of padding bytes that complete `len` bytes to a whole word.
#[must_use]
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() % 4
}

/// Writes values one after the other.
#[derive(Clone, Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// An unsigned integer, an enumeration, or a boolean.
    pub fn word(&mut self, value: impl Into<u32>) -> &mut Self {
        self.0.extend_from_slice(&value.into().to_be_bytes());
        self
    }

    /// An unsigned hyper integer.
    pub fn long(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Bytes of a length that both ends know.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len() + padding(bytes.len()), 0);
        self
    }

    /// Bytes preceded by their length.
    pub fn opaque(&mut self, bytes: &[u8]) -> &mut Self {
        self.word(bytes.len() as u32).fixed(bytes)
    }
}

/// Reads values one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader of these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes that have not been read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// An unsigned integer or an enumeration.
    ///
    /// # Errors
    /// [`XdrError`] at the end.
    pub fn word(&mut self) -> Result<u32, XdrError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(XdrError)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*word))
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`XdrError`] at the end, or for other numbers than 0 and 1.
    pub fn flag(&mut self) -> Result<bool, XdrError> {
        match self.word()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(XdrError),
        }
    }

    /// An unsigned hyper integer.
    ///
    /// # Errors
    /// [`XdrError`] at the end.
    pub fn long(&mut self) -> Result<u64, XdrError> {
        Ok(u64::from(self.word()?) << 32 | u64::from(self.word()?))
    }

    /// `len` bytes.
    ///
    /// # Errors
    /// [`XdrError`] at the end.
    pub fn fixed(&mut self, len: usize) -> Result<&'a [u8], XdrError> {
        let whole = len.checked_add(padding(len)).ok_or(XdrError)?;
        let bytes = self.0.get(..len).ok_or(XdrError)?;
        self.0 = self.0.get(whole..).ok_or(XdrError)?;
        Ok(bytes)
    }

    /// Bytes preceded by their length, `most` bytes at most.
    ///
    /// # Errors
    /// [`XdrError`] at the end, or if there are more.
    pub fn opaque(&mut self, most: usize) -> Result<&'a [u8], XdrError> {
        let len = self.word()? as usize;
        if len > most {
            return Err(XdrError);
        }
        self.fixed(len)
    }

    /// A set of bits preceded by its number of words. Bits from 64 on are dropped.
    ///
    /// # Errors
    /// [`XdrError`] at the end, or for more than 8 words.
    pub fn bits(&mut self) -> Result<u64, XdrError> {
        let words = self.word()?;
        if words > 8 {
            return Err(XdrError);
        }
        let mut bits = 0;
        for place in 0..words {
            let word = u64::from(self.word()?);
            if place < 2 {
                bits |= word << (32 * place);
            }
        }
        Ok(bits)
    }
}

impl Writer {
    /// A set of bits, as two words.
    pub fn bits(&mut self, bits: u64) -> &mut Self {
        self.word(2_u32).word(bits as u32).word((bits >> 32) as u32)
    }
}
