//! Signal masks that hold while a call waits (pselect(2) and its like). Programs block a signal, look whether it has come, and have the
//! call let it through: one that comes in between must end the wait, and not be handled before it.
//!
//! The drop-in's calls know no masks. So signals that the new mask lets through stay blocked, and a descriptor of
//! signalfd(2) that is waited for beside the others tells when one of them is there.

use crate::{
    calls::{errno, real_close, set_errno},
    time::Until,
};
use core::{ffi::c_int, mem::MaybeUninit, ptr};
use libc::sigset_t;

/// Signals of Linux.
const MOST: c_int = 64;

/// The masks of a call.
struct Masks {
    before: sigset_t,
    new: *const sigset_t,
    /// What only the new one lets through.
    awaited: sigset_t,
}

impl Masks {
    /// Blocks what the new mask blocks, and nothing else yet.
    unsafe fn block(new: *const sigset_t) -> Self {
        let (mut before, mut awaited) =
            (MaybeUninit::<sigset_t>::zeroed(), MaybeUninit::<sigset_t>::zeroed());
        // SAFETY: the program's set, and places of ours, for which zeros are valid.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, new, before.as_mut_ptr());
            libc::sigemptyset(awaited.as_mut_ptr());
            for signal in 1..=MOST {
                if libc::sigismember(before.as_ptr(), signal) == 1 && libc::sigismember(new, signal) == 0 {
                    libc::sigaddset(awaited.as_mut_ptr(), signal);
                }
            }
            Self { before: before.assume_init(), new, awaited: awaited.assume_init() }
        }
    }

    fn is_awaited(&self, signal: c_int) -> bool {
        // SAFETY: a set of ours.
        unsafe { libc::sigismember(&raw const self.awaited, signal) == 1 }
    }

    /// A descriptor that is readable while an awaited signal is pending for this thread. -1 if there can be none, or none is needed.
    fn descriptor(&self) -> c_int {
        if !(1..=MOST).any(|signal| self.is_awaited(signal)) {
            return -1;
        }
        // SAFETY: a set of ours.
        unsafe { libc::signalfd(-1, &raw const self.awaited, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }
    }

    /// Whether a handler is going to run when the signals are let through. Others do not end a wait.
    fn is_handled(&self) -> bool {
        let mut pending = MaybeUninit::<sigset_t>::zeroed();
        // SAFETY: a place of ours, for which zeros are valid.
        unsafe { libc::sigpending(pending.as_mut_ptr()) };
        (1..=MOST).any(|signal| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: places of ours, for which zeros are valid; nothing is changed.
            self.is_awaited(signal)
                && unsafe {
                    libc::sigismember(pending.as_ptr(), signal) == 1
                        && libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
                        && !matches!(action.assume_init().sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
                }
        })
    }

    /// Lets awaited signals through: those that are pending are handled now.
    fn open(&self) {
        // SAFETY: the program's set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, self.new, ptr::null_mut()) };
    }

    fn close(&self) {
        // SAFETY: a set of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const self.awaited, ptr::null_mut()) };
    }

    /// Handles what is pending. True if that ends the wait.
    fn handle(&self) -> bool {
        let is_handled = self.is_handled();
        self.open();
        self.close();
        is_handled
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        // SAFETY: a set of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

fn interrupted() -> c_int {
    set_errno(libc::EINTR);
    -1
}

/// Waits under a mask, or under none if it is null. `wait` is given a descriptor to wait for besides, which may be negative, and the
/// milliseconds. It returns what the call does, and whether that descriptor is readable, which does not count.
///
/// # Safety
/// The mask is the program's.
pub(crate) unsafe fn masked(
    mask: *const sigset_t,
    timeout: c_int,
    mut wait: impl FnMut(c_int, c_int) -> (c_int, bool),
) -> c_int {
    if mask.is_null() {
        return wait(-1, timeout).0;
    }
    // SAFETY: the caller's promise.
    let masks = unsafe { Masks::block(mask) };
    let beside = masks.descriptor();
    if beside < 0 {
        return masked_without_descriptor(&masks, timeout, |timeout| wait(-1, timeout).0);
    }
    let until = Until::after(timeout);
    let done = loop {
        let (done, is_there) = wait(beside, until.left());
        if done != 0 || !is_there {
            break done;
        }
        if masks.handle() {
            break interrupted();
        }
    };
    let why = errno();
    // SAFETY: ours.
    unsafe { real_close(beside) };
    drop(masks);
    set_errno(why);
    done
}

/// The same for a `wait` that cannot wait for one more descriptor. What is pending at first is noticed. A signal that comes
/// later ends the sleep; one that comes just before the thread sleeps is handled, but does not.
///
/// # Safety
/// The mask is the program's.
pub(crate) unsafe fn masked_alone(
    mask: *const sigset_t,
    timeout: c_int,
    mut wait: impl FnMut(c_int) -> c_int,
) -> c_int {
    if mask.is_null() {
        return wait(timeout);
    }
    // SAFETY: the caller's promise.
    masked_without_descriptor(&unsafe { Masks::block(mask) }, timeout, wait)
}

fn masked_without_descriptor(masks: &Masks, timeout: c_int, mut wait: impl FnMut(c_int) -> c_int) -> c_int {
    // As in the system, what is ready comes before signals.
    let done = wait(0);
    if done != 0 {
        return done;
    }
    if masks.handle() {
        return interrupted();
    }
    if timeout == 0 {
        return 0;
    }
    masks.open();
    let done = wait(timeout);
    masks.close();
    done
}
