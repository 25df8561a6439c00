//! Waiting for completions: calls that wait, and threads that wait for the descriptor.

use super::Link;
use crate::{
    error::SocketError,
    lock,
    proto::Stream,
    waiters::{Entered, Waiter},
};
use rxe_verbs::EventError;
use std::{
    sync::{MutexGuard, atomic::Ordering},
    time::Instant,
};

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Whether a thread sleeps until the event arrives. It wakes the others.
    led: bool,
}

/// Why a wait has ended early.
enum Woken {
    Event,
    Signal,
    Time,
}

impl Link {
    /// Waits until `test` returns true.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if this did not happen before `until`; [`SocketError::Interrupted`].
    pub(crate) fn wait(
        &self,
        until: Until,
        test: impl Fn(&Stream) -> bool,
    ) -> Result<MutexGuard<'_, Stream>, SocketError> {
        let mut stream = self.stream();
        let mut entered = None;
        loop {
            self.progress(&mut stream);
            if test(&stream) {
                return Ok(stream);
            }
            if until.is_over() {
                return Err(SocketError::WouldBlock);
            }
            // Completions from before the queue was armed cause no event.
            if !self.armed.swap(true, Ordering::AcqRel) {
                self.parts.cq.req_notify(false);
                continue;
            }
            let seen = stream.turn();
            drop(stream);
            let woken = self.sleep(until, seen, &mut entered);
            stream = self.stream();
            match woken {
                Woken::Event => {}
                Woken::Signal => return Err(SocketError::Interrupted),
                Woken::Time => {
                    self.progress(&mut stream);
                    return if test(&stream) { Ok(stream) } else { Err(SocketError::WouldBlock) };
                }
            }
        }
    }

    /// Waits for the event, or for the thread that waits for it. Returns at once if the stream's count of changes is no longer
    /// `seen`.
    fn sleep<'a>(&'a self, until: Until, seen: u64, entered: &mut Option<Entered<'a>>) -> Woken {
        loop {
            let mut waiting = lock(&self.waiting);
            // Another thread may have armed the queue again, and have taken the completion for which this one waits.
            if !self.armed.load(Ordering::Acquire) || self.stream().turn() != seen {
                return Woken::Event;
            }
            if !waiting.led {
                waiting.led = true;
                break;
            }
            // It is woken from here on.
            let entered = entered.get_or_insert_with(|| Entered::new(&self.waiters));
            drop(waiting);
            if until.is_over() {
                return Woken::Time;
            }
            if entered.waiter.sleep(until).is_err() {
                return Woken::Signal;
            }
        }
        let woken = self.lead(until);
        lock(&self.waiting).led = false;
        // One of the others has to wait for the event now, or all have to look.
        self.waiters.wake(entered.as_ref().map(|entered| &entered.waiter));
        woken
    }

    fn lead(&self, until: Until) -> Woken {
        let channel = &self.parts.channel;
        let event = match until {
            Until::Ever => channel.get_event(),
            Until::Now => return Woken::Time,
            Until::Then(end) => channel.get_event_within(end.saturating_duration_since(Instant::now())),
        };
        match event {
            Ok(cq) => {
                cq.ack_events(1);
                self.armed.store(false, Ordering::Release);
                Woken::Event
            }
            Err(EventError::Empty) => Woken::Time,
            Err(_) => Woken::Signal,
        }
    }

    /// Arms the queue for [`Self::event_fd`], and polls once more.
    pub(crate) fn arm(&self, waiter: &Waiter) {
        self.waiters.enter(waiter);
        let mut stream = self.stream();
        if !self.armed.swap(true, Ordering::AcqRel) {
            self.parts.cq.req_notify(false);
        }
        self.progress(&mut stream);
    }

    /// To be called when [`Self::event_fd`] has become readable: takes the event, unless a waiting thread takes it.
    pub(crate) fn take_event(&self, waiter: &Waiter) {
        let waiting = lock(&self.waiting);
        if !waiting.led
            && self.armed.load(Ordering::Acquire)
            && let Some(cq) = self.parts.channel.try_get_event()
        {
            cq.ack_events(1);
            self.armed.store(false, Ordering::Release);
            self.waiters.wake(Some(waiter));
        }
    }
}

/// How long a call may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// Not at all.
    Now,
    /// Until this time.
    Then(Instant),
    /// Without a limit.
    Ever,
}

impl Until {
    /// For this long from now on, as with `poll(2)`: `None` means for ever, and so does a time that is too far ahead.
    pub(crate) fn within(time: Option<core::time::Duration>) -> Self {
        match time {
            Some(core::time::Duration::ZERO) => Self::Now,
            Some(time) => Instant::now().checked_add(time).map_or(Self::Ever, Self::Then),
            None => Self::Ever,
        }
    }

    /// The remaining time; `None` means for ever.
    pub(crate) fn left(self) -> Option<core::time::Duration> {
        match self {
            Self::Now => Some(core::time::Duration::ZERO),
            Self::Then(end) => Some(end.saturating_duration_since(Instant::now())),
            Self::Ever => None,
        }
    }

    /// Whether the time is over.
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Now => true,
            Self::Then(end) => Instant::now() >= end,
            Self::Ever => false,
        }
    }
}
