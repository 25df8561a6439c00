//! Memory windows (ibv_mw): rights to a part of a region, given and taken back by work requests.

use crate::{
    error::RegisterError,
    pd::Pd,
    regions::{self, Entry},
};
use rxe_core::{num::Key, region::WindowType};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A memory window. Dropping it unbinds it, and returns only when no thread uses it any more.
#[derive(Debug)]
pub struct Mw {
    entry: Arc<Entry>,
    kind: WindowType,
    /// The key after all binds posted so far: type 1 only.
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

    /// The present key: for a type 1 window that of the last bind posted, for a type 2 window that of the last bind done.
    /// (The next bind of a type 2 window names it, with a new tag: [`Key::rotated`].)
    #[must_use]
    pub fn rkey(&self) -> Key {
        match self.kind {
            WindowType::One => *self.posted(),
            WindowType::Two => self.entry.key(),
        }
    }

    /// The key after all binds posted, while it is being changed.
    pub(crate) fn posted(&self) -> MutexGuard<'_, Key> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
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
