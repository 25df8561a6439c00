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
/// Peers may change the bytes at any time, so no method gives them out as `&[u8]`. Methods copy them, or access them as
/// atomics, and fail if the memory is gone.
#[derive(Debug)]
pub struct Mr {
    entry: Arc<Entry>,
    bytes: Region,
    key: Key,
    /// Address of the first byte for peers and work requests, unless the region is zero-based.
    iova: u64,
    access: Access,
    /// Address of the first byte in this process.
    memory_addr: u64,
    pd: Pd,
    /// Its share of the limit for locked memory. On-demand memory has none.
    _share: Option<Share>,
    /// Memory that the region owns. It is freed after the entry has been removed from the table (see `drop`).
    _owned: Option<Owned>,
}

/// A range of the caller's memory, for [`Mr::reregister`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// Address of the first byte in this process.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// Address of the first byte for peers and work requests.
    pub iova: u64,
}

impl MemoryRange {
    /// Whether the range touches no page: no bytes, at the start of a page.
    fn is_nothing(&self) -> bool {
        self.len == 0 && self.addr.is_multiple_of(page_size())
    }

    /// Checks that the memory is mapped with the rights that `access` needs. A device that pins memory finds this out at
    /// registration. Our registration does not need it, but C programs may rely on the refusal.
    ///
    /// # Errors
    /// [`RegisterError::NotMapped`].
    pub fn check_mapped(&self, access: Access) -> Result<(), RegisterError> {
        // A window that is bound to the region may allow writing.
        let write = access.intersects(Access::LOCAL_WRITE | Access::MW_BIND);
        if self.is_nothing() || is_mapped(self.addr, self.len, write) {
            return Ok(());
        }
        Err(RegisterError::NotMapped { addr: self.addr as u64, len: self.len as u64 })
    }
}

/// Takes a region's share of the limit for locked memory.
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
        let pd = pd.clone();
        Ok(Self { entry, bytes, key, iova, access, memory_addr, pd, _share: share, _owned: owned })
    }

    /// Deregisters it (ibv_dereg_mr) as dropping does, but fails if that is not possible.
    ///
    /// # Errors
    /// [`RegisterError::Bound`] if memory windows are bound to it. The region comes back with the error.
    #[allow(clippy::result_large_err, reason = "the region comes back")]
    pub fn deregister(self) -> Result<(), (Self, RegisterError)> {
        match &*self.entry {
            Entry::Memory(memory) if !memory.close() => Err((self, RegisterError::Bound)),
            _ => Ok(()),
        }
    }

    /// Changes the protection domain, the memory or the rights of the region, under the same key (ibv_rereg_mr). What is `None`
    /// stays. Peers see the change in one step. On return no thread touches memory that the region no longer has.
    ///
    /// # Errors
    /// [`RegisterError`], for example [`RegisterError::Bound`]. The region is unchanged then.
    ///
    /// # Safety
    /// For new memory as [`Pd::reg_mr_raw`]. Without new memory the call is safe.
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
            None => (self.bytes, self.memory_addr, self.iova),
        };
        let access = access.unwrap_or(self.access);
        let counts_anew = memory.is_some() || (access ^ self.access).contains(Access::ON_DEMAND);
        let share = counts_anew.then(|| share_of(stack, memory_addr, bytes.len(), access)).transpose()?;
        let replaced = regions::replace(&stack.table, &self.entry, pd.id(), iova, bytes, access);
        self.entry = replaced.map_err(|error| match error {
            regions::Replace::Rule(error) => RegisterError::Region(error),
            regions::Replace::Bound => RegisterError::Bound,
        })?;
        (self.bytes, self.memory_addr, self.iova, self.access) = (bytes, memory_addr, iova, access);
        self.pd = pd.clone();
        if let Some(share) = share {
            self._share = share;
        }
        if memory.is_some() {
            self._owned = None;
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

    /// The address of the first byte for peers and work requests.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) { 0 } else { self.iova }
    }

    /// The address of the first byte in this process.
    #[must_use]
    pub const fn memory_addr(&self) -> u64 {
        self.memory_addr
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no bytes. Only a region of the caller's own memory can be empty.
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
        Sge { addr: self.addr().wrapping_add(offset as u64), len, lkey: self.key }
    }

    /// Copies bytes out. A peer may change them during the copy.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), MrError> {
        self.inside(offset, out.len())?;
        let result = self.bytes.read(offset, out).map_err(|_| MrError::Fault);
        // Programs poll one byte and then read the others. Acquire: the later reads see what was stored before that byte.
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

    /// Reads one byte. Programs poll the last byte of a message in this way: it is stored after all others.
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

    /// Reads at most `len` bytes from a descriptor directly into the region (`read(2)`), without an intermediate copy.
    ///
    /// # Errors
    /// The system's error. EFAULT if the range is outside the region, or its memory is gone.
    pub fn read_from(&self, source: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<usize> {
        self.inside(offset, len).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        descriptor::read(source, &self.bytes, offset, len)
    }

    /// Writes a part of the region to a descriptor (`write(2)`), without an intermediate copy. Peers with the right to write may
    /// change the bytes during the call.
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

    /// Reads 8 bytes atomically, in the host's byte order. Their address must be a multiple of 8. The read is also atomic
    /// towards peers' atomics.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn load_u64(&self, offset: usize) -> Result<u64, MrError> {
        self.fetch_add_u64(offset, 0)
    }

    /// Stores 8 bytes atomically and returns the old ones.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn swap_u64(&self, offset: usize, value: u64) -> Result<u64, MrError> {
        self.atomic(offset, Atomic::Swap(value))
    }

    /// Adds to 8 bytes atomically, wrapping, and returns the old ones.
    ///
    /// # Errors
    /// [`MrError`].
    pub fn fetch_add_u64(&self, offset: usize, value: u64) -> Result<u64, MrError> {
        self.atomic(offset, Atomic::FetchAdd(value))
    }

    /// Stores `new` atomically if the 8 bytes are `expected`, and returns the old ones.
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
        // In a forked child nothing is removed: a removal waits for threads that do not exist there.
        if stack.check().is_err() {
            return;
        }
        if let Entry::Memory(memory) = &*self.entry {
            // Windows may still be bound to the region, and live longer. They grant nothing from now on.
            memory.abandon();
        }
        regions::remove(&stack.table, &self.entry);
    }
}
