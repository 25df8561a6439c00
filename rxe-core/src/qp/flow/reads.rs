//! Limits the READ responses that are on their way to this endpoint at one time.

use super::{Holding, Line, PATIENCE, RESERVE, common, limit::Limit, share};
use crate::{
    num::Qpn,
    qp::plan::{Grant, Spot, Wait, Wanted},
};
use alloc::vec::Vec;
use core::time::Duration;

/// The patience doubles each time that READs lapse and no response has come since the last time, but not more often than this.
/// What has lapsed may still come, and the socket's buffer takes only one pot. The doubling keeps a peer that was not scheduled
/// for some milliseconds from being asked for several pots.
const MOST_DOUBLINGS: u32 = 5;

/// The pot of READ responses: as many bytes as our socket takes, and fewer while some are lost. After a loss everything behind
/// the lost response is asked for again, so a loss costs what is under way. A grant is held until all responses of the READ have
/// come.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    pub(super) limit: Limit,
    /// Bytes granted and not returned.
    taken: u32,
    /// Bytes that may be granted beyond the limit to queue pairs that hold nothing, because nothing came for long.
    beyond: u32,
    /// How often grants have lapsed since the last response.
    pub lapses: u32,
    /// Connected queue pairs.
    pub users: usize,
    /// Queue pairs that wait for room.
    pub line: Line,
    /// The queue pair that was first in `line` and is asked next. It has left the line.
    pub turn: Option<Qpn>,
    /// Queue pairs that may hold something. Those that do not are removed when the endpoint looks for silent holders.
    pub holders: Vec<Qpn>,
    /// Bytes asked for by queue pairs that held nothing before, since the line last had a turn ([`Self::may_pass`]).
    ahead: u32,
}

impl ReadBudget {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit: Limit::new(limit, limit),
            taken: 0,
            beyond: 0,
            lapses: 0,
            users: 0,
            line: Line::default(),
            turn: None,
            holders: Vec::new(),
            ahead: 0,
        }
    }

    /// Bytes that may be granted to queue pairs that hold something.
    const fn room(&self) -> u32 {
        common(self.limit.size, self.users > 1).saturating_sub(self.taken)
    }

    /// Whether something may be granted now to the first in line.
    pub(crate) const fn opens(&self) -> bool {
        self.taken == 0 || self.room() > 0 || self.beyond > 0
    }

    /// How many bytes a READ may ask for now: full packets, except for the last one of the READ.
    ///
    /// A READ that is sent again is not cut. If the size after losses counted for it, it might wait until all others are idle. So
    /// the size of the socket's buffer counts.
    pub(super) fn admit(&self, holding: &Holding, wanted: &Wanted, spot: Spot) -> Result<Grant, Wait> {
        let &Wanted { least, mut most, packet, again } = wanted;
        let (own, silent) = (holding.responses(), holding.silent);
        let share = share(self.line.len(), self.limit.size);
        if holding.asks_too_much(if again { most } else { least }, share) {
            return Err(Wait::Answer);
        }
        // A READ of one packet does not wait in line if its queue pair holds nothing.
        let fresh = own == 0 && !silent && !again;
        let passes = spot.in_turn || self.line.is_empty() || fresh && most <= packet && self.may_pass();
        if !passes {
            return Err(Wait::Responses);
        }
        let has = |bytes: u32, limit: u32| self.taken == 0 || self.taken.saturating_add(bytes) <= limit;
        let beyond = own == 0 && self.beyond > 0;
        if again {
            let fits = has(most, self.limit.max) || beyond;
            return if fits { Ok(Grant { ask: true, bytes: most }) } else { Err(Wait::Responses) };
        }
        if silent {
            most = most.min(packet);
        } else {
            let most_now = share.saturating_sub(own);
            most = most.min((most_now - most_now % packet).max(least));
        }
        let (first, room) = (least.min(most), self.room());
        let bytes = match room {
            _ if most <= room => most,
            _ if room >= packet.max(first) => room - room % packet,
            _ if self.taken == 0 || fresh && has(first, self.limit.size) || beyond => first,
            _ => return Err(Wait::Responses),
        };
        Ok(Grant { ask: true, bytes })
    }

    /// Whether a queue pair that holds nothing may pass those that wait in line. As with [`Window`](super::Window), the line would
    /// have no turn otherwise where many such queue pairs ask for a packet each time that they are answered.
    const fn may_pass(&self) -> bool {
        self.ahead < self.limit.size / RESERVE
    }

    /// A queue pair that held nothing asks for `bytes`.
    pub(super) const fn went_ahead(&mut self, bytes: u32) {
        self.ahead = self.ahead.saturating_add(bytes);
    }

    /// A queue pair of the line had its turn, or begins a line.
    pub(crate) const fn line_had_turn(&mut self) {
        self.ahead = 0;
    }

    pub(super) const fn asked(&mut self, bytes: u32) {
        self.taken += bytes;
        if self.taken > self.limit.size {
            self.beyond = self.beyond.saturating_sub(bytes);
        }
    }

    /// Nothing came for long. Queue pairs that hold nothing may ask for a few packets beyond the limit.
    pub(crate) fn exceed(&mut self) {
        self.beyond = (self.limit.size / RESERVE).max(1);
    }

    /// A response came.
    pub(super) const fn heard(&mut self) {
        self.lapses = 0;
    }

    /// All bytes of a grant came.
    pub(super) fn came(&mut self, bytes: u32) {
        self.beyond = 0;
        self.gone(bytes);
        self.limit.acknowledged(bytes);
    }

    /// `bytes` do not count any more, for whatever reason.
    pub(super) const fn gone(&mut self, bytes: u32) {
        self.taken -= bytes;
    }

    /// How long a holder may get no response while others wait.
    pub(crate) fn patience(&self) -> Duration {
        PATIENCE * (1 << self.lapses.min(MOST_DOUBLINGS))
    }

    /// Adds a queue pair to the list of holders.
    pub(crate) fn list(&mut self, qpn: Qpn, holding: &mut Holding) {
        if !holding.listed {
            holding.listed = true;
            self.holders.push(qpn);
        }
    }

    /// Removes a queue pair from the list of holders.
    pub(crate) fn unlist(&mut self, qpn: Qpn, holding: &mut Holding) {
        if core::mem::take(&mut holding.listed) {
            self.holders.retain(|holder| *holder != qpn);
        }
    }

    /// Checks that what is granted is what all queue pairs hold together (`held`).
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self, held: u64) {
        assert_eq!(u64::from(self.taken), held, "what is granted and what is held: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{num::Psn, qp::flow::Window, time::Instant};

    const ALONE: Spot =
        Spot { begins: true, ends: false, in_turn: false, spent: 0, waiting: 0, awaited: false };

    fn wanted(bytes: u32) -> Wanted {
        Wanted { least: bytes.min(4096), most: bytes, packet: 4096, again: false }
    }

    fn grant(reads: &ReadBudget, holding: &Holding, wanted: Wanted) -> Option<u32> {
        reads.admit(holding, &wanted, ALONE).ok().map(|grant| grant.bytes)
    }

    #[test]
    fn what_losses_have_left_is_granted_in_whole_packets() {
        let (mut reads, mut holding) = (ReadBudget::new(64_000), Holding::default());
        assert_eq!(grant(&reads, &holding, wanted(63_999)), Some(63_999));
        reads.limit.lost();
        assert_eq!(grant(&reads, &holding, wanted(64_000)), Some(40_960), "of 44,800");
        holding.asked(&mut reads, Instant::ZERO, 40_960);
        assert_eq!(grant(&reads, &holding, wanted(4096)), None);
        assert_eq!(grant(&reads, &holding, wanted(3840)), Some(3840), "the last one fits");
    }

    #[test]
    fn what_is_asked_for_again_needs_room_in_the_socket_only() {
        let (mut reads, mut holding) = (ReadBudget::new(64_000), Holding::default());
        holding.asked(&mut reads, Instant::ZERO, 20_000);
        reads.limit.lost();
        let again = |bytes| Wanted { again: true, ..wanted(bytes) };
        assert_eq!(grant(&reads, &Holding::default(), again(44_000)), Some(44_000));
        assert_eq!(grant(&reads, &Holding::default(), again(44_001)), None);
        holding.came(&mut reads, 20_000);
        assert_eq!(
            grant(&reads, &Holding::default(), again(100_000)),
            Some(100_000),
            "by itself it always may"
        );
    }

    #[test]
    fn a_socket_that_takes_nothing_still_gets_packets_one_by_one() {
        let (mut reads, mut holding) = (ReadBudget::new(0), Holding::default());
        assert_eq!(grant(&reads, &holding, wanted(9000)), Some(4096));
        holding.asked(&mut reads, Instant::ZERO, 4096);
        assert_eq!(grant(&reads, &holding, wanted(9000)), None);
        holding.came(&mut reads, 4096);
        assert_eq!(grant(&reads, &holding, wanted(9000)), Some(4096));
    }

    /// What has lapsed and comes all the same was not lost. When all is answered, its queue pair counts as any other again.
    #[test]
    fn late_responses_do_not_make_the_patience_short_again() {
        let (mut reads, mut window) = (ReadBudget::new(64_000), Window::new(64_000, 64_000));
        let (mut holding, now) = (Holding::default(), Instant::ZERO);
        holding.asked(&mut reads, now, 4096);
        holding.lapse(&mut reads);
        reads.lapses = 1;
        holding.heard(&mut reads, now);
        assert_eq!(reads.patience(), 2 * PATIENCE);
        holding.acknowledged(&mut window, now, Psn::new(1), true);
        holding.asked(&mut reads, now, 4096);
        holding.heard(&mut reads, now);
        assert_eq!(reads.patience(), PATIENCE);
    }
}
