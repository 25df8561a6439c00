//! Batches that wait for a neighbour's address while the kernel looks for it, as it keeps the packets of ordinary sockets
//! (`arp(7)`, unres_qlen_bytes). What goes elsewhere does not wait for them.

use core::net::IpAddr;
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use crate::net::{Transmit, error::SendError};
use crate::sys::alarm::Alarm;

/// Bytes that wait at most: what Linux keeps for one neighbour if nobody has changed that.
const MOST: usize = 212_992;
/// Failures kept at most until somebody asks; further ones are like those.
const MOST_FAILURES: usize = 64;
/// The waiting ones are tried no more often than this,
const LEAST: Duration = Duration::from_millis(1);
/// and no more seldom than this.
const MOST_SELDOM: Duration = Duration::from_millis(5);

/// Where a batch goes.
pub(super) fn way(batch: &Transmit) -> (IpAddr, IpAddr, u32) {
    (batch.src, batch.dst, batch.ifindex)
}

/// The batches, oldest first.
#[derive(Debug)]
pub(super) struct Waiting {
    list: VecDeque<(Transmit, Vec<u8>)>,
    bytes: usize,
    failures: VecDeque<(IpAddr, SendError)>,
    tried: Instant,
    /// Rings when they are to be tried.
    alarm: Alarm,
}

impl Waiting {
    /// Nobody waits.
    ///
    /// # Errors
    /// The system has no timer left.
    pub(super) fn new() -> io::Result<Self> {
        let alarm = Alarm::new(MOST_SELDOM)?;
        Ok(Self { list: VecDeque::new(), bytes: 0, failures: VecDeque::new(), tried: Instant::now(), alarm })
    }

    /// Whether it is time to try them.
    pub(super) fn are_due(&self) -> bool {
        !self.list.is_empty() && self.tried.elapsed() >= LEAST
    }

    /// Whether a batch that goes where this one does waits: nothing overtakes it.
    pub(super) fn is_before(&self, batch: &Transmit) -> bool {
        self.list.iter().any(|(waiting, _)| way(waiting) == way(batch))
    }

    /// Has a batch wait, or says that there is no room.
    pub(super) fn add(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        if self.bytes + bytes.len() > MOST {
            let why =
                io::Error::new(io::ErrorKind::HostUnreachable, "too much waits for neighbours' addresses");
            return Err(SendError::Unreachable { source: why });
        }
        self.bytes += bytes.len();
        self.list.push_back((*batch, bytes.to_vec()));
        self.alarm.set();
        Ok(())
    }

    /// Takes all of them, to be tried and added again. The alarm is silent until one is.
    pub(super) fn take(&mut self) -> VecDeque<(Transmit, Vec<u8>)> {
        self.alarm.clear();
        (self.bytes, self.tried) = (0, Instant::now());
        core::mem::take(&mut self.list)
    }

    /// One was not sent.
    pub(super) fn fail(&mut self, dst: IpAddr, error: SendError) {
        if self.failures.len() < MOST_FAILURES {
            self.failures.push_back((dst, error));
        }
    }

    /// The next of those that were not sent.
    pub(super) fn failure(&mut self) -> Option<(IpAddr, SendError)> {
        self.failures.pop_front()
    }
}

/// Readable when the waiting ones are to be tried.
impl AsFd for Waiting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}
