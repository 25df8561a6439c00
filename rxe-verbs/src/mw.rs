//! Memory windows (ibv_mw): rights to a part of a region, which work requests grant and withdraw.

use crate::{
    error::RegisterError,
    pd::Pd,
    regions::{self, Entry},
    sys::lock,
};
use rxe_core::{num::Key, region::WindowType};
use std::sync::{Arc, Mutex, MutexGuard};

/// A memory window. Dropping it unbinds it, and returns only when no thread uses it any more.
#[derive(Debug)]
pub struct Mw {
    entry: Arc<Entry>,
    kind: WindowType,
    /// The key that the window has after all binds that were posted so far. For type 1 only.
    posted: Mutex<Key>,
    pd: Pd,
}

impl Mw {
    pub(crate) fn new(pd: &Pd, kind: WindowType) -> Result<Self, RegisterError> {
        let stack = &pd.context().0.stack;
        stack.check()?;
        let table = &stack.table;
        let entry = regions::allocate_window(table, pd.id(), kind).ok_or(RegisterError::Exhausted)?;
        let posted = Mutex::new(entry.key());
        Ok(Self { entry, kind, posted, pd: pd.clone() })
    }

    /// The protection domain.
    #[must_use]
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Its type.
    #[must_use]
    pub const fn kind(&self) -> WindowType {
        self.kind
    }

    /// The present key. For a type 1 window it is the key of the last bind that was posted. For a type 2 window it is the key of
    /// the last bind that was executed; the next bind names it, and has a new tag ([`Key::rotated`]).
    #[must_use]
    pub fn rkey(&self) -> Key {
        match self.kind {
            WindowType::One => *self.posted(),
            WindowType::Two => self.entry.key(),
        }
    }

    /// Locks the key of the last posted bind, so that a bind can change it.
    pub(crate) fn posted(&self) -> MutexGuard<'_, Key> {
        lock(&self.posted)
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let stack = &self.pd.context().0.stack;
        if stack.check().is_ok() {
            regions::remove(&stack.table, &self.entry);
        }
    }
}
