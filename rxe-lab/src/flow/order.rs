//! Lists by PSN that are looked into without walking along them: a capture may be made to have them long, and to ask often.

use rxe_core::num::Psn;
use std::collections::{HashMap, VecDeque};

/// Most packets that [`Latest`] remembers.
const MOST_LATEST: usize = 4096;

/// Where those begin that are not before `psn`, in a list that rises by `key`.
pub(super) fn position<T>(list: &VecDeque<T>, psn: Psn, key: impl Fn(&T) -> Psn) -> usize {
    list.partition_point(|one| {
        steps::count();
        key(one).is_before(psn)
    })
}

/// Before `psn` is appended to a rising list: takes out those that are half of all PSNs behind it or more, which would
/// be neither before nor after the others any longer.
pub(super) fn forget_far<T>(list: &mut VecDeque<T>, psn: Psn, key: impl Fn(&T) -> Psn) {
    while list.front().is_some_and(|first| psn.is_before(key(first))) {
        steps::count();
        list.pop_front();
    }
}

/// What was put in last for each PSN, of the latest [`MOST_LATEST`] that came.
#[derive(Debug)]
pub(super) struct Latest<T> {
    /// With the number under which it came.
    by_psn: HashMap<Psn, (u64, T)>,
    order: VecDeque<(u64, Psn)>,
    came: u64,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self { by_psn: HashMap::new(), order: VecDeque::new(), came: 0 }
    }
}

impl<T: Copy> Latest<T> {
    pub(super) fn put(&mut self, psn: Psn, value: T) {
        steps::count();
        self.came += 1;
        if self.order.len() == MOST_LATEST
            && let Some((number, oldest)) = self.order.pop_front()
            && self.by_psn.get(&oldest).is_some_and(|(newest, _)| *newest == number)
        {
            self.by_psn.remove(&oldest);
        }
        self.order.push_back((self.came, psn));
        self.by_psn.insert(psn, (self.came, value));
    }

    pub(super) fn get(&self, psn: Psn) -> Option<T> {
        self.by_psn.get(&psn).map(|(_, value)| *value)
    }
}

/// Counts what is looked at, for tests of how much that is.
pub(super) mod steps {
    #[cfg(test)]
    thread_local! {
        static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// One more element was looked at.
    #[inline]
    pub(in crate::flow) fn count() {
        #[cfg(test)]
        STEPS.with(|steps| steps.set(steps.get() + 1));
    }

    /// How many this thread has counted since it was last asked.
    #[cfg(test)]
    pub(in crate::flow) fn take() -> u64 {
        STEPS.with(std::cell::Cell::take)
    }
}
