//! What is to be done next: lists of destinations and queue pairs with something to send, of acknowledgements owed, and of deadlines.

use super::peer::Lists;
use crate::{num::Qpn, time::Instant};
use alloc::collections::{BinaryHeap, VecDeque};
use core::{cmp::Reverse, mem, time::Duration};

/// How long an acknowledgement waits, so that it may leave together with data or with other acknowledgements.
const ACK_DELAY: Duration = Duration::from_micros(50);

/// Something that may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// A destination (its index).
    Peer(usize),
    /// A queue pair without a fixed destination.
    Qp(Qpn),
}

/// What a deadline is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Due {
    /// Timers of a queue pair.
    Qp(Qpn),
    /// Queue pairs that wait for room at a destination (its index).
    Room(usize),
    /// Queue pairs that wait for room for READ responses.
    Responses,
}

/// Deadlines. Most are pushed in the order of time, because most waits are equally long. These go into a queue, the others into a heap.
#[derive(Debug, Default)]
pub(super) struct Timers {
    in_order: VecDeque<(Instant, Due)>,
    others: BinaryHeap<Reverse<(Instant, Due)>>,
}

impl Timers {
    pub(super) fn push(&mut self, at: Instant, due: Due) {
        if self.in_order.back().is_none_or(|(last, _)| *last <= at) {
            self.in_order.push_back((at, due));
        } else {
            self.others.push(Reverse((at, due)));
        }
    }

    fn next(&self) -> Option<Instant> {
        let first = self.in_order.front().map(|(at, _)| *at);
        let other = self.others.peek().map(|Reverse((at, _))| *at);
        first.into_iter().chain(other).min()
    }

    /// How many there are.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    /// Takes the earliest deadline if it has passed.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Due> {
        let next = self.next().filter(|at| *at <= now)?;
        if self.in_order.front().is_some_and(|(at, _)| *at == next) {
            return self.in_order.pop_front().map(|(_, due)| due);
        }
        self.others.pop().map(|Reverse((_, due))| due)
    }
}

/// The lists of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// What may send, by lane. There is one list more than there are lanes, so that any four bits are an index.
    ready: [VecDeque<Source>; 16],
    /// Lanes with something to send: bit n for lane n.
    pub waiting: u16,
    /// Destinations (their indexes) to which acknowledgements are owed, and since when. Oldest first.
    pub owing: VecDeque<(Instant, usize)>,
    pub timers: Timers,
    /// Whether the last batch had data, not only notices or acknowledgements.
    pub data_last: bool,
}

/// Whether an acknowledgement that is owed since `since` has waited long enough.
pub(super) fn is_overdue(since: Instant, now: Instant) -> bool {
    since + ACK_DELAY <= now
}

impl Schedule {
    pub(super) fn push(&mut self, lane: u8, source: Source) {
        let lane = lane & 15;
        self.waiting |= 1 << lane;
        self.ready[usize::from(lane)].push_back(source);
    }

    /// Puts a destination among those with something to send in a lane. `lists` are the destination's lists of that lane.
    pub(super) fn push_peer(&mut self, lane: u8, index: usize, lists: &mut Lists) {
        if !mem::replace(&mut lists.scheduled, true) {
            self.push(lane, Source::Peer(index));
        }
    }

    /// Takes the next one that may send in a lane.
    pub(super) fn pop(&mut self, lane: u8) -> Option<Source> {
        let lane = lane & 15;
        let ready = &mut self.ready[usize::from(lane)];
        let source = ready.pop_front();
        if ready.is_empty() {
            self.waiting &= !(1 << lane);
        }
        source
    }

    /// Takes the next destination to which acknowledgements are owed. Unless `all`, only if they have waited long enough.
    pub(super) fn pop_owing(&mut self, now: Instant, all: bool) -> Option<usize> {
        let due = self.owing.front().is_some_and(|(since, _)| all || is_overdue(*since, now));
        if due { self.owing.pop_front().map(|(_, index)| index) } else { None }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let owed = self.owing.front().map(|(since, _)| *since + ACK_DELAY);
        self.timers.next().into_iter().chain(owed).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn the_earliest_deadline_is_told_first() {
        let mut timers = Timers::default();
        // In order except for some, which are shorter waits.
        let deadlines: Vec<u64> =
            (0..200).map(|turn| 1000 + 10 * turn - 700 * u64::from(turn % 7 == 0)).collect();
        for (turn, at) in (0..).zip(&deadlines) {
            timers.push(Instant::from_nanos(*at), Due::Qp(Qpn::new(turn)));
        }
        assert!(timers.in_order.len() > 150 && timers.others.len() > 20);
        let mut expected: Vec<u64> = deadlines.clone();
        expected.sort_unstable();
        for at in expected {
            assert_eq!(timers.next(), Some(Instant::from_nanos(at)));
            assert_eq!(timers.pop_due(Instant::from_nanos(at - 1)), None);
            let Some(Due::Qp(qpn)) = timers.pop_due(Instant::from_nanos(at)) else { panic!("due at {at}") };
            assert_eq!(deadlines[qpn.value() as usize], at);
        }
        assert_eq!((timers.next(), timers.pop_due(Instant::from_nanos(u64::MAX))), (None, None));
    }
}
