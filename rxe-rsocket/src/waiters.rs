//! Threads that wait for the same socket. A change is one event, and one thread takes it. The descriptor is then no
//! longer readable, so poll(2) continues in the other threads. So the thread that takes the event wakes all others, each by a
//! counter of its own.

use crate::{error::SocketError, link::Until, lock, ready::Ready, socket::Socket};
use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// How long a thread without a counter sleeps at a time.
const GLANCE: Duration = Duration::from_millis(10);

/// A waiting thread, for one call. It sleeps in `ppoll(2)`, which signals interrupt. If there is no free descriptor for its
/// counter, the thread checks the socket every [`GLANCE`], because poll(2) would not need a descriptor either.
#[derive(Debug)]
pub(crate) struct Waiter(Option<Arc<Ready>>);

impl Waiter {
    pub(crate) fn new() -> Self {
        Self(Ready::new().ok().map(Arc::new))
    }

    /// A descriptor to listen to in addition to those of the sockets. It is negative if there is none, which poll(2) ignores.
    pub(crate) fn pollfd(&self) -> libc::pollfd {
        let fd = self.0.as_ref().map_or(-1, |ready| ready.as_fd().as_raw_fd());
        libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
    }

    /// How long it may sleep, given the remaining time.
    pub(crate) fn nap(&self, left: Option<Duration>) -> Option<Duration> {
        if self.0.is_some() { left } else { Some(left.map_or(GLANCE, |left| left.min(GLANCE))) }
    }

    /// Sleeps until it is woken, or the time is over, and forgets that it was woken. May also return before that.
    ///
    /// # Errors
    /// [`SocketError::Interrupted`].
    pub(crate) fn sleep(&self, until: Until) -> Result<(), SocketError> {
        let woken = rxe_verbs::wait_for(&mut [self.pollfd()], self.nap(until.left()));
        self.clear();
        woken.map(drop).map_err(|_| SocketError::Interrupted)
    }

    /// Forgets that it was woken.
    pub(crate) fn clear(&self) {
        if let Some(ready) = &self.0 {
            ready.clear();
        }
    }

    fn is(&self, one: &Arc<Ready>) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, one))
    }
}

/// The waiting threads of one socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Vec<Arc<Ready>>>);

impl Waiters {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Ready>>> {
        lock(&self.0)
    }

    /// A thread begins to wait. To be called before it arms the socket.
    pub(crate) fn enter(&self, waiter: &Waiter) {
        let Some(ready) = &waiter.0 else { return };
        let mut all = self.all();
        if !all.iter().any(|one| waiter.is(one)) {
            all.push(Arc::clone(ready));
        }
    }

    /// A thread no longer waits.
    pub(crate) fn leave(&self, waiter: &Waiter) {
        self.all().retain(|one| !waiter.is(one));
    }

    /// An event was taken, and the socket is no longer armed: wakes all threads except the one that took it.
    pub(crate) fn wake(&self, but: Option<&Waiter>) {
        for one in self.all().iter() {
            if but.is_none_or(|but| !but.is(one)) {
                one.raise();
            }
        }
    }
}

/// A thread that waits for one socket, until this is dropped.
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

/// A thread that waits for several sockets, until this is dropped.
pub(crate) struct Asleep<'a> {
    waiter: &'a Waiter,
    sockets: &'a [Socket],
}

impl<'a> Asleep<'a> {
    /// Arms the sockets. Returns a descriptor for each. Before the thread sleeps, it must check the sockets once more.
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
