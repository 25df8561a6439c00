//! How much may be in flight: an adaptive window per destination socket, and a budget for READ responses, which all land
//! in our own socket's buffer. Beyond a receiver's buffer throughput falls off a cliff, so both start small.

use super::{
    common::Ctx,
    plan::{Grant, Need, Spot, Wait},
};

/// Smallest window, bytes: a few full packets.
const MIN_WINDOW: u32 = 16 * 1024;
/// What a window above the last size that failed grows by, when all of it was acknowledged: two large packets.
const STEP: u32 = 8192;
/// What each request packet counts besides its payload: headers and the receiver's bookkeeping.
pub(crate) const PACKET_COST: u32 = 64;

/// A share in units of `ALL`.
const ALL: u32 = 1024;
/// What one window with or without a notification counts in the estimate of congestion (RFC 8257's g).
const GAIN: u32 = 16;
/// Windows in which half of what a notification took is given back each time (DCQCN's fast recovery).
const RECOVERY: u8 = 5;

/// The window to one destination socket, shared by all queue pairs to that address and slot.
#[derive(Debug)]
pub(crate) struct Window {
    in_flight: u32,
    /// Bytes that left since each queue pair last asked for an acknowledgement.
    unasked: u32,
    limit: u32,
    max: u32,
    threshold: u32,
    acked_since_cut: u32,
    congestion: Congestion,
}

/// What notifications of congestion tell. DCQCN (Zhu et al., SIGCOMM 2015) has a rate, and timers; here the window takes
/// the rate's place and a window's worth of acknowledgements the timer's, as in DCTCP (RFC 8257), because nothing paces
/// the packets of a socket.
#[derive(Debug)]
struct Congestion {
    /// How much of the path's congestion is ours, in units of `ALL`: what a notification takes, twice over.
    share: u32,
    /// The window before the last notification.
    target: u32,
    /// Steps towards the target left.
    steps: u8,
    /// Bytes acknowledged since the last step.
    acked: u32,
    /// A notification came since the last step.
    heard: bool,
}

impl Congestion {
    const fn new() -> Self {
        Self { share: ALL, target: 0, steps: 0, acked: u32::MAX, heard: false }
    }
}

impl Window {
    pub(crate) const fn new(start: u32, max: u32) -> Self {
        Self {
            in_flight: 0,
            unasked: 0,
            limit: start,
            max,
            threshold: max,
            acked_since_cut: u32::MAX,
            congestion: Congestion::new(),
        }
    }

    const fn least(&self) -> u32 {
        if self.max < MIN_WINDOW { self.max } else { MIN_WINDOW }
    }

    /// Whether `cost` more bytes may leave of a message. Also where nobody was asked about all that is in flight, which a
    /// window that shrank all at once may bring about: whoever sends on asks.
    const fn admits(&self, cost: u32) -> bool {
        self.allows(cost) || self.in_flight <= self.unasked
    }

    /// Whether nothing is in flight.
    pub(crate) const fn is_empty(&self) -> bool {
        self.in_flight == 0
    }

    /// Whether `cost` more bytes may leave; one packet always may.
    const fn allows(&self, cost: u32) -> bool {
        self.in_flight == 0 || self.in_flight.saturating_add(cost) <= self.limit
    }

    /// Whether a new batch may begin once `more` bytes have left: only with room for a good part of one. Else a window
    /// that is a little larger than some batches would be filled with one of a packet or two behind each.
    const fn begins_after(&self, more: u32) -> bool {
        self.in_flight.saturating_add(more) <= self.limit - self.limit / 3
    }

    /// Whether a new batch may begin now; one always may if nothing is in flight.
    const fn begins(&self) -> bool {
        self.in_flight == 0 || self.begins_after(0)
    }

    pub(crate) const fn sent(&mut self, cost: u32) {
        self.in_flight = self.in_flight.saturating_add(cost);
    }

    /// Whether a packet of `cost` bytes is to ask for an acknowledgement in the middle of a message, so that the window moves
    /// on: before the window is closed to those behind it, of `next` bytes; and with the last packet of a batch, because all
    /// of a batch arrives together. So what nobody has asked about never closes the window.
    const fn asks(&self, cost: u32, next: u32, spot: Spot) -> bool {
        let many = self.unasked.saturating_add(cost) >= self.limit / 4;
        !self.allows(cost + next) || spot.ends && (many || !self.begins_after(cost))
    }

    /// Counts bytes sent without asking.
    pub(crate) const fn unasked(&mut self, cost: u32) {
        self.unasked = self.unasked.saturating_add(cost);
    }

    /// They were asked about, or are not in flight any more.
    pub(crate) const fn asked(&mut self, cost: u32) {
        self.unasked = self.unasked.saturating_sub(cost);
    }

    /// Bytes that are no longer in flight, for whatever reason.
    pub(crate) const fn left(&mut self, cost: u32) {
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Bytes the peer acknowledged: the window grows, quickly below the last size that failed, by a little above.
    pub(crate) fn acknowledged(&mut self, cost: u32) {
        self.left(cost);
        self.acked_since_cut = self.acked_since_cut.saturating_add(cost);
        let growth = if self.limit < self.threshold {
            cost
        } else {
            u32::try_from(u64::from(cost) * u64::from(STEP) / u64::from(self.limit.max(1))).unwrap_or(0)
        };
        self.limit = self.limit.saturating_add(growth).min(self.max);
        if self.congestion.target != 0 {
            self.step(cost);
        }
    }

    /// The peer says that packets reach it marked: the window shrinks by up to half, at most once a window.
    pub(crate) fn notified(&mut self) {
        self.congestion.heard = true;
        if self.congestion.acked >= self.limit {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let least = self.least();
        let congestion = &mut self.congestion;
        congestion.share += (ALL - congestion.share) / GAIN;
        congestion.target = self.limit;
        self.limit = (self.limit - self.limit / (2 * ALL) * congestion.share).max(least);
        self.threshold = self.limit;
        (congestion.steps, congestion.acked, congestion.heard) = (RECOVERY, 0, false);
    }

    /// With each window acknowledged: smaller again if a notification came meanwhile, else nearer to where it was.
    fn step(&mut self, cost: u32) {
        let congestion = &mut self.congestion;
        congestion.acked = congestion.acked.saturating_add(cost);
        if congestion.acked < self.limit {
            return;
        }
        if congestion.heard {
            self.cut();
            return;
        }
        congestion.share -= congestion.share / GAIN;
        congestion.acked = 0;
        if let Some(left) = congestion.steps.checked_sub(1) {
            congestion.steps = left;
            self.limit = self.limit.max(self.limit.midpoint(congestion.target)).min(self.max);
            self.threshold = self.limit;
        }
    }

    /// Packets were lost: the window shrinks by three tenths (as CUBIC's, RFC 9438, 4.6), at most once a window.
    pub(crate) const fn lost(&mut self) {
        if self.acked_since_cut >= self.limit / 2 {
            let less = self.limit - self.limit / 10 * 3;
            self.limit = if less < self.least() { self.least() } else { less };
            self.threshold = self.limit;
            self.acked_since_cut = 0;
            self.congestion.steps = 0;
        }
    }

    /// Nothing came back for long: it starts anew, and grows quickly to where it would be after a loss.
    pub(crate) const fn silent(&mut self) {
        self.lost();
        self.limit = self.least();
        self.congestion.steps = 0;
    }
}

/// READ responses that may be on their way to this endpoint at once: as many as its socket takes, and fewer while some are
/// lost. All that is behind a lost one is asked for again, so what is under way is what a loss costs.
#[derive(Debug)]
pub(crate) struct ReadBudget(Window);

impl ReadBudget {
    pub(crate) const fn new(limit: u32) -> Self {
        Self(Window::new(limit, limit))
    }

    /// Bytes a READ request may ask for now, at least `packet` if nothing is on its way.
    const fn available(&self, packet: u32) -> u32 {
        let left = self.0.limit.saturating_sub(self.0.in_flight);
        if self.is_idle() && left < packet { packet } else { left }
    }

    /// How many of `least` to `most` bytes may be asked for now, in whole packets. What is asked for again needs room in the
    /// socket only, not in what losses have left of the budget: it is not cut anew, and would wait until all others are idle.
    fn grant(&self, least: u32, most: u32, packet: u32, again: bool) -> Option<u32> {
        if again {
            let fits = self.is_idle() || self.0.in_flight.saturating_add(most) <= self.0.max;
            return fits.then_some(most);
        }
        let available = self.available(packet);
        match available {
            _ if available >= most => Some(most),
            _ if available >= packet.max(least) => Some(available - available % packet),
            _ => None,
        }
    }

    /// Whether nothing is on its way.
    const fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) const fn asked(&mut self, bytes: u32) {
        self.0.sent(bytes);
    }

    /// They came.
    pub(crate) fn came(&mut self, bytes: u32) {
        self.0.acknowledged(bytes);
    }

    /// They are not waited for any more, for whatever reason.
    pub(crate) const fn left(&mut self, bytes: u32) {
        self.0.left(bytes);
    }
}

impl Ctx<'_> {
    /// Whether a packet that needs `need` may leave now at `spot` of a batch.
    pub(crate) fn admit(&self, need: &Need, spot: Spot) -> Result<Grant, Wait> {
        match *need {
            Need::Nothing => Ok(Grant::default()),
            Need::Room { cost, next, unasked } => {
                // Whoever has not asked yet goes on until it does: a last packet with an immediate may be longer than the
                // others, and begin a batch that nobody expected.
                let begins = !spot.begins || unasked || self.window.begins();
                if !begins || !self.window.admits(cost) {
                    return Err(Wait::Room);
                }
                Ok(Grant { ask: self.window.asks(cost, next, spot), bytes: 0 })
            }
            Need::Responses { least, most, packet, again } => {
                let bytes = self.reads.grant(least, most, packet, again).ok_or(Wait::Responses)?;
                Ok(Grant { ask: true, bytes })
            }
        }
    }

    /// Packets were lost that a READ needs (`read`), or another request.
    pub(crate) const fn lost(&mut self, read: bool) {
        if read { self.reads.0.lost() } else { self.window.lost() }
    }

    /// The same, and nothing else came back for long. A peer that is silent says little about the READs of others, who have
    /// the budget in common.
    pub(crate) const fn silent(&mut self, read: bool) {
        if read { self.reads.0.lost() } else { self.window.silent() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_again_needs_room_in_the_socket_only() {
        let mut reads = ReadBudget::new(64_000);
        reads.asked(20_000);
        // A loss after each window: a tenth of the budget is left, and all of that is used.
        for _ in 0..10 {
            reads.0.lost();
            reads.0.acked_since_cut = u32::MAX;
        }
        assert_eq!(reads.available(4096), 0);
        let again = |reads: &ReadBudget, bytes| reads.grant(bytes, bytes, 4096, true);
        assert_eq!((again(&reads, 44_000), again(&reads, 44_001)), (Some(44_000), None));
        reads.came(20_000);
        assert!(again(&reads, 1 << 30).is_some(), "by itself it always may");
    }

    #[test]
    fn a_socket_that_takes_nothing_still_gets_packets_one_by_one() {
        let mut reads = ReadBudget::new(0);
        assert_eq!(reads.available(1024), 1024);
        reads.asked(1024);
        assert_eq!(reads.available(1024), 0);
        reads.came(1024);
        assert_eq!(reads.available(1024), 1024);
    }
}
