//! Cancellation of threads (`pthread_cancel(3)`). Programs cancel threads that wait for events.
//!
//! glibc ends such a thread by unwinding its stack from the next glibc function that is a cancellation point. We call many of
//! these, and Rust's frames must not be unwound that way. So a thread cannot be cancelled while it is inside one of
//! our functions ([`Shield`]). A function that waits is one cancellation point as a whole ([`cancellation_point`]). Only its sleep
//! can be cancelled, in a frame of C (`sleep.c`). The function then returns in the ordinary way, as
//! after a signal, and the thread ends when nothing of ours is left on its stack.

use core::{
    cell::Cell,
    ffi::{c_int, c_void},
    ptr,
};
use std::sync::Once;

const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
/// PTHREAD_CANCELED.
const CANCELED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

// "C-unwind": these two may end the thread.
unsafe extern "C-unwind" {
    safe fn pthread_testcancel();
    safe fn pthread_exit(value: *mut c_void) -> !;
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn rxe_sleep(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec) -> c_int;
}

/// Whether the calling thread may be cancelled while it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    /// No: it is in no function that is a cancellation point, or the program has disabled cancellation.
    Safe,
    /// Yes.
    Cancellable,
    /// It was cancelled, and is returning from our functions.
    Cancelled,
}

thread_local! {
    static THREAD: Cell<Thread> = const { Cell::new(Thread::Safe) };
    static ASLEEP: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread sleeps in one of our functions: then this is a handler of a signal, and the thread holds no locks of ours.
pub fn is_asleep() -> bool {
    ASLEEP.get()
}

/// While this exists, the calling thread counts as asleep, or as awake.
#[derive(Debug)]
pub struct Asleep {
    before: bool,
}

impl Asleep {
    /// Sets what it counts as.
    #[must_use]
    pub fn set(asleep: bool) -> Self {
        Self { before: ASLEEP.replace(asleep) }
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        ASLEEP.set(self.before);
    }
}

/// The thread cannot be cancelled while this exists.
#[derive(Debug)]
pub struct Shield {
    before: c_int,
}

impl Shield {
    /// Shields the calling thread.
    #[must_use]
    pub fn new() -> Self {
        Self { before: set_state(DISABLE) }
    }
}

impl Default for Shield {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        if self.before == ENABLE {
            // This is no cancellation point. A pending cancellation happens at the program's next one.
            set_state(ENABLE);
        }
    }
}

fn set_state(state: c_int) -> c_int {
    let mut before = DISABLE;
    // SAFETY: a valid state, and a place for the previous one.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Runs a function of the library that waits, as a cancellation point. Its callers must hold nothing that has a destructor. If calls
/// are nested, only the outermost one is a cancellation point.
pub fn cancellation_point<T: Copy>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| rxe_verbs::set_sleep(sleep));
    if THREAD.get() != Thread::Safe {
        return work();
    }
    pthread_testcancel();
    let before = set_state(DISABLE);
    if before != ENABLE {
        return work();
    }
    THREAD.set(Thread::Cancellable);
    let result = work();
    if THREAD.replace(Thread::Safe) == Thread::Cancelled {
        pthread_exit(CANCELED);
    }
    set_state(ENABLE);
    result
}

/// Whether the calling thread was cancelled, and is returning from our functions.
pub fn is_cancelled() -> bool {
    THREAD.get() == Thread::Cancelled
}

/// Sleeps for all threads of the library, see [`rxe_verbs::set_sleep`].
fn sleep(fds: &mut [libc::pollfd], timeout: Option<&libc::timespec>) -> c_int {
    let timeout = timeout.map_or(ptr::null(), ptr::from_ref);
    let count = fds.len() as libc::nfds_t;
    let _asleep = Asleep::set(true);
    match THREAD.get() {
        Thread::Safe => {
            // SAFETY: `count` descriptors, and a time or null.
            let found = unsafe { libc::ppoll(fds.as_mut_ptr(), count, timeout, ptr::null()) };
            if found < 0 { -nix::errno::Errno::last_raw() } else { found }
        }
        Thread::Cancellable => {
            // SAFETY: as above. The thread can be cancelled only inside this C function, which then returns as usual.
            let found = unsafe { rxe_sleep(fds.as_mut_ptr(), count, timeout) };
            if found == -libc::ECANCELED {
                THREAD.set(Thread::Cancelled);
                return -libc::EINTR;
            }
            found
        }
        Thread::Cancelled => -libc::EINTR,
    }
}
