//! Whose memory this is. A child of vfork(2), or of clone(2) with CLONE_VM, has its own descriptors but its parent's memory, where the
//! table is: what it does to its descriptors must not change the table.

use crate::fork;
use core::{
    ffi::c_int,
    sync::atomic::{AtomicI32, Ordering},
};

/// The process's number. Children of fork(2) renew theirs; those of vfork(2) have nothing of their own to renew.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// By the system call: libc may keep the number.
fn current() -> c_int {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as c_int }
}

/// Whether the caller is a child that runs in this process's memory.
pub(crate) fn is_borrowed() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != current()
}

extern "C" fn begin() {
    extern "C" fn child() {
        PROCESS.store(current(), Ordering::Relaxed);
        fork::forget_others();
    }
    // SAFETY: a function that is always there: this library is never unloaded.
    if unsafe { libc::pthread_atfork(None, None, Some(child)) } == 0 {
        child();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
