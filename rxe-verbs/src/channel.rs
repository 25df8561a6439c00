//! Completion channels (ibv_comp_channel): how completion queues wake a sleeping program.

mod extra;

use crate::{
    cq::{Cq, CqRing},
    engine::{Descriptor, First, Patience, Polling, Reach, ShardSet, Spent, Stack, Waiter, Who},
    error::PollError,
    events::EventError,
    sys::{lock, poll, process::become_background, signals},
};
use core::time::Duration;
use extra::Extra;
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

/// How often a thread that never sleeps (`Polling::Busy`) checks for signals, and for what else ends a wait.
const LOOK_UP: Duration = Duration::from_micros(100);
/// Most turns in a row that a call on the lookout takes while it finds packets and no event.
const MOST_TURNS: u32 = 64;
/// A call on the lookout that has an event ends after the turn of this index, even if packets still arrive. The next call
/// reads the rest. (An echo of 64 bytes, 50 connections and one queue: 409,000
/// answers a second, and 381,000 with as many turns as above.)
const FEW_TURNS: u32 = 4;

/// A completion channel. Clones are the same channel.
///
/// Its descriptor ([`AsFd`]) is readable while events wait, for programs with an event loop of their own, level- or
/// edge-triggered; it must only be polled, never read. An event comes from a queue that was armed by [`Cq::req_notify`], once per
/// arming. Where the program asks by [`Self::try_get_event`] the descriptor may also become readable for packets that bring no event.
/// A program that only asks when it is readable is then given an extra event, whose queue has no completion.
#[derive(Clone, Debug)]
pub struct CompChannel(Arc<Channel>);

#[derive(Debug)]
pub(crate) struct Channel {
    stack: Arc<Stack>,
    waiting: Mutex<Waiting>,
    descriptor: Arc<Descriptor>,
    /// The program waits inside [`CompChannel::get_event`], which listens to the sockets itself, and not for the descriptor.
    waits_inside: AtomicBool,
    patience: Patience,
    /// The shards with queue pairs that use its queues, now or before.
    reach: Reach,
    extra: Extra,
}

/// What waits to be taken from a channel.
#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Arc<CqRing>>,
    /// [`CompChannel::interrupt`] was called, and no waiting thread has returned for it yet.
    interrupted: bool,
    /// Threads that are taking turns for this channel. They look at `events` after each, so the descriptor need not be raised.
    lookers: u32,
    /// The program asks for events without waiting inside the library.
    is_asked: bool,
}

impl Waiting {
    /// Makes the descriptor readable or unreadable, as the state demands. `news`: there is a new event, so a program that waits for
    /// edges (EPOLLET) must be woken, too.
    fn show(&self, descriptor: &Descriptor, news: bool) {
        if !self.interrupted && self.events.is_empty() {
            descriptor.clear();
        } else if self.interrupted || self.lookers == 0 {
            if news {
                descriptor.announce();
            } else {
                descriptor.raise();
            }
        }
    }
}

impl Channel {
    /// Queues an event of `cq`, once per arming.
    pub(crate) fn push(&self, cq: Arc<CqRing>) {
        let mut waiting = self.lock();
        waiting.events.push_back(cq);
        if waiting.is_asked {
            self.stack.lookout.events_wait(1);
        }
        waiting.show(&self.descriptor, true);
    }

    /// There is a new queue with this channel.
    pub(crate) fn add_queue(&self, cq: &Arc<CqRing>) {
        self.extra.add(cq);
    }

    /// Forgets a queue that goes away, and its events.
    pub(crate) fn forget(&self, cq: &CqRing) {
        self.extra.remove(cq);
        let mut waiting = self.lock();
        let before = waiting.events.len();
        waiting.events.retain(|entry| !core::ptr::eq(&raw const **entry, cq));
        if waiting.is_asked {
            self.stack.lookout.events_gone(before - waiting.events.len());
        }
        waiting.show(&self.descriptor, false);
    }

    /// A shard has queue pairs that use one of its queues.
    pub(crate) fn add_shard(&self, index: u8) {
        self.reach.add(index);
    }

    /// Notes that the program asks for events without waiting inside the library.
    fn is_asked(&self) {
        let mut waiting = self.lock();
        if !core::mem::replace(&mut waiting.is_asked, true) {
            self.stack.lookout.events_wait(waiting.events.len());
        }
    }

    fn retire(&self) {
        let mut waiting = self.lock();
        if core::mem::take(&mut waiting.is_asked) {
            self.stack.lookout.events_gone(waiting.events.len());
        }
        drop(waiting);
        self.descriptor.retire();
    }

    pub(crate) fn waits_inside(&self) -> bool {
        self.waits_inside.load(Ordering::Relaxed)
    }

    fn pop(&self) -> Option<Cq> {
        let mut waiting = self.lock();
        let (is_asked, lookout) = (waiting.is_asked, &self.stack.lookout);
        let cq = loop {
            let Some(ring) = waiting.events.pop_front() else { break None };
            if is_asked {
                lookout.event_taken();
            }
            // A queue whose last handle is being dropped has no reader any more.
            if let Some(cq) = Cq::of(&ring) {
                break Some(cq);
            }
        };
        waiting.show(&self.descriptor, false);
        drop(waiting);
        cq.inspect(Cq::count_event)
    }

    /// Whether [`CompChannel::interrupt`] was called; true once for it.
    fn take_interrupt(&self) -> bool {
        let mut waiting = self.lock();
        let interrupted = core::mem::take(&mut waiting.interrupted);
        waiting.show(&self.descriptor, false);
        interrupted
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let waiting = self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_asked {
            self.stack.lookout.events_gone(waiting.events.len());
        }
    }
}

/// While it lives the calling thread takes turns and looks for events itself ([`Waiting::lookers`]).
struct Looker<'a>(&'a Channel);

impl<'a> Looker<'a> {
    fn new(channel: &'a Channel) -> Self {
        channel.lock().lookers += 1;
        Self(channel)
    }
}

impl Drop for Looker<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.lookers -= 1;
        waiting.show(&self.0.descriptor, false);
    }
}

impl CompChannel {
    pub(crate) fn new(stack: &Arc<Stack>) -> io::Result<Self> {
        Ok(Self(Arc::new(Channel {
            stack: Arc::clone(stack),
            waiting: Mutex::default(),
            descriptor: Descriptor::new(stack)?,
            waits_inside: AtomicBool::new(false),
            patience: Patience::default(),
            reach: Reach::default(),
            extra: Extra::default(),
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
        if self.0.stack.check().is_err() {
            return;
        }
        let mut waiting = self.0.lock();
        waiting.interrupted = true;
        waiting.show(&self.0.descriptor, false);
    }

    /// An event that is there, without looking for packets; for a thread that waits if there is none.
    #[must_use]
    pub fn take_event(&self) -> Option<Cq> {
        self.0.stack.check().ok()?;
        self.0.pop()
    }

    /// Whether an event is there to be taken, by this thread or another. It looks for no packets.
    #[must_use]
    pub fn has_event(&self) -> bool {
        self.0.stack.check().is_ok() && !self.0.lock().events.is_empty()
    }

    /// An event if there is one, without waiting (ibv_get_cq_event on a descriptor with O_NONBLOCK). If packets without an event
    /// may have made the descriptor readable, a program that has never asked before it was is given an extra event instead of none.
    pub fn try_get_event(&self) -> Option<Cq> {
        let Channel { stack, descriptor, extra, reach, .. } = &*self.0;
        stack.check().ok()?;
        extra.begin(|| poll::wait(&[descriptor.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready != 0));
        let event = self.ask();
        if !extra.is_due(event.is_some(), descriptor.looks_out()) {
            return event;
        }
        if let Some(ring) = extra.armed()
            && ring.take_arming()
        {
            return Cq::of(&ring).inspect(Cq::count_event);
        }
        // Perhaps another thread is in the middle of a turn that has a completion, and will tell of it when it ends.
        stack.attend(reach.get());
        self.0.pop()
    }

    /// An event if there is one. The lookout takes turns, if need be.
    fn ask(&self) -> Option<Cq> {
        let Channel { stack, descriptor, .. } = &*self.0;
        self.0.waits_inside.store(false, Ordering::Relaxed);
        self.0.is_asked();
        let reach = self.0.reach.get();
        stack.ask_without_waiting(descriptor, reach);
        let event = self.0.pop();
        if !descriptor.looks_out() {
            // If another channel is the lookout, arrivals wake the thread by that, and this call takes no turn.
            return event.or_else(|| if stack.lookout.is_there() { None } else { self.look_once(reach) });
        }
        // The program may wait for edges, and packets that were there before cause none. So this call must either see the sockets
        // empty, or leave the descriptor readable.
        if event.is_some() {
            if stack.lookout.is_on_the_way() {
                descriptor.raise();
                return event;
            }
        } else {
            match stack.lookout.first() {
                First::Nothing => {}
                First::Others => {
                    descriptor.raise();
                    return None;
                }
                First::Never => {
                    stack.refuse_lookout();
                    return self.look_once(reach);
                }
            }
        }
        self.look_out(event, reach)
    }

    /// Takes turns until the sockets are empty, for a program that arrivals have woken. If it has received the middle of a message, it looks
    /// for the next packets a moment longer, because they come sooner than the program could sleep and be woken. `event` is one that
    /// was found before.
    fn look_out(&self, mut event: Option<Cq>, reach: ShardSet) -> Option<Cq> {
        let stack = &self.0.stack;
        stack.lookout.promise.kept();
        let looker = Looker::new(&self.0);
        let mut again = true;
        // Only of what this call has received: what an earlier one has left in the middle may never go on.
        let mut amid = false;
        let mut look = stack.wait.look();
        for turn in 0..MOST_TURNS {
            // The first turn sends what earlier calls have left. Acknowledgements of what arrives now may wait for the answers.
            let answers = turn > 0 && (event.is_some() || stack.lookout.is_on_the_way());
            let who = if answers { Who::Answering } else { Who::Inline };
            let moved = stack.turns(reach, who, true);
            // A descriptor left readable instead would make the program call again and again, while the thread that has the lock
            // may wait for this processor.
            let received = if moved.missed { stack.attend(reach) } else { moved.received };
            event = event.or_else(|| self.0.pop());
            again = received || moved.owes;
            let has_events = event.is_some() || stack.lookout.is_on_the_way();
            if received {
                amid = moved.amid;
                if event.is_some() && turn >= FEW_TURNS {
                    break;
                }
            } else if has_events || !amid || !look.goes_on(|_| false) {
                break;
            }
            look.looked(received);
        }
        // Only now: dropping the looker makes the descriptor unreadable if no event is left. If another thread has made it
        // readable meanwhile because its messages wait, it has to be readable again.
        drop(looker);
        if again || stack.holds(reach) {
            self.0.descriptor.raise();
        }
        event
    }

    /// For a channel that the program wants to destroy and cannot, because a queue uses it (EBUSY). The engine then expects that
    /// the program asks it for no more events, and does not count its untaken ones. If the program asks all the same, the
    /// channel is as before.
    pub fn retire(&self) {
        if self.0.stack.check().is_ok() {
            self.0.retire();
        }
    }

    fn look_once(&self, reach: ShardSet) -> Option<Cq> {
        self.0.stack.progress(reach, false);
        self.0.pop()
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Cq, EventError> {
        self.0.stack.check()?;
        self.0.stack.ask_and_wait(&self.0.descriptor);
        let deadline = poll::Deadline::after(timeout);
        let mut waiting = None;
        // A signal wakes a thread that sleeps. A thread that never sleeps has to check for signals.
        let signals = (self.0.stack.wait.polling() == Polling::Busy).then(signals::Held::new);
        loop {
            if let Some(cq) = self.0.pop() {
                return Ok(cq);
            }
            if self.0.take_interrupt() {
                return Err(EventError::Interrupted);
            }
            self.0.waits_inside.store(true, Ordering::Relaxed);
            let spent = match self.look_around(deadline, waiting.is_some()) {
                Ok(cq) => return Ok(cq),
                Err(spent) => spent,
            };
            if deadline.is_over() {
                return Err(EventError::Empty);
            }
            if let Some(signals) = &signals {
                signals.deliver().map_err(|_| EventError::Interrupted)?;
                continue;
            }
            // While it lives, this thread listens to the sockets, and the background threads do not.
            let waiter = waiter_for(&mut waiting, &self.0.stack, self.0.reach.get());
            let mut fds = waiter.fds();
            fds.push(self.0.descriptor.events());
            let asleep = Instant::now();
            poll::wait(&fds, deadline.left()).map_err(|_| EventError::Interrupted)?;
            self.0.patience.learn(spent, asleep.elapsed());
        }
    }

    /// Takes turns for a moment, so that an answer on its way is received without sleeping.
    fn look_around(&self, deadline: poll::Deadline, slept: bool) -> Result<Cq, Spent> {
        let (stack, reach) = (&self.0.stack, self.0.reach.get());
        let _looker = Looker::new(&self.0);
        if slept {
            stack.turns(reach, Who::Inline, true);
            if let Some(cq) = self.0.pop() {
                return Ok(cq);
            }
        }
        let mut look = stack.wait.look();
        let begun = Instant::now();
        let busy = stack.wait.polling() == Polling::Busy;
        while !(deadline.is_over() || busy && begun.elapsed() >= LOOK_UP) {
            if !look.goes_on(|spent| self.0.patience.lasts(spent)) {
                break;
            }
            // The program probably answers what it is given: acknowledgements wait for that.
            stack.progress(reach, true);
            if let Some(cq) = self.0.pop() {
                return Ok(cq);
            }
            look.looked(false);
        }
        let spent = look.spent();
        stack.turns(reach, Who::Idle, true);
        self.0.pop().ok_or(spent)
    }
}

/// The [`Waiter`] for the shards of `reach`. If `reach` has changed, the old one is dropped, so that the background threads listen
/// to shards that are in it no more.
fn waiter_for<'a, 'b>(
    watching: &'b mut Option<(ShardSet, Waiter<'a>)>,
    stack: &'a Stack,
    reach: ShardSet,
) -> &'b Waiter<'a> {
    if watching.as_ref().is_some_and(|(watched, _)| *watched != reach) {
        *watching = None;
    }
    &watching.get_or_insert_with(|| (reach, stack.wait_for_packets(reach))).1
}

/// For a thread that does nothing but wait for the completions of one queue and handle them, such as the connection
/// manager's. It listens to the sockets in the place of the library's background thread, until it is dropped.
///
/// It does not listen while the program polls or has a lookout, or while the background thread never sleeps: two threads that
/// wait for the same socket double the latency. Nor does it listen after packets for other queues, until a completion comes
/// for its own. The background thread then answers the peers of a program that makes no calls, because it looks for the next packet
/// a moment before it sleeps.
#[derive(Debug)]
pub struct CqWaiter<'a> {
    cq: &'a Cq,
    channel: &'a Channel,
    watching: Option<(ShardSet, Waiter<'a>)>,
    /// The application's polls at the last wait.
    polls: u64,
    /// Whether what arrived last was not for this queue.
    for_others: bool,
}

impl<'a> CqWaiter<'a> {
    pub(crate) fn new(cq: &'a Cq) -> Option<Self> {
        let channel = cq.ring().channel()?;
        become_background();
        let polls = channel.stack.polls(cq.ring().reach());
        Some(Self { cq, channel, watching: None, polls, for_others: false })
    }

    /// As [`Cq::poll`], but for a thread that does not go on polling: it takes one turn, and never holds back what is
    /// owed to peers.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn poll(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        let reach = self.cq.ring().reach();
        if self.watching.as_ref().is_some_and(|(watched, _)| *watched != reach) {
            self.watching = None;
        }
        // While this thread listens, the background thread does not receive.
        let attends = self.watching.is_some() || self.cq.ring().is_empty();
        let received = attends && self.channel.stack.attend(reach);
        let count = self.cq.take(out)?;
        if received || count > 0 {
            self.for_others = count == 0;
        }
        Ok(count)
    }

    /// Leaves the sockets to the background thread until the next wait, because the calling thread has other work to do.
    pub fn step_aside(&mut self) {
        self.watching = None;
    }

    /// Waits until there is a completion, packets have arrived, `beside` is readable, or the time is over; in each case the
    /// queue is to be polled.
    ///
    /// # Errors
    /// [`EventError::Interrupted`] after [`CompChannel::interrupt`] or a signal; [`EventError::Forked`].
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        beside: Option<BorrowedFd<'_>>,
    ) -> Result<(), EventError> {
        let (channel, ring) = (self.channel, self.cq.ring());
        channel.stack.check()?;
        if channel.take_interrupt() {
            return Err(EventError::Interrupted);
        }
        // Armed only here: a completion of this thread's own turns need not wake it.
        if ring.arm() {
            let reach = ring.reach();
            let polls = channel.stack.polls(reach);
            let polled = core::mem::replace(&mut self.polls, polls) != polls
                || channel.stack.is_polled(reach)
                || channel.stack.lookout.is_there()
                || channel.stack.wait.polling() == Polling::Busy;
            let watched = if polled || self.for_others {
                if let Some((_, waiter)) = self.watching.take()
                    && self.for_others
                {
                    waiter.hand_over();
                }
                None
            } else {
                Some(waiter_for(&mut self.watching, &channel.stack, reach))
            };
            let mut fds = watched.map(|waiter| waiter.fds()).unwrap_or_default();
            fds.push(channel.descriptor.events());
            fds.extend(beside);
            let woken = poll::wait(&fds, timeout);
            ring.disarm();
            woken.map_err(|_| EventError::Interrupted)?;
        }
        while let Some(cq) = channel.pop() {
            cq.ack_events(1);
        }
        if channel.take_interrupt() { Err(EventError::Interrupted) } else { Ok(()) }
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}
