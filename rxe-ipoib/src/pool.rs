//! Buffers: slots of one size in one registered region.

use crate::Error;
use rxe_verbs::{Access, Mr, Pd, Sge};

/// Slots start at multiples of this, as cache lines do.
const ALIGNMENT: usize = 64;

/// A region in slots; the free ones are known.
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

    /// A free slot.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// It is free again.
    pub(crate) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// How many are free.
    pub(crate) const fn free(&self) -> usize {
        self.free.len()
    }

    /// The region.
    pub(crate) const fn memory(&self) -> &Mr {
        &self.memory
    }

    /// Where a slot begins.
    pub(crate) const fn offset(&self, slot: u32) -> usize {
        slot as usize * self.size
    }

    /// The first `len` bytes of a slot, for work requests.
    pub(crate) fn sge(&self, slot: u32, len: usize) -> Sge {
        self.memory.sge(self.offset(slot), len as u32)
    }

    /// Copies bytes into a slot; they fit.
    pub(crate) fn write(&self, slot: u32, at: usize, data: &[u8]) {
        // The region is our own memory.
        let _ = self.memory.write_at(self.offset(slot) + at, data);
    }

    /// Copies bytes out of a slot: as many as fit into `out` and are in the slot's first `len`.
    pub(crate) fn read<'a>(&self, slot: u32, at: usize, len: usize, out: &'a mut [u8]) -> &'a [u8] {
        let count = out.len().min(len.min(self.size).saturating_sub(at));
        let out = &mut out[..count];
        let _ = self.memory.read_at(self.offset(slot) + at, out);
        out
    }
}
