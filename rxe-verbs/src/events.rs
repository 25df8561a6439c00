//! Asynchronous events of a context: everything it reports except completions.

use crate::{
    error::Forked,
    sys::{
        fork::{generation, is_own},
        lock, poll,
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
    sync::{Arc, Mutex},
};

/// Most events that a context keeps for an application that does not fetch them. Later events are dropped.
const MOST_KEPT: usize = 4096;

/// An asynchronous event (ibv_async_event).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// An event of a queue pair or a shared receive queue.
    Queue(work::AsyncEvent),
    /// An event of a queue pair that has listeners ([`crate::Qp::listen`]). Each listener gets one of these.
    Heard {
        /// What happened.
        event: work::AsyncEvent,
        /// The listener that it is for ([`Listener::name`]).
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
    /// The interface below the device has gone (IBV_EVENT_DEVICE_FATAL). The program can only destroy what it has made.
    DeviceFatal,
    /// Packets to this destination are larger than the network takes: a queue pair's path MTU, or a datagram, is too
    /// large for the path. It comes once for each destination. (Verbs has no number for this event.)
    PathMtuExceeded(IpAddr),
}

/// Why no event was fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// A signal arrived while waiting (EINTR).
    #[error("interrupted by a signal")]
    Interrupted,
    /// The time is over, or there was no event and the call does not wait (EAGAIN).
    #[error("no event")]
    Empty,
    /// The context belongs to the parent of this process (EIO).
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

/// Listeners of a queue pair: the name of each, and the event queue of its context.
type Listeners = Vec<(u64, Arc<AsyncQueue>)>;

/// A context's event queue, with a descriptor that is readable while events are in it.
#[derive(Debug)]
pub(crate) struct AsyncQueue {
    queue: Mutex<VecDeque<AsyncEvent>>,
    readable: Event,
    /// Listeners of the context's queue pairs. A queue pair whose listeners have all gone keeps its entry, which is empty then.
    listened: Mutex<HashMap<Qpn, Listeners>>,
}

impl AsyncQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { queue: Mutex::default(), readable: Event::in_sight()?, listened: Mutex::default() })
    }

    /// Queues an event for the context. If the queue pair has ever had listeners, the event goes to those that it has now instead.
    pub(crate) fn push(&self, event: AsyncEvent) {
        if let AsyncEvent::Queue(event) = event
            && let Some(qpn) = qp_of(event)
            && let Some(listeners) = lock(&self.listened).get(&qpn)
        {
            // The lock stays held: a listener's drop first leaves the list, and then removes its events from its queue.
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
            // Every event raises the descriptor: an edge-triggered waiter (`epoll(7)`, EPOLLET) sees each, as with kernel devices.
            self.readable.raise();
        }
    }

    pub(crate) fn pop(&self) -> Option<AsyncEvent> {
        let mut queue = lock(&self.queue);
        let event = queue.pop_front()?;
        // The descriptor is readable here, so clearing cannot block, even if the program has made the descriptor blocking.
        if queue.is_empty() {
            self.readable.clear();
        }
        Some(event)
    }

    /// Waits for an event. Without a timeout it waits as long as it takes.
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

    /// Removes events of an object that ends: another object may soon have its name.
    pub(crate) fn forget(&self, gone: impl Fn(&AsyncEvent) -> bool) {
        let mut queue = lock(&self.queue);
        let before = queue.len();
        queue.retain(|event| !gone(event));
        if before > 0 && queue.is_empty() {
            self.readable.clear();
        }
    }

    /// Removes the events and the list of listeners of a queue pair that ends.
    pub(crate) fn forget_qp(&self, qpn: Qpn) {
        lock(&self.listened).remove(&qpn);
        self.forget(|event| matches!(event, AsyncEvent::Queue(event) if qp_of(*event) == Some(qpn)));
    }
}

/// The queue pair that an event is about, if it is about one.
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

/// A receiver of a queue pair's events, until it is dropped. Each handle of a shared XRC target has one (ibv_open_qp).
#[derive(Debug)]
pub struct Listener {
    name: u64,
    qpn: Qpn,
    /// Event queue of the context that has the queue pair.
    source: Arc<AsyncQueue>,
    /// Event queue in which its events arrive.
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

    /// Its name in its events ([`AsyncEvent::Heard`]). No other listener of this process has the same.
    #[must_use]
    pub const fn name(&self) -> u64 {
        self.name
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // In a forked child a lock may be held by a thread that does not exist there.
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
            // The event before has not been fetched.
            queue.push(AsyncEvent::GidChange);
            assert_eq!(edges(), 1);
        }
        while queue.pop().is_some() {}
        assert_eq!(edges(), 0);
    }
}
