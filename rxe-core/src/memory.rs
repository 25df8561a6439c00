//! Application memory as the protocol sees it. A caller lends it for one call; it is never stored. Each access says which queue
//! pair asks, so that keys, ranges and rights are checked where the bytes are.

use crate::{
    num::{Key, Qpn},
    work::{Access, BindWindow, PdId},
};
use thiserror::Error;

/// The queue pair that accesses memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// The queue pair. A type 2 window may be used by one queue pair only.
    pub qpn: Qpn,
}

/// Why an access to memory failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AccessError {
    /// No region or window has this key.
    #[error("key {0:?} names no region or window")]
    UnknownKey(Key),
    /// The region or window belongs to another protection domain, or the window to another queue pair.
    #[error("key {0:?} belongs to another protection domain or queue pair")]
    NotYours(Key),
    /// The region does not grant this right.
    #[error("the region does not grant {0:?}")]
    Denied(Access),
    /// The range is not inside the region.
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
    /// The region allows the access, but the application has taken the memory away (unmapped, made read-only, truncated).
    #[error("memory at {0:#x} is gone")]
    Fault(u64),
}

/// Registered memory. Implementations check key, protection domain, rights and range on every call, and write in the order that
/// [`Memory::write`] promises. The other calls are optional: by default they refuse every key.
pub trait Memory {
    /// Checks an access without reading or writing. A `len` of 0 is always allowed.
    ///
    /// # Errors
    /// Why the access would fail.
    fn check(&self, asker: Asker, key: Key, addr: u64, len: u64, need: Access) -> Result<(), AccessError>;

    /// Copies bytes out of registered memory. `need` is empty for local reads, [`Access::REMOTE_READ`] for a peer's.
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

    /// Copies bytes into registered memory in rising address order. The last byte is stored after all others, with release ordering,
    /// because programs poll it. `need` is [`Access::LOCAL_WRITE`] or [`Access::REMOTE_WRITE`].
    ///
    /// # Errors
    /// Why nothing, or not all, was written.
    fn write(&self, asker: Asker, key: Key, addr: u64, need: Access, data: &[u8]) -> Result<(), AccessError>;

    /// Stores `swap` if the 8 bytes (native byte order) equal `compare`. Returns the original value. Needs
    /// [`Access::REMOTE_ATOMIC`].
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

    /// Adds to the 8 bytes (native byte order, wrapping). Returns the original value. Needs [`Access::REMOTE_ATOMIC`].
    ///
    /// # Errors
    /// Why it was not done.
    fn fetch_add(&self, _asker: Asker, key: Key, _addr: u64, _add: u64) -> Result<u64, AccessError> {
        Err(AccessError::UnknownKey(key))
    }

    /// Stores 8 bytes in one piece, with release ordering. Needs [`Access::REMOTE_WRITE`].
    ///
    /// # Errors
    /// Why it was not done.
    fn atomic_write(&self, _asker: Asker, key: Key, _addr: u64, _value: [u8; 8]) -> Result<(), AccessError> {
        Err(AccessError::UnknownKey(key))
    }

    /// Makes earlier writes to a range (or with `whole` to the whole region) visible or persistent. `need` is
    /// one or both of [`Access::FLUSH_GLOBAL`] and [`Access::FLUSH_PERSISTENT`].
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

    /// Invalidates a type 2 window, or a region that allows it. `remote`: because of a peer's SEND with invalidate, not of a local
    /// request.
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
