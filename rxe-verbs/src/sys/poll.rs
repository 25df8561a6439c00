//! Waiting for descriptors (`poll(2)`, `epoll(7)`).

use super::unix::{in_sight, out_of_the_way};
use core::time::Duration;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        time::TimeSpec,
    },
};
use smallvec::SmallVec;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

/// How long a wait for a closed descriptor lasts.
const CLOSED_PAUSE: Duration = Duration::from_millis(50);

/// A signal ended the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted;

/// A few descriptors: a wait in the middle of traffic allocates nothing.
pub(crate) type Fds<'a> = SmallVec<[BorrowedFd<'a>; 4]>;

/// Waits until one of `fds` is readable or the time is over; bit n of the answer tells of descriptor n.
pub(crate) fn wait(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<u32, Interrupted> {
    let mut list: SmallVec<[_; 4]> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    match ppoll(&mut list, timeout.map(TimeSpec::from_duration), None) {
        // Somebody has closed our descriptors. There is nothing to wait for, and no reason to spin.
        Ok(_)
            if list.iter().any(|fd| fd.revents().is_some_and(|bits| bits.contains(PollFlags::POLLNVAL))) =>
        {
            std::thread::sleep(CLOSED_PAUSE.min(timeout.unwrap_or(CLOSED_PAUSE)));
            Ok(0)
        }
        Ok(_) => {
            Ok(list.iter().enumerate().fold(0, |bits, (n, fd)| bits | u32::from(fd.any() == Some(true)) << n))
        }
        Err(Errno::EINTR) => Err(Interrupted),
        // Out of memory, or a closed descriptor: come back soon rather than spin or hang.
        Err(_) => {
            std::thread::sleep(Duration::from_millis(1).min(timeout.unwrap_or(Duration::MAX)));
            Ok(0)
        }
    }
}

/// The point at which a wait ends, if ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout` from now; too far ahead counts as never.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// What is left.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// Several descriptors as one, readable while any of them is.
#[derive(Debug)]
pub(crate) struct AnyReadable(Epoll);

impl AnyReadable {
    /// Watches `fds`, level-triggered; a descriptor that is closed leaves by itself.
    pub(crate) fn new(fds: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let any = Self(Epoll(out_of_the_way(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?.0)));
        fds.iter().try_for_each(|fd| any.add(*fd))?;
        Ok(any)
    }

    /// The same for one that the program waits for.
    pub(crate) fn in_sight(fds: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let any = Self(Epoll(in_sight(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?.0)));
        fds.iter().try_for_each(|fd| any.add(*fd))?;
        Ok(any)
    }

    /// Watches one more.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Watches one less.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.delete(fd)?)
    }
}

impl AsFd for AnyReadable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}
