//! What a forked child must not do: use, or keep open, what belongs to its parent (`pthread_atfork(3)`).
//!
//! In the child every tracked descriptor is replaced by one of `/dev/null`, so that the objects which own them can be
//! used and dropped without harm, and nothing of the parent's stays open.

use super::unix::out_of_the_way;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::{
    fs::File,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

/// Descriptors that can be tracked; more are only closed by `exec`.
const CAPACITY: usize = 2048;
const FREE: i32 = -1;

static TRACKED: [AtomicI32; CAPACITY] = [const { AtomicI32::new(FREE) }; CAPACITY];
static NULL: AtomicI32 = AtomicI32::new(FREE);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Only async-signal-safe calls: other threads' locks may be held for ever here.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let null = NULL.load(Ordering::Acquire);
    if null < 0 {
        return;
    }
    for entry in &TRACKED {
        let fd = entry.load(Ordering::Acquire);
        if fd >= 0 {
            // SAFETY: both are open, and `fd` is ours; it stays a valid descriptor.
            let _ = unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) };
        }
    }
}

fn register() {
    static ONCE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    ONCE.get_or_init(|| {
        let null = File::options().read(true).write(true).open("/dev/null").ok().map(OwnedFd::from);
        let null = null.map(out_of_the_way);
        if let Some(fd) = &null {
            NULL.store(fd.as_raw_fd(), Ordering::Release);
        }
        // SAFETY: registers a function that lives as long as the program and does not unwind.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        null
    });
}

/// How often this process, or one that it descends from, has been forked since the library was first used. An object
/// that remembers another number belongs to a parent.
pub(crate) fn generation() -> u32 {
    register();
    FORKS.load(Ordering::Relaxed)
}

/// Whether what was made in `generation` is this process's own: a load and a comparison.
pub(crate) fn is_own(generation: u32) -> bool {
    FORKS.load(Ordering::Relaxed) == generation
}

/// Has a descriptor replaced in children. To be dropped before the descriptor is closed.
#[derive(Debug)]
pub(crate) struct Tracked(Option<usize>);

impl Tracked {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Self {
        register();
        let fd = fd.as_raw_fd();
        let place = TRACKED
            .iter()
            .position(|entry| entry.compare_exchange(FREE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        Self(place)
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            TRACKED[place].store(FREE, Ordering::Release);
        }
    }
}
