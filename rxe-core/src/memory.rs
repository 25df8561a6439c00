//! Application memory as the protocol sees it. The trait is lent for the length of one call and never stored; every
//! touch names who asks, so that keys, ranges and rights are checked where the bytes are.

use crate::{
    num::{Key, Qpn},
    work::{Access, BindWindow, PdId},
};
use thiserror::Error;

/// On whose behalf memory is touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// The queue pair: type 2 windows belong to one.
    pub qpn: Qpn,
}

/// Why memory was not touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AccessError {
    /// No region or window has this key.
    #[error("key {0:?} names no region or window")]
    UnknownKey(Key),
    /// It belongs to another protection domain or, for a window, another queue pair.
    #[error("key {0:?} belongs to another protection domain or queue pair")]
    NotYours(Key),
    /// The region does not grant this right.
    #[error("the region does not grant {0:?}")]
    Denied(Access),
    /// Outside the region.
    #[error("{len} bytes at {addr:#x} are not inside the region")]
    Range {
        /// First byte asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// An atomic's address is not a multiple of 8.
    #[error("address {0:#x} is not a multiple of 8")]
    Misaligned(u64),
    /// The region is right but the application took the memory away (unmapped, read-only, truncated).
    #[error("memory at {0:#x} is gone")]
    Fault(u64),
}

/// Registered memory. Implementations check the key, the domain, the right and the range on every call, and keep to the
/// placement contract of [`Memory::write`]. Who has nothing but reads and writes need not say more: the other calls refuse
/// every key.
pub trait Memory {
    /// Checks without touching; `len` 0 is always right.
    ///
    /// # Errors
    /// Why an access would fail.
    fn check(&self, asker: Asker, key: Key, addr: u64, len: u64, need: Access) -> Result<(), AccessError>;

    /// Copies out. `need` is empty for local reads, [`Access::REMOTE_READ`] for a peer's.
    ///
    /// # Errors
    /// Why nothing, or not all, was read.
    fn read(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        need: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError>;

    /// Copies in, in rising address order; the last byte is stored with release after all others, because programs
    /// poll it. `need` is [`Access::LOCAL_WRITE`] or [`Access::REMOTE_WRITE`].
    ///
    /// # Errors
    /// Why nothing, or not all, was written.
    fn write(&self, asker: Asker, key: Key, addr: u64, need: Access, data: &[u8]) -> Result<(), AccessError>;

    /// If the 8 bytes (native byte order) equal `compare` stores `swap`; gives the original value. For a peer:
    /// needs [`Access::REMOTE_ATOMIC`].
    ///
    /// # Errors
    /// Why it was not done.
    fn compare_swap(
        &self,
        _asker: Asker,
        key: Key,
        _addr: u64,
        _compare: u64,
        _swap: u64,
    ) -> Result<u64, AccessError> {
        Err(AccessError::UnknownKey(key))
    }

    /// Adds to the 8 bytes (native byte order, wrapping); gives the original value. Needs [`Access::REMOTE_ATOMIC`].
    ///
    /// # Errors
    /// Why it was not done.
    fn fetch_add(&self, _asker: Asker, key: Key, _addr: u64, _add: u64) -> Result<u64, AccessError> {
        Err(AccessError::UnknownKey(key))
    }

    /// Stores 8 bytes at once with release. Needs [`Access::REMOTE_WRITE`].
    ///
    /// # Errors
    /// Why it was not done.
    fn atomic_write(&self, _asker: Asker, key: Key, _addr: u64, _value: [u8; 8]) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(key))
    }

    /// Makes earlier writes to a range (or with `whole` to the whole region) visible or persistent. `need` holds
    /// [`Access::FLUSH_GLOBAL`] and/or [`Access::FLUSH_PERSISTENT`].
    ///
    /// # Errors
    /// Why it was not done.
    fn flush(
        &self,
        _asker: Asker,
        key: Key,
        _range: (u64, u64),
        _whole: bool,
        _need: Access,
    ) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(key))
    }

    /// Binds or unbinds a memory window.
    ///
    /// # Errors
    /// Why it was not done.
    fn bind_window(&self, _asker: Asker, bind: &BindWindow) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(bind.window))
    }

    /// Invalidates a type 2 window or a region that allows it, locally or (`remote`) because the peer's SEND says so.
    ///
    /// # Errors
    /// Why it was not done.
    fn invalidate(&self, _asker: Asker, key: Key, _remote: bool) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(key))
    }
}

/// No memory at all: for calls that only queue or flush work.
pub(crate) struct NoMemory;

impl Memory for NoMemory {
    fn check(&self, _: Asker, key: Key, _: u64, _: u64, _: Access) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(key))
    }

    fn read(&self, _: Asker, key: Key, _: u64, _: Access, _: &mut [u8]) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(key))
    }

    fn write(&self, _: Asker, key: Key, _: u64, _: Access, _: &[u8]) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(key))
    }
}
