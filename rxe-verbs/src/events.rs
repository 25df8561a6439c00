//! Asynchronous events: what happens to a context apart from completions.

use crate::{
    error::Forked,
    sys::{
        fork::{generation, is_own},
        poll,
        socket::Event,
    },
};
use core::{
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use rxe_core::{
    num::Qpn,
    work::{self, CqId},
};
use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Events a context keeps for an application that does not fetch them; later ones are counted only.
const MOST_KEPT: usize = 4096;

/// An asynchronous event (ibv_async_event).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair or shared receive queue has something to say.
    Queue(work::AsyncEvent),
    /// The same of a queue pair that has listeners ([`crate::Qp::listen`]): one for each of them.
    Heard {
        /// What happened.
        event: work::AsyncEvent,
        /// [`Listener::name`].
        listener: u64,
    },
    /// A completion queue was full: completions were lost (IBV_EVENT_CQ_ERR).
    CqError(CqId),
    /// The GID table changed (IBV_EVENT_GID_CHANGE).
    GidChange,
    /// The P_Key table changed (IBV_EVENT_PKEY_CHANGE).
    PkeyChange,
    /// The port came up (IBV_EVENT_PORT_ACTIVE).
    PortActive,
    /// The port went down (IBV_EVENT_PORT_ERR).
    PortError,
    /// The interface below the device has gone (IBV_EVENT_DEVICE_FATAL): nothing is left to do but to destroy what was made.
    DeviceFatal,
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

/// Names of listeners, and what each hears by.
type Listeners = Vec<(u64, Arc<AsyncQueue>)>;

/// A context's events, with a descriptor that is readable while there are any.
#[derive(Debug)]
pub(crate) struct AsyncQueue {
    queue: Mutex<VecDeque<AsyncEvent>>,
    readable: Event,
    /// Queue pairs of the context that have listeners: by name, with the queues that they hear by.
    listened: Mutex<HashMap<Qpn, Listeners>>,
}

impl AsyncQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { queue: Mutex::default(), readable: Event::in_sight()?, listened: Mutex::default() })
    }

    /// Tells the context, or the listeners instead where the queue pair has had any.
    pub(crate) fn push(&self, event: AsyncEvent) {
        if let AsyncEvent::Queue(event) = event
            && let Some(qpn) = qp_of(event)
            && let Some(listeners) = lock(&self.listened).get(&qpn)
        {
            // While the lock is held: one that goes away forgets what it has not fetched after it has left the list.
            for (listener, queue) in listeners {
                queue.keep(AsyncEvent::Heard { event, listener: *listener });
            }
            return;
        }
        self.keep(event);
    }

    fn keep(&self, event: AsyncEvent) {
        let mut queue = lock(&self.queue);
        if queue.len() < MOST_KEPT {
            queue.push_back(event);
            // Each of them is an edge for who waits for those (`epoll(7)`, EPOLLET), as with the kernel's.
            self.readable.raise();
        }
    }

    pub(crate) fn pop(&self) -> Option<AsyncEvent> {
        let mut queue = lock(&self.queue);
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

    /// Forgets those that nobody is to fetch any more: their object ends, and its name may be another's soon.
    pub(crate) fn forget(&self, gone: impl Fn(&AsyncEvent) -> bool) {
        let mut queue = lock(&self.queue);
        let before = queue.len();
        queue.retain(|event| !gone(event));
        if before > 0 && queue.is_empty() {
            self.readable.clear();
        }
    }

    /// The same for a queue pair, which has no listeners any more either.
    pub(crate) fn forget_qp(&self, qpn: Qpn) {
        lock(&self.listened).remove(&qpn);
        self.forget(|event| matches!(event, AsyncEvent::Queue(event) if qp_of(*event) == Some(qpn)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue pair that an event is of.
pub(crate) const fn qp_of(event: work::AsyncEvent) -> Option<Qpn> {
    use work::AsyncEvent as E;
    match event {
        E::QpFatal(qpn)
        | E::QpRequestError(qpn)
        | E::QpAccessError(qpn)
        | E::CommunicationEstablished(qpn)
        | E::SqDrained(qpn)
        | E::LastWqeReached(qpn) => Some(qpn),
        E::SrqLimitReached(_) => None,
    }
}

/// Somebody who hears of a queue pair's events, until dropped: one handle of an XRC target that has several (ibv_open_qp).
#[derive(Debug)]
pub struct Listener {
    name: u64,
    qpn: Qpn,
    /// Of the context that has the queue pair.
    source: Arc<AsyncQueue>,
    own: Arc<AsyncQueue>,
    generation: u32,
}

impl Listener {
    pub(crate) fn new(qpn: Qpn, source: &Arc<AsyncQueue>, own: &Arc<AsyncQueue>) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(1);
        let name = NAMES.fetch_add(1, Ordering::Relaxed);
        lock(&source.listened).entry(qpn).or_default().push((name, Arc::clone(own)));
        Self { name, qpn, source: Arc::clone(source), own: Arc::clone(own), generation: generation() }
    }

    /// What its events say ([`AsyncEvent::Heard`]); no other has it in this process.
    #[must_use]
    pub const fn name(&self) -> u64 {
        self.name
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // In a forked child the locks may be held by a thread that is not there.
        if !is_own(self.generation) {
            return;
        }
        if let Some(listeners) = lock(&self.source.listened).get_mut(&self.qpn) {
            listeners.retain(|(name, _)| *name != self.name);
        }
        self.own
            .forget(|event| matches!(event, AsyncEvent::Heard { listener, .. } if *listener == self.name));
    }
}

impl AsFd for AsyncQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

    #[test]
    fn each_event_is_an_edge() {
        let queue = AsyncQueue::new().unwrap();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        epoll.add(&queue.readable, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).unwrap();
        let edges = || epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO).unwrap();
        for _ in 0..3 {
            assert_eq!(edges(), 0);
            // The one before has not been fetched.
            queue.push(AsyncEvent::GidChange);
            assert_eq!(edges(), 1);
        }
        while queue.pop().is_some() {}
        assert_eq!(edges(), 0);
    }
}
