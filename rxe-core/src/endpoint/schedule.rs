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

/// Deadlines of queue pairs. Most come in order, because most queue pairs wait for equally long: a queue is enough for those.
#[derive(Debug, Default)]
struct Timers {
    in_order: VecDeque<(Instant, Qpn)>,
    others: BinaryHeap<Reverse<(Instant, Qpn)>>,
}

impl Timers {
    fn push(&mut self, at: Instant, qpn: Qpn) {
        if self.in_order.back().is_none_or(|(last, _)| *last <= at) {
            self.in_order.push_back((at, qpn));
        } else {
            self.others.push(Reverse((at, qpn)));
        }
    }

    fn next(&self) -> Option<Instant> {
        let first = self.in_order.front().map(|(at, _)| *at);
        let other = self.others.peek().map(|Reverse((at, _))| *at);
        first.into_iter().chain(other).min()
    }

    fn pop_due(&mut self, now: Instant) -> Option<Qpn> {
        let next = self.next().filter(|at| *at <= now)?;
        if self.in_order.front().is_some_and(|(at, _)| *at == next) {
            return self.in_order.pop_front().map(|(_, qpn)| qpn);
        }
        self.others.pop().map(|Reverse((_, qpn))| qpn)
    }
}

/// The lists of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    ready: VecDeque<Source>,
    /// Destinations with acknowledgements owed.
    owing: VecDeque<usize>,
    owed_since: Option<Instant>,
    timers: Timers,
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
        self.timers.push(at, qpn);
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Qpn> {
        self.timers.pop_due(now)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.next();
        let owed = self.owed_since.map(|since| since + ACK_DELAY);
        match (timer, owed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_earliest_deadline_is_told_first() {
        let mut timers = Timers::default();
        // In order but for some, as probes and waits for receives are.
        let deadlines: Vec<u64> =
            (0..200).map(|turn| 1000 + 10 * turn - 700 * u64::from(turn % 7 == 0)).collect();
        for (turn, at) in (0..).zip(&deadlines) {
            timers.push(Instant::from_nanos(*at), Qpn::new(turn));
        }
        assert!(timers.in_order.len() > 150 && timers.others.len() > 20);
        let mut expected: Vec<u64> = deadlines.clone();
        expected.sort_unstable();
        for at in expected {
            assert_eq!(timers.next(), Some(Instant::from_nanos(at)));
            assert_eq!(timers.pop_due(Instant::from_nanos(at - 1)), None);
            let qpn = timers.pop_due(Instant::from_nanos(at)).expect("due");
            assert_eq!(deadlines[qpn.value() as usize], at);
        }
        assert_eq!((timers.next(), timers.pop_due(Instant::from_nanos(u64::MAX))), (None, None));
    }
}
