//! What one queue pair holds of the pots.

use super::{ReadBudget, Window, window::Position};
use crate::{num::Psn, time::Instant};
use alloc::collections::VecDeque;

/// A packet that asked for an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Mark {
    psn: Psn,
    /// Bytes of this queue pair since its mark before.
    bytes: u32,
    /// Where the packet ended in the stream of all bytes to the destination.
    position: Position,
}

/// What a reliable queue pair has sent and not had answered.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    /// Bytes sent to the destination, without READs and atomics.
    bytes: u32,
    /// Those of them that were sent since it last asked for an acknowledgement.
    unasked: u32,
    /// READ responses to come, as far as they still count.
    responses: u32,
    /// Nothing was answered since it was found silent.
    pub silent: bool,
    /// Whether READ responses were asked for that do not count any more.
    owes: bool,
    /// In the list of those who hold READ responses.
    pub(super) listed: bool,
    /// Another packet comes next than the one that was refused: if the queue pair waits in a line, it is to ask anew.
    pub turned: bool,
    /// Where its last packet ended in the stream to the destination.
    last: Position,
    /// When a READ response came, or was asked for while there were none to come.
    heard: Instant,
    marks: Marks,
}

/// Marks, oldest first. The first lies with the rest of the queue pair's state: with thousands of queue pairs that have one
/// packet under way each, another place in memory for it would be another wait for memory.
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

    /// Takes the first if it `is_over`.
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

    /// Bytes sent since it last asked for an acknowledgement.
    pub(crate) const fn unasked(&self) -> u32 {
        self.unasked
    }

    /// READ responses to come.
    pub(crate) const fn responses(&self) -> u32 {
        self.responses
    }

    /// Whether it sends one packet at a time until something is answered.
    pub(crate) const fn is_silent(&self) -> bool {
        self.silent
    }

    /// Whether it may not ask for `bytes` of READ responses beside those that are to come, be it that they do not count any more.
    pub(super) const fn asks_too_much(&self, bytes: u32, share: u32) -> bool {
        self.responses > 0 && self.responses.saturating_add(bytes) > share
            || self.silent && (self.responses > 0 || self.owes)
    }

    /// Whether it has nothing in the destination's buffer.
    pub(crate) const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A packet of `bytes` left, and asked for an acknowledgement or not.
    pub(crate) fn sent(&mut self, window: &mut Window, psn: Psn, bytes: u32, asked: bool) {
        self.last = window.sent(bytes, asked);
        self.bytes = self.bytes.saturating_add(bytes);
        self.unasked = self.unasked.saturating_add(bytes);
        if asked {
            let bytes = core::mem::take(&mut self.unasked);
            self.marks.push(Mark { psn, bytes, position: self.last });
        }
    }

    /// Everything before `una` is acknowledged, which may be `all` of what was sent.
    pub(crate) fn acknowledged(&mut self, window: &mut Window, now: Instant, una: Psn, all: bool) {
        self.silent = false;
        let mut proven = None;
        while let Some(mark) = self.marks.pop_if(|mark| all || mark.psn.is_before(una)) {
            self.bytes -= mark.bytes;
            proven = Some(mark.position);
        }
        if all && self.bytes > 0 {
            (self.bytes, self.unasked, proven) = (0, 0, Some(self.last));
        }
        if let Some(position) = proven {
            window.proven(position, now);
        }
    }

    /// What it has sent is not waited for any more: it will be sent again, or given up.
    pub(crate) fn given_up(&mut self, window: &mut Window, reads: &mut ReadBudget) {
        if self.bytes > 0 {
            window.gone(self.last);
        }
        reads.gone(self.responses);
        (self.bytes, self.unasked, self.responses, self.owes) = (0, 0, 0, false);
        self.turned = true;
        self.marks.clear();
    }

    /// Whether another packet comes next than when this was last asked.
    pub(crate) const fn take_turned(&mut self) -> bool {
        core::mem::replace(&mut self.turned, false)
    }

    /// READ responses were asked for.
    pub(crate) const fn asked(&mut self, reads: &mut ReadBudget, now: Instant, bytes: u32) {
        if self.responses == 0 {
            self.heard = now;
        }
        self.responses += bytes;
        reads.asked(bytes);
    }

    /// A READ response came.
    pub(crate) const fn heard(&mut self, reads: &mut ReadBudget, now: Instant) {
        self.heard = now;
        self.silent = false;
        reads.heard();
    }

    /// All responses of a READ came; `bytes` of them counted.
    pub(crate) fn came(&mut self, reads: &mut ReadBudget, bytes: u32) {
        self.responses -= bytes;
        reads.came(bytes);
    }

    /// When its READ responses do not count any more, if somebody waits for `patience` and none comes.
    pub(crate) fn lapses(&self, patience: core::time::Duration) -> Option<Instant> {
        (self.responses > 0).then(|| self.heard + patience)
    }

    /// It is not in the list of holders any more.
    pub(crate) const fn unlisted(&mut self) {
        self.listed = false;
    }

    /// Its READ responses do not count any more. The caller no longer counts them by READ.
    pub(crate) fn lapse(&mut self, reads: &mut ReadBudget) {
        reads.gone(core::mem::take(&mut self.responses));
        (self.owes, self.silent) = (true, true);
    }

    /// Whether all parts of it agree, with each other and with its destination's window.
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
