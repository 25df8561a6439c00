//! Signals of threads.

use super::poll::Interrupted;
use nix::{
    errno::Errno,
    poll::ppoll,
    sys::{
        signal::{SigSet, Signal},
        time::TimeSpec,
    },
};

/// All signals but those that a thread's own instructions raise: a copy from memory that is gone must always reach the
/// handler that turns it into an error.
fn others() -> SigSet {
    let mut set = SigSet::all();
    for fault in
        [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS]
    {
        set.remove(fault);
    }
    set
}

/// Blocks every signal in the calling thread but those of its own instructions: the program's handlers run in its own
/// threads.
pub(crate) fn block_signals() {
    // Fails for an invalid `how` only.
    let _ = others().thread_block();
}

/// While it lives the calling thread's signals wait, so that none goes unnoticed between two looks at something else.
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
    /// One did, as in a call that waits.
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
