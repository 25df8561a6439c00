//! Threads that wait for the same socket by poll. A change is one event, which one of them takes: poll(2) goes on in the others, as
//! the descriptor is not readable any more. So whoever takes an event wakes all who wait besides, each by a counter of its own.

use crate::{error::SocketError, ready::Ready, socket::Socket};
use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A thread that waits, for one call.
#[derive(Debug)]
pub(crate) struct Waiter(Arc<Ready>);

impl Waiter {
    pub(crate) fn new() -> Result<Self, SocketError> {
        Ok(Self(Arc::new(Ready::new()?)))
    }

    /// What to listen to beside the sockets' descriptors.
    pub(crate) fn pollfd(&self) -> libc::pollfd {
        libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 }
    }

    fn fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    /// It looks again now.
    pub(crate) fn clear(&self) {
        self.0.clear();
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
        let mut all = self.all();
        if !all.iter().any(|one| Arc::ptr_eq(one, &waiter.0)) {
            all.push(Arc::clone(&waiter.0));
        }
    }

    /// It does not any more.
    pub(crate) fn leave(&self, waiter: &Waiter) {
        self.all().retain(|one| !Arc::ptr_eq(one, &waiter.0));
    }

    /// An event has been taken, and the socket is not armed any more: all look, but the thread that took it.
    pub(crate) fn wake(&self, but: Option<&Waiter>) {
        for one in self.all().iter() {
            if but.is_none_or(|but| !Arc::ptr_eq(one, &but.0)) {
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
    pub(crate) fn new(waiters: &'a Waiters) -> Result<Self, SocketError> {
        let waiter = Waiter::new()?;
        waiters.enter(&waiter);
        Ok(Self { waiter, waiters })
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
