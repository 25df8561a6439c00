//! The link of processes on one host: UDP sockets, and shared memory to those that the same host service has let in.
//!
//! The packets are the same, with their ICRCs; they only take another way, by which a process needs no system call but the one that
//! wakes its peer. No capture of an interface shows them; our own do ([`TapLink`](super::TapLink)).
//!
//! All users of a host service are one user's, who can look into all of them anyway. So the memory is no new door; what
//! comes through it is believed no more than what comes from the network.

mod inbox;
mod ways;

use core::net::IpAddr;
use core::sync::atomic::Ordering;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub(crate) use self::inbox::{Inbox, InboxFiles};
pub(crate) use self::ways::Ways;
use super::error::SendError;
use super::{Capabilities, Link, Path, ROCE_V2, RecvBatch, Transmit, UdpLink, check_batch};

/// Every this many calls the sockets are read although the inbox had something.
const FAIRNESS: u8 = 8;

/// A link of UDP sockets and an inbox.
#[derive(Debug)]
pub(crate) struct MemoryLink {
    port: UdpLink,
    inbox: Inbox,
    ways: Arc<Ways>,
    calls: u8,
}

impl MemoryLink {
    /// The same as `port`, but batches for which there is a way go by that.
    pub(crate) const fn new(port: UdpLink, inbox: Inbox, ways: Arc<Ways>) -> Self {
        Self { port, inbox, ways, calls: 0 }
    }
}

impl Link for MemoryLink {
    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }

    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        self.port.path(dst, ifindex)
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        let path = self.port.path(batch.dst, batch.ifindex);
        check_batch(batch, bytes, path, (self.capabilities().max_batch_bytes, ROCE_V2))?;
        if self.ways.send(batch, bytes) { Ok(()) } else { self.port.send(batch, bytes) }
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        into.clear();
        self.calls = self.calls.wrapping_add(1);
        let taken = self.inbox.take(into);
        self.ways.received.fetch_add(taken as u64, Ordering::Relaxed);
        if taken == 0 {
            return self.port.receive(into);
        }
        if self.calls.is_multiple_of(FAIRNESS) {
            // An error comes again; what has come already must not be lost for it.
            let _ = self.port.receive(into);
        }
        Ok(into.len())
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = self.port.poll_fds();
        fds.push(self.inbox.arrivals());
        fds
    }

    fn drops(&self) -> u64 {
        self.port.drops() + self.inbox.drops()
    }

    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.port.join(group, ifindex)
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.port.leave(group, ifindex)
    }
}
