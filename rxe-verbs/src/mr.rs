//! Memory regions (ibv_mr).

use crate::{
    engine::Stack,
    error::{MrError, RegisterError},
    pd::Pd,
    regions::{self, Entry, locked::Share},
    sys::{
        descriptor,
        mapped::is_mapped,
        owned::Owned,
        process::page_size,
        usercopy::{Atomic, Region},
    },
};
use core::sync::atomic::{Ordering, fence};
use rxe_core::{
    num::Key,
    work::{Access, Sge},
};
use std::{io, os::fd::BorrowedFd, sync::Arc};

/// Registered memory. Dropping it deregisters it, and returns only when no thread touches the bytes any more.
///
/// Peers may change the bytes at any time, so they are never lent as `&[u8]`: they are copied, or read and written as
/// atomics, by methods that fail where the memory is gone.
#[derive(Debug)]
pub struct Mr {
    entry: Arc<Entry>,
    bytes: Region,
    key: Key,
    /// Address by which peers and work requests mean the first byte.
    addr: u64,
    access: Access,
    /// Address of the first byte in this process.
    memory_addr: u64,
    pd: Pd,
    /// Its share of what the process has registered; memory on demand has none.
    _share: Option<Share>,
    /// Freed after the entry is gone.
    _owned: Option<Owned>,
}

/// Memory of the caller's, for [`Mr::reregister`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// Address of the first byte in this process.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// Address by which peers and work requests mean the first byte.
    pub iova: u64,
}

impl MemoryRange {
    /// Whether it touches no page.
    fn is_nothing(&self) -> bool {
        self.len == 0 && self.addr.is_multiple_of(page_size())
    }

    /// Whether the memory is there with what `access` needs, as a device that pins memory would find out when it is
    /// registered. We need not ask; C programs may count on the refusal.
    ///
    /// # Errors
    /// [`RegisterError::NotMapped`].
    pub fn check_mapped(&self, access: Access) -> Result<(), RegisterError> {
        // Windows may be bound to it with rights to write.
        let write = access.intersects(Access::LOCAL_WRITE | Access::MW_BIND);
        if self.is_nothing() || is_mapped(self.addr, self.len, write) {
            return Ok(());
        }
        Err(RegisterError::NotMapped { addr: self.addr as u64, len: self.len as u64 })
    }
}

/// What a region takes of the limit for locked memory.
fn share_of(stack: &Stack, addr: u64, len: usize, access: Access) -> Result<Option<Share>, RegisterError> {
    if access.contains(Access::ON_DEMAND) {
        return Ok(None);
    }
    Share::take(stack.settings.memlock(), addr as usize, len).map(Some)
}

impl Mr {
    pub(crate) fn allocate(
        pd: &Pd,
        len: usize,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Self, RegisterError> {
        if len == 0 {
            return Err(RegisterError::Empty { addr: iova.unwrap_or(0) });
        }
        let owned = Owned::new(len).map_err(|source| RegisterError::Memory { len, source })?;
        let addr = owned.address();
        Self::new(pd, owned.region(), addr, iova.unwrap_or(addr), access, Some(owned))
    }

    /// # Safety
    /// As [`Pd::reg_mr_raw`].
    pub(crate) unsafe fn foreign(
        pd: &Pd,
        addr: usize,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self, RegisterError> {
        if (MemoryRange { addr, len, iova }).is_nothing() {
            return Err(RegisterError::Empty { addr: addr as u64 });
        }
        // SAFETY: promised by the caller for as long as the region lives.
        let bytes = unsafe { Region::new(addr, len) }
            .ok_or(RegisterError::Range { addr: addr as u64, len: len as u64 })?;
        Self::new(pd, bytes, addr as u64, iova, access, None)
    }

    fn new(
        pd: &Pd,
        bytes: Region,
        memory_addr: u64,
        iova: u64,
        access: Access,
        owned: Option<Owned>,
    ) -> Result<Self, RegisterError> {
        let stack = &pd.context().0.stack;
        stack.check()?;
        let share = share_of(&pd.context().0.stack, memory_addr, bytes.len(), access)?;
        let table = &stack.table;
        let entry =
            regions::register(table, pd.id(), iova, bytes, access)?.ok_or(RegisterError::Exhausted)?;
        let key = entry.key();
        let addr = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let pd = pd.clone();
        Ok(Self { entry, bytes, key, addr, access, memory_addr, pd, _share: share, _owned: owned })
    }

    /// Deregisters it (ibv_dereg_mr), as dropping does, and says if that is not possible.
    ///
    /// # Errors
    /// [`RegisterError::Bound`] and the region back if memory windows are bound to it.
    #[allow(clippy::result_large_err, reason = "the region comes back")]
    pub fn deregister(self) -> Result<(), (Self, RegisterError)> {
        match &*self.entry {
            Entry::Memory(memory) if !memory.close() => Err((self, RegisterError::Bound)),
            _ => Ok(()),
        }
    }

    /// Changes what stands behind its key, in one step for peers (ibv_rereg_mr): the protection domain, the memory, the
    /// rights; what is `None` stays. On return no thread touches memory it had before and has no more.
    ///
    /// # Errors
    /// [`RegisterError`], [`RegisterError::Bound`] among them; it is as it was then.
    ///
    /// # Safety
    /// For the new memory as [`Pd::reg_mr_raw`]; without one it is safe.
    pub unsafe fn reregister(
        &mut self,
        pd: Option<&Pd>,
        memory: Option<MemoryRange>,
        access: Option<Access>,
    ) -> Result<(), RegisterError> {
        let pd = pd.unwrap_or(&self.pd);
        let stack = &pd.context().0.stack;
        stack.check()?;
        if !Arc::ptr_eq(stack, &self.pd.context().0.stack) {
            return Err(RegisterError::Stranger);
        }
        let (bytes, memory_addr, iova) = match memory {
            Some(range) if range.is_nothing() => {
                return Err(RegisterError::Empty { addr: range.addr as u64 });
            }
            // SAFETY: promised by the caller.
            Some(MemoryRange { addr, len, iova }) => match unsafe { Region::new(addr, len) } {
                Some(bytes) => (bytes, addr as u64, iova),
                None => return Err(RegisterError::Range { addr: addr as u64, len: len as u64 }),
            },
            None => (self.bytes, self.memory_addr, self.addr),
        };
        let access = access.unwrap_or(self.access);
        let share = memory.map(|range| share_of(stack, range.addr as u64, range.len, access)).transpose()?;
        let replaced = regions::replace(&stack.table, &self.entry, pd.id(), iova, bytes, access);
        self.entry = replaced.map_err(|error| match error {
            regions::Replace::Rule(error) => RegisterError::Region(error),
            regions::Replace::Bound => RegisterError::Bound,
        })?;
        self.addr = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        (self.bytes, self.memory_addr, self.access) = (bytes, memory_addr, access);
        self.pd = pd.clone();
        if let Some(share) = share {
            (self._share, self._owned) = (share, None);
        }
        Ok(())
    }

    /// The protection domain.
    #[must_use]
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The key of local work requests.
    #[must_use]
    pub const fn lkey(&self) -> Key {
        self.key
    }

    /// The key of peers: the same number.
    #[must_use]
    pub const fn rkey(&self) -> Key {
        self.key
    }

    /// The address by which peers and work requests mean the first byte.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Where the first byte is in this process.
    #[must_use]
    pub const fn memory_addr(&self) -> u64 {
        self.memory_addr
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no bytes: only memory of the caller's can.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.len() == 0
    }

    /// Rights.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// A scatter/gather element for `len` bytes from `offset` on. Ranges outside the region make work requests fail.
    #[must_use]
    pub const fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset as u64), len, lkey: self.key }
    }

    /// Copies bytes out, in one piece or while a peer changes them.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), MrError> {
        self.inside(offset, out.len())?;
        let result = self.bytes.read(offset, out).map_err(|_| MrError::Fault);
        // A byte seen before this read was polled before the others are read.
        fence(Ordering::Acquire);
        result
    }

    /// Copies `len` bytes out.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn read_vec(&self, offset: usize, len: usize) -> Result<Vec<u8>, MrError> {
        self.inside(offset, len)?;
        let mut out = vec![0; len];
        self.read_at(offset, &mut out)?;
        Ok(out)
    }

    /// One byte: what programs poll for the arrival of a message, whose last byte is stored after all others.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn load_u8(&self, offset: usize) -> Result<u8, MrError> {
        let mut byte = [0];
        self.read_at(offset, &mut byte)?;
        Ok(byte[0])
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), MrError> {
        self.inside(offset, data.len())?;
        self.bytes.write(offset, data).map_err(|_| MrError::Fault)
    }

    /// Reads from a descriptor straight into the region, `len` bytes at most: `read(2)` without a copy between.
    ///
    /// # Errors
    /// The system's; EFAULT if the range is outside the region, or its memory is gone.
    pub fn read_from(&self, source: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<usize> {
        self.inside(offset, len).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        descriptor::read(source, &self.bytes, offset, len)
    }

    /// Writes a part of the region to a descriptor: `write(2)` without a copy between. Peers with the right to write may
    /// change the bytes meanwhile.
    ///
    /// # Errors
    /// As [`Self::read_from`].
    pub fn write_to(&self, sink: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<usize> {
        self.inside(offset, len).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        descriptor::write(sink, &self.bytes, offset, len)
    }

    /// Sets all bytes.
    ///
    /// # Errors
    /// [`MrError::Fault`].
    pub fn fill(&self, value: u8) -> Result<(), MrError> {
        let chunk = [value; 4096];
        let mut offset = 0;
        while offset < self.len() {
            let len = chunk.len().min(self.len() - offset);
            self.write_at(offset, &chunk[..len])?;
            offset += len;
        }
        Ok(())
    }

    /// Reads the 8 bytes at a multiple of 8 at once, in the host's byte order; atomic towards peers' atomics.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn load_u64(&self, offset: usize) -> Result<u64, MrError> {
        self.fetch_add_u64(offset, 0)
    }

    /// Stores 8 bytes at once; gives the old ones.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn swap_u64(&self, offset: usize, value: u64) -> Result<u64, MrError> {
        self.atomic(offset, Atomic::Swap(value))
    }

    /// Adds to 8 bytes, wrapping; gives the old ones.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn fetch_add_u64(&self, offset: usize, value: u64) -> Result<u64, MrError> {
        self.atomic(offset, Atomic::FetchAdd(value))
    }

    /// Stores `new` if the 8 bytes are `expected`; gives the old ones.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn compare_swap_u64(&self, offset: usize, expected: u64, new: u64) -> Result<u64, MrError> {
        self.atomic(offset, Atomic::CompareSwap { expected, new })
    }

    fn atomic(&self, offset: usize, operation: Atomic) -> Result<u64, MrError> {
        self.inside(offset, 8)?;
        if !(self.memory_addr + offset as u64).is_multiple_of(8) {
            return Err(MrError::Misaligned(offset));
        }
        self.bytes.atomic(offset, operation).map_err(|_| MrError::Fault)
    }

    fn inside(&self, offset: usize, len: usize) -> Result<(), MrError> {
        let size = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(MrError::Range { offset, len, size }),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let stack = &self.pd.context().0.stack;
        // A forked child has a copy of the memory, and none of the threads that a removal waits for.
        if stack.check().is_err() {
            return;
        }
        if let Entry::Memory(memory) = &*self.entry {
            // Windows may still be bound to it, and outlive it.
            memory.abandon();
        }
        regions::remove(&stack.table, &self.entry);
    }
}
