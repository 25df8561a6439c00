//! Completion queues (ibv_cq).

use crate::{
    channel::{Channel, CompChannel, CqWaiter},
    engine::{Reach, ShardSet, Stack},
    error::{CreateError, Forked, PollError},
    events::{AsyncEvent, AsyncQueue},
    limits,
    sys::{
        fork::{generation, is_own},
        lock,
    },
    tags::{Beside, TagInfo},
};
use core::time::Duration;
use rxe_core::{
    num::Qpn,
    work::{Completion, CqId, WcExtra},
};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

/// A completion queue. Clones are the same queue. The queue lives as long as one of them, or a queue pair that uses it.
#[derive(Clone, Debug)]
pub struct Cq(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    ring: Arc<CqRing>,
    stack: Arc<Stack>,
}

/// The part that shards know, into which they put completions.
#[derive(Debug)]
pub(crate) struct CqRing {
    id: CqId,
    state: Mutex<State>,
    /// Number of entries, so that an empty queue is recognized without the lock.
    len: AtomicUsize,
    overrun: AtomicBool,
    /// Whether it is armed, and whether it is armed and was not polled since. Polls read both without the lock.
    is_armed: AtomicBool,
    just_armed: AtomicBool,
    /// Whether an event was delivered, and the program has not found the queue empty since then. Changed with the lock held.
    is_told: AtomicBool,
    /// The shards with queue pairs that use it.
    reach: Reach,
    /// Where an overrun is reported.
    events: Arc<AsyncQueue>,
    channel: Option<Arc<Channel>>,
    /// Which process made it.
    generation: u32,
    handle: OnceLock<Weak<Handle>>,
    acked: Condvar,
}

#[derive(Debug)]
struct State {
    entries: VecDeque<Completion>,
    capacity: usize,
    armed: Armed,
    /// The completions that have arrived since the program last knew all entries of the queue.
    missed: Missed,
    lost: u64,
    /// Events that were delivered and not acknowledged.
    unacked: u64,
    /// Wakes threads that wait until there are none.
    waiting: u32,
    /// Tags and flags of completions of tag matching queues.
    beside: Beside,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Armed {
    No,
    Solicited,
    Next,
}

/// Completions that the program does not know of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Missed {
    None,
    Unsolicited,
    Solicited,
}

impl CqRing {
    /// Adds a completion, and puts its event into the channel. Returns whether there was an event.
    pub(crate) fn push(self: &Arc<Self>, wc: Completion, solicited: bool) -> bool {
        let is_event = self.put(wc, solicited);
        if is_event {
            self.announce();
        }
        is_event
    }

    /// Adds a completion. Returns whether an event is due ([`Self::announce`]). If the queue is full the completion is lost. An
    /// asynchronous event reports that, and a poll gives an error when the queue is empty.
    pub(crate) fn put(&self, wc: Completion, solicited: bool) -> bool {
        let mut state = self.lock();
        if state.entries.len() >= state.capacity {
            state.lost += 1;
            drop(state);
            if !self.overrun.swap(true, Ordering::AcqRel) {
                self.events.push(AsyncEvent::CqError(self.id));
            }
            return false;
        }
        state.entries.push_back(wc);
        self.len.store(state.entries.len(), Ordering::Release);
        let wakes = match state.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Next => true,
        };
        if wakes {
            self.tell(&mut state);
        } else if !self.is_told.load(Ordering::Relaxed) {
            state.missed = state.missed.max(if solicited { Missed::Solicited } else { Missed::Unsolicited });
        }
        wakes
    }

    /// Notes that an event tells the program of the completions in the queue.
    fn tell(&self, state: &mut State) {
        self.set_armed(state, Armed::No);
        self.is_told.store(true, Ordering::Relaxed);
        state.missed = Missed::None;
    }

    /// Puts its event into the channel.
    pub(crate) fn announce(self: &Arc<Self>) {
        if let Some(channel) = &self.channel {
            channel.push(Arc::clone(self));
        }
    }

    /// Stores tag and flags of a completion that is added next. They may be overwritten when the
    /// queue has been filled twice since then, and then the completion was polled.
    pub(crate) fn keep_beside(&self, info: TagInfo) -> WcExtra {
        let mut state = self.lock();
        let most = state.capacity.saturating_mul(2);
        WcExtra::Tag(state.beside.keep(info, most))
    }

    pub(crate) const fn id(&self) -> CqId {
        self.id
    }

    /// Forgets the completions of a queue pair.
    pub(crate) fn forget(&self, qpn: Qpn) {
        let mut state = self.lock();
        state.entries.retain(|wc| wc.qpn != qpn);
        if state.entries.is_empty() {
            state.missed = Missed::None;
        }
        self.len.store(state.entries.len(), Ordering::Release);
    }

    pub(crate) fn channel(&self) -> Option<&Channel> {
        self.channel.as_deref()
    }

    /// The shards that may have completions for it.
    pub(crate) fn reach(&self) -> ShardSet {
        self.reach.get()
    }

    /// Notes that a shard has queue pairs that use it.
    pub(crate) fn add_shard(&self, index: u8) {
        self.reach.add(index);
        if let Some(channel) = &self.channel {
            channel.add_shard(index);
        }
    }

    /// Notes that a shard has no such queue pairs any more.
    pub(crate) fn remove_shard(&self, index: u8) {
        self.reach.remove(index);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Arms it for the next completion. False, and not armed, if it has a completion.
    pub(crate) fn arm(&self) -> bool {
        let mut state = self.lock();
        let empty = state.entries.is_empty();
        if empty {
            self.set_armed(&mut state, Armed::Next);
        }
        empty
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
    }

    /// Disarms it for an event without a completion. False if it was not armed.
    pub(crate) fn take_arming(&self) -> bool {
        let mut state = self.lock();
        let was_armed = state.armed != Armed::No;
        if was_armed {
            self.tell(&mut state);
        }
        was_armed
    }

    /// Disarms it.
    pub(crate) fn disarm(&self) {
        self.set_armed(&mut self.lock(), Armed::No);
    }

    fn set_armed(&self, state: &mut State, armed: Armed) {
        state.armed = armed;
        self.is_armed.store(armed != Armed::No, Ordering::Relaxed);
    }

    fn pop(&self, out: &mut [Completion]) -> usize {
        if self.len.load(Ordering::Acquire) == 0 && !self.is_told.load(Ordering::Relaxed) {
            return 0;
        }
        let mut state = self.lock();
        let count = out.len().min(state.entries.len());
        for (slot, wc) in out.iter_mut().zip(state.entries.drain(..count)) {
            *slot = wc;
        }
        self.len.store(state.entries.len(), Ordering::Release);
        if state.entries.is_empty() {
            self.is_told.store(false, Ordering::Relaxed);
            state.missed = Missed::None;
        }
        count
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs `act` with its lock held, as if a signal had interrupted a poll.
    #[cfg(test)]
    pub(crate) fn interrupted<T>(&self, act: impl FnOnce() -> T) -> T {
        let _held = self.lock();
        act()
    }
}

impl Cq {
    pub(crate) fn new(
        stack: &Arc<Stack>,
        events: &Arc<AsyncQueue>,
        capacity: u32,
        channel: Option<&CompChannel>,
    ) -> Result<Self, CreateError> {
        stack.check()?;
        limits::check("CQ entries", capacity.into(), 1, limits::MAX_CQE.into())?;
        let id = CqId(stack.cqs.take().ok_or(CreateError::Exhausted("completion queues"))?);
        let ring = Arc::new(CqRing {
            id,
            state: Mutex::new(State {
                entries: VecDeque::new(),
                capacity: capacity as usize,
                armed: Armed::No,
                missed: Missed::None,
                lost: 0,
                unacked: 0,
                waiting: 0,
                beside: Beside::default(),
            }),
            len: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            is_armed: AtomicBool::new(false),
            just_armed: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            reach: Reach::default(),
            events: Arc::clone(events),
            channel: channel.map(|channel| Arc::clone(channel.shared())),
            generation: generation(),
            handle: OnceLock::new(),
            acked: Condvar::new(),
        });
        let handle = Arc::new(Handle { ring, stack: Arc::clone(stack) });
        // This is set only once.
        let _ = handle.ring.handle.set(Arc::downgrade(&handle));
        if let Some(channel) = &handle.ring.channel {
            channel.add_queue(&handle.ring);
        }
        Ok(Self(handle))
    }

    /// Whether it belongs to this process.
    fn check(&self) -> Result<(), Forked> {
        if is_own(self.0.ring.generation) { Ok(()) } else { Err(Forked) }
    }

    /// The queue that `ring` belongs to, if it still has a user.
    pub(crate) fn of(ring: &CqRing) -> Option<Self> {
        ring.handle.get()?.upgrade().map(Self)
    }

    pub(crate) fn ring(&self) -> &Arc<CqRing> {
        &self.0.ring
    }

    pub(crate) fn belongs_to(&self, stack: &Arc<Stack>) -> bool {
        Arc::ptr_eq(&self.0.stack, stack)
    }

    /// Its name in asynchronous events.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.0.ring.id
    }

    /// Takes completions, oldest first, into `out`, and returns their number (ibv_poll_cq). If the queue is empty, the engine takes a
    /// turn: it receives, answers, sends and checks timers. It does not at the first poll after arming, when the program is about to sleep.
    /// After many turns without effect the call offers the processor to other threads (`sched_yield(2)`). If another thread is
    /// known to compute there, it sleeps until packets arrive, for at most 200 us.
    ///
    /// # Errors
    /// [`PollError::Overrun`] if a full queue has lost completions, after all that it kept have been taken.
    /// [`PollError::Forked`].
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        self.check()?;
        let ring = &self.0.ring;
        let count = ring.pop(out);
        if count == out.len() {
            // There may be more completions, so the program will probably poll again.
            return Ok(count);
        }
        if count > 0 {
            self.0.stack.send_held(ring.reach());
            return Ok(count);
        }
        let (stack, reach) = (&self.0.stack, ring.reach());
        // A program that polls once more after arming is about to sleep. The thread that listens then receives what arrives.
        if ring.just_armed.swap(false, Ordering::Relaxed) {
            stack.send_before_sleep(reach);
            return self.take(out);
        }
        stack.progress(reach, !ring.is_armed());
        let count = self.take(out)?;
        if count == 0 {
            stack.give_way(reach);
        }
        Ok(count)
    }

    /// Takes completions that are in the queue. The engine takes no turn.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub(crate) fn take(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        self.check()?;
        let ring = &self.0.ring;
        let count = ring.pop(out);
        if count == 0 && ring.overrun.load(Ordering::Acquire) && ring.is_empty() {
            return Err(PollError::Overrun { lost: ring.lock().lost });
        }
        Ok(count)
    }

    /// Tag and flags of a completion of a tag matching queue that was polled from this queue. Those of earlier completions
    /// are forgotten. So ask in the order in which completions were polled, and before the queue has been emptied
    /// and filled again.
    #[must_use]
    pub fn tag_info(&self, wc: &Completion) -> Option<TagInfo> {
        match wc.extra {
            WcExtra::Tag(number) if self.check().is_ok() => self.0.ring.lock().beside.get(number),
            _ => None,
        }
    }

    /// Polls until there is a completion or `timeout` is over. It keeps the processor busy. For long waits use
    /// a [`CompChannel`].
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_within(&self, timeout: Duration) -> Result<Option<Completion>, PollError> {
        let mut one = [Completion::default()];
        if self.poll(&mut one)? == 1 {
            return Ok(Some(one[0]));
        }
        let start = Instant::now();
        loop {
            for _ in 0..8 {
                if self.poll(&mut one)? == 1 {
                    return Ok(Some(one[0]));
                }
            }
            if start.elapsed() >= timeout {
                return Ok(None);
            }
        }
    }

    /// Arms the queue (ibv_req_notify_cq): the next completion, or with `solicited_only` the next solicited one or
    /// error, puts an event into the channel. Completions that are in the queue already need not cause one, so poll once more after arming.
    /// If the queue is armed for all completions, arming for solicited ones does not change that.
    ///
    /// Completions that the program cannot know of do cause an event at once, as with ConnectX cards: those that arrived
    /// without an event after the program found the queue empty. UCX relies on that, and sleeps without a further poll.
    pub fn req_notify(&self, solicited_only: bool) {
        if self.check().is_err() {
            return;
        }
        let ring = &self.0.ring;
        let mut state = ring.lock();
        if state.missed >= if solicited_only { Missed::Solicited } else { Missed::Unsolicited } {
            ring.tell(&mut state);
            drop(state);
            ring.announce();
            return;
        }
        let armed = state.armed.max(if solicited_only { Armed::Solicited } else { Armed::Next });
        ring.set_armed(&mut state, armed);
        drop(state);
        if let Some(channel) = &ring.channel {
            ring.just_armed.store(true, Ordering::Relaxed);
            if !channel.waits_inside() {
                self.0.stack.expect_sleep(ring.reach());
            }
        }
    }

    /// For a thread that does nothing but wait for this queue's completions and handle them. From now on it takes no signals,
    /// and it must stay in the network namespace of the process (no `setns(2)`). `None` without a channel. No other thread may
    /// wait for the channel's events.
    #[must_use]
    pub fn waiter(&self) -> Option<CqWaiter<'_>> {
        CqWaiter::new(self)
    }

    /// How many completions it can hold. 0 in a forked child.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        if self.check().is_err() {
            return 0;
        }
        u32::try_from(self.0.ring.lock().capacity).unwrap_or(u32::MAX)
    }

    /// Changes how many completions it can hold (ibv_resize_cq).
    ///
    /// # Errors
    /// [`CreateError::Limit`] if the number is not between 1 and the device's limit, or less than the number of completions in it now.
    pub fn resize(&self, capacity: u32) -> Result<(), CreateError> {
        self.check()?;
        let mut state = self.0.ring.lock();
        let least = state.entries.len().max(1) as u64;
        limits::check("CQ entries", capacity.into(), least, limits::MAX_CQE.into())?;
        state.capacity = capacity as usize;
        state.entries.shrink_to(capacity as usize);
        Ok(())
    }

    /// Whether a queue pair or another handle still holds it. ibv_destroy_cq fails with EBUSY then.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Acknowledges `count` events (ibv_ack_cq_events). A number larger than that of the events means all.
    pub fn ack_events(&self, count: u32) {
        if self.check().is_err() {
            return;
        }
        let mut state = self.0.ring.lock();
        state.unacked = state.unacked.saturating_sub(count.into());
        // A wake-up costs a system call even if no thread waits.
        if state.unacked == 0 && state.waiting > 0 {
            self.0.ring.acked.notify_all();
        }
    }

    /// Number of events that were delivered and not acknowledged.
    #[must_use]
    pub fn unacked_events(&self) -> u64 {
        if self.check().is_err() {
            return 0;
        }
        self.0.ring.lock().unacked
    }

    /// Waits until every delivered event is acknowledged, as ibv_destroy_cq does. Dropping does not wait, because in Rust an
    /// event holds its queue.
    pub fn wait_acked(&self) {
        // In a forked child the threads that might acknowledge do not exist.
        if self.check().is_err() {
            return;
        }
        let mut state = self.0.ring.lock();
        state.waiting += 1;
        while state.unacked > 0 {
            state = self.0.ring.acked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }

    pub(crate) fn count_event(&self) {
        self.0.ring.lock().unacked += 1;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.stack.check().is_err() {
            return;
        }
        if let Some(channel) = &self.ring.channel {
            channel.forget(&self.ring);
        }
        self.ring.events.forget(|event| *event == AsyncEvent::CqError(self.ring.id));
        self.stack.cqs.give_back(self.ring.id.0);
    }
}
