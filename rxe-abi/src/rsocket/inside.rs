//! Calls by handlers of signals. POSIX lists send, recv, read and write among the functions that a handler may call. Ours take locks,
//! which the interrupted thread may hold. To block signals while they are held would take two system calls, a seventh of a small
//! message's time.

use crate::border::{Errno, Result};
use core::cell::Cell;
use rxe_cancel::{Asleep, is_asleep};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is in a function of rsockets while this exists.
#[derive(Debug)]
pub(super) struct Inside {
    /// Whether a handler calls, and has interrupted another call's sleep.
    pub(super) nested: bool,
    /// A handler that interrupts this one must not take it for that sleep.
    _awake: Option<Asleep>,
}

impl Inside {
    /// To be called before any lock is taken.
    ///
    /// # Errors
    /// EAGAIN in a handler that has interrupted such a function, unless that sleeps and so holds no locks.
    pub(super) fn enter() -> Result<Self> {
        let nested = INSIDE.get();
        if nested && !is_asleep() {
            return Err(Errno(libc::EAGAIN));
        }
        INSIDE.set(true);
        Ok(Self { nested, _awake: nested.then(|| Asleep::set(false)) })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.nested);
    }
}
