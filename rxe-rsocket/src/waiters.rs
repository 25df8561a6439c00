//! Threads that wait for the same socket by poll. A change is one event, which one of them takes: poll(2) goes on in the others, as
//! the descriptor is not readable any more. So whoever takes an event wakes all who wait besides, each by a counter of its own.

use crate::{ready::Ready, socket::Socket};
use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a thread sleeps at a time that nobody can wake.
const GLANCE: Duration = Duration::from_millis(10);

/// A thread that waits, for one call. poll(2) needs no descriptor of its own, so where none is left for the counter the thread
/// looks again every [`GLANCE`].
#[derive(Debug)]
pub(crate) struct Waiter(Option<Arc<Ready>>);

impl Waiter {
    pub(crate) fn new() -> Self {
        Self(Ready::new().ok().map(Arc::new))
    }

    /// What to listen to beside the sockets' descriptors; poll(2) passes by one below zero.
    pub(crate) fn pollfd(&self) -> libc::pollfd {
        let fd = self.0.as_ref().map_or(-1, |ready| ready.as_fd().as_raw_fd());
        libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
    }

    /// How long it may sleep of what is left of its time.
    pub(crate) fn nap(&self, left: Option<Duration>) -> Option<Duration> {
        if self.0.is_some() { left } else { Some(left.map_or(GLANCE, |left| left.min(GLANCE))) }
    }

    /// It looks again now.
    pub(crate) fn clear(&self) {
        if let Some(ready) = &self.0 {
            ready.clear();
        }
    }

    fn is(&self, one: &Arc<Ready>) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, one))
    }
}

/// Those of one socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Vec<Arc<Ready>>>);

impl Waiters {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Ready>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread waits from now on: to be called before it arms the socket.
    pub(crate) fn enter(&self, waiter: &Waiter) {
        let Some(ready) = &waiter.0 else { return };
        let mut all = self.all();
        if !all.iter().any(|one| waiter.is(one)) {
            all.push(Arc::clone(ready));
        }
    }

    /// It does not any more.
    pub(crate) fn leave(&self, waiter: &Waiter) {
        self.all().retain(|one| !waiter.is(one));
    }

    /// An event has been taken, and the socket is not armed any more: all look, but the thread that took it.
    pub(crate) fn wake(&self, but: Option<&Waiter>) {
        for one in self.all().iter() {
            if but.is_none_or(|but| !but.is(one)) {
                one.raise();
            }
        }
    }
}

/// A thread that waits for one socket; it is gone when this is dropped.
pub(crate) struct Entered<'a> {
    pub(crate) waiter: Waiter,
    waiters: &'a Waiters,
}

impl<'a> Entered<'a> {
    pub(crate) fn new(waiters: &'a Waiters) -> Self {
        let waiter = Waiter::new();
        waiters.enter(&waiter);
        Self { waiter, waiters }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.waiters.leave(&self.waiter);
    }
}

/// A thread that sleeps beside some sockets; it leaves them when this is dropped.
pub(crate) struct Asleep<'a> {
    waiter: &'a Waiter,
    sockets: &'a [Socket],
}

impl<'a> Asleep<'a> {
    /// Arms the sockets; what to listen to, one each. Who sleeps looks at them once more before.
    pub(crate) fn beside(waiter: &'a Waiter, sockets: &'a [Socket]) -> (Self, Vec<RawFd>) {
        let fds = sockets.iter().map(|socket| socket.arm(waiter)).collect();
        (Self { waiter, sockets }, fds)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.sockets.iter().for_each(|socket| socket.leave(self.waiter));
        self.waiter.clear();
    }
}
