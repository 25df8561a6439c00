//! The descriptor of an event channel: an event counter (`eventfd(2)`), readable while events wait.
//!
//! It is in the program's hands, who may close it and have a file of its own under the number: that one is never written to,
//! read from, waited for or closed. So all that is done here is done by a copy with a high number, which hardly any program
//! meets; and a program that closes all descriptors is found out by device and inode. All descriptors without a file share
//! these: a stranger's counter under the copy's number could not be told from ours.

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
    /// What the program has. Always there, but while it is dropped.
    shown: Option<EventFd>,
    /// The copy; the same rule. None where the system had no number for it.
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

    /// The counter, if there is a descriptor left by which it can be reached.
    pub(crate) fn own(&self) -> Option<BorrowedFd<'_>> {
        let copy = self.own.as_ref().map(AsFd::as_fd);
        copy.into_iter().chain(self.shown.as_ref().map(AsFd::as_fd)).find(|fd| self.is_ours(*fd))
    }

    fn is_ours(&self, fd: BorrowedFd<'_>) -> bool {
        identity(fd) == self.identity
    }

    /// Makes it readable. A full counter is.
    pub(crate) fn raise(&self) {
        if let Some(fd) = self.own() {
            let _ = write(fd, &1_u64.to_ne_bytes());
        }
    }

    /// Makes it unreadable; only if it is readable, since the program may have made it blocking.
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
                // Left open: it is somebody else's.
                let _ = fd.into_raw_fd();
            }
        }
    }
}

fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    fstat(fd).ok().map(|about| (about.st_dev, about.st_ino))
}
