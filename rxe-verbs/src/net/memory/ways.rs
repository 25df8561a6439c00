//! Which processes of this host are reachable through shared memory.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use super::inbox::{InboxFiles, Lane};
use crate::net::{Transmit, raw::Neighbours};
use crate::sys::lock;

/// Where a packet has the slot of its destination: the first byte of the destination QP number (IBTA vol. 1, 9.2).
const SLOT_BYTE: usize = 5;

/// The lanes of one shard into the inboxes of other processes.
#[derive(Debug)]
pub(crate) struct Ways {
    /// Top byte of this process's queue pair numbers.
    slot: u8,
    /// Tells whether an address is one of this host.
    neighbours: Mutex<Neighbours>,
    known: Mutex<Known>,
    sent: AtomicU64,
    pub(super) received: AtomicU64,
}

#[derive(Debug)]
struct Known {
    /// Addresses of this host that queue pairs talk to.
    here: Vec<IpAddr>,
    /// By the slot of the other process.
    lanes: Vec<Option<Lane>>,
}

impl Ways {
    /// No lanes yet, for the process with `slot`.
    ///
    /// # Errors
    /// The system's error if rtnetlink cannot be used.
    pub(crate) fn new(slot: u8) -> io::Result<Self> {
        let lanes = (0..=u8::MAX).map(|_| None).collect();
        let known = Mutex::new(Known { here: Vec::new(), lanes });
        let (sent, received) = Default::default();
        Ok(Self { slot, neighbours: Mutex::new(Neighbours::new()?), known, sent, received })
    }

    /// Whether the caller has to ask the host service for the inbox of the process with `slot`. A queue pair at `src` is about
    /// to connect to that process at `dst`. False if `dst` is not this host, or if there is a lane whose reader lives. A lane
    /// whose reader is gone is removed.
    pub(crate) fn lacks(&self, (src, dst): (IpAddr, IpAddr), slot: u8) -> bool {
        // The kernel is asked each time, because an address may move to another host.
        let is_here = lock(&self.neighbours).hop(src, dst, 0, None).is_ok_and(|hop| hop.local);
        let known = &mut *lock(&self.known);
        known.here.retain(|here| *here != dst);
        if !is_here {
            return false;
        }
        known.here.push(dst);
        let lane = &mut known.lanes[usize::from(slot)];
        if lane.as_ref().is_some_and(|lane| !lane.is_alive()) {
            *lane = None;
        }
        lane.is_none()
    }

    /// Opens the lane to the process with `slot`. `inbox` is that process's inbox, `owner` a pidfd of the process.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(crate) fn open(&self, slot: u8, inbox: InboxFiles, owner: OwnedFd) -> io::Result<()> {
        let lane = Lane::open(inbox, owner, self.slot)?;
        let known = &mut *lock(&self.known);
        // The dead would keep their memory as long as this process lives.
        known.lanes.iter_mut().for_each(|lane| _ = lane.take_if(|lane| !lane.is_alive()));
        known.lanes[usize::from(slot)] = Some(lane);
        Ok(())
    }

    /// Sends a batch, all of whose packets are for one slot. Returns false if there is no lane to the destination.
    pub(super) fn send(&self, batch: &Transmit, bytes: &[u8]) -> bool {
        let Some(&slot) = bytes.get(SLOT_BYTE) else { return false };
        let known = &mut *lock(&self.known);
        // Slots are unique within one host service. The same slot at an address of another host is another process.
        let entry = &mut known.lanes[usize::from(slot)];
        let Some(lane) = entry.as_mut().filter(|_| known.here.contains(&batch.dst)) else { return false };
        if !lane.send(batch, bytes) {
            // Another process may have the slot now.
            *entry = None;
            return false;
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Batches sent and runs received through shared memory, each with the counter's name.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 2] {
        [
            ("memory_sent", self.sent.load(Ordering::Relaxed)),
            ("memory_received", self.received.load(Ordering::Relaxed)),
        ]
    }
}
