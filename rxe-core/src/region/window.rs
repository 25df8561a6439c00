//! Memory windows: binding and invalidating (IBTA vol. 1, 10.6.7). Both give the window as it is afterwards and change
//! nothing themselves, so that the table can store the outcome in one step.

use super::{CHANGING, Kind, REMOTE, Region};
use crate::{
    memory::{AccessError, Asker},
    num::{Key, Qpn},
    work::{Access, BindWindow, PdId},
};
use thiserror::Error;

/// Kind of memory window (ibv_mw_type).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WindowType {
    /// Any queue pair of its domain may use it; bound by a verb of its own, again and again; the provider makes its keys.
    One,
    /// Only the queue pair it was bound on may use it (type 2B); bound by a work request, invalidated before it is bound
    /// again; the consumer chooses the key's tag.
    Two,
}

/// What a window is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// L_Key of the region.
    pub region: Key,
    /// The window's first byte in that region's bytes.
    pub offset: u64,
    /// The one queue pair that may use it: type 2 only.
    pub qpn: Option<Qpn>,
}

/// Why a window was not bound; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BindError {
    /// The key is not this window's, or not a window's.
    #[error("key {0:?} names no window")]
    NotAWindow(Key),
    /// The region's key is not its present one, or is a window's.
    #[error("key {0:?} names no region")]
    NotARegion(Key),
    /// Queue pair, window and region are not of one protection domain.
    #[error("queue pair, window and region are not in one protection domain")]
    Domain,
    /// A bound type 2 window must be invalidated first.
    #[error("the type 2 window is bound already")]
    Bound,
    /// Type 2 windows are unbound by invalidating, not by binding to nothing.
    #[error("a type 2 window cannot be bound to no bytes")]
    Empty,
    /// The region was registered without [`Access::MW_BIND`], or is zero-based.
    #[error("the region does not take windows")]
    NotBindable,
    /// The window would let peers change what the region's owner may not.
    #[error("remote write and atomic rights need a region with the local write right")]
    Rights,
    /// The window would have rights that are no window's.
    #[error("{0:?} is no right of a window")]
    NotRemote(Access),
    /// Not inside the region.
    #[error("{len} bytes at {addr:#x} are not inside the region")]
    Range {
        /// First byte asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
    },
}

impl BindError {
    /// The same in the words of [`crate::memory::Memory`], for the bind request `bind`.
    #[must_use]
    pub const fn as_access_error(self, bind: &BindWindow) -> AccessError {
        match self {
            Self::NotAWindow(key) | Self::NotARegion(key) => AccessError::UnknownKey(key),
            Self::Domain | Self::Bound => AccessError::NotYours(bind.window),
            Self::NotBindable => AccessError::Denied(Access::MW_BIND),
            Self::Rights => AccessError::Denied(Access::LOCAL_WRITE),
            Self::NotRemote(access) => AccessError::Denied(access),
            Self::Empty => AccessError::Range { addr: bind.addr, len: 0 },
            Self::Range { addr, len } => AccessError::Range { addr, len },
        }
    }
}

impl Region {
    /// A fresh window (ibv_alloc_mw): unbound, grants nothing.
    #[must_use]
    pub const fn window(key: Key, pd: PdId, window: WindowType) -> Self {
        let kind = Kind::Window { window, binding: None };
        Self { key, pd, addr: 0, len: 0, access: Access::empty(), kind }
    }

    /// The region that a bound window lies in, by L_Key; `None` for memory and unbound windows.
    #[must_use]
    pub const fn bound_to(&self) -> Option<Key> {
        match self.kind {
            Kind::Window { binding: Some(binding), .. } => Some(binding.region),
            _ => None,
        }
    }

    /// Binds this window, on behalf of the queue pair `asker`, to `region`: what `bind.region` names, `None` if it names
    /// nothing (allowed only when `bind.len` is 0). Gives the window afterwards. Its index is its own: of the new key only
    /// the tag counts, as with kernel rxe and cards, so that programs may give the tag alone. A type 1 window bound to no bytes is
    /// unbound, and its old key dead.
    ///
    /// # Errors
    /// [`BindError`] says which rule it breaks.
    pub fn bind(&self, asker: Asker, bind: &BindWindow, region: Option<&Self>) -> Result<Self, BindError> {
        let Kind::Window { window, binding } = self.kind else {
            return Err(BindError::NotAWindow(bind.window));
        };
        if bind.window != self.key {
            return Err(BindError::NotAWindow(bind.window));
        }
        let key = self.key.with_tag(bind.new_rkey.tag());
        if asker.pd != self.pd {
            return Err(BindError::Domain);
        }
        match window {
            WindowType::One if bind.len == 0 => return Ok(Self::window(key, self.pd, window)),
            WindowType::Two if binding.is_some() => return Err(BindError::Bound),
            WindowType::Two if bind.len == 0 => return Err(BindError::Empty),
            _ => {}
        }
        let offset = place(self.pd, bind, region)?;
        let qpn = (window == WindowType::Two).then_some(asker.qpn);
        Ok(Self {
            key,
            pd: self.pd,
            addr: if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr },
            len: bind.len,
            access: bind.access - Access::LOCAL_WRITE,
            kind: Kind::Window { window, binding: Some(Binding { region: bind.region, offset, qpn }) },
        })
    }

    /// Invalidates the key, by a local work request or because the peer's SEND says so, which is the same: possible for
    /// type 2 windows, by the queue pair they are bound on; one that is not bound stays so (as with kernel rxe).
    /// Registered memory and type 1 windows cannot be invalidated by anyone. Gives the window afterwards: unbound, its
    /// key kept until it is bound again.
    ///
    /// # Errors
    /// [`AccessError`] says which rule it breaks.
    pub fn invalidate(&self, asker: Asker, key: Key) -> Result<Self, AccessError> {
        if key != self.key {
            return Err(AccessError::UnknownKey(key));
        }
        let Kind::Window { window: window @ WindowType::Two, binding } = self.kind else {
            return Err(AccessError::Denied(Access::empty()));
        };
        if asker.pd != self.pd || binding.is_some_and(|binding| binding.qpn != Some(asker.qpn)) {
            return Err(AccessError::NotYours(key));
        }
        Ok(Self::window(self.key, self.pd, window))
    }
}

/// Judges the region's side of a bind; gives the window's offset in it.
fn place(pd: PdId, bind: &BindWindow, region: Option<&Region>) -> Result<u64, BindError> {
    let region = region
        .filter(|region| region.key == bind.region && region.kind == Kind::Memory)
        .ok_or(BindError::NotARegion(bind.region))?;
    if region.pd != pd {
        return Err(BindError::Domain);
    }
    if !region.access.contains(Access::MW_BIND) || region.access.contains(Access::ZERO_BASED) {
        return Err(BindError::NotBindable);
    }
    // Programs give the local write right along with the remote one; a window has no local rights, so it means nothing.
    let strange = bind.access - REMOTE - Access::ZERO_BASED - Access::LOCAL_WRITE;
    if !strange.is_empty() {
        return Err(BindError::NotRemote(strange));
    }
    if bind.access.intersects(CHANGING) && !region.access.contains(Access::LOCAL_WRITE) {
        return Err(BindError::Rights);
    }
    let range = BindError::Range { addr: bind.addr, len: bind.len };
    let offset = bind.addr.checked_sub(region.addr).ok_or(range)?;
    if bind.len > region.len || offset > region.len - bind.len {
        return Err(range);
    }
    Ok(offset)
}
