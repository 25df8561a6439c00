//! Protects a forked child from its parent's objects: it must neither use them nor keep their descriptors open
//! (`pthread_atfork(3)`).
//!
//! In the child every tracked descriptor is replaced by one of `/dev/null`. So the objects that own them can be used and dropped
//! without harm, and nothing of the parent stays open. If the program has put another file behind a tracked number, that file
//! is left alone.
//!
//! Objects also remember the fork generation in which they were made, and compare it ([`is_own`]).

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

/// Most descriptors that can be tracked. Further ones stay open in children until `exec`.
const CAPACITY: usize = 2048;
/// Value of `Entry::fd`: no descriptor.
const FREE: i32 = -1;
/// Value of `Entry::fd`: the entry is being filled in.
const TAKEN: i32 = -2;

/// A descriptor's number, and the identity of the open file (device and inode), which tells it from another file.
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

/// Device and inode of the file that is open under a number. `None` if none is. Async-signal-safe.
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
/// The descriptor that replaces others in children. Null until the library is first used.
static NULL: AtomicPtr<Null> = AtomicPtr::new(null_mut());
/// The present generation, see [`generation`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Runs in each forked child. Makes only async-signal-safe calls: locks that other threads of the parent held are never released
/// here.
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
            // SAFETY: `fd` is ours. Its owner checks whether it is intact, so it sees that it is closed.
            let _ = unsafe { libc::close(fd) };
        }
    }
}

/// A descriptor of `/dev/null`, if it could be opened, and its device and inode.
struct Null {
    fd: Option<OwnedFd>,
    identity: (u64, u64),
}

/// Registers [`in_child`] at the first use of the library. No thread waits for another here, because a child may be forked in the
/// middle of it. Threads that call this at the same time may register the function several times. Then each fork counts several
/// times, which does no harm.
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

/// The fork generation: 0 in the process that first used the library, larger in each child than in its parent. An object that
/// remembers another number belongs to a parent.
pub(crate) fn generation() -> u32 {
    register();
    FORKS.load(Ordering::Relaxed)
}

/// Whether an object made in `generation` belongs to this process. Costs a load and a comparison.
pub(crate) fn is_own(generation: u32) -> bool {
    FORKS.load(Ordering::Relaxed) == generation
}

/// A descriptor that is replaced in children, and that can be told from another file that gets its number.
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

    /// Whether the number still belongs to the same file, or in a forked child to its replacement. The program may have closed the
    /// descriptor, and opened another file that got its number.
    pub(crate) fn is_intact(&self) -> bool {
        let wanted = self.place.map_or(self.identity, |place| Some(TRACKED[place].identity()));
        wanted.is_some() && identity(self.fd) == wanted
    }

    /// Stops tracking. To be called before the descriptor is closed.
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
