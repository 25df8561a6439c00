//! Calls that wait, and signals. In the distribution's libraries such a call is a `read(2)` or `write(2)`, which the kernel restarts
//! after a handler with SA_RESTART (`signal(7)`). We sleep in `ppoll(2)`, which it never restarts, so we do it here. Calls of rsockets
//! are restarted as those of sockets are.

use crate::border::{Errno, Result};
use core::{ffi::c_int, mem::MaybeUninit, ptr};

/// The largest signal number of Linux.
const LAST: c_int = 64;

/// Calls `wait` again as long as handlers with SA_RESTART interrupt it.
pub(crate) fn restarting<T>(wait: impl FnMut() -> Result<T>) -> Result<T> {
    restarting_if(|| true, wait)
}

/// The same if `may` is true, which is asked only after a signal.
pub(crate) fn restarting_if<T>(may: impl Fn() -> bool, mut wait: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match wait() {
            Err(Errno(libc::EINTR)) if !rxe_cancel::is_cancelled() && may() && handlers_restart() => {}
            result => return result,
        }
    }
}

/// Whether all handlers have SA_RESTART. Which of them has run is not known. If there is none, the one that has run has removed itself;
/// programs use such handlers to end a wait.
fn handlers_restart() -> bool {
    // A thread's own instructions raise these, so they do not end a sleep. Handlers for them are often our own.
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    let mut flags = (1..=LAST).filter(|signal| !faults.contains(signal)).filter_map(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a place for the action, for which all zeroes is valid (the default). It fails for signals that glibc keeps for itself.
        let action = unsafe {
            libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        let is_none = matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        (!is_none).then_some(action.sa_flags)
    });
    let restarts = |flags: c_int| flags & libc::SA_RESTART != 0;
    flags.next().is_some_and(restarts) && flags.all(restarts)
}
