//! Pacing: a queue pair sends at a rate of its own, like a card whose hardware paces each queue pair.
//!
//! Sockets do not pace, so by default a queue pair is not paced, and the windows of [`super::flow`] limit it.
//! [`Endpoint::pace`](crate::endpoint::Endpoint::pace) paces one, in simulations and on real links. A [`CongestionControl`] sets
//! the rate: [`LineRate`] (no control), [`Dcqcn`] or [`Timely`].

mod dcqcn;
mod timely;

pub use dcqcn::{Dcqcn, DcqcnParams};
pub use timely::{Timely, TimelyParams};

use super::flow::Holding;
use crate::time::Instant;
use alloc::boxed::Box;
use core::{fmt, time::Duration};

/// Decides how fast a queue pair may send. Each call carries the present time. So an implementation with timers needs no wakeups:
/// it does in the next call what became due since the last one.
pub trait CongestionControl: fmt::Debug + Send {
    /// Bits per second at which packets may be sent now, headers included; at least 1.
    fn rate(&mut self, now: Instant) -> u64;

    /// A packet of `bytes` is sent.
    fn on_sent(&mut self, _now: Instant, _bytes: u32) {}

    /// The peer reports that packets arrive marked (a CNP; RoCEv2 annex A17.9.3).
    fn on_notified(&mut self, _now: Instant) {}

    /// A packet that asked for an acknowledgement was acknowledged after `trip`.
    fn on_round_trip(&mut self, _now: Instant, _trip: Duration) {}

    /// The queue pair was reset and has lost its path. An implementation must forget what it has learned about that path.
    fn restart(&mut self) {}
}

/// No control: packets are sent as fast as the link takes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineRate;

impl CongestionControl for LineRate {
    fn rate(&mut self, _: Instant) -> u64 {
        u64::MAX
    }
}

/// How a paced queue pair sends.
#[derive(Debug)]
pub struct Pacing {
    /// Sets the rate.
    pub control: Box<dyn CongestionControl>,
    /// Bytes sent and not acknowledged at most. A packet counts as its payload and 64 bytes. One packet may always be sent.
    pub window: u32,
    /// Within a message a packet asks for an acknowledgement if more than this many bytes were sent since the last one that
    /// asked, the packet included. 0 for every packet, `u32::MAX` for message ends only.
    pub ask_after: u32,
    /// How far the queue pair may be behind its rate and still catch up. So packets that were sent late, because the process did
    /// not run in time, do not delay those behind them. After a rest, what it could have sent in this time may be sent at once,
    /// too. Zero if the clock is exact.
    pub catch_up: Duration,
    /// Its retransmission timers.
    pub timing: Timing,
}

/// The retransmission timers of a requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// The shortest retransmission timeout. Shorter values of IBV_QP_TIMEOUT are raised to it.
    pub shortest: Duration,
    /// Whether a peer that is silent after a loss is probed before the timeout, by sending again early.
    pub probes: bool,
}

impl Default for Timing {
    /// Shorter timeouts are raised to 4 ms, because a user process cannot rely on being scheduled more often. Kernels likewise
    /// raise them to their timer tick.
    fn default() -> Self {
        Self { shortest: Duration::from_millis(4), probes: true }
    }
}

/// The state of a queue pair's pacing.
#[derive(Debug)]
pub(crate) struct Pacer {
    pub pacing: Pacing,
    /// When the next packet may be sent.
    next: Instant,
    /// Whether a packet waits for `next`.
    waits: bool,
}

impl Pacer {
    pub(crate) const fn new(pacing: Pacing) -> Self {
        Self { pacing, next: Instant::ZERO, waits: false }
    }

    /// The queue pair was reset: starts as new.
    pub(crate) fn restart(&mut self) {
        self.pacing.control.restart();
        (self.next, self.waits) = (Instant::ZERO, false);
    }

    /// Whether the rate allows no packet now. Then [`Self::deadline`] is the time of the next one.
    pub(crate) fn holds_back(&mut self, now: Instant) -> bool {
        self.waits = self.next > now;
        self.waits
    }

    /// Whether a packet of `cost` bytes exceeds the window. False if nothing is under way.
    pub(crate) const fn is_full(&self, holding: &Holding, cost: u32) -> bool {
        !holding.is_empty() && holding.bytes().saturating_add(cost) > self.pacing.window
    }

    /// Whether a packet of `cost` bytes is to ask for an acknowledgement. A packet after it would take `next` bytes.
    pub(crate) const fn asks(&self, holding: &Holding, cost: u32, next: u32) -> bool {
        holding.unasked().saturating_add(cost) > self.pacing.ask_after
            || holding.bytes().saturating_add(cost).saturating_add(next) > self.pacing.window
    }

    /// A packet of `bytes` is sent.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u32) {
        let rate = self.pacing.control.rate(now).max(1);
        self.pacing.control.on_sent(now, bytes);
        let nanos = u64::from(bytes).saturating_mul(8_000_000_000) / rate;
        let behind = u64::try_from(self.pacing.catch_up.as_nanos()).unwrap_or(u64::MAX);
        let earliest = Instant::from_nanos(now.nanos().saturating_sub(behind));
        self.next = self.next.max(earliest) + Duration::from_nanos(nanos);
    }

    /// When a packet that was held back may be sent.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waits.then_some(self.next)
    }

    /// Time passed: ends the wait if the next packet may be sent now.
    pub(crate) fn end_wait(&mut self, now: Instant) {
        self.waits &= self.next > now;
    }
}
