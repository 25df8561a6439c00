//! Time in connection management: codes on the wire, and the repetition of a message until it is answered.

use core::time::Duration;
use rxe_core::time::Instant;

/// The time that a 5-bit code stands for: 4.096 us << code (IBTA vol. 1, 12.7).
#[must_use]
pub const fn timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}

/// The local ACK timeout code that covers two packet lifetimes and the peer's ACK delay, all as codes: what kernels put into a
/// REQ and into the queue pair (cm_ack_timeout in Linux' cm.c).
#[must_use]
pub const fn ack_timeout(ca_ack_delay: u8, packet_lifetime: u8) -> u8 {
    let twice = packet_lifetime.saturating_add(1);
    let code = if twice >= ca_ack_delay {
        twice.saturating_add((ca_ack_delay >= twice - 1) as u8)
    } else {
        ca_ack_delay.saturating_add((twice >= ca_ack_delay - 1) as u8)
    };
    if code > 31 { 31 } else { code }
}

/// A deadline, and how often it may still be renewed.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Retry {
    due: Option<Instant>,
    left: u8,
}

impl Retry {
    /// Waits `wait`, and up to `times` times more.
    pub(super) fn start(&mut self, now: Instant, wait: Duration, times: u8) {
        *self = Self { due: Some(now + wait), left: times };
    }

    /// Waits `wait` from now on; this is no repetition.
    pub(super) fn postpone(&mut self, now: Instant, wait: Duration) {
        self.due = Some(now + wait);
    }

    /// Uses up one repetition. False if none is left.
    pub(super) fn again(&mut self, now: Instant, wait: Duration) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        *self = Self { due: Some(now + wait), left };
        true
    }

    /// Waits for nothing.
    pub(super) fn stop(&mut self) {
        *self = Self::default();
    }

    /// The deadline.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether it has passed.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}
