//! The ways in which programs wait for several descriptors.

use benches::ends::Result;
use clap::ValueEnum;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        select::{FdSet, select},
        time::{TimeVal, TimeValLike},
    },
};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The longest time without an event after which the loop checks whether it should end.
const PAUSE_MS: u16 = 100;

/// A way to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum How {
    /// epoll(7), level-triggered, descriptors non-blocking.
    Epoll,
    /// epoll(7), edge-triggered, descriptors non-blocking.
    Edge,
    /// poll(2), descriptors blocking.
    Poll,
    /// select(2), descriptors blocking.
    Select,
    /// Without any of them: blocking in the call that takes an event. One channel only.
    Event,
}

impl How {
    /// Whether the program makes its descriptors non-blocking.
    pub(crate) const fn non_blocking(self) -> bool {
        matches!(self, Self::Epoll | Self::Edge)
    }
}

/// An object that waits for `fds`.
pub(crate) enum Waiter<'a> {
    Epoll(Epoll, Vec<EpollEvent>),
    Poll(Vec<PollFd<'a>>),
    Select(Vec<BorrowedFd<'a>>),
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(how: How, fds: &[BorrowedFd<'a>]) -> Result<Self> {
        Ok(match how {
            How::Epoll | How::Edge | How::Event => {
                let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
                let edge = if how == How::Edge { EpollFlags::EPOLLET } else { EpollFlags::empty() };
                for (index, fd) in fds.iter().enumerate() {
                    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | edge, index as u64))?;
                }
                Self::Epoll(epoll, vec![EpollEvent::empty(); 64])
            }
            How::Poll => Self::Poll(fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect()),
            How::Select => Self::Select(fds.to_vec()),
        })
    }

    /// Waits, and calls `ready` with the index of each descriptor that is readable.
    pub(crate) fn wait(&mut self, mut ready: impl FnMut(usize) -> Result<()>) -> Result<()> {
        match self {
            Self::Epoll(epoll, events) => {
                let count = epoll.wait(events, EpollTimeout::from(PAUSE_MS))?;
                events[..count].iter().try_for_each(|event| ready(event.data() as usize))
            }
            Self::Poll(list) => {
                poll(list, PollTimeout::from(PAUSE_MS))?;
                let is_ready = |fd: &PollFd<'_>| fd.any() == Some(true);
                list.iter().enumerate().filter(|(_, fd)| is_ready(fd)).try_for_each(|(index, _)| ready(index))
            }
            Self::Select(list) => {
                let mut set = FdSet::new();
                list.iter().for_each(|fd| set.insert(*fd));
                let most = list.iter().map(AsRawFd::as_raw_fd).max();
                let mut pause = TimeVal::milliseconds(PAUSE_MS.into());
                select(most.map(|most| most + 1), &mut set, None, None, &mut pause)?;
                let found: Vec<usize> = (0..list.len()).filter(|index| set.contains(list[*index])).collect();
                found.into_iter().try_for_each(ready)
            }
        }
    }
}
