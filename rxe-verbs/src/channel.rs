//! Completion channels (ibv_comp_channel): how completion queues wake a sleeping program.

use crate::{
    cq::{Cq, CqRing},
    engine::{Stack, Waiter},
    error::PollError,
    events::EventError,
    sys::{poll, process::become_background, socket::Event},
};
use core::time::Duration;
use rxe_core::work::Completion;
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// How long a thread looks for packets before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// A completion channel. Clones are the same channel.
///
/// Its descriptor ([`AsFd`]) is readable while events wait, for programs with an event loop of their own; it must only
/// be polled, never read. An event comes from a queue that was armed by [`Cq::req_notify`], once per arming.
#[derive(Clone, Debug)]
pub struct CompChannel(Arc<Channel>);

#[derive(Debug)]
pub(crate) struct Channel {
    stack: Arc<Stack>,
    queue: Mutex<VecDeque<Arc<CqRing>>>,
    readable: Event,
    /// The program waits inside [`CompChannel::get_event`], which watches the network itself, and not by polling the
    /// descriptor.
    waits_inside: AtomicBool,
    /// Somebody wants the waiting thread to look up.
    interrupted: AtomicBool,
}

impl Channel {
    /// Queues an event of `cq`, once per arming.
    pub(crate) fn push(&self, cq: Arc<CqRing>) {
        let mut queue = self.lock();
        queue.push_back(cq);
        if queue.len() == 1 {
            self.readable.raise();
        }
    }

    /// Forgets the events of a queue that goes away.
    pub(crate) fn forget(&self, cq: &CqRing) {
        let mut queue = self.lock();
        let raised = !queue.is_empty();
        queue.retain(|entry| !core::ptr::eq(&raw const **entry, cq));
        if raised && queue.is_empty() {
            self.readable.clear();
        }
    }

    pub(crate) fn waits_inside(&self) -> bool {
        self.waits_inside.load(Ordering::Relaxed)
    }

    fn pop(&self) -> Option<Cq> {
        let mut queue = self.lock();
        // The descriptor is readable just then. Reading it once more would block if somebody has made it blocking.
        if queue.is_empty() {
            return None;
        }
        let cq = loop {
            // A queue whose last handle is being dropped has no reader any more.
            match queue.pop_front() {
                Some(ring) => {
                    if let Some(cq) = Cq::of(&ring) {
                        break Some(cq);
                    }
                }
                None => break None,
            }
        };
        if queue.is_empty() {
            self.readable.clear();
        }
        drop(queue);
        if let Some(cq) = &cq {
            cq.count_event();
        }
        cq
    }

    /// Whether somebody has interrupted. That is over then, and the descriptor readable for events alone.
    fn take_interruption(&self) -> bool {
        let interrupted = self.interrupted.swap(false, Ordering::AcqRel);
        if interrupted {
            let queue = self.lock();
            // Who interrupts anew, or has an event, raises it after this.
            if queue.is_empty() {
                self.readable.clear();
            }
        }
        interrupted
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<CqRing>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CompChannel {
    pub(crate) fn new(stack: &Arc<Stack>) -> io::Result<Self> {
        Ok(Self(Arc::new(Channel {
            stack: Arc::clone(stack),
            queue: Mutex::default(),
            readable: Event::new()?,
            waits_inside: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
        })))
    }

    pub(crate) const fn shared(&self) -> &Arc<Channel> {
        &self.0
    }

    /// Waits for an event and gives the queue it is from (ibv_get_cq_event). Each event has to be acknowledged
    /// ([`Cq::ack_events`]) where somebody asks for that ([`Cq::wait_acked`]).
    ///
    /// # Errors
    /// [`EventError::Interrupted`] if a signal arrives; [`EventError::Forked`].
    pub fn get_event(&self) -> Result<Cq, EventError> {
        self.wait(None)
    }

    /// The same, but for `timeout` at most.
    ///
    /// # Errors
    /// Also [`EventError::Empty`] when the time is over.
    pub fn get_event_within(&self, timeout: Duration) -> Result<Cq, EventError> {
        self.wait(Some(timeout))
    }

    /// Makes the thread that waits for an event, or the next one that is about to, return with
    /// [`EventError::Interrupted`].
    pub fn interrupt(&self) {
        self.0.interrupted.store(true, Ordering::Release);
        self.0.readable.raise();
    }

    /// An event if there is one, without waiting (ibv_get_cq_event on a descriptor with O_NONBLOCK).
    pub fn try_get_event(&self) -> Option<Cq> {
        self.0.stack.check().ok()?;
        self.0.pop().or_else(|| {
            self.0.waits_inside.store(false, Ordering::Relaxed);
            self.0.stack.progress();
            self.0.pop()
        })
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Cq, EventError> {
        self.0.stack.check()?;
        let deadline = poll::Deadline::after(timeout);
        let mut waiting = None;
        loop {
            if let Some(cq) = self.0.pop() {
                return Ok(cq);
            }
            if self.0.take_interruption() {
                return Err(EventError::Interrupted);
            }
            self.0.waits_inside.store(true, Ordering::Relaxed);
            if let Some(cq) = self.look_around(deadline) {
                return Ok(cq);
            }
            if deadline.is_over() {
                return Err(EventError::Empty);
            }
            // While it lives, the background threads leave the sockets to us.
            let waiter = waiting.get_or_insert_with(|| self.0.stack.wait_for_packets());
            let mut fds = waiter.fds();
            fds.push(self.0.readable.as_fd());
            poll::wait(&fds, deadline.left()).map_err(|_| EventError::Interrupted)?;
        }
    }

    /// Takes turns for a moment: an answer that is on its way is had without sleeping.
    fn look_around(&self, deadline: poll::Deadline) -> Option<Cq> {
        let start = Instant::now();
        loop {
            self.0.stack.progress_before_sleep();
            if let Some(cq) = self.0.pop() {
                return Some(cq);
            }
            if start.elapsed() >= SPIN || deadline.is_over() {
                return None;
            }
        }
    }
}

/// For a thread that does nothing but wait for the completions of one queue and handle them, such as the connection
/// manager's. It watches the network meanwhile, in the place of the library's background thread, until it is dropped.
/// Not while the program polls, which then sees to the packets: two threads that wait for the same socket double the
/// latency.
#[derive(Debug)]
pub struct CqWaiter<'a> {
    cq: &'a Cq,
    channel: &'a Channel,
    watching: Option<Waiter<'a>>,
    /// The application's turns at the last wait.
    polls: u64,
}

impl<'a> CqWaiter<'a> {
    pub(crate) fn new(cq: &'a Cq) -> Option<Self> {
        let channel = cq.ring().channel()?;
        become_background();
        Some(Self { cq, channel, watching: None, polls: channel.stack.polls() })
    }

    /// As [`Cq::poll`], but not for a program that polls: it moves what there is to move, once, and never holds back what is
    /// owed to peers.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn poll(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        if self.cq.ring().is_empty() {
            self.channel.stack.attend();
        }
        self.cq.take(out)
    }

    /// Waits until there is a completion, packets have arrived, or the time is over; in each case the queue is to be polled.
    ///
    /// # Errors
    /// [`EventError::Interrupted`] after [`CompChannel::interrupt`] or a signal; [`EventError::Forked`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), EventError> {
        let (channel, ring) = (self.channel, self.cq.ring());
        channel.stack.check()?;
        if channel.take_interruption() {
            return Err(EventError::Interrupted);
        }
        // Armed only here: a completion of this thread's own turns need not wake it.
        if ring.arm() {
            let polls = channel.stack.polls();
            let polled = core::mem::replace(&mut self.polls, polls) != polls || channel.stack.is_polled();
            let watched = if polled {
                self.watching = None;
                None
            } else {
                Some(self.watching.get_or_insert_with(|| channel.stack.wait_for_packets()))
            };
            let mut fds = watched.map(|waiter| waiter.fds()).unwrap_or_default();
            fds.push(channel.readable.as_fd());
            let woken = poll::wait(&fds, timeout);
            ring.disarm();
            woken.map_err(|_| EventError::Interrupted)?;
        }
        while let Some(cq) = channel.pop() {
            cq.ack_events(1);
        }
        if channel.take_interruption() { Err(EventError::Interrupted) } else { Ok(()) }
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}
