//! A shard: a slot of the host, its link and its queue pairs, behind one lock.

use super::{
    background::TICK,
    clock,
    hold::Next,
    lookout::Lookout,
    mailbox::Mailbox,
    state::{State, Turn, Who},
};
use crate::{
    error::Forked,
    regions::{Regions, View},
    sys::{
        alarm::Alarm,
        fork::{generation, is_own},
        poll::AnyReadable,
        process::this_thread,
        socket::Event,
        table::{Guard, Guarded},
    },
};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use rxe_core::{endpoint::Acks, num::Qpn, time::Instant};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// What the background thread is doing.
pub(super) mod mode {
    /// Taking turns, or about to, so it sees whatever happens.
    pub(in crate::engine) const AWAKE: u8 = 0;
    /// Sleeping for a millisecond, because the application polls.
    pub(in crate::engine) const TICKING: u8 = 1;
    /// Sleeping until packets arrive or a deadline.
    pub(in crate::engine) const LISTENING: u8 = 2;
    /// Sleeping until a deadline, because a thread of the application waits for packets.
    pub(in crate::engine) const RESTING: u8 = 3;
}

/// A shard.
#[derive(Debug)]
pub(crate) struct Shard {
    state: Arc<Guarded<State>>,
    table: Arc<Regions>,
    /// Fork generation of the process that made it.
    generation: u32,
    /// Readable while the link has arrivals.
    arrivals: AnyReadable,
    /// Wakes the background thread at once.
    pub(super) wake: Event,
    /// Wakes the background thread one [`TICK`] after it is set.
    pub(super) alarm: Alarm,
    pub(super) mode: AtomicU8,
    /// The deadline, in nanoseconds, at which a sleeping background thread wakes by itself.
    pub(super) sleeps_until: AtomicU64,
    /// The next deadline, in nanoseconds, as the application's last turn left it.
    deadline: AtomicU64,
    /// Counts the application's calls that looked for packets.
    pub(super) polls: AtomicU64,
    /// The system's number of the thread that made the last of them; 0 if none has.
    pub(super) poller: AtomicI32,
    /// Threads of the application that wait for packets.
    pub(super) waiters: AtomicU32,
    /// The value of `polls` when a thread of the application was last about to sleep on a descriptor. While both are equal, the
    /// application does not poll.
    pub(super) given_up: AtomicU64,
    /// Whether arrivals make a descriptor readable that a thread of the application waits for: the lookout,
    is_lookout: AtomicBool,
    /// which all shards of the stack share.
    lookout: Arc<Lookout>,
    pub(super) stop: AtomicBool,
    /// Whether messages wait for the next call ([`super::hold`]). Changed under the lock.
    holds: AtomicBool,
    /// Whether the background thread ticks. If it does not, no messages are held.
    ticks: bool,
}

impl Shard {
    pub(super) fn new(
        state: State,
        table: &Arc<Regions>,
        lookout: &Arc<Lookout>,
        ticks: bool,
    ) -> io::Result<Arc<Self>> {
        let mut fds = state.link.poll_fds();
        fds.extend(state.mailbox.as_deref().map(Mailbox::arrivals));
        let arrivals = AnyReadable::new(&fds)?;
        Ok(Arc::new(Self {
            state: table.guard(state),
            table: Arc::clone(table),
            generation: generation(),
            arrivals,
            wake: Event::new()?,
            alarm: Alarm::new(TICK)?,
            mode: AtomicU8::new(mode::AWAKE),
            sleeps_until: AtomicU64::new(u64::MAX),
            deadline: AtomicU64::new(u64::MAX),
            polls: AtomicU64::new(0),
            poller: AtomicI32::new(0),
            waiters: AtomicU32::new(0),
            given_up: AtomicU64::new(0),
            is_lookout: AtomicBool::new(false),
            lookout: Arc::clone(lookout),
            stop: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            ticks,
        }))
    }

    /// Whether this process made it.
    ///
    /// # Errors
    /// [`Forked`] in a child of that process, which has none of its threads and in which its lock may be held for ever.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        if is_own(self.generation) { Ok(()) } else { Err(Forked) }
    }

    /// Runs `action` under the lock, then sends what is to leave. Waits for the lock.
    ///
    /// # Errors
    /// As [`Self::check`]; nothing was done.
    pub(crate) fn act<T>(
        &self,
        acks: Acks,
        action: impl FnOnce(&mut State, View<'_>) -> T,
    ) -> Result<T, Forked> {
        self.check()?;
        let mut guard = self.state.lock();
        let (state, view) = self.parts(&mut guard);
        let result = action(state, view);
        self.holds.store(false, Ordering::Relaxed);
        let turn = state.send_now(view, acks);
        self.warn(turn);
        Ok(result)
    }

    /// Posts `count` messages, `bytes` long in all, to `qpn`, and sends what may leave now. While the application posts and polls
    /// in a row, the messages may wait for its next call ([`super::hold`]).
    ///
    /// # Errors
    /// As [`Self::check`]; nothing was done.
    pub(crate) fn post<T>(
        &self,
        qpn: Qpn,
        (count, bytes): (u32, u64),
        action: impl FnOnce(&mut State, Instant) -> T,
    ) -> Result<T, Forked> {
        self.check()?;
        let mut guard = self.state.lock();
        let (state, view) = self.parts(&mut guard);
        state.endpoint.expect_post(qpn);
        let now = clock::now();
        let mode = self.mode.load(Ordering::Relaxed);
        let is_lookout = self.is_lookout();
        let next = if is_lookout { Next::Called } else { Next::Guessed };
        let is_there = match mode {
            mode::TICKING | mode::RESTING => true,
            // A program that uses a service without answers never finds its queue empty. So it takes no turns, does not count as
            // one that polls, and the background thread does not tick.
            mode::LISTENING => state.endpoint.is_never_answered(qpn),
            _ => false,
        };
        let hold = self.ticks && is_there && state.may_hold(now, qpn, (count, bytes), next);
        let result = action(state, now);
        if hold {
            let first = state.hold.add(now, (count, bytes));
            // A ticking background thread looks within a tick anyway.
            if mode != mode::TICKING {
                self.look_in_later();
            }
            self.holds.store(true, Ordering::Relaxed);
            drop(guard);
            if first && is_lookout {
                self.lookout.call();
            }
        } else {
            self.holds.store(false, Ordering::Relaxed);
            let turn = state.send_at(|| now, view, Acks::Wait);
            self.warn(turn);
        }
        Ok(result)
    }

    /// Sends messages that wait. If another thread is in a turn, that turn sends them.
    pub(crate) fn send_held(&self) {
        if self.holds()
            && let Some(mut guard) = self.state.try_lock()
        {
            self.holds.store(false, Ordering::Relaxed);
            let (state, view) = self.parts(&mut guard);
            let turn = state.send_now(view, Acks::Wait);
            self.warn(turn);
        }
    }

    /// Runs `action` under the lock, and sends nothing. Waits for the lock.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn look<T>(&self, action: impl FnOnce(&mut State) -> T) -> Result<T, Forked> {
        self.check()?;
        Ok(action(self.state.lock().parts().0))
    }

    /// Runs `action`, which posts receives, under the lock. In ERROR they complete at once, and threads may sleep until somebody tells them.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn post_receives<T>(&self, action: impl FnOnce(&mut State) -> T) -> Result<T, Forked> {
        self.check()?;
        let mut guard = self.state.lock();
        let (state, view) = self.parts(&mut guard);
        let result = action(state);
        if state.endpoint.has_events() {
            state.hand_out(view);
        }
        Ok(result)
    }

    /// As [`Self::look`], but `None` if another thread has the lock, or this is a forked child.
    pub(crate) fn try_look<T>(&self, action: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.check().ok()?;
        Some(action(self.state.try_lock()?.parts().0))
    }

    /// Runs `action` with registered memory, under the lock, and leaves the state alone.
    pub(crate) fn with_memory<T>(&self, action: impl FnOnce(View<'_>) -> T) -> Result<T, Forked> {
        self.check()?;
        let mut guard = self.state.lock();
        Ok(action(self.parts(&mut guard).1))
    }

    /// Takes a turn for the application, unless another thread is in one. `polls`: the application will soon call again, so the
    /// background thread need not listen.
    pub(crate) fn progress(&self, who: Who, polls: bool) -> Turn {
        if polls {
            self.count_poll();
        }
        let turn = self.try_turn(who).inspect(|turn| self.warn(*turn));
        turn.unwrap_or_else(|| Turn { missed: true, ..Turn::default() })
    }

    /// Tells the background thread that the application polls. It is only a hint, so lost updates do not matter.
    pub(crate) fn count_poll(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.poller.store(this_thread(), Ordering::Relaxed);
    }

    /// For a thread of the application that has armed its queue and found it empty. Sends messages and acknowledgements that
    /// waited for its next call, unless another thread is in a turn. It receives nothing: the thread that listens does so.
    /// If the shard has a lookout, acknowledgements owed by several queue pairs wait for the program's answers. The
    /// lookout is then made readable, so that the program's next turn sends those that no answer has taken along.
    pub(crate) fn send_before_sleep(&self) {
        if self.check().is_err() {
            return;
        }
        if let Some(mut guard) = self.state.try_lock() {
            self.holds.store(false, Ordering::Relaxed);
            let (state, view) = self.parts(&mut guard);
            let answers = self.is_lookout() && state.endpoint.owes_several();
            let turn = state.send_now(view, if answers { Acks::Hold } else { Acks::Flush });
            self.warn(turn);
            drop(guard);
            if answers {
                self.lookout.call();
            }
        }
    }

    /// Takes a turn, unless another thread is in one, or this is a forked child.
    pub(super) fn try_turn(&self, who: Who) -> Option<Turn> {
        self.check().ok()?;
        Some(self.turn_under(&mut self.state.try_lock()?, who))
    }

    /// Takes a turn that does not count as a poll of the application. Returns whether something had arrived. It waits for the
    /// lock: its holder may wait for the very processor that this thread would keep by trying again and again.
    pub(crate) fn attend(&self) -> bool {
        self.check().is_ok()
            && self.turn_then(Who::Idle, |turn| {
                self.warn(turn);
                turn.received
            })
    }

    /// The process exits: sends what is owed, unless another thread is in a turn, or this one was interrupted in it.
    pub(super) fn leave(&self) {
        if self.check().is_ok()
            && let Some(mut guard) = self.state.try_lock()
        {
            let (state, view) = self.parts(&mut guard);
            state.last_turn(view);
        }
    }

    /// Waits for the lock, takes a turn, and runs `after` before it releases the lock.
    pub(super) fn turn_then<T>(&self, who: Who, after: impl FnOnce(Turn) -> T) -> T {
        let mut guard = self.state.lock();
        after(self.turn_under(&mut guard, who))
    }

    /// Takes a turn under the lock. It sends the messages that waited.
    fn turn_under(&self, guard: &mut Guard<'_, State>, who: Who) -> Turn {
        self.holds.store(false, Ordering::Relaxed);
        let (state, view) = self.parts(guard);
        state.turn(view, who)
    }

    fn parts<'a>(&'a self, guard: &'a mut Guard<'_, State>) -> (&'a mut State, View<'a>) {
        let (state, token) = guard.parts();
        (state, View::new(&self.table, token))
    }

    /// Publishes the deadline that `turn` left. Wakes the background thread if it would sleep past that: at once if the turn was
    /// blocked, else by the alarm, a tick later. A thread that ticks sees the deadline by itself.
    fn warn(&self, turn: Turn) {
        let next = turn.deadline.map_or(u64::MAX, |deadline| deadline.nanos());
        self.deadline.store(if turn.blocked { 0 } else { next }, Ordering::Relaxed);
        let mode = self.mode.load(Ordering::Relaxed);
        if matches!(mode, mode::LISTENING | mode::RESTING) {
            if turn.blocked {
                self.wake.raise();
            } else if next < self.sleeps_until.load(Ordering::Relaxed) {
                self.look_in_later();
            }
        }
    }

    /// Whether messages wait for the application's next call.
    pub(super) fn holds(&self) -> bool {
        self.holds.load(Ordering::Relaxed)
    }

    /// Whether messages wait for the application's next call, or a deadline has passed.
    pub(super) fn is_overdue(&self) -> bool {
        self.holds() || self.deadline.load(Ordering::Relaxed) <= clock::now().nanos()
    }

    /// Wakes the background thread one [`TICK`] later.
    fn look_in_later(&self) {
        if !self.alarm.set() {
            self.wake.raise();
        }
    }

    /// A thread of the application is about to sleep on a descriptor. Unless arrivals wake that thread (the lookout), this has the
    /// background thread stop ticking and listen.
    pub(crate) fn expect_sleep(&self) {
        if !self.is_lookout() {
            self.given_up.store(self.polls.load(Ordering::Relaxed), Ordering::SeqCst);
            if self.mode.load(Ordering::SeqCst) == mode::TICKING {
                self.wake.raise();
            }
        }
    }

    /// Whether arrivals wake a thread of the application that waits for a descriptor.
    pub(super) fn is_lookout(&self) -> bool {
        self.is_lookout.load(Ordering::SeqCst)
    }

    /// From now on arrivals make the lookout's descriptor readable.
    pub(super) fn begin_lookout(&self) {
        self.is_lookout.store(true, Ordering::SeqCst);
    }

    /// Packets have waited unread for a tick. After several such ticks this shard has no lookout any more
    /// ([`super::promise`]).
    pub(super) fn miss_lookout(&self) {
        if self.lookout.promise.missed() {
            self.is_lookout.store(false, Ordering::SeqCst);
        }
    }

    /// From now on arrivals wake the background thread only.
    pub(super) fn end_lookout(&self) {
        self.is_lookout.store(false, Ordering::SeqCst);
        self.expect_sleep();
    }

    /// Calls `act` with each descriptor that becomes readable when something arrives.
    pub(super) fn each_socket(
        &self,
        mut act: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut guard = self.state.lock();
        let (state, _) = self.parts(&mut guard);
        let mailbox = state.mailbox.as_deref().map(Mailbox::arrivals);
        state.link.poll_fds().into_iter().chain(mailbox).try_for_each(&mut act)
    }

    /// Whether the background thread has seen the application poll in the last millisecond.
    pub(super) fn is_polled(&self) -> bool {
        self.mode.load(Ordering::SeqCst) == mode::TICKING
    }

    pub(super) fn arrivals(&self) -> BorrowedFd<'_> {
        self.arrivals.as_fd()
    }

    pub(super) fn begin_waiting(&self) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends one [`Self::begin_waiting`]. After the last one the background thread listens again: `at_once`, or a tick later. The
    /// delay saves waking it in vain if a thread waits again before that.
    pub(super) fn end_waiting(&self, at_once: bool) {
        if self.waiters.fetch_sub(1, Ordering::SeqCst) == 1
            && self.mode.load(Ordering::SeqCst) == mode::RESTING
        {
            if at_once {
                self.wake.raise();
            } else {
                self.look_in_later();
            }
        }
    }
}
