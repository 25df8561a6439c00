//! Deadlines of many machines.

use rxe_core::time::Instant;
use std::collections::BTreeSet;

/// The deadlines, by time and key.
#[derive(Debug)]
pub(super) struct Timers<K> {
    due: BTreeSet<(Instant, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { due: BTreeSet::new() }
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// Replaces the deadline of `key`. `old` was its last one.
    pub(super) fn set(&mut self, key: K, old: &mut Option<Instant>, new: Option<Instant>) {
        if *old == new {
            return;
        }
        if let Some(old) = *old {
            self.due.remove(&(old, key));
        }
        if let Some(new) = new {
            self.due.insert((new, key));
        }
        *old = new;
    }

    /// The first deadline.
    pub(super) fn first(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Takes a key whose deadline has passed.
    pub(super) fn take_passed(&mut self, now: Instant) -> Option<K> {
        let passed = self.due.first().is_some_and(|(due, _)| *due <= now);
        if passed { self.due.pop_first().map(|(_, key)| key) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_are_replaced() {
        let at = Instant::from_nanos;
        let mut timers = Timers::default();
        let (mut a, mut b) = (None, None);
        timers.set('a', &mut a, Some(at(20)));
        timers.set('b', &mut b, Some(at(10)));
        assert_eq!((timers.first(), timers.take_passed(at(9))), (Some(at(10)), None));
        assert_eq!(timers.take_passed(at(10)), Some('b'));
        timers.set('b', &mut b, Some(at(30)));
        timers.set('a', &mut a, None);
        assert_eq!((timers.first(), timers.take_passed(at(20))), (Some(at(30)), None));
        assert_eq!((timers.take_passed(at(30)), timers.first()), (Some('b'), None));
    }
}
