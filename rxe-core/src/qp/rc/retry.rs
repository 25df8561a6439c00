//! The requester's clock and patience: retransmission timeout, retry counts, RNR waits (IBTA vol. 1, 9.7.6.1).

use crate::{
    num::Psn,
    qp::{QpAttrs, pacing::Timing},
    time::Instant,
    wire::rnr_delay,
    work::WcStatus,
};
use core::time::Duration;

/// The least silence after which something is sent again without a sign of loss.
const LEAST_PROBE: Duration = Duration::from_micros(500);
/// So many probes in a row at most, each after twice the silence; then the timeout decides.
const PROBES: u8 = 4;
/// Beyond that patience has become longer than any timeout.
const MOST_DOUBLINGS: u8 = 16;
/// A loss makes us suspicious until so many acknowledgements have come. Without suspicion nothing is sent again early: the
/// peer may have lost its processor.
const SUSPICION: u32 = 4096;

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
    /// The first of the answers that came before one that was missing.
    beyond: Option<Psn>,
    /// When something is sent again although the timeout has not run out: the peer usually answers sooner.
    probe: Option<Instant>,
    /// Probes since the peer acknowledged something.
    probes: u8,
    /// Probes since an answer was last measured.
    unmeasured: u8,
    /// Acknowledgements until the last loss is forgotten.
    suspicion: u32,
    trip: RoundTrip,
    /// How patient it is.
    pub timing: Timing,
}

/// How long acknowledgements take: mean and deviation as RFC 6298 has them.
#[derive(Debug, Default)]
struct RoundTrip {
    /// A packet that asked, and when it left.
    sample: Option<(Psn, Instant)>,
    /// Nanoseconds; `None` before the first measurement.
    mean: Option<u64>,
    deviation: u64,
    /// The last one, until somebody asks.
    latest: Option<Duration>,
}

impl RoundTrip {
    fn learn(&mut self, took: u64) {
        self.latest = Some(Duration::from_nanos(took));
        let (mean, deviation) = match self.mean {
            None => (took, took / 2),
            Some(mean) => {
                (mean - mean / 8 + took / 8, self.deviation - self.deviation / 4 + mean.abs_diff(took) / 4)
            }
        };
        (self.mean, self.deviation) = (Some(mean), deviation);
    }

    /// Silence that is longer than usual.
    fn patience(&self) -> Option<Duration> {
        let usual = self.mean?.saturating_add(self.deviation.saturating_mul(4));
        Some(Duration::from_nanos(usual).max(LEAST_PROBE))
    }
}

/// What the clock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// Nothing yet.
    Nothing,
    /// The peer is silent for longer than usual: what was lost may have been the last packet, or what was sent again, of
    /// which no NAK tells. Sending again now is no retry that counts.
    Probe,
    /// The timeout ran out.
    Timeout,
}

impl Retry {
    pub(crate) fn start(&mut self, attrs: &QpAttrs) {
        let timing = self.timing;
        *self = Self { left: attrs.retry_count, rnr_left: attrs.rnr_retry, timing, ..Self::default() };
    }

    /// The round trip that was measured since this was last asked.
    pub(crate) const fn take_trip(&mut self) -> Option<Duration> {
        self.trip.latest.take()
    }

    /// When the local ACK timeout of `attrs` runs out: 4.096 us times 2 to the power of its code; `None` for 0, which never does.
    fn timeout(&self, now: Instant, attrs: &QpAttrs) -> Option<Instant> {
        let (code, shortest) = (attrs.timeout, self.timing.shortest);
        (code != 0).then(|| now + Duration::from_nanos(4096 << (code & 31)).max(shortest))
    }

    /// A request left: something is outstanding.
    pub(crate) fn on_sent(&mut self, now: Instant, attrs: &QpAttrs) {
        if self.deadline.is_none() {
            self.deadline = self.timeout(now, attrs);
            self.schedule_probe(now);
        }
    }

    /// A packet left for the first time and asks for an acknowledgement: the time that takes is measured.
    pub(crate) fn on_asked(&mut self, now: Instant, psn: Psn) {
        self.trip.sample.get_or_insert((psn, now));
    }

    /// Everything before `una` is acknowledged.
    pub(crate) fn on_acknowledged(&mut self, now: Instant, una: Psn) {
        if let Some((_, at)) = self.trip.sample.take_if(|(psn, _)| psn.is_before(una)) {
            self.trip.learn(now.nanos().saturating_sub(at.nanos()));
            self.unmeasured = 0;
        }
    }

    /// Packets are sent again. An acknowledgement may be for either copy, so nothing is measured by it (Karn's rule). Where it is
    /// known that the first copy was lost, the second one is measured: `lost` is its PSN and when it is sent.
    pub(crate) const fn on_again(&mut self, lost: Option<(Psn, Instant)>) {
        self.trip.sample = lost;
    }

    /// The response to `psn` came, and one before it is missing. True if that one was lost a second time. Responses come in
    /// order. So after a gap was noticed at some PSN, responses with higher PSNs still belong to the first request, and one with
    /// that PSN or a lower one belongs to the request that was sent again. It may also be a duplicate on the network, and
    /// therefore this counts as a probe, of which there are only a few in a row.
    pub(crate) fn on_gap(&mut self, now: Instant, psn: Psn) -> bool {
        if self.beyond.is_some_and(|first| first.is_before(psn)) {
            return false;
        }
        self.beyond = Some(psn);
        let again = self.noticed && self.probes < PROBES;
        if again {
            self.probes += 1;
            self.schedule_probe(now);
        }
        again
    }

    /// The answer to `psn` came, and one before it is missing.
    pub(crate) fn note_beyond(&mut self, psn: Psn) {
        self.beyond.get_or_insert(psn);
    }

    /// Sets the time of the next probe. The wait doubles with each probe and stays so until an answer was measured (RFC 6298,
    /// 5.5 to 5.7): after a probe nothing can be measured, so a peer that has only become slower would be probed for ever.
    fn schedule_probe(&mut self, now: Instant) {
        if self.suspicion == 0 || self.probes >= PROBES || !self.timing.probes {
            self.probe = None;
            return;
        }
        let due =
            self.trip.patience().map(|patience| now + patience * (1 << self.unmeasured.min(MOST_DOUBLINGS)));
        self.probe = due.filter(|due| self.deadline.is_some_and(|deadline| *due < deadline));
    }

    /// The peer acknowledged something; `more` is still outstanding.
    pub(crate) fn on_progress(&mut self, now: Instant, attrs: &QpAttrs, more: bool) {
        self.left = attrs.retry_count;
        self.rnr_left = attrs.rnr_retry;
        self.forget_loss();
        self.deadline = if more { self.timeout(now, attrs) } else { None };
        self.probes = 0;
        self.suspicion = self.suspicion.saturating_sub(1);
        self.schedule_probe(now);
    }

    /// A loss was inferred from what arrived. `Ok(true)`: send again; `Ok(false)`: this one is known already.
    pub(crate) fn on_loss(&mut self, now: Instant) -> Result<bool, WcStatus> {
        if self.noticed || self.rnr_until.is_some() {
            return Ok(false);
        }
        self.spend()?;
        self.noticed = true;
        self.suspicion = SUSPICION;
        self.schedule_probe(now);
        Ok(true)
    }

    /// The deadline passed.
    pub(crate) fn on_timeout(&mut self) -> Result<(), WcStatus> {
        self.deadline = None;
        self.probe = None;
        self.suspicion = SUSPICION;
        self.forget_loss();
        self.spend()
    }

    /// Everything is sent again, and not because of the loss that was noticed. What is missing after that is a new loss.
    const fn forget_loss(&mut self) {
        self.noticed = false;
        self.beyond = None;
    }

    fn spend(&mut self) -> Result<(), WcStatus> {
        self.left = self.left.checked_sub(1).ok_or(WcStatus::RetryExceeded)?;
        Ok(())
    }

    /// The peer was not ready; 7 retries mean without end. It has answered, so the retries for one that does not begin anew: a
    /// slow peer's NAK of the packet behind the refused one may come after the wait, each time, and would spend them all.
    pub(crate) fn on_rnr(&mut self, now: Instant, attrs: &QpAttrs, code: u8) -> Result<(), WcStatus> {
        if attrs.rnr_retry != 7 {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(WcStatus::RnrRetryExceeded)?;
        }
        self.left = attrs.retry_count;
        self.rnr_until = Some(now + rnr_delay(code));
        self.deadline = None;
        self.probe = None;
        self.forget_loss();
        Ok(())
    }

    /// Whether the peer's wait is still on.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// When to look again.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        // A probe comes before the timeout, or not at all.
        self.rnr_until.or(self.probe).or(self.deadline)
    }

    /// Ends a wait that is over; whether it did.
    pub(crate) fn end_wait(&mut self, now: Instant) -> bool {
        self.rnr_until.take_if(|until| *until <= now).is_some()
    }

    /// What is due now. A probe is told once.
    pub(super) fn take_due(&mut self, now: Instant) -> Due {
        if self.rnr_until.is_some() {
            return Due::Nothing;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Due::Timeout;
        }
        if self.probe.is_none_or(|probe| probe > now) {
            return Due::Nothing;
        }
        self.probes += 1;
        self.unmeasured = self.unmeasured.saturating_add(1);
        self.schedule_probe(now);
        Due::Probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry() -> (Retry, QpAttrs) {
        let attrs = QpAttrs { timeout: 14, retry_count: 7, rnr_retry: 7, ..QpAttrs::default() };
        let mut retry = Retry::default();
        retry.start(&attrs);
        retry.on_sent(Instant::ZERO, &attrs);
        (retry, attrs)
    }

    #[test]
    fn one_loss_is_noticed_once() {
        let (mut retry, attrs) = retry();
        assert_eq!(retry.on_loss(Instant::ZERO), Ok(true));
        assert_eq!(retry.on_loss(Instant::ZERO), Ok(false));
        retry.on_progress(Instant::ZERO, &attrs, true);
        assert_eq!(retry.on_loss(Instant::ZERO), Ok(true));
    }

    /// All is sent again then: what is lost of that is another loss.
    #[test]
    fn a_loss_after_a_timeout_or_a_wait_is_another_one() {
        let (mut retry, attrs) = retry();
        assert_eq!(retry.on_loss(Instant::ZERO), Ok(true));
        retry.on_timeout().unwrap();
        assert_eq!(retry.on_loss(Instant::ZERO), Ok(true));
        retry.on_rnr(Instant::ZERO, &attrs, 1).unwrap();
        assert_eq!(retry.on_loss(Instant::ZERO), Ok(false), "nothing is sent while it waits");
        assert!(retry.end_wait(Instant::from_nanos(1 << 40)));
        assert_eq!(retry.on_loss(Instant::ZERO), Ok(true));
    }
}
