//! Which processes of this host one has a way to through memory.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use super::inbox::{InboxFiles, Lane};
use crate::net::{Transmit, raw::Neighbours};
use crate::sys::lock;

/// Where a packet has the slot of the queue pair it is for: the first byte of its number (IBTA vol. 1, 9.2).
const SLOT_BYTE: usize = 5;

/// The ways of one shard.
#[derive(Debug)]
pub(crate) struct Ways {
    /// Top byte of our queue pair numbers.
    slot: u8,
    /// Tell this host's addresses from others.
    neighbours: Mutex<Neighbours>,
    known: Mutex<Known>,
    sent: AtomicU64,
    pub(super) received: AtomicU64,
}

#[derive(Debug)]
struct Known {
    /// Addresses of this host that queue pairs talk to.
    here: Vec<IpAddr>,
    /// By slot.
    lanes: Vec<Option<Lane>>,
}

impl Ways {
    /// No ways yet, for the process with `slot`.
    ///
    /// # Errors
    /// The system does not tell which addresses are this host's.
    pub(crate) fn new(slot: u8) -> io::Result<Self> {
        let lanes = (0..=u8::MAX).map(|_| None).collect();
        let known = Mutex::new(Known { here: Vec::new(), lanes });
        let (sent, received) = Default::default();
        Ok(Self { slot, neighbours: Mutex::new(Neighbours::new()?), known, sent, received })
    }

    /// Whether the host service is to be asked for the inbox of the process with `slot`, because a queue pair at `src` is about to
    /// talk to it at `dst`. Not if there is a way that leads to somebody; one that leads nowhere any more is forgotten.
    pub(crate) fn lacks(&self, (src, dst): (IpAddr, IpAddr), slot: u8) -> bool {
        // Asked again each time: an address may move to another host.
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

    /// A way to the process with `slot`, `owner`, whose inbox that is.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(crate) fn open(&self, slot: u8, inbox: InboxFiles, owner: OwnedFd) -> io::Result<()> {
        let lane = Lane::open(inbox, owner, self.slot)?;
        lock(&self.known).lanes[usize::from(slot)] = Some(lane);
        Ok(())
    }

    /// Sends a batch, all of whose packets are for one slot, if there is a way.
    pub(super) fn send(&self, batch: &Transmit, bytes: &[u8]) -> bool {
        let Some(&slot) = bytes.get(SLOT_BYTE) else { return false };
        let known = &mut *lock(&self.known);
        // Slots are the service's: at an address of another host the same may be somebody else's.
        let Some(lane) = known.lanes[usize::from(slot)].as_mut().filter(|_| known.here.contains(&batch.dst))
        else {
            return false;
        };
        lane.send(batch, bytes);
        self.sent.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Batches that were sent through memory, and runs that have come so, each with its name.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 2] {
        [
            ("memory_sent", self.sent.load(Ordering::Relaxed)),
            ("memory_received", self.received.load(Ordering::Relaxed)),
        ]
    }
}
