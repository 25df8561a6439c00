//! A shard: a slot of the host, its link and its queue pairs, behind one lock.

use super::{
    background::TICK,
    clock,
    hold::Next,
    lookout::{Descriptor, Lookout},
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
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// What the background thread is doing.
pub(super) mod mode {
    /// Taking turns, or about to: it will see whatever happens.
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
    /// Of the process that made it.
    generation: u32,
    /// Readable while the link has arrivals.
    arrivals: AnyReadable,
    /// Wakes the background thread.
    pub(super) wake: Event,
    /// Wakes it a tick later.
    pub(super) alarm: Alarm,
    pub(super) mode: AtomicU8,
    /// Deadline, in nanoseconds, that a sleeping background thread knows of.
    pub(super) sleeps_until: AtomicU64,
    /// The next deadline, in nanoseconds, as the application's last turn left it.
    deadline: AtomicU64,
    /// Counts the application's turns.
    pub(super) polls: AtomicU64,
    /// The system's number of the thread that made the last of them; 0 if none has.
    pub(super) poller: AtomicI32,
    /// Threads of the application that wait for packets.
    pub(super) waiters: AtomicU32,
    /// What `polls` was when a thread of the application was about to sleep on a descriptor: it polls no more.
    pub(super) given_up: AtomicU64,
    /// Whether arrivals wake a thread of the application that waits for a descriptor,
    is_lookout: AtomicBool,
    /// and which one.
    looks_out: Mutex<Weak<Descriptor>>,
    /// Which descriptor of the stack arrivals make readable, and whether the program that waits for it can be relied on.
    lookout: Arc<Lookout>,
    pub(super) stop: AtomicBool,
    /// Perhaps messages wait for the next call.
    holds: AtomicBool,
    /// Whether the background thread looks in on those that do.
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
            looks_out: Mutex::default(),
            lookout: Arc::clone(lookout),
            stop: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            ticks,
        }))
    }

    /// Whether it is this process's.
    ///
    /// # Errors
    /// [`Forked`] in a child of its process, where its threads are not and its lock may be held for ever.
    pub(crate) fn check(&self) -> Result<(), Forked> {
        if is_own(self.generation) { Ok(()) } else { Err(Forked) }
    }

    /// Does something with the endpoint, then sends what came of it. Waits for the lock.
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
        let turn = state.send_now(view, acks);
        self.warn(turn);
        Ok(result)
    }

    /// Posts `count` messages of `bytes` together to `qpn`, and sends what may leave now; but while the application is posting
    /// and polling in a row they may wait for its next call.
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
            // A program that sends what nobody answers finds its queue never empty, so it takes no turns and does not count as one
            // that polls.
            mode::LISTENING => state.endpoint.is_never_answered(qpn),
            _ => false,
        };
        let hold = self.ticks && is_there && state.may_hold(now, qpn, (count, bytes), next);
        let result = action(state, now);
        if hold {
            if state.hold(now, (count, bytes)) && is_lookout {
                self.call_lookout();
            }
            // A ticking background thread comes in a millisecond at the latest.
            if mode != mode::TICKING {
                self.look_in_later();
            }
            self.holds.store(true, Ordering::Relaxed);
        } else {
            self.holds.store(false, Ordering::Relaxed);
            let turn = state.send_at(|| now, view, Acks::Wait);
            self.warn(turn);
        }
        Ok(result)
    }

    /// Sends messages that wait, unless another thread is in a turn, which does.
    pub(crate) fn release(&self) {
        if self.holds.load(Ordering::Relaxed)
            && let Some(mut guard) = self.state.try_lock()
        {
            self.holds.store(false, Ordering::Relaxed);
            let (state, view) = self.parts(&mut guard);
            let turn = state.send_now(view, Acks::Wait);
            self.warn(turn);
        }
    }

    /// Looks at the state, and sends nothing. Waits for the lock.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn look<T>(&self, action: impl FnOnce(&mut State) -> T) -> Result<T, Forked> {
        self.check()?;
        Ok(action(self.state.lock().parts().0))
    }

    /// The same unless somebody has the lock, or it is not ours.
    pub(crate) fn try_look<T>(&self, action: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.check().ok()?;
        Some(action(self.state.try_lock()?.parts().0))
    }

    /// Does something with registered memory, and nothing with the state.
    pub(crate) fn with_memory<T>(&self, action: impl FnOnce(View<'_>) -> T) -> Result<T, Forked> {
        self.check()?;
        let mut guard = self.state.lock();
        Ok(action(self.parts(&mut guard).1))
    }

    /// A turn on behalf of the application, unless another thread is in one. `polls`: it will soon be back, so the
    /// background thread need not listen.
    pub(crate) fn progress(&self, who: Who, polls: bool) -> Turn {
        if polls {
            self.count_poll();
        }
        self.try_turn(who).inspect(|turn| self.warn(*turn)).unwrap_or_default()
    }

    /// The application is there, and will soon be back. Only a hint for the background thread, so lost updates do not matter.
    pub(crate) fn count_poll(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.poller.store(this_thread(), Ordering::Relaxed);
    }

    /// For a thread of the application that has armed its queue and found it empty: what waited for its next call leaves,
    /// acknowledgements as well, unless another thread is in a turn. Nothing is received: whoever listens sees to that.
    /// Acknowledgements of several queue pairs wait for the answers of a program that arrivals wake, and it is called for those
    /// that have none.
    pub(crate) fn settle(&self) {
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
                self.call_lookout();
            }
        }
    }

    /// A turn, unless another thread is in one, or it is not ours.
    pub(super) fn try_turn(&self, who: Who) -> Option<Turn> {
        self.check().ok()?;
        let mut guard = self.state.try_lock()?;
        let (state, view) = self.parts(&mut guard);
        Some(state.turn(view, who))
    }

    /// A turn on behalf of nobody: the application need not be polling. Waits for the lock: whoever has it may be waiting for
    /// the processor that a thread which came back again and again would not give away. Whether something had arrived.
    pub(crate) fn attend(&self) -> bool {
        self.check().is_ok()
            && self.turn_then(Who::Idle, |turn| {
                self.warn(turn);
                turn.received
            })
    }

    /// The lock is free for a moment, so a holder's changes are seen: a turn, and `after` before the lock is given back.
    pub(super) fn turn_then<T>(&self, who: Who, after: impl FnOnce(Turn) -> T) -> T {
        let mut guard = self.state.lock();
        let (state, view) = self.parts(&mut guard);
        after(state.turn(view, who))
    }

    fn parts<'a>(&'a self, guard: &'a mut Guard<'_, State>) -> (&'a mut State, View<'a>) {
        let (state, token) = guard.parts();
        (state, View::new(&self.table, token))
    }

    /// Has the background thread look in soon if it would sleep past the next deadline. A ticking one does.
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

    /// Whether something has waited for a call of the application's that did not come in time.
    pub(super) fn is_overdue(&self) -> bool {
        self.holds.load(Ordering::Relaxed) || self.deadline.load(Ordering::Relaxed) <= clock::now().nanos()
    }

    /// Wakes the background thread, but a tick later.
    fn look_in_later(&self) {
        if !self.alarm.set() {
            self.wake.raise();
        }
    }

    /// A thread of the application is about to sleep on a descriptor: unless arrivals wake it, the background thread stops
    /// ticking and listens.
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

    /// Arrivals wake who waits for `descriptor`.
    pub(super) fn begin_lookout(&self, descriptor: &Arc<Descriptor>) {
        *lock(&self.looks_out) = Arc::downgrade(descriptor);
        self.is_lookout.store(true, Ordering::SeqCst);
    }

    /// Has the program come by, although nothing has arrived.
    fn call_lookout(&self) {
        let descriptor = lock(&self.looks_out).upgrade();
        if let Some(descriptor) = descriptor {
            descriptor.raise();
        }
    }

    /// Packets have lain there for a tick. If the program is not there for them again and again, nobody relies on it.
    pub(super) fn miss_lookout(&self) {
        if self.lookout.missed() {
            self.is_lookout.store(false, Ordering::SeqCst);
        }
    }

    /// Arrivals wake nobody any more but the background thread.
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

    /// The background thread has left the arrivals to us, and takes over again: `at_once`, or a little later, as who waits again
    /// soon had it woken for nothing.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
