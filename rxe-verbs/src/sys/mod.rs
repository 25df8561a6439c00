//! System calls, and nearly all of this crate's `unsafe`. The rest of the crate calls safe functions of this module.
//!
//! `usercopy` accesses registered memory without signals, `table` is read without a lock, and `fork` protects forked children from
//! their parent's objects.

pub(crate) mod ahead;
pub(crate) mod alarm;
#[cfg(test)]
pub(crate) mod child;
pub(crate) mod control;
pub(crate) mod descriptor;
pub(crate) mod fork;
pub(crate) mod kept;
pub(crate) mod mapped;
pub(crate) mod message;
pub(crate) mod owned;
pub(crate) mod packet;
pub(crate) mod per_process;
pub(crate) mod poll;
pub(crate) mod process;
pub(crate) mod shared;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod table;
pub(crate) mod unix;
pub(crate) mod usercopy;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A lock whose holder panicked still guards consistent data: nothing panics half way through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
