//! The requester's timers and counts: retransmission timeout, retries, RNR waits (IBTA vol. 1, 9.7.6.1).
//!
//! There are also probes, which IBTA does not have. After a loss the requester sends again if nothing is answered for longer than
//! usual, although the timeout has not run out. A probe uses up no retry.

use crate::{
    num::Psn,
    qp::{QpAttrs, pacing::Timing},
    time::Instant,
    wire::rnr_delay,
    work::WcStatus,
};
use core::time::Duration;

/// The shortest time without answers after which a probe is sent.
const LEAST_PROBE: Duration = Duration::from_micros(500);
/// Probes in a row at most, each after twice the time of the one before it. After them only the timeout is left.
const PROBES: u8 = 4;
/// The time before a probe is doubled this often at most. Then it is longer than any timeout.
const MOST_DOUBLINGS: u8 = 16;
/// After a loss there may be probes until so many acknowledgements have come. Without a recent loss there are none, because a
/// silent peer may just not be scheduled.
const SUSPICION: u32 = 4096;

/// Retry counts and deadlines of one requester.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// When the oldest unanswered request counts as lost.
    deadline: Option<Instant>,
    /// End of the wait that an RNR NAK asked for.
    rnr_until: Option<Instant>,
    left: u8,
    rnr_left: u8,
    /// Whether the present loss was noticed. Further signs of it are ignored until something is acknowledged.
    noticed: bool,
    /// PSN of the first answer that came although an earlier one was missing.
    beyond: Option<Psn>,
    /// When the next probe is due.
    probe: Option<Instant>,
    /// Probes since the peer acknowledged something.
    probes: u8,
    /// Probes since a round trip was last measured.
    unmeasured: u8,
    /// Acknowledgements until the last loss is forgotten, see `SUSPICION`.
    suspicion: u32,
    trip: RoundTrip,
    /// Limits of the timers.
    pub timing: Timing,
}

/// Round-trip times of acknowledgements: mean and deviation as in RFC 6298.
#[derive(Debug, Default)]
struct RoundTrip {
    /// A packet that asked for an acknowledgement, and when it was sent.
    sample: Option<(Psn, Instant)>,
    /// Nanoseconds; `None` before the first measurement.
    mean: Option<u64>,
    deviation: u64,
    /// The last measurement, until it is taken.
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

    /// A time without answers that is longer than usual. `None` before the first measurement.
    fn patience(&self) -> Option<Duration> {
        let usual = self.mean?.saturating_add(self.deviation.saturating_mul(4));
        Some(Duration::from_nanos(usual).max(LEAST_PROBE))
    }
}

/// Which timer has run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expired {
    /// None.
    Nothing,
    /// A probe: nothing was answered for longer than usual. The last packet may be lost, or one that was sent again; no NAK
    /// reports that. Sending again now uses up no retry.
    Probe,
    /// The timeout ran out.
    Timeout,
}

impl Retry {
    pub(crate) fn start(&mut self, attrs: &QpAttrs) {
        let timing = self.timing;
        *self = Self { left: attrs.retry_count, rnr_left: attrs.rnr_retry, timing, ..Self::default() };
    }

    /// The round trip that was measured since the last call.
    pub(crate) const fn take_trip(&mut self) -> Option<Duration> {
        self.trip.latest.take()
    }

    /// When the local ACK timeout of `attrs` runs out: after 4.096 us times 2 to the power of its code. `None` for 0, which never
    /// runs out.
    fn timeout(&self, now: Instant, attrs: &QpAttrs) -> Option<Instant> {
        let (code, shortest) = (attrs.timeout, self.timing.shortest);
        (code != 0).then(|| now + Duration::from_nanos(4096 << (code & 31)).max(shortest))
    }

    /// A packet of a request was sent, so something is outstanding.
    pub(crate) fn on_sent(&mut self, now: Instant, attrs: &QpAttrs) {
        if self.deadline.is_none() {
            self.deadline = self.timeout(now, attrs);
            self.schedule_probe(now);
        }
    }

    /// A packet was sent for the first time and asks for an acknowledgement. Its round trip is measured, if no other one is.
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

    /// Packets are sent again. An acknowledgement may be for either copy, so it is not used for a measurement (Karn's rule). If
    /// the first copy is known to be lost, the second one is measured: `lost` is its PSN and the time when it is sent.
    pub(crate) const fn on_again(&mut self, lost: Option<(Psn, Instant)>) {
        self.trip.sample = lost;
    }

    /// The response to `psn` came, and one before it is missing. True if the missing one was lost a second time. Responses come
    /// in order. So after a gap was noticed at some PSN, responses with higher PSNs still belong to the first request, and one
    /// with that PSN or a lower one belongs to the request that was sent again. It may also be a duplicate on the network, and
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

    /// The answer to `psn` came, and an earlier one is missing.
    pub(crate) fn note_beyond(&mut self, psn: Psn) {
        self.beyond.get_or_insert(psn);
    }

    /// Sets the time of the next probe. The wait doubles with each probe, and stays so until a round trip is measured (RFC 6298,
    /// 5.5 to 5.7). After a probe nothing can be measured. So without the doubling a peer that has only become slower would
    /// always be probed.
    fn schedule_probe(&mut self, now: Instant) {
        if self.suspicion == 0 || self.probes >= PROBES || !self.timing.probes {
            self.probe = None;
            return;
        }
        let due =
            self.trip.patience().map(|patience| now + patience * (1 << self.unmeasured.min(MOST_DOUBLINGS)));
        self.probe = due.filter(|due| self.deadline.is_some_and(|deadline| *due < deadline));
    }

    /// The peer acknowledged something; `more` is still outstanding. During an RNR wait no timeout begins: nothing is sent until it ends.
    pub(crate) fn on_progress(&mut self, now: Instant, attrs: &QpAttrs, more: bool) {
        self.left = attrs.retry_count;
        self.rnr_left = attrs.rnr_retry;
        self.forget_loss();
        self.deadline = if more && !self.is_waiting() { self.timeout(now, attrs) } else { None };
        self.probes = 0;
        self.suspicion = self.suspicion.saturating_sub(1);
        self.schedule_probe(now);
    }

    /// A packet that arrived shows a loss. `Ok(true)`: everything is to be sent again. `Ok(false)`: this loss is known already,
    /// or an RNR wait is on.
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

    /// The timeout ran out.
    pub(crate) fn on_timeout(&mut self) -> Result<(), WcStatus> {
        self.deadline = None;
        self.probe = None;
        self.suspicion = SUSPICION;
        self.forget_loss();
        self.spend()
    }

    /// Everything is sent again, for another reason than the loss that was noticed. So what is missing from now on is a new loss.
    const fn forget_loss(&mut self) {
        self.noticed = false;
        self.beyond = None;
    }

    fn spend(&mut self) -> Result<(), WcStatus> {
        self.left = self.left.checked_sub(1).ok_or(WcStatus::RetryExceeded)?;
        Ok(())
    }

    /// The peer was not ready (RNR NAK). 7 retries mean no limit. The peer has answered, so the retries for a silent peer are
    /// reset. A slow peer may send a NAK for the packet behind the refused one after each wait. Without the reset these NAKs
    /// would use up all retries.
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

    /// Whether an RNR wait is on.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// When the next timer is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        // A probe comes before the timeout, or not at all.
        self.rnr_until.or(self.probe).or(self.deadline)
    }

    /// Ends the RNR wait if its time is over. Returns whether it did.
    pub(crate) fn end_wait(&mut self, now: Instant) -> bool {
        self.rnr_until.take_if(|until| *until <= now).is_some()
    }

    /// The timer that has run out. A probe is returned once.
    pub(super) fn take_expired(&mut self, now: Instant) -> Expired {
        if self.rnr_until.is_some() {
            return Expired::Nothing;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Expired::Timeout;
        }
        if self.probe.is_none_or(|probe| probe > now) {
            return Expired::Nothing;
        }
        self.probes += 1;
        self.unmeasured = self.unmeasured.saturating_add(1);
        self.schedule_probe(now);
        Expired::Probe
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

    /// After these everything is sent again. So what is lost then is another loss.
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

    /// The wait may be longer than the timeout. When it ends nothing has been sent since, so nothing is late.
    #[test]
    fn an_acknowledgement_during_a_wait_starts_no_timeout() {
        let (mut retry, attrs) = retry();
        retry.on_rnr(Instant::ZERO, &attrs, 0).unwrap();
        retry.on_progress(Instant::ZERO, &attrs, true);
        let end = Instant::from_nanos(700_000_000);
        assert!(retry.end_wait(end));
        assert_eq!((retry.take_expired(end), retry.next_deadline()), (Expired::Nothing, None));
        retry.on_sent(end, &attrs);
        assert!(retry.next_deadline().is_some());
    }
}
