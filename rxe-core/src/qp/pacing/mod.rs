//! Pacing: a queue pair that sends at a rate of its own, as cards do it whose hardware paces each queue pair.
//!
//! Sockets pace nothing, so queue pairs have none of this by default: the windows of [`super::flow`] look after them.
//! [`Endpoint::pace`](crate::endpoint::Endpoint::pace) gives it to one, in simulations and in life. What sets the rate is a
//! [`CongestionControl`]: [`LineRate`] (none), [`Dcqcn`] or [`Timely`].

mod climb;
mod dcqcn;
mod timely;

pub use dcqcn::{Dcqcn, DcqcnParams};
pub use timely::{Timely, TimelyParams};

use super::flow::Holding;
use crate::time::Instant;
use alloc::boxed::Box;
use core::{fmt, time::Duration};

/// What decides how fast a queue pair may send. It hears of what is sent and what comes back, always with the present time, so
/// timers of its own need no waking: what was due since the last call is done in the next one.
pub trait CongestionControl: fmt::Debug + Send {
    /// Bits per second at which packets may leave now, headers included; at least 1.
    fn rate(&mut self, now: Instant) -> u64;

    /// A packet of `bytes` leaves.
    fn on_sent(&mut self, _now: Instant, _bytes: u32) {}

    /// The peer says that packets reach it marked (a CNP; RoCEv2 annex A17.9.3).
    fn on_notified(&mut self, _now: Instant) {}

    /// A packet that asked for an acknowledgement got it after `trip`.
    fn on_round_trip(&mut self, _now: Instant, _trip: Duration) {}

    /// The queue pair was reset: what is known is of a path that it has no more. Who learns anything has to forget it here.
    fn restart(&mut self) {}
}

/// No control: packets leave as fast as the link takes them.
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
    /// What sets its rate.
    pub control: Box<dyn CongestionControl>,
    /// Bytes sent and not acknowledged at most (payload and about 64 a packet); one packet may always leave.
    pub window: u32,
    /// In a message an acknowledgement is asked for by every packet that ends so many bytes since the last one that asked; 0 for
    /// every packet, `u32::MAX` for message ends only.
    pub ask_after: u32,
    /// How far it may be behind its rate and make up for that: packets that left late, because nobody looked at the clock in
    /// time, do not slow those behind them. What it could have sent in so much of a rest may leave at once, too. Zero where the
    /// clock is exact.
    pub catch_up: Duration,
    /// Its clock.
    pub timing: Timing,
}

/// How patient a requester is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// The shortest retransmission timeout: shorter ones (IBV_QP_TIMEOUT) are stretched to it.
    pub shortest: Duration,
    /// Whether silence after a loss is probed before the timeout.
    pub probes: bool,
}

impl Default for Timing {
    /// A user process is not scheduled more often than 4 ms can be relied on; shorter timeouts are stretched to it, as
    /// kernels stretch them to their tick.
    fn default() -> Self {
        Self { shortest: Duration::from_millis(4), probes: true }
    }
}

/// A queue pair's pacing at work.
#[derive(Debug)]
pub(crate) struct Pacer {
    pub pacing: Pacing,
    /// When the next packet may leave.
    next: Instant,
    /// Whether a packet waits for that.
    waits: bool,
}

impl Pacer {
    pub(crate) const fn new(pacing: Pacing) -> Self {
        Self { pacing, next: Instant::ZERO, waits: false }
    }

    /// The queue pair was reset, and begins as a new one.
    pub(crate) fn restart(&mut self) {
        self.pacing.control.restart();
        (self.next, self.waits) = (Instant::ZERO, false);
    }

    /// Whether no packet may leave now, because of the rate; then [`Self::deadline`] says when.
    pub(crate) fn holds_back(&mut self, now: Instant) -> bool {
        self.waits = self.next > now;
        self.waits
    }

    /// Whether a packet of `cost` bytes is beyond the window.
    pub(crate) const fn is_full(&self, holding: &Holding, cost: u32) -> bool {
        !holding.is_empty() && holding.bytes().saturating_add(cost) > self.pacing.window
    }

    /// Whether a packet of `cost` bytes is to ask for an acknowledgement, when one behind it would take `next`.
    pub(crate) const fn asks(&self, holding: &Holding, cost: u32, next: u32) -> bool {
        holding.unasked().saturating_add(cost) > self.pacing.ask_after
            || holding.bytes().saturating_add(cost).saturating_add(next) > self.pacing.window
    }

    /// A packet of `bytes` leaves.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u32) {
        let rate = self.pacing.control.rate(now).max(1);
        self.pacing.control.on_sent(now, bytes);
        let nanos = u64::from(bytes).saturating_mul(8_000_000_000) / rate;
        let behind = u64::try_from(self.pacing.catch_up.as_nanos()).unwrap_or(u64::MAX);
        let earliest = Instant::from_nanos(now.nanos().saturating_sub(behind));
        self.next = self.next.max(earliest) + Duration::from_nanos(nanos);
    }

    pub(crate) fn notified(&mut self, now: Instant) {
        self.pacing.control.on_notified(now);
    }

    /// When a packet that was held back may leave.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waits.then_some(self.next)
    }

    /// Time passed.
    pub(crate) fn end_wait(&mut self, now: Instant) {
        self.waits &= self.next > now;
    }

    /// Bits per second at which it sends now.
    pub(crate) fn rate(&mut self, now: Instant) -> u64 {
        self.pacing.control.rate(now)
    }
}
