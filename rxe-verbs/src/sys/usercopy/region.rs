//! A range of application memory as a value. Making it is unsafe; all use of it is safe.

use super::{Atomic, Fault, atomic, fixup, read, write};

/// A registered range. Accesses are relative to its start and never leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    start: usize,
    len: usize,
}

impl Region {
    /// The range of `len` bytes at address `start`. `None` if it would wrap around the address space.
    ///
    /// # Safety
    /// As long as this value or a copy is used, no Rust reference covers the range, but to atomics. It may be unmapped,
    /// protected or truncated at any time; it must not be reused for something that others rely on.
    pub(crate) unsafe fn new(start: usize, len: usize) -> Option<Self> {
        fixup::prepare();
        start.checked_add(len).map(|_| Self { start, len })
    }

    /// Bytes in the range.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The address at `offset`, if `len` bytes from there on lie inside the range.
    fn at(&self, offset: usize, len: usize) -> Result<usize, Fault> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.start + offset),
            _ => Err(Fault),
        }
    }

    /// Address and length of a part, for system calls: the kernel checks that the memory is mapped.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<(usize, usize), Fault> {
        self.at(offset, len).map(|address| (address, len))
    }

    /// Copies out of the range.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        let address = self.at(offset, out.len())?;
        // SAFETY: promised at creation; inside by the check.
        unsafe { read(address, out) }
    }

    /// Copies into the range, keeping the placement contract.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) -> Result<(), Fault> {
        let address = self.at(offset, data.len())?;
        // SAFETY: promised at creation; inside by the check.
        unsafe { write(address, data) }
    }

    /// Does an atomic operation on the word at `offset`, whose address must be a multiple of eight.
    pub(crate) fn atomic(&self, offset: usize, operation: Atomic) -> Result<u64, Fault> {
        let address = self.at(offset, 8)?;
        // SAFETY: promised at creation; inside by the check.
        unsafe { atomic(address, operation) }
    }
}
