//! What one queue pair has in the two shared buffers (the pots of `flow`).

use super::{ReadBudget, Window, window::Position};
use crate::{num::Psn, time::Instant};
use alloc::collections::VecDeque;

/// A packet that asked for an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Mark {
    psn: Psn,
    /// Bytes that the queue pair sent since its mark before this one.
    bytes: u32,
    /// End of the packet in the stream of all bytes to the destination.
    position: Position,
}

/// What a reliable queue pair has sent and what is not answered.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    /// Bytes in the destination's buffer, as far as is known. READs and atomics do not count.
    bytes: u32,
    /// The part of `bytes` that was sent since it last asked for an acknowledgement.
    unasked: u32,
    /// Bytes of READ responses to come that count in the budget.
    responses: u32,
    /// It was not answered in time, and not since. It sends one packet at a time.
    pub silent: bool,
    /// Whether READ responses have lapsed: they may still come, but do not count in the budget.
    owes: bool,
    /// Whether it is in the budget's list of holders.
    pub listed: bool,
    /// The next packet is another one than the packet that was refused. A queue pair that waits in a line must then ask again.
    pub turned: bool,
    /// End of its last packet in the stream to the destination.
    last: Position,
    /// When the last READ response came, or when one was asked for while none was to come.
    heard: Instant,
    marks: Marks,
}

/// Marks, oldest first. The first one is stored in the queue pair itself. With thousands of queue pairs that have one packet
/// under way each, a separate allocation would cost one more cache miss.
#[derive(Debug, Default)]
struct Marks {
    first: Option<Mark>,
    others: VecDeque<Mark>,
}

impl Marks {
    fn push(&mut self, mark: Mark) {
        if self.first.is_none() {
            self.first = Some(mark);
        } else {
            self.others.push_back(mark);
        }
    }

    /// Removes the first mark if `is_over` says so.
    fn pop_if(&mut self, is_over: impl FnOnce(&Mark) -> bool) -> Option<Mark> {
        let first = self.first.take_if(|mark| is_over(mark))?;
        if !self.others.is_empty() {
            self.first = self.others.pop_front();
        }
        Some(first)
    }

    fn clear(&mut self) {
        self.first = None;
        self.others.clear();
    }

    #[cfg(any(test, feature = "testing"))]
    fn iter(&self) -> impl Iterator<Item = &Mark> {
        self.first.iter().chain(&self.others)
    }
}

impl Holding {
    /// Bytes in the destination's buffer, as far as is known.
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Bytes sent since the last packet that asked for an acknowledgement.
    pub(crate) const fn unasked(&self) -> u32 {
        self.unasked
    }

    /// Bytes of READ responses to come that count.
    pub(crate) const fn responses(&self) -> u32 {
        self.responses
    }

    /// Whether `bytes` of READ responses are too much beside those to come: more than `share` together, or any if it is silent.
    /// Lapsed responses count for that.
    pub(super) const fn asks_too_much(&self, bytes: u32, share: u32) -> bool {
        self.responses > 0 && self.responses.saturating_add(bytes) > share
            || self.silent && (self.responses > 0 || self.owes)
    }

    /// Whether it has nothing in the destination's buffer.
    pub(crate) const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A packet of `bytes` was sent. `asked`: whether it asks for an acknowledgement.
    pub(crate) fn sent(&mut self, window: &mut Window, psn: Psn, bytes: u32, asked: bool) {
        if self.bytes == 0 {
            window.went_ahead(bytes);
        }
        self.last = window.sent(bytes, asked);
        self.bytes = self.bytes.saturating_add(bytes);
        self.unasked = self.unasked.saturating_add(bytes);
        if asked {
            let bytes = core::mem::take(&mut self.unasked);
            self.marks.push(Mark { psn, bytes, position: self.last });
        }
    }

    /// Everything before `una` is acknowledged. `all`: whether that is all that was sent.
    pub(crate) fn acknowledged(&mut self, window: &mut Window, now: Instant, una: Psn, all: bool) {
        self.silent = false;
        let mut proven = None;
        while let Some(mark) = self.marks.pop_if(|mark| all || mark.psn.is_before(una)) {
            self.bytes -= mark.bytes;
            proven = Some(mark.position);
        }
        if all {
            self.owes = false;
        }
        if all && self.bytes > 0 {
            (self.bytes, self.unasked, proven) = (0, 0, Some(self.last));
        }
        if let Some(position) = proven {
            window.proven(position, now);
        }
    }

    /// Nothing that was sent is waited for any more, because it will be sent again or is given up.
    pub(crate) fn given_up(&mut self, window: &mut Window, reads: &mut ReadBudget) {
        if self.bytes > 0 {
            window.gone(self.last);
        }
        reads.gone(self.responses);
        (self.bytes, self.unasked, self.responses, self.owes) = (0, 0, 0, false);
        self.turned = true;
        self.marks.clear();
    }

    /// `bytes` of READ responses were asked for.
    pub(crate) const fn asked(&mut self, reads: &mut ReadBudget, now: Instant, bytes: u32) {
        if self.responses == 0 {
            reads.went_ahead(bytes);
            self.heard = now;
        }
        self.responses += bytes;
        reads.asked(bytes);
    }

    /// A READ response came.
    pub(crate) const fn heard(&mut self, reads: &mut ReadBudget, now: Instant) {
        self.heard = now;
        self.silent = false;
        // What has lapsed and comes now was not lost. So the patience was too short, and stays longer.
        if !self.owes {
            reads.heard();
        }
    }

    /// All responses of a READ came. `bytes` of them count.
    pub(crate) fn came(&mut self, reads: &mut ReadBudget, bytes: u32) {
        self.responses -= bytes;
        reads.came(bytes);
    }

    /// When its READ responses lapse if none comes: `patience` after the last one. `None` if there are none to come.
    pub(crate) fn lapses(&self, patience: core::time::Duration) -> Option<Instant> {
        (self.responses > 0).then(|| self.heard + patience)
    }

    /// Its READ responses lapse: they do not count in the budget any more. The caller sets the bytes of each READ to 0.
    pub(crate) fn lapse(&mut self, reads: &mut ReadBudget) {
        reads.gone(core::mem::take(&mut self.responses));
        (self.owes, self.silent) = (true, true);
    }

    /// Checks that its fields agree with each other, with the window, and with the sum of the READs' `responses`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check(&self, window: &Window, responses: u64) {
        let marked: u32 = self.marks.iter().map(|mark| mark.bytes).sum();
        assert_eq!(marked + self.unasked, self.bytes, "{self:?}");
        assert!(self.marks.iter().is_sorted_by_key(|mark| mark.position), "{self:?}");
        assert!(self.marks.iter().last().is_none_or(|mark| mark.position <= self.last), "{self:?}");
        assert!(self.bytes == 0 || window.has_sent(self.last), "{self:?} of {window:?}");
        assert_eq!(u64::from(self.responses), responses, "each READ's grant is held once: {self:?}");
    }
}
