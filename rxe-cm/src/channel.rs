//! Event channels (rdma_event_channel): where ids put their events.

use crate::{counter::Counter, error::CmError, event::CmEvent, id::CmId};
use core::time::Duration;
use std::{
    collections::{HashSet, VecDeque},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Time between two looks of a wait for which no descriptor is left.
const CLOSED_PAUSE: Duration = Duration::from_millis(50);

/// An event channel. Clones are the same channel. When the last clone is dropped, events that were not fetched are dropped, too.
///
/// Its descriptor ([`AsFd`]) is readable while events wait, for programs with an event loop. It may be polled, but must never be read.
#[derive(Clone, Debug)]
pub struct EventChannel(Arc<Handle>);

#[derive(Debug)]
struct Handle(Arc<Queue>);

/// The part of a channel that ids hold.
#[derive(Debug)]
pub(crate) struct Queue {
    events: Mutex<VecDeque<CmEvent>>,
    readable: Counter,
    /// The channel was dropped. Ids may outlive it.
    closed: AtomicBool,
    /// See [`EventChannel::after_accept`].
    after_accept: bool,
    /// Generation of the process that made it ([`rxe_verbs::forks`]). A forked child shares the counter with its parent, and must not
    /// change it.
    process: u32,
}

impl EventChannel {
    /// Creates a channel (rdma_create_event_channel).
    ///
    /// # Errors
    /// [`CmError::System`] if the system has no descriptor left.
    pub fn new() -> Result<Self, CmError> {
        Self::make(false)
    }

    /// Creates a channel in which the id of a request has no events before the program accepts it, as with the kernel (`ucma_event_handler`,
    /// observed with Linux 6.1). A C program finds the listener's context in it until then, and would take an event for the
    /// listener's. If the peer has given up, accepting fails.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn after_accept() -> Result<Self, CmError> {
        Self::make(true)
    }

    fn make(after_accept: bool) -> Result<Self, CmError> {
        let readable = Counter::new()
            .map_err(|error| CmError::System { action: "make an event counter", source: error.into() })?;
        Ok(Self(Arc::new(Handle(Arc::new(Queue {
            events: Mutex::default(),
            readable,
            closed: AtomicBool::new(false),
            after_accept,
            process: rxe_verbs::forks(),
        })))))
    }

    /// Checks that this process made it.
    ///
    /// # Errors
    /// [`CmError::Forked`] in a forked child of that process.
    pub fn check_owner(&self) -> Result<(), CmError> {
        if self.0.0.is_own() { Ok(()) } else { Err(CmError::Forked) }
    }

    /// The next event (rdma_get_cm_event). Without a timeout this waits as long as it takes.
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
                // The program has closed all descriptors, so nothing can wake this thread. It looks again after a while.
                None => rxe_verbs::wait_for(&mut [], Some(CLOSED_PAUSE.min(left.unwrap_or(CLOSED_PAUSE))))
                    .map(drop),
            };
            waited.map_err(|_| CmError::Interrupted)?;
        }
    }

    /// Takes an event if there is one, without waiting.
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
        // Events hold ids, and ids hold the queue. This breaks the cycle.
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
        // Each event is an edge for a program that waits for edges (`epoll(7)`, EPOLLET), as with the kernel's channels.
        self.readable.raise();
    }

    pub(crate) const fn is_after_accept(&self) -> bool {
        self.after_accept
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
        // The counter is above 0 only then. A program may have made it blocking.
        if event.is_some() && events.is_empty() {
            self.readable.clear();
        }
        drop(events);
        if let Some(event) = &mut event {
            event.place = None;
        }
        event
    }

    /// Moves the events of one id to another channel (rdma_migrate_id), and those of the ids whose requests to it wait. Returns these ids.
    pub(crate) fn move_events(&self, id: &CmId, to: &Self) -> HashSet<usize> {
        let mut children = HashSet::new();
        // A request comes before all other events of its id.
        let events = self.take(|event| {
            if event.listener.as_ref().is_some_and(|listener| listener.is_same(id)) {
                children.insert(event.id.key());
            }
            event.concerns(id) || children.contains(&event.id.key())
        });
        events.into_iter().for_each(|event| to.push(event));
        children
    }

    /// Drops the events of one id.
    pub(crate) fn forget(&self, id: &CmId) {
        drop(self.take(|event| event.concerns(id)));
    }

    /// Drops the last of those events.
    pub(crate) fn forget_last(&self, which: impl Fn(&CmEvent) -> bool) {
        if !self.is_own() {
            return;
        }
        let mut events = self.lock();
        let last = events.iter().rposition(which).and_then(|place| events.remove(place));
        if last.is_some() && events.is_empty() {
            self.readable.clear();
        }
        drop(events);
        drop(last);
    }

    /// Takes those events. The caller drops them without the lock: dropping an event may destroy its id.
    fn take(&self, which: impl FnMut(&CmEvent) -> bool) -> VecDeque<CmEvent> {
        if !self.is_own() {
            return VecDeque::new();
        }
        let mut events = self.lock();
        let was_empty = events.is_empty();
        let (taken, kept) = core::mem::take(&mut *events).into_iter().partition(which);
        *events = kept;
        if !was_empty && events.is_empty() {
            self.readable.clear();
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<CmEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
