//! A link of UDP sockets that uses shared memory between processes of the same host service.
//!
//! The packets are the same as on a network, with their ICRCs. But a process needs no system call to send them, except the one
//! that wakes its peer. A capture of an interface does not show them; rxe's own captures do ([`TapLink`](super::TapLink)).
//!
//! All processes of a host service belong to one user, who can read the memory of all of them anyway. So the shared memory
//! gives no process new rights. Packets from it are checked like packets from the network.
//!
//! Read next: `ways` (which processes are reachable), then `inbox` (the shared memory).

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

/// Every this many calls, the sockets are read before the inbox.
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
    /// A link that sends by shared memory where `ways` has a lane to the destination, else by `port`.
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
        if self.calls.is_multiple_of(FAIRNESS) {
            // First, because the inbox may fill all of `into`. A socket's error comes again at the next call.
            let _ = self.port.receive(into);
        }
        let taken = self.inbox.take(into);
        self.ways.received.fetch_add(taken as u64, Ordering::Relaxed);
        if into.is_empty() { self.port.receive(into) } else { Ok(into.len()) }
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
