//! Asynchronous events: what happens to a context apart from completions.

use crate::{
    error::Forked,
    sys::{poll, socket::Event},
};
use core::{net::IpAddr, time::Duration};
use rxe_core::work::{self, CqId};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Events a context keeps for an application that does not fetch them; later ones are counted only.
const MOST_KEPT: usize = 4096;

/// An asynchronous event (ibv_async_event).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair or shared receive queue has something to say.
    Queue(work::AsyncEvent),
    /// A completion queue was full: completions were lost (IBV_EVENT_CQ_ERR).
    CqError(CqId),
    /// The GID table changed (IBV_EVENT_GID_CHANGE).
    GidChange,
    /// The port came up (IBV_EVENT_PORT_ACTIVE).
    PortActive,
    /// The port went down (IBV_EVENT_PORT_ERR).
    PortError,
    /// Packets to this destination are larger than the network takes: a queue pair's path MTU, or a datagram, is too
    /// large for the way there. Told once for each destination. (Verbs has no number for it.)
    PathMtuExceeded(IpAddr),
}

/// Why no event was fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// A signal arrived while waiting (EINTR).
    #[error("interrupted by a signal")]
    Interrupted,
    /// The time is over, or none was there and the call does not wait (EAGAIN).
    #[error("no event")]
    Empty,
    /// It is the parent's of this process (EIO).
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl EventError {
    /// The number of this error in C.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Interrupted => libc::EINTR,
            Self::Empty => libc::EAGAIN,
            Self::Forked(forked) => forked.errno(),
        }
    }
}

/// A context's events, with a descriptor that is readable while there are any.
#[derive(Debug)]
pub(crate) struct AsyncQueue {
    queue: Mutex<VecDeque<AsyncEvent>>,
    readable: Event,
}

impl AsyncQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { queue: Mutex::default(), readable: Event::new()? })
    }

    pub(crate) fn push(&self, event: AsyncEvent) {
        let mut queue = self.lock();
        if queue.len() < MOST_KEPT {
            queue.push_back(event);
            if queue.len() == 1 {
                self.readable.raise();
            }
        }
    }

    pub(crate) fn pop(&self) -> Option<AsyncEvent> {
        let mut queue = self.lock();
        let event = queue.pop_front()?;
        // It was readable. Reading it while it is not would block if somebody has made the descriptor blocking.
        if queue.is_empty() {
            self.readable.clear();
        }
        Some(event)
    }

    /// Waits for an event; without a timeout for as long as it takes.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<AsyncEvent, EventError> {
        let deadline = poll::Deadline::after(timeout);
        loop {
            if let Some(event) = self.pop() {
                return Ok(event);
            }
            if deadline.is_over() {
                return Err(EventError::Empty);
            }
            poll::wait(&[self.readable.as_fd()], deadline.left()).map_err(|_| EventError::Interrupted)?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<AsyncEvent>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for AsyncQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
