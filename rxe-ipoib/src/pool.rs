//! Buffers: slots of equal size in one registered region.

use crate::Error;
use rxe_verbs::{Access, Mr, Pd, Sge};

/// Slots start at multiples of this, the size of a cache line.
const ALIGNMENT: usize = 64;

/// A region that is divided into slots, with a list of free ones.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Mr,
    size: usize,
    free: Vec<u32>,
}

impl Pool {
    /// `count` slots for `size` bytes each.
    pub(crate) fn new(pd: &Pd, count: u32, size: usize) -> Result<Self, Error> {
        let size = size.next_multiple_of(ALIGNMENT);
        let memory = pd.alloc_mr(size * count as usize, Access::LOCAL_WRITE)?;
        Ok(Self { memory, size, free: (0..count).rev().collect() })
    }

    /// Takes a free slot.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns a slot.
    pub(crate) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Number of free slots.
    pub(crate) const fn free(&self) -> usize {
        self.free.len()
    }

    /// The region.
    pub(crate) const fn memory(&self) -> &Mr {
        &self.memory
    }

    /// The offset of a slot.
    pub(crate) const fn offset(&self, slot: u32) -> usize {
        slot as usize * self.size
    }

    /// The first `len` bytes of a slot, for work requests.
    pub(crate) fn sge(&self, slot: u32, len: usize) -> Sge {
        self.memory.sge(self.offset(slot), len as u32)
    }

    /// Copies bytes to a slot. They must fit.
    pub(crate) fn write(&self, slot: u32, at: usize, data: &[u8]) {
        // The region is our own memory.
        let _ = self.memory.write_at(self.offset(slot) + at, data);
    }

    /// Copies the first `len` bytes of a slot to `out`, or as many as fit.
    pub(crate) fn read<'a>(&self, slot: u32, at: usize, len: usize, out: &'a mut [u8]) -> &'a [u8] {
        let count = out.len().min(len.min(self.size).saturating_sub(at));
        let out = &mut out[..count];
        let _ = self.memory.read_at(self.offset(slot) + at, out);
        out
    }
}
