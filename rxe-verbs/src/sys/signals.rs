//! Blocking signals in a thread.

use super::poll::Interrupted;
use nix::{
    errno::Errno,
    poll::ppoll,
    sys::{
        signal::{SigSet, Signal},
        time::TimeSpec,
    },
};

/// All signals except those that a thread's own instructions raise. These stay open, because a copy from memory that is gone must
/// reach the handler that turns the fault into an error.
fn others() -> SigSet {
    let mut set = SigSet::all();
    for fault in
        [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS]
    {
        set.remove(fault);
    }
    set
}

/// Blocks every signal in the calling thread except those of its own instructions. So the program's handlers run in the program's
/// own threads only.
pub fn block_signals() {
    // Fails for an invalid `how` only.
    let _ = others().thread_block();
}

/// Blocks the calling thread's signals while it lives. So a signal that comes between a check and a sleep is not missed:
/// [`Self::deliver`] reports it.
#[derive(Debug)]
pub(crate) struct Held {
    before: SigSet,
}

impl Held {
    pub(crate) fn new() -> Self {
        let before = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
        block_signals();
        Self { before }
    }

    /// Lets the program's handlers run for signals that have come meanwhile.
    ///
    /// # Errors
    /// [`Interrupted`] if a handler ran, as from a call that waits.
    pub(crate) fn deliver(&self) -> Result<(), Interrupted> {
        match ppoll(&mut [], Some(TimeSpec::new(0, 0)), Some(self.before)) {
            Err(Errno::EINTR) => Err(Interrupted),
            _ => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Fails for an invalid `how` only.
        let _ = self.before.thread_set_mask();
    }
}
