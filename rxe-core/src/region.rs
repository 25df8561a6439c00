//! The rules of memory regions and windows, without the memory: which queue pair may access which bytes by which key, how windows
//! are bound and invalidated, how keys are made (IBTA vol. 1, 10.6). A table of regions has the bytes, and asks here.
//!
//! A window has no bytes of its own. It grants access at an offset into the region that it is bound to. The table must check that
//! this region ([`Binding::region`]) is still registered, and refuses to deregister a region to which windows are bound.

mod window;

#[cfg(test)]
mod tests;

pub use window::{BindError, Binding, WindowType};

use crate::{
    memory::{AccessError, Asker},
    num::Key,
    work::{Access, PdId},
};
use thiserror::Error;

/// Rights that only peers use.
const REMOTE: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// Remote rights that change bytes. A region may give them only if it also gives the local write right (IBTA vol. 1, 10.6.3.1).
const CHANGING: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// Why a region was not registered (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RegionError {
    /// The last byte would lie beyond the end of the address space.
    #[error("{len} bytes at {addr:#x} go beyond the end of the address space")]
    Range {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// A peer could change the bytes, but the owner could not.
    #[error("remote write and atomic rights need the local write right")]
    Rights,
}

/// What a key stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Registered memory (ibv_reg_mr). Its L_Key and R_Key are the same number.
    Memory,
    /// A memory window (ibv_alloc_mw).
    Window {
        /// Who makes its keys, and who may use it.
        window: WindowType,
        /// What it is bound to; an unbound window grants nothing.
        binding: Option<Binding>,
    },
}

/// A memory region or window: everything that decides about an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its present key.
    pub key: Key,
    /// Protection domain.
    pub pd: PdId,
    /// Address that stands for the first byte (IOVA); 0 if [`Access::ZERO_BASED`].
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// Memory or window.
    pub kind: Kind,
}

impl Region {
    /// Registered memory of `len` bytes that peers and work requests address from `addr` on (ibv_reg_mr_iova). With
    /// [`Access::ZERO_BASED`] they count from 0 and `addr` is ignored.
    ///
    /// # Errors
    /// [`RegionError`] for what verbs refuses with EINVAL.
    pub fn memory(key: Key, pd: PdId, addr: u64, len: u64, access: Access) -> Result<Self, RegionError> {
        let addr = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        if addr.checked_add(len.saturating_sub(1)).is_none() {
            return Err(RegionError::Range { addr, len });
        }
        if access.intersects(CHANGING) && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegionError::Rights);
        }
        Ok(Self { key, pd, addr, len, access, kind: Kind::Memory })
    }

    /// Checks an access to `len` bytes at `addr` by `key`, and returns the offset of its first byte in the region's
    /// own bytes, or for a window in those of the region to which it is bound. `need` is empty for local reads,
    /// [`Access::LOCAL_WRITE`] for local writes, else remote rights. An access to no bytes is always allowed, whatever
    /// the key (IBTA vol. 1, 9.7.5.2.4 asks for no check); its offset means nothing.
    ///
    /// # Errors
    /// [`AccessError`] says which rule it breaks.
    pub fn grant(
        &self,
        asker: Asker,
        key: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, AccessError> {
        if len == 0 {
            return Ok(0);
        }
        let base = self.check(asker, key, need)?;
        let range = AccessError::Range { addr, len };
        let offset = addr.checked_sub(self.addr).ok_or(range)?;
        if len > self.len || offset > self.len - len {
            return Err(range);
        }
        // A binding lies inside its region, so this cannot overflow.
        Ok(base + offset)
    }

    /// Checks an atomic operation on the 8 bytes at `addr`; otherwise like [`Region::grant`].
    ///
    /// # Errors
    /// [`AccessError`] says which rule is broken. That the address is a multiple of 8 is checked first.
    pub fn grant_atomic(&self, asker: Asker, key: Key, addr: u64, need: Access) -> Result<u64, AccessError> {
        if !addr.is_multiple_of(8) {
            return Err(AccessError::Misaligned(addr));
        }
        self.grant(asker, key, addr, 8, need)
    }

    /// Checks an access to all bytes that `key` stands for (FLUSH of a whole region). Returns their offset and length.
    ///
    /// # Errors
    /// [`AccessError`] says which rule it breaks.
    pub fn grant_whole(&self, asker: Asker, key: Key, need: Access) -> Result<(u64, u64), AccessError> {
        Ok((self.check(asker, key, need)?, self.len))
    }

    /// Checks key, domain and rights. Returns the offset at which the region starts in the bytes behind it.
    fn check(&self, asker: Asker, key: Key, need: Access) -> Result<u64, AccessError> {
        if key != self.key {
            return Err(AccessError::UnknownKey(key));
        }
        let base = match self.kind {
            Kind::Memory => 0,
            // A window's key is an R_Key only, and an unbound window's none.
            Kind::Window { binding: None, .. } => return Err(AccessError::UnknownKey(key)),
            Kind::Window { .. } if !need.intersects(REMOTE) => return Err(AccessError::UnknownKey(key)),
            Kind::Window { binding: Some(binding), .. } => {
                if binding.qpn.is_some_and(|qpn| qpn != asker.qpn) {
                    return Err(AccessError::NotYours(key));
                }
                binding.offset
            }
        };
        if asker.pd != self.pd {
            return Err(AccessError::NotYours(key));
        }
        let lacking = need - self.access;
        if lacking.is_empty() { Ok(base) } else { Err(AccessError::Denied(lacking)) }
    }
}

impl Key {
    /// The first key of table entry `index`, 1 to 2^24 - 1. (Entry 0 stays empty, so that no valid key is small.) `seed`
    /// varies the tags, so that a key of one run is rarely valid in the next.
    #[must_use]
    pub const fn first(index: u32, seed: u64) -> Self {
        let mixed = (seed ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self::from_parts(index, (mixed >> 56) as u8)
    }

    /// The next key of the same table entry: its tag is one higher, so a key comes back only after 255 others
    /// (ibv_inc_rkey).
    #[must_use]
    pub const fn rotated(self) -> Self {
        Self::from_parts(self.index(), self.tag().wrapping_add(1))
    }

    /// The key of the same table entry with the tag that the consumer has chosen.
    #[must_use]
    pub const fn with_tag(self, tag: u8) -> Self {
        Self::from_parts(self.index(), tag)
    }
}
