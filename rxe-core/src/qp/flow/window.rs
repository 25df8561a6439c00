//! Limits what all queue pairs of an endpoint have under way to one destination socket.

use super::{
    Holding, PATIENCE, RESERVE, common,
    limit::Limit,
    share,
    stream::{Stream, StreamShare},
    turn,
};
use crate::{
    qp::plan::{Grant, Spot, Wait},
    time::Instant,
};
use alloc::sync::Arc;

/// The window to one destination socket: an address and a slot.
///
/// Bytes are counted as positions in the stream of all bytes ever sent there. One socket of ours sends to one of theirs, so an
/// acknowledgement of a packet proves that everything before its position has left their buffer. This includes packets of queue
/// pairs that are not answered.
///
/// If other endpoints of the process send there, too, none has more under way than its part of the socket's buffer, and all
/// together have not more than the buffer ([`Stream`]).
#[derive(Debug)]
pub(crate) struct Window {
    pub(super) limit: Limit,
    /// The endpoint's place in the stream of all endpoints, if there may be several.
    share: Option<StreamShare>,
    /// Bytes ever sent.
    sent: u64,
    /// Nothing before this position is under way.
    left: u64,
    /// End of the latest packet that asked for an acknowledgement.
    asked: u64,
    /// Queue pairs connected to it.
    pub users: usize,
    /// Since when somebody waits and no acknowledgement has come.
    quiet_since: Instant,
    /// Bytes that queue pairs with nothing under way may send beyond the limit, because no acknowledgement came for long.
    beyond: u32,
    /// Bytes of queue pairs that had nothing under way before, since the line last had a turn ([`Self::may_pass`]).
    ahead: u32,
}

/// A position in the streams to a destination: in that of this endpoint, and in that of all endpoints of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Position {
    own: u64,
    all: u64,
}

impl Window {
    /// The window of an endpoint that sends to the destination alone.
    pub(crate) fn new(start: u32, max: u32) -> Self {
        Self {
            limit: Limit::new(start, max),
            share: None,
            sent: 0,
            left: 0,
            asked: 0,
            users: 0,
            quiet_since: Instant::ZERO,
            beyond: 0,
            ahead: 0,
        }
    }

    /// The same for one of several endpoints, the one with that `index`.
    pub(crate) fn shared(self, stream: Arc<Stream>, index: u8) -> Self {
        Self { share: Some(StreamShare::new(stream, index)), ..self }
    }

    /// Bytes that this endpoint may have under way.
    fn size(&self) -> u32 {
        let size = self.limit.size;
        self.share.as_ref().map_or(size, |share| size.min(share.part()))
    }

    /// Whether all endpoints together have left no room for `more` bytes.
    fn is_taken(&self, more: u32) -> bool {
        self.share.as_ref().is_some_and(|share| share.is_taken(more))
    }

    /// Bytes that this endpoint has under way.
    pub(crate) const fn in_flight(&self) -> u64 {
        self.sent - self.left
    }

    /// Whether nothing is under way.
    pub(crate) const fn is_empty(&self) -> bool {
        self.sent == self.left
    }

    /// Whether no packet that is under way has asked for an acknowledgement, so that none will come. A window that shrank
    /// suddenly may cause that, or a batch that ended otherwise than expected. Then the next packet may be sent, and asks.
    const fn is_unasked(&self) -> bool {
        self.left >= self.asked
    }

    /// Whether a new batch may begin after `more` bytes were sent: only if a third of the window is free. Otherwise a window that
    /// is a little larger than some batches would be filled with a batch of one or two packets behind each.
    fn begins_after(&self, more: u32) -> bool {
        let limit = self.size();
        self.in_flight() + u64::from(more) <= u64::from(limit - limit / 3)
    }

    /// Whether a queue pair that waits may begin a batch now.
    pub(crate) fn opens(&self) -> bool {
        self.begins_after(0) || self.is_unasked() || self.beyond > 0
    }

    /// Whether a queue pair with nothing under way may pass those that wait in line, if any do (`awaited`). With many such queue
    /// pairs, which send a packet each time that they are answered, the line would have no turn otherwise.
    fn may_pass(&self, awaited: bool) -> bool {
        !awaited || self.ahead < self.size() / RESERVE
    }

    /// Whether a packet of `cost` bytes may be sent at `spot`. A packet after it would take `next` bytes. `ends`: whether the
    /// message ends with it.
    pub(super) fn admit(
        &self,
        holding: &Holding,
        (cost, next, ends): (u32, u32, bool),
        spot: Spot,
    ) -> Result<Grant, Wait> {
        let (limit, own) = (self.size(), holding.bytes());
        // Bytes that acknowledgements to others have proven to have left still count in `own` until the queue pair itself is
        // answered. So a queue pair that is not answered stops after one window.
        let share = share(spot.waiting, limit).min(limit);
        // A message of one packet does not wait in line if its queue pair holds nothing, and may use the reserve. The first
        // packet of a longer message would be a batch of its own, and the message would not be complete any earlier.
        let fresh = own == 0 && ends && !holding.silent && (spot.in_turn || self.may_pass(spot.awaited));
        if own > 0 && holding.unasked() == 0 && (holding.silent || own.saturating_add(cost) > share) {
            return Err(Wait::Answer);
        }
        if !spot.in_turn && !fresh && spot.awaited {
            return Err(Wait::Room);
        }
        if spot.spent >= turn(spot.waiting, limit) {
            return Err(Wait::Turn);
        }
        let after = self.in_flight() + u64::from(cost);
        let common = u64::from(common(limit, self.users > 1));
        let room = if fresh { limit.into() } else { common };
        let is_full = after > room || self.is_taken(cost);
        if is_full && !self.is_unasked() && !(self.beyond > 0 && own == 0) {
            return Err(Wait::Room);
        }
        // A queue pair that has not asked for an acknowledgement yet goes on until it does. A last packet with an immediate may
        // be longer than the others, and begin a batch that was not expected.
        if spot.begins && !fresh && holding.unasked() == 0 && !self.opens() {
            return Err(Wait::Room);
        }
        // In the middle of a message the last packet that may be sent asks for an acknowledgement, and so does the last packet of
        // a batch, because a batch arrives as a whole. So the window is never closed by bytes that will not be acknowledged.
        let closes = after + u64::from(next) > common
            || own + cost + next > share
            || holding.silent
            || self.is_taken(cost.saturating_add(next));
        let many = self.sent - self.asked + u64::from(cost) >= u64::from(limit / 4);
        // Where others wait it may be long until the queue pair's next turn. Its timeout must not run until then.
        let parts =
            spot.waiting > 0 && (spot.ends || spot.spent.saturating_add(cost) >= turn(spot.waiting, limit));
        let ask = closes || parts || spot.ends && (many || !self.begins_after(cost));
        Ok(Grant { ask, bytes: 0 })
    }

    /// A queue pair that had nothing under way sends a packet of `bytes`.
    pub(super) const fn went_ahead(&mut self, bytes: u32) {
        self.ahead = self.ahead.saturating_add(bytes);
    }

    /// Queue pairs of the line have sent something.
    pub(crate) const fn line_had_turn(&mut self) {
        self.ahead = 0;
    }

    /// A packet of `bytes` is sent. Returns its end position.
    pub(super) fn sent(&mut self, bytes: u32, asked: bool) -> Position {
        if bytes > 0 && self.beyond > 0 && self.in_flight() + u64::from(bytes) > self.size().into() {
            self.beyond = self.beyond.saturating_sub(bytes);
        }
        self.sent += u64::from(bytes);
        if asked {
            self.asked = self.sent;
        }
        Position { own: self.sent, all: self.share.as_ref().map_or(0, |share| share.sent(bytes)) }
    }

    /// An acknowledgement proves that everything before `position` has arrived. The window grows.
    pub(super) fn proven(&mut self, position: Position, now: Instant) {
        (self.quiet_since, self.beyond) = (now, 0);
        let bytes = self.gone(position);
        if bytes > 0 {
            self.limit.acknowledged(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    }

    /// Nothing before `position` is waited for any more. Returns how many bytes of this endpoint that are.
    pub(super) fn gone(&mut self, position: Position) -> u64 {
        if let Some(share) = &self.share {
            share.left(position.all);
        }
        let bytes = position.own.saturating_sub(self.left);
        self.left += bytes;
        bytes
    }

    /// A queue pair begins to wait, and none did before.
    pub(crate) const fn awaited(&mut self, now: Instant) {
        self.quiet_since = now;
        self.ahead = 0;
    }

    /// When those that wait may send beyond the limit ([`Self::exceed`]).
    pub(crate) fn patient_until(&self) -> Instant {
        self.quiet_since + PATIENCE
    }

    /// No acknowledgement came for long. Queue pairs with nothing under way may send a few packets beyond the limit. An
    /// acknowledgement of any of these proves the rest.
    pub(crate) fn exceed(&mut self, now: Instant) {
        (self.beyond, self.quiet_since) = ((self.size() / RESERVE).max(1), now);
    }

    /// The peer reports that packets arrive marked (a CNP).
    pub(crate) fn notified(&mut self) {
        self.limit.notified();
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) const fn has_sent(&self, position: Position) -> bool {
        position.own <= self.sent
    }

    /// Checks its fields. `nothing`: whether its queue pairs hold nothing.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self, nothing: bool) {
        assert!(self.left <= self.sent && self.asked <= self.sent, "{self:?}");
        assert!(!nothing || self.is_empty(), "nobody holds what is under way: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_for_messages_of_one_packet() {
        const LIMIT: u32 = 64 * 1024;
        let spot = Spot { begins: true, ends: false, in_turn: false, spent: 0, waiting: 0, awaited: true };
        let (packet, next) = (4096 + 64, 4096 + 64);
        let mut window = Window::new(LIMIT, LIMIT);
        window.users = 2;
        let nothing = Holding::default();
        let asks = |window: &Window, ends| window.admit(&nothing, (packet, next, ends), spot).map(|_| ());

        window.sent(common(LIMIT, true), true);
        assert_eq!(asks(&window, true), Ok(()));
        assert_eq!(asks(&window, false), Err(Wait::Room), "the first packet of a longer message");
        window.sent(LIMIT / RESERVE, true);
        assert_eq!(asks(&window, true), Err(Wait::Room), "nothing is left");

        // When nothing was answered for long, a packet of somebody who holds nothing leaves, whatever it is of.
        window.exceed(Instant::ZERO);
        let first = Spot { in_turn: true, ..spot };
        assert!(window.admit(&nothing, (packet, next, false), first).is_ok());
    }
}
