//! Packets that a shard exchanges with the rest of the host beside its sockets: packets for this shard that other processes have
//! received, and packets for other processes that this shard has received. Both are rare.

use crate::sys::{lock, socket::Event};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rxe_core::endpoint::{RunMeta, Stray};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Mutex,
};

/// Most packets that wait in either direction. Further ones are dropped, as with a full socket buffer.
const CAPACITY: usize = 1024;

/// A shard's mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    /// Read in every turn, so that an empty mailbox costs no lock.
    has_incoming: AtomicBool,
    incoming: Mutex<VecDeque<(RunMeta, Vec<u8>)>>,
    arrived: Event,
    outgoing: Mutex<VecDeque<Stray>>,
    leaving: Event,
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            has_incoming: AtomicBool::new(false),
            incoming: Mutex::default(),
            arrived: Event::new()?,
            outgoing: Mutex::default(),
            leaving: Event::new()?,
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Puts a packet for the shard in. False if there is no room.
    pub(crate) fn put(&self, meta: RunMeta, bytes: Vec<u8>) -> bool {
        let mut incoming = lock(&self.incoming);
        if incoming.len() >= CAPACITY {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        incoming.push_back((meta, bytes));
        self.has_incoming.store(true, Ordering::Release);
        self.arrived.raise();
        true
    }

    /// How many packets were put in, and how many there was no room for.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.taken.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Takes all packets for the shard.
    pub(super) fn take(&self) -> VecDeque<(RunMeta, Vec<u8>)> {
        if !self.has_incoming.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        let mut incoming = lock(&self.incoming);
        self.has_incoming.store(false, Ordering::Release);
        self.arrived.clear();
        core::mem::take(&mut *incoming)
    }

    /// Puts in a packet that is for another process.
    pub(super) fn hand_on(&self, stray: Stray) {
        let mut outgoing = lock(&self.outgoing);
        if outgoing.len() < CAPACITY {
            outgoing.push_back(stray);
        }
        self.leaving.raise();
    }

    /// Takes all packets that are for other processes.
    pub(crate) fn take_outgoing(&self) -> VecDeque<Stray> {
        self.leaving.clear();
        core::mem::take(&mut *lock(&self.outgoing))
    }

    /// Readable while there are packets for the shard.
    pub(super) fn arrivals(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }

    /// Readable while there are packets for other processes.
    pub(crate) fn departures(&self) -> BorrowedFd<'_> {
        self.leaving.as_fd()
    }
}
