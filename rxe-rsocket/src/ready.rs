//! The descriptor of a socket: a counter (`eventfd(2)`). It is readable while there is a connection to accept, or once a
//! connection is established or has failed.

use crate::{error::SocketError, link::Until};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Debug)]
pub(crate) struct Ready(EventFd);

impl Ready {
    pub(crate) fn new() -> Result<Self, SocketError> {
        let made = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        made.map(Self).map_err(|error| SocketError::system("make an event counter", error))
    }

    /// Makes it readable. A full counter is readable already.
    pub(crate) fn raise(&self) {
        let _ = self.0.write(1);
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        let _ = self.0.read();
    }

    /// Waits until it is readable. May also return before that, so the caller has to look, and wait again.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] after `until`; [`SocketError::Interrupted`].
    pub(crate) fn wait(&self, until: Until) -> Result<(), SocketError> {
        // A sleep of no time would be interrupted, too.
        if until.is_over() {
            return Err(SocketError::WouldBlock);
        }
        let woken = rxe_verbs::wait_readable(self.as_fd(), until.left());
        woken.map(drop).map_err(|_| SocketError::Interrupted)
    }
}

impl AsFd for Ready {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
