//! The program's buffers for what is received.

/// What is left of several buffers, which are filled one after the other.
#[derive(Debug)]
pub(crate) struct Room<'a, 'b> {
    parts: &'a mut [&'b mut [u8]],
    /// Bytes of the first part that were filled.
    at: usize,
    /// Bytes that are left.
    pub(crate) len: usize,
}

impl<'a, 'b> Room<'a, 'b> {
    pub(crate) fn new(parts: &'a mut [&'b mut [u8]]) -> Self {
        let len = parts.iter().map(|part| part.len()).sum();
        Self { parts, at: 0, len }
    }

    /// Fills the next `len` bytes, or what is left, piece by piece: `read` gets the offset of a piece in these bytes. Returns the
    /// number of bytes.
    ///
    /// # Errors
    /// Those of `read`.
    pub(crate) fn fill<E>(
        &mut self,
        len: usize,
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let len = len.min(self.len);
        let mut done = 0;
        while done < len {
            let Some(first) = self.parts.first_mut() else { break };
            let rest = &mut first[self.at..];
            let piece = rest.len().min(len - done);
            read(done, &mut rest[..piece])?;
            (done, self.at, self.len) = (done + piece, self.at + piece, self.len - piece);
            if self.at == first.len() {
                self.parts = core::mem::take(&mut self.parts).split_at_mut(1).1;
                self.at = 0;
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_filled_one_after_the_other() {
        let (mut a, mut b, mut c) = ([0; 2], [0; 5], [0; 1]);
        let mut parts = [&mut [][..], &mut a, &mut b, &mut [], &mut c];
        let mut room = Room::new(&mut parts);
        let mut put = |data: &[u8]| {
            room.fill(data.len(), |at, piece| {
                piece.copy_from_slice(&data[at..at + piece.len()]);
                Ok::<(), ()>(())
            })
        };
        assert_eq!([put(b"012"), put(b"3"), put(b""), put(b"456789")], [Ok(3), Ok(1), Ok(0), Ok(4)]);
        assert_eq!(room.len, 0);
        assert_eq!((&a, &b, &c), (b"01", b"23456", b"7"));
    }

    #[test]
    fn an_error_ends_it() {
        let mut a = [0; 2];
        assert_eq!(Room::new(&mut [&mut a]).fill(2, |_, _| Err("gone")), Err("gone"));
    }
}
