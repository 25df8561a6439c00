//! Who goes next: destinations and queue pairs with something to send, acknowledgements owed, deadlines.

use crate::{num::Qpn, time::Instant};
use alloc::collections::{BinaryHeap, VecDeque};
use core::{cmp::Reverse, time::Duration};

/// How long an acknowledgement waits for company.
const ACK_DELAY: Duration = Duration::from_micros(50);

/// Something that may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// A destination, by its index.
    Peer(usize),
    /// A queue pair without a fixed destination.
    Qp(Qpn),
}

/// The lists of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    ready: VecDeque<Source>,
    /// Destinations with acknowledgements owed.
    owing: VecDeque<usize>,
    owed_since: Option<Instant>,
    timers: BinaryHeap<Reverse<(Instant, Qpn)>>,
    /// Queue pairs that wait for the READ budget.
    readers: VecDeque<Qpn>,
    woken: VecDeque<Qpn>,
}

impl Schedule {
    /// Whether anybody is ready, woken or owes something.
    pub(super) fn has_any(&self) -> bool {
        !(self.ready.is_empty() && self.woken.is_empty() && self.owing.is_empty())
    }

    pub(super) fn push_peer(&mut self, index: usize) {
        self.ready.push_back(Source::Peer(index));
    }

    pub(super) fn push_qp(&mut self, qpn: Qpn) {
        self.ready.push_back(Source::Qp(qpn));
    }

    pub(super) fn pop(&mut self) -> Option<Source> {
        self.ready.pop_front()
    }

    pub(super) fn owe(&mut self, index: usize, now: Instant) {
        self.owing.push_back(index);
        self.owed_since.get_or_insert(now);
    }

    /// The next destination with acknowledgements owed, if they are to leave.
    pub(super) fn pop_owing(&mut self, now: Instant, all: bool) -> Option<usize> {
        if !all && self.owed_since.is_none_or(|since| since + ACK_DELAY > now) {
            return None;
        }
        let next = self.owing.pop_front();
        if self.owing.is_empty() {
            self.owed_since = None;
        }
        next
    }

    pub(super) fn await_reads(&mut self, qpn: Qpn) {
        self.readers.push_back(qpn);
    }

    pub(super) fn wake_readers(&mut self) {
        if !self.readers.is_empty() {
            self.woken.append(&mut self.readers);
        }
    }

    pub(super) fn pop_woken(&mut self) -> Option<Qpn> {
        self.woken.pop_front()
    }

    pub(super) fn push_timer(&mut self, at: Instant, qpn: Qpn) {
        self.timers.push(Reverse((at, qpn)));
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Qpn> {
        match self.timers.peek() {
            Some(&Reverse((at, qpn))) if at <= now => {
                self.timers.pop();
                Some(qpn)
            }
            _ => None,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let owed = self.owed_since.map(|since| since + ACK_DELAY);
        match (timer, owed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
