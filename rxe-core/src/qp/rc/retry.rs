//! The requester's clock and patience: retransmission timeout, retry counts, RNR waits (IBTA vol. 1, 9.7.6.1).

use crate::{qp::QpAttrs, time::Instant, wire::rnr_delay, work::WcStatus};
use core::time::Duration;

/// A user process is not scheduled more often than this can be relied on; shorter timeouts are stretched to it, as
/// kernels stretch them to their tick.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(4);

/// Retry counts and deadlines of one requester.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// When the oldest unanswered request counts as lost.
    deadline: Option<Instant>,
    /// Until when the peer asked us to wait.
    rnr_until: Option<Instant>,
    left: u8,
    rnr_left: u8,
    /// Whether the present loss was noticed already: further hints of it are ignored until something is acknowledged.
    noticed: bool,
}

/// The local ACK timeout code `code`: 4.096 us times 2 to its power; `None` for 0, which never runs out.
pub(crate) fn timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << (code & 31)).max(SHORTEST_TIMEOUT))
}

impl Retry {
    pub(crate) fn start(&mut self, attrs: &QpAttrs) {
        *self = Self { left: attrs.retry_count, rnr_left: attrs.rnr_retry, ..Self::default() };
    }

    /// A request left: something is outstanding.
    pub(crate) fn on_sent(&mut self, now: Instant, attrs: &QpAttrs) {
        if self.deadline.is_none() {
            self.deadline = timeout(attrs.timeout).map(|wait| now + wait);
        }
    }

    /// The peer acknowledged something; `more` is still outstanding.
    pub(crate) fn on_progress(&mut self, now: Instant, attrs: &QpAttrs, more: bool) {
        self.left = attrs.retry_count;
        self.rnr_left = attrs.rnr_retry;
        self.noticed = false;
        self.deadline = if more { timeout(attrs.timeout).map(|wait| now + wait) } else { None };
    }

    /// A loss was inferred from what arrived. `Ok(true)`: send again; `Ok(false)`: this one is known already.
    pub(crate) fn on_loss(&mut self) -> Result<bool, WcStatus> {
        if self.noticed || self.rnr_until.is_some() {
            return Ok(false);
        }
        self.spend()?;
        self.noticed = true;
        Ok(true)
    }

    /// The deadline passed.
    pub(crate) fn on_timeout(&mut self) -> Result<(), WcStatus> {
        self.deadline = None;
        self.spend()
    }

    const fn spend(&mut self) -> Result<(), WcStatus> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(WcStatus::RetryExceeded),
        }
    }

    /// The peer was not ready; 7 retries mean without end.
    pub(crate) fn on_rnr(&mut self, now: Instant, attrs: &QpAttrs, code: u8) -> Result<(), WcStatus> {
        if attrs.rnr_retry != 7 {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(WcStatus::RnrRetryExceeded)?;
        }
        self.rnr_until = Some(now + rnr_delay(code));
        self.deadline = None;
        Ok(())
    }

    /// Whether the peer's wait is still on.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// When to look again.
    pub(crate) const fn next_deadline(&self) -> Option<Instant> {
        match self.rnr_until {
            Some(until) => Some(until),
            None => self.deadline,
        }
    }

    /// Ends a wait that is over; whether it did.
    pub(crate) fn end_wait(&mut self, now: Instant) -> bool {
        let over = self.rnr_until.is_some_and(|until| until <= now);
        if over {
            self.rnr_until = None;
        }
        over
    }

    /// Whether the deadline passed.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.rnr_until.is_none() && self.deadline.is_some_and(|deadline| deadline <= now)
    }
}
