//! The descriptor of an event channel: an event counter (`eventfd(2)`), readable while events wait.
//!
//! It is in the program's hands, who may close it and have a file of its own under the number: that one is never written to,
//! read from or closed. It is known by device and inode, which all descriptors without a file share: a stranger's counter
//! cannot be told from ours.

use nix::sys::{
    eventfd::{EfdFlags, EventFd},
    stat::fstat,
};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Counter {
    /// Always there, but while it is dropped.
    fd: Option<EventFd>,
    identity: Option<(u64, u64)>,
}

impl Counter {
    pub(crate) fn new() -> nix::Result<Self> {
        let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let identity = identity(fd.as_fd());
        Ok(Self { fd: Some(fd), identity })
    }

    fn own(&self) -> Option<&EventFd> {
        self.fd.as_ref().filter(|fd| identity(fd.as_fd()) == self.identity)
    }

    /// Makes it readable. A full counter is.
    pub(crate) fn raise(&self) {
        if let Some(fd) = self.own() {
            let _ = fd.write(1);
        }
    }

    /// Makes it unreadable; only if it is readable, since the program may have made it blocking.
    pub(crate) fn clear(&self) {
        if let Some(fd) = self.own() {
            let _ = fd.read();
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("only while it is dropped"),
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let own = self.own().is_some();
        if let (Some(fd), false) = (self.fd.take(), own) {
            // Left open: it is somebody else's.
            let _ = OwnedFd::from(fd).into_raw_fd();
        }
    }
}

fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    fstat(fd).ok().map(|about| (about.st_dev, about.st_ino))
}
