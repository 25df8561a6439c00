//! Batches that wait while the kernel looks for a neighbour's MAC address. The kernel queues packets of ordinary sockets in the
//! same way (`arp(7)`, unres_qlen_bytes). Batches to other destinations do not wait.

use core::net::IpAddr;
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use crate::net::{Transmit, error::SendError};
use crate::sys::alarm::Alarm;

/// Most bytes that wait: Linux's default for one neighbour.
const MOST: usize = 212_992;
/// Most failures that are kept until [`Waiting::failure`] returns them. Further ones are dropped.
const MOST_FAILURES: usize = 64;
/// Shortest time between two attempts to send the waiting batches.
const LEAST: Duration = Duration::from_millis(1);
/// Longest time between two attempts.
const MOST_SELDOM: Duration = Duration::from_millis(5);

/// Source, destination and interface of a batch. Batches with the same way keep their order.
pub(super) fn way(batch: &Transmit) -> (IpAddr, IpAddr, u32) {
    (batch.src, batch.dst, batch.ifindex)
}

/// The waiting batches.
#[derive(Debug)]
pub(super) struct Waiting {
    list: VecDeque<(Transmit, Vec<u8>)>,
    bytes: usize,
    failures: VecDeque<(IpAddr, SendError)>,
    tried: Instant,
    /// Readable when the waiting batches are to be tried again.
    alarm: Alarm,
}

impl Waiting {
    /// An empty list.
    ///
    /// # Errors
    /// The system has no timer left.
    pub(super) fn new() -> io::Result<Self> {
        let alarm = Alarm::new(MOST_SELDOM)?;
        Ok(Self { list: VecDeque::new(), bytes: 0, failures: VecDeque::new(), tried: Instant::now(), alarm })
    }

    /// Whether it is time to try the waiting batches.
    pub(super) fn are_due(&self) -> bool {
        !self.list.is_empty() && self.tried.elapsed() >= LEAST
    }

    /// Whether a batch with the same way waits. Then `batch` has to wait, too, because it must not overtake that one.
    pub(super) fn is_before(&self, batch: &Transmit) -> bool {
        self.list.iter().any(|(waiting, _)| way(waiting) == way(batch))
    }

    /// Appends a batch.
    ///
    /// # Errors
    /// [`SendError::Unreachable`] if too many bytes wait already.
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

    /// Takes all waiting batches, oldest first. The caller tries them, and adds again those that still have to wait. The alarm
    /// is off until then.
    pub(super) fn take(&mut self) -> VecDeque<(Transmit, Vec<u8>)> {
        self.alarm.clear();
        (self.bytes, self.tried) = (0, Instant::now());
        core::mem::take(&mut self.list)
    }

    /// Remembers that a batch to `dst` could not be sent.
    pub(super) fn fail(&mut self, dst: IpAddr, error: SendError) {
        if self.failures.len() < MOST_FAILURES {
            self.failures.push_back((dst, error));
        }
    }

    /// Takes the oldest failure.
    pub(super) fn failure(&mut self) -> Option<(IpAddr, SendError)> {
        self.failures.pop_front()
    }
}

/// Readable when the waiting batches are to be tried again.
impl AsFd for Waiting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}
