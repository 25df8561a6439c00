//! Memory windows: binding and invalidating (IBTA vol. 1, 10.6.7). Both return the window as it is afterwards and change
//! nothing, so that the table can store the result in one step.

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
    /// Any queue pair of its protection domain may use it. It is bound by `ibv_bind_mw`, any number of times. The provider makes
    /// its keys.
    One,
    /// Only the queue pair on which it was bound may use it (type 2B). It is bound by a work request, and must be invalidated before
    /// it is bound again. The consumer chooses the key's tag.
    Two,
}

/// What a window is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    /// L_Key of the region.
    pub region: Key,
    /// The window's first byte in that region's bytes.
    pub offset: u64,
    /// The one queue pair that may use it. `None` for type 1.
    pub qpn: Option<Qpn>,
}

/// Why a window was not bound. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BindError {
    /// The key is not that of this window, or not that of a window.
    #[error("key {0:?} names no window")]
    NotAWindow(Key),
    /// The key given for the region is not its present one, or is that of a window.
    #[error("key {0:?} names no region")]
    NotARegion(Key),
    /// Queue pair, window and region do not belong to the same protection domain.
    #[error("queue pair, window and region are not in one protection domain")]
    Domain,
    /// A bound type 2 window must be invalidated first.
    #[error("the type 2 window is bound already")]
    Bound,
    /// A bind of length 0 for a type 2 window. Such windows are unbound by invalidation.
    #[error("a type 2 window cannot be bound to no bytes")]
    Empty,
    /// The region was registered without [`Access::MW_BIND`], or is zero-based.
    #[error("the region does not take windows")]
    NotBindable,
    /// The window would let peers change bytes that the region's owner may not change.
    #[error("remote write and atomic rights need a region with the local write right")]
    Rights,
    /// The window would have rights that windows cannot have.
    #[error("{0:?} is no right of a window")]
    NotRemote(Access),
    /// The range is not inside the region.
    #[error("{len} bytes at {addr:#x} are not inside the region")]
    Range {
        /// First byte asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
    },
}

impl BindError {
    /// The error of [`crate::memory::Memory`] that corresponds, for the bind request `bind`.
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
    /// A new window (ibv_alloc_mw). It is unbound and grants nothing.
    #[must_use]
    pub const fn window(key: Key, pd: PdId, window: WindowType) -> Self {
        let kind = Kind::Window { window, binding: None };
        Self { key, pd, addr: 0, len: 0, access: Access::empty(), kind }
    }

    /// L_Key of the region to which a window is bound. `None` for registered memory and for unbound windows.
    #[must_use]
    pub const fn bound_to(&self) -> Option<Key> {
        match self.kind {
            Kind::Window { binding: Some(binding), .. } => Some(binding.region),
            _ => None,
        }
    }

    /// Binds this window for the queue pair `asker` to `region`, which is what `bind.region` names: `None` if it names
    /// nothing (allowed only if `bind.len` is 0). Returns the window as it is afterwards. It keeps its index: of the new key only
    /// the tag counts, as with kernel rxe and cards, so programs may give the tag alone. A type 1 window that is bound to no bytes is
    /// unbound, and its old key is invalid.
    ///
    /// # Errors
    /// [`BindError`] says which rule it breaks.
    pub fn bind(&self, asker: Asker, bind: &BindWindow, region: Option<&Self>) -> Result<Self, BindError> {
        let Kind::Window { window, binding } = self.kind else {
            return Err(BindError::NotAWindow(bind.window));
        };
        // Its tag may be another one. When this bind was posted, earlier binds and invalidations of the window may have waited in the
        // queue; and after a bind that failed, the library names a tag that the window never had.
        if bind.window.index() != self.key.index() {
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

    /// Invalidates the key of a type 2 window, for a local work request or for a peer's SEND with invalidate. Only the queue pair
    /// on which the window is bound may do so. A window that is not bound stays unbound (as with kernel rxe).
    /// Registered memory and type 1 windows cannot be invalidated. Returns the window as it is afterwards: unbound, with its
    /// old key until it is bound again.
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

/// Checks the region's side of a bind. Returns the window's offset in the region.
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
