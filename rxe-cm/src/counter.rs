//! The descriptor of an event channel: an event counter (`eventfd(2)`), readable while events wait.
//!
//! The program has this descriptor, may close it, and may have a file of its own under its number afterwards. Such a file must never be
//! written to, read from, waited for or closed. So everything here goes by a copy with a high number, which programs hardly ever close.
//! If a program closes all descriptors, device and inode of the copy show it. (All anonymous files, like event counters, have the same
//! device and inode. So an event counter of the program under the copy's number would not be noticed.)

use nix::{
    sys::{
        eventfd::{EfdFlags, EventFd},
        stat::fstat,
    },
    unistd::{read, write},
};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Counter {
    /// The program's descriptor. Always there, except while this is dropped.
    shown: Option<EventFd>,
    /// The copy, by the same rule. `None` if the system had no number for it.
    own: Option<OwnedFd>,
    identity: Option<(u64, u64)>,
}

impl Counter {
    pub(crate) fn new() -> nix::Result<Self> {
        let shown = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let identity = identity(shown.as_fd());
        let copy = shown.as_fd().try_clone_to_owned().ok();
        let own = copy.map(rxe_verbs::out_of_the_way);
        Ok(Self { shown: Some(shown), own, identity })
    }

    /// A descriptor of the counter, if one is left.
    pub(crate) fn own(&self) -> Option<BorrowedFd<'_>> {
        let copy = self.own.as_ref().map(AsFd::as_fd);
        copy.into_iter().chain(self.shown.as_ref().map(AsFd::as_fd)).find(|fd| self.is_ours(*fd))
    }

    fn is_ours(&self, fd: BorrowedFd<'_>) -> bool {
        identity(fd) == self.identity
    }

    /// Makes the counter readable. (A full one is readable already.)
    pub(crate) fn raise(&self) {
        if let Some(fd) = self.own() {
            let _ = write(fd, &1_u64.to_ne_bytes());
        }
    }

    /// Makes the counter unreadable. It is read only while it is readable, because the program may have made it blocking.
    pub(crate) fn clear(&self) {
        if let Some(fd) = self.own() {
            let _ = read(fd, &mut [0; 8]);
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.shown {
            Some(fd) => fd.as_fd(),
            None => unreachable!("only while it is dropped"),
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        for fd in self.shown.take().map(OwnedFd::from).into_iter().chain(self.own.take()) {
            if !self.is_ours(fd.as_fd()) {
                // It is the program's by now, so it is not closed.
                let _ = fd.into_raw_fd();
            }
        }
    }
}

fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    fstat(fd).ok().map(|about| (about.st_dev, about.st_ino))
}
