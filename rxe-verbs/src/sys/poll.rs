//! Waiting for descriptors (`poll(2)`, `epoll(7)`).

use super::unix::{in_sight, out_of_the_way};
use core::time::Duration;
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        time::TimeSpec,
    },
};
use smallvec::SmallVec;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    sync::OnceLock,
    time::Instant,
};

/// How long a wait lasts if the program has closed one of the descriptors.
const CLOSED_PAUSE: Duration = Duration::from_millis(50);

/// A signal ended the wait.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted;

/// A function by which threads sleep. It works as `ppoll(2)` without a signal mask, but returns an error as its negative number.
pub type Sleep = fn(&mut [libc::pollfd], Option<&libc::timespec>) -> i32;

static SLEEP: OnceLock<Sleep> = OnceLock::new();

/// Makes all threads sleep by `sleep` from now on. A C library needs this if its callers' threads may be cancelled
/// (`pthread_cancel(3)`). Only the first call counts.
pub fn set_sleep(sleep: Sleep) {
    // Fails if a second library in the same process has called before. Its function serves the same purpose.
    let _ = SLEEP.set(sleep);
}

fn sleep(fds: &mut [libc::pollfd], timeout: Option<&libc::timespec>) -> i32 {
    if let Some(sleep) = SLEEP.get() {
        return sleep(fds, timeout);
    }
    let timeout = timeout.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: descriptors of a slice, and a time or null.
    let found = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, ptr::null()) };
    if found < 0 { -Errno::last_raw() } else { found }
}

/// A few descriptors, kept without an allocation, because waits happen in the middle of traffic.
pub(crate) type Fds<'a> = SmallVec<[BorrowedFd<'a>; 4]>;

/// Waits until one of `fds` is readable or the time is over. Bit n of the result says whether descriptor n is ready.
pub(crate) fn wait(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<u32, Interrupted> {
    let watched = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut list: SmallVec<[_; 4]> = fds.iter().map(watched).collect();
    let timeout_spec = timeout.map(|timeout| *TimeSpec::from_duration(timeout).as_ref());
    match sleep(&mut list, timeout_spec.as_ref()) {
        // The program has closed our descriptors. There is nothing to wait for; the pause keeps the caller from spinning.
        0.. if list.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) => {
            std::thread::sleep(CLOSED_PAUSE.min(timeout.unwrap_or(CLOSED_PAUSE)));
            Ok(0)
        }
        0.. => Ok(list.iter().enumerate().fold(0, |bits, (n, fd)| bits | u32::from(fd.revents != 0) << n)),
        error if error == -libc::EINTR => Err(Interrupted),
        // Out of memory, for example. Returns soon, rather than spin or hang.
        _ => {
            std::thread::sleep(Duration::from_millis(1).min(timeout.unwrap_or(Duration::MAX)));
            Ok(0)
        }
    }
}

/// Waits until a descriptor is readable or the time is over, and says whether it is readable. A descriptor that the program has
/// closed is not; then the call returns after at most 50 ms.
///
/// # Errors
/// [`Interrupted`] if a signal arrives.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool, Interrupted> {
    wait(&[fd], timeout).map(|ready| ready != 0)
}

/// Waits as `poll(2)` does, but by the function of [`set_sleep`]. Returns how many descriptors are ready.
///
/// # Errors
/// [`Interrupted`] if a signal arrives.
pub fn wait_for(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize, Interrupted> {
    let timeout_spec = timeout.map(|timeout| *TimeSpec::from_duration(timeout).as_ref());
    match sleep(fds, timeout_spec.as_ref()) {
        error if error == -libc::EINTR => Err(Interrupted),
        // Out of memory: nothing is known, and the caller may try again.
        found => Ok(usize::try_from(found).unwrap_or(0)),
    }
}

/// The point at which a wait ends, if ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout` from now. `None`, or a time too far ahead, means never.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// The time that is left; `None` if the wait never ends.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// One descriptor for several: it is readable while any of them is.
#[derive(Debug)]
pub(crate) struct AnyReadable(Epoll);

impl AnyReadable {
    /// Watches `fds`, level-triggered. A descriptor that is closed leaves the set by itself.
    pub(crate) fn new(fds: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let any = Self(Epoll(out_of_the_way(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?.0)));
        fds.iter().try_for_each(|fd| any.add(*fd))?;
        Ok(any)
    }

    /// As [`Self::new`], for a descriptor on which the program waits ([`in_sight`]).
    pub(crate) fn in_sight(fds: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let any = Self(Epoll(in_sight(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?.0)));
        fds.iter().try_for_each(|fd| any.add(*fd))?;
        Ok(any)
    }

    /// Watches one more descriptor.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Stops watching a descriptor.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.delete(fd)?)
    }
}

/// Whether [`AnyReadable::add`] fails with this error each time: the descriptor is in too many sets (EINVAL), or the sets are too
/// deep (ELOOP; `epoll_ctl(2)`).
pub(crate) fn is_impossible(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ELOOP))
}

impl AsFd for AnyReadable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}
