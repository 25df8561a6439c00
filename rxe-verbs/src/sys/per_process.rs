//! A lock for statics that a forked child never finds held by a thread of its parent.

use super::fork::generation;
use core::{
    fmt,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A value behind a lock, for statics. Each process has its own value: a forked child begins with a new one. An ordinary lock could
/// be held by a thread of the parent at the fork. In the child that thread does not exist, so it would never release the lock.
///
/// The parent's value stays in the child's memory as it was at the fork, and is never dropped there.
pub struct PerProcess<T> {
    place: AtomicPtr<Place<T>>,
    make: fn() -> T,
}

struct Place<T> {
    generation: u32,
    value: Mutex<T>,
}

impl<T> PerProcess<T> {
    /// `make` makes the first value of each process.
    pub const fn new(make: fn() -> T) -> Self {
        Self { place: AtomicPtr::new(null_mut()), make }
    }
}

impl<T: Send> PerProcess<T> {
    fn own(&self) -> &Mutex<T> {
        let generation = generation();
        let mut known = self.place.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or what was published below, which is never freed.
            if let Some(place) = unsafe { known.as_ref() }.filter(|place| place.generation == generation) {
                return &place.value;
            }
            let made = Box::into_raw(Box::new(Place { generation, value: Mutex::new((self.make)()) }));
            match self.place.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just made, and never freed from here on.
                Ok(_) => return unsafe { &(*made).value },
                Err(other) => {
                    // SAFETY: just made, and nobody has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    known = other;
                }
            }
        }
    }

    /// Locks this process's value. Waits only for threads of this process. If a thread has panicked with the lock, the value stays as
    /// that thread left it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        super::lock(self.own())
    }

    /// As [`Self::lock`], but `None` if the lock is held. Its holder may be the calling thread itself, if this is a signal handler.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.own().try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(value)) => Some(value.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::child::in_child;

    #[test]
    fn a_child_has_a_value_of_its_own_though_the_parents_was_held_at_the_fork() {
        static NAMES: PerProcess<Vec<u8>> = PerProcess::new(Vec::new);
        let mut held = NAMES.lock();
        held.push(1);
        assert!(NAMES.try_lock().is_none());
        in_child(|| {
            let is_new = NAMES.lock().is_empty();
            NAMES.lock().push(2);
            let stays = NAMES.try_lock().is_some_and(|own| *own == [2]);
            is_new && stays
        });
        assert_eq!(*held, [1]);
        drop(held);
        assert_eq!(*NAMES.lock(), [1]);
    }
}
