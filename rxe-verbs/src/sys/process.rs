//! What concerns the process as a whole: work to do at exit, memory brought to storage.

use core::ffi::c_void;
use std::{fs, io, path::PathBuf, sync::OnceLock};

static AT_EXIT: OnceLock<fn()> = OnceLock::new();

extern "C" fn run_at_exit() {
    if let Some(work) = AT_EXIT.get() {
        work();
    }
}

/// Has `work` run when the process exits by returning from `main` or calling `exit(3)`. The first call counts.
pub(crate) fn at_exit(work: fn()) {
    if AT_EXIT.set(work).is_ok() {
        // SAFETY: registers a function that lives as long as the program and does not unwind past C.
        let _ = unsafe { libc::atexit(run_at_exit) };
    }
}

/// Brings the pages of a range to the file they are mapped from (`msync(2)`); anonymous memory has none, which is not an
/// error. Memory that is gone is (`ENOMEM`).
pub(crate) fn sync_to_storage(address: usize, len: usize) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let page = page_size();
    let start = address / page * page;
    // SAFETY: the kernel checks the range, and writes to the file, not to memory.
    let result = unsafe { libc::msync(start as *mut c_void, address - start + len, libc::MS_SYNC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Names the calling thread's network namespace, where /proc is mounted.
pub(crate) fn network_namespace() -> Option<PathBuf> {
    fs::read_link("/proc/thread-self/ns/net").ok()
}

pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1)
}
