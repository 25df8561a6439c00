//! Event channels (rdma_event_channel): where ids put their events.

use crate::{counter::Counter, error::CmError, event::CmEvent, id::CmId};
use core::time::Duration;
use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// How long a wait lasts for which no descriptor is left.
const CLOSED_PAUSE: Duration = Duration::from_millis(50);

/// An event channel. Clones are the same channel; when the last is dropped, events that were not fetched are dropped too.
///
/// Its descriptor ([`AsFd`]) is readable while events wait, for programs with an event loop of their own; it must only
/// be polled, never read.
#[derive(Clone, Debug)]
pub struct EventChannel(Arc<Handle>);

#[derive(Debug)]
struct Handle(Arc<Queue>);

/// What ids hold of their channel.
#[derive(Debug)]
pub(crate) struct Queue {
    events: Mutex<VecDeque<CmEvent>>,
    readable: Counter,
    /// The channel is gone; ids may outlive it.
    closed: AtomicBool,
    /// Of the process that made it ([`rxe_verbs::forks`]). A forked child shares its counter with the parent, and must leave it alone.
    process: u32,
}

impl EventChannel {
    /// Makes one (rdma_create_event_channel).
    ///
    /// # Errors
    /// [`CmError::System`] if the system has no descriptor left.
    pub fn new() -> Result<Self, CmError> {
        let readable = Counter::new()
            .map_err(|error| CmError::System { action: "make an event counter", source: error.into() })?;
        Ok(Self(Arc::new(Handle(Arc::new(Queue {
            events: Mutex::default(),
            readable,
            closed: AtomicBool::new(false),
            process: rxe_verbs::forks(),
        })))))
    }

    /// Whether it is this process's.
    ///
    /// # Errors
    /// [`CmError::Forked`] in a child of the process that made it.
    pub fn check_owner(&self) -> Result<(), CmError> {
        if self.0.0.is_own() { Ok(()) } else { Err(CmError::Forked) }
    }

    /// The next event (rdma_get_cm_event); without a timeout waits for as long as it takes.
    ///
    /// # Errors
    /// [`CmError::Empty`] when the time is over, [`CmError::Interrupted`] if a signal arrives, [`CmError::Forked`].
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<CmEvent, CmError> {
        self.check_owner()?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.try_get_event() {
                return Ok(event);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(CmError::Empty);
            }
            let waited = match self.0.0.readable.own() {
                Some(fd) => rxe_verbs::wait_readable(fd, left).map(drop),
                // The program has closed all descriptors: nothing but time wakes.
                None => rxe_verbs::wait_for(&mut [], Some(CLOSED_PAUSE.min(left.unwrap_or(CLOSED_PAUSE))))
                    .map(drop),
            };
            waited.map_err(|_| CmError::Interrupted)?;
        }
    }

    /// Drops the events of an id that wait.
    pub fn forget(&self, id: &CmId) {
        self.0.0.forget(id);
    }

    /// An event if there is one, without waiting.
    #[must_use]
    pub fn try_get_event(&self) -> Option<CmEvent> {
        self.0.0.pop()
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.0.0
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.readable.as_fd()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.0.is_own() {
            return;
        }
        // Events hold ids, ids hold the queue: somebody has to let go.
        self.0.closed.store(true, Ordering::Release);
        let events = core::mem::take(&mut *self.0.lock());
        drop(events);
    }
}

impl Queue {
    fn is_own(&self) -> bool {
        self.process == rxe_verbs::forks()
    }

    pub(crate) fn push(&self, event: CmEvent) {
        let mut events = self.lock();
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        events.push_back(event);
        // Each of them is an edge for who waits for those (`epoll(7)`, EPOLLET), as with the kernel's.
        self.readable.raise();
    }

    /// Events that wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn pop(&self) -> Option<CmEvent> {
        if !self.is_own() {
            return None;
        }
        let mut events = self.lock();
        let mut event = events.pop_front();
        // Only then does it count something; a program may have made it blocking.
        if event.is_some() && events.is_empty() {
            self.readable.clear();
        }
        drop(events);
        if let Some(event) = &mut event {
            event.place = None;
        }
        event
    }

    /// Moves the events of one id to another channel (rdma_migrate_id).
    pub(crate) fn move_events(&self, id: &CmId, to: &Self) {
        if !self.is_own() {
            return;
        }
        let mut events = self.lock();
        let was_empty = events.is_empty();
        let (moved, kept) =
            core::mem::take(&mut *events).into_iter().partition(|event: &CmEvent| event.concerns(id));
        *events = kept;
        if !was_empty && events.is_empty() {
            self.readable.clear();
        }
        drop(events);
        let moved: VecDeque<CmEvent> = moved;
        moved.into_iter().for_each(|event| to.push(event));
    }

    fn forget(&self, id: &CmId) {
        if !self.is_own() {
            return;
        }
        let mut events = self.lock();
        let was_empty = events.is_empty();
        // Kept to the end: dropping them may end ids, which is nothing to do under a lock.
        let (gone, kept): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut *events).into_iter().partition(|event| event.concerns(id));
        *events = kept;
        if !was_empty && events.is_empty() {
            self.readable.clear();
        }
        drop(events);
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<CmEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
