//! What a forked child must not do: use, or keep open, what belongs to its parent (`pthread_atfork(3)`).
//!
//! In the child every tracked descriptor is replaced by one of `/dev/null`, so that the objects which own them can be
//! used and dropped without harm, and nothing of the parent's stays open. A number behind which the program has put
//! something else meanwhile is left alone.

use super::unix::out_of_the_way;
use core::{
    mem::MaybeUninit,
    ptr::null_mut,
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};
use std::{
    fs::File,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
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
/// What replaces descriptors in children; null until the library is first used.
static NULL: AtomicPtr<Null> = AtomicPtr::new(null_mut());
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Only async-signal-safe calls: other threads' locks may be held for ever here.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: null, or what `register` has published, which is never freed.
    let null = unsafe { NULL.load(Ordering::Acquire).as_ref() };
    let null = null.and_then(|null| Some((null.fd.as_ref()?.as_raw_fd(), null.identity)));
    let null = null.filter(|(fd, known)| identity(*fd) == Some(*known));
    for entry in &TRACKED {
        let fd = entry.fd.load(Ordering::Acquire);
        if fd < 0 || identity(fd) != Some(entry.identity()) {
            continue;
        }
        // SAFETY: both are open, and `fd` is ours; it stays a valid descriptor.
        let replaced = |(null, _)| unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) } >= 0;
        if null.is_some_and(replaced) {
            entry.identify(null.map_or((0, 0), |(_, known)| known));
        } else {
            // SAFETY: `fd` is ours. That it is closed is seen by whoever owns it.
            let _ = unsafe { libc::close(fd) };
        }
    }
}

/// A descriptor of `/dev/null`, where it could be had, and what it is known by.
struct Null {
    fd: Option<OwnedFd>,
    identity: (u64, u64),
}

/// No thread waits for another here: a child may be forked while one is at it. Those that come at once may register the function
/// more than once, which only counts a fork more than once.
fn register() {
    if !NULL.load(Ordering::Acquire).is_null() {
        return;
    }
    let fd = File::options().read(true).write(true).open("/dev/null").ok().map(OwnedFd::from);
    let fd = fd.map(out_of_the_way);
    let identity = fd.as_ref().and_then(|fd| identity(fd.as_raw_fd())).unwrap_or_default();
    // SAFETY: registers a function that lives as long as the program and does not unwind.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    let made = Box::into_raw(Box::new(Null { fd, identity }));
    if NULL.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // SAFETY: just made, and nobody has seen it.
        drop(unsafe { Box::from_raw(made) });
    }
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
