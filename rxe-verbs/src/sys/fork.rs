//! What a forked child must not do: use, or keep open, what belongs to its parent (`pthread_atfork(3)`).
//!
//! In the child every tracked descriptor is replaced by one of `/dev/null`, so that the objects which own them can be
//! used and dropped without harm, and nothing of the parent's stays open. A number behind which the program has put
//! something else meanwhile is left alone.

use super::unix::out_of_the_way;
use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
};
use std::{
    fs::File,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::OnceLock,
};

/// Descriptors that can be tracked; more are only closed by `exec`.
const CAPACITY: usize = 2048;
const FREE: i32 = -1;
/// Being filled in.
const TAKEN: i32 = -2;

/// A descriptor's number, and what tells the open file from another one: device and inode.
struct Entry {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Entry {
    const fn new() -> Self {
        Self { fd: AtomicI32::new(FREE), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
    }

    fn identity(&self) -> (u64, u64) {
        (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed))
    }

    fn identify(&self, (device, inode): (u64, u64)) {
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
    }
}

/// What is open under a number; `None` if nothing is. Async-signal-safe.
fn identity(fd: RawFd) -> Option<(u64, u64)> {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes to memory of the right size and alignment.
    if unsafe { libc::fstat(fd, about.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled in, as the call succeeded.
    let about = unsafe { about.assume_init() };
    Some((about.st_dev, about.st_ino))
}

static TRACKED: [Entry; CAPACITY] = [const { Entry::new() }; CAPACITY];
static NULL: Entry = Entry::new();
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Only async-signal-safe calls: other threads' locks may be held for ever here.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let null = NULL.fd.load(Ordering::Acquire);
    let is_there = null >= 0 && identity(null) == Some(NULL.identity());
    for entry in &TRACKED {
        let fd = entry.fd.load(Ordering::Acquire);
        if fd < 0 || identity(fd) != Some(entry.identity()) {
            continue;
        }
        // SAFETY: both are open, and `fd` is ours; it stays a valid descriptor.
        if is_there && unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) } >= 0 {
            entry.identify(NULL.identity());
        } else {
            // SAFETY: `fd` is ours. That it is closed is seen by whoever owns it.
            let _ = unsafe { libc::close(fd) };
        }
    }
}

fn register() {
    static ONCE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    ONCE.get_or_init(|| {
        let null = File::options().read(true).write(true).open("/dev/null").ok().map(OwnedFd::from);
        let null = null.map(out_of_the_way);
        if let Some(fd) = &null {
            NULL.identify(identity(fd.as_raw_fd()).unwrap_or_default());
            NULL.fd.store(fd.as_raw_fd(), Ordering::Release);
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

/// Has a descriptor replaced in children, and knows it from others that get its number.
#[derive(Debug)]
pub(crate) struct Tracked {
    place: Option<usize>,
    fd: RawFd,
    identity: Option<(u64, u64)>,
}

impl Tracked {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Self {
        register();
        let fd = fd.as_raw_fd();
        let identity = identity(fd);
        let place = identity.and_then(|identity| {
            let take = |entry: &Entry| {
                entry.fd.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            let place = TRACKED.iter().position(take)?;
            TRACKED[place].identify(identity);
            TRACKED[place].fd.store(fd, Ordering::Release);
            Some(place)
        });
        Self { place, fd, identity }
    }

    /// Whether the descriptor is still what it was, or in a forked child what has replaced it: the program may have
    /// closed it, and opened something else there.
    pub(crate) fn is_intact(&self) -> bool {
        let wanted = self.place.map_or(self.identity, |place| Some(TRACKED[place].identity()));
        wanted.is_some() && identity(self.fd) == wanted
    }

    /// The descriptor is about to be closed.
    pub(crate) fn release(&mut self) {
        if let Some(place) = self.place.take() {
            TRACKED[place].fd.store(FREE, Ordering::Release);
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.release();
    }
}
