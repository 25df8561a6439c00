//! Lists by PSN with fast search, because a hostile capture may make them long and search them often.

use rxe_core::num::Psn;
use std::collections::{HashMap, VecDeque};

/// Most packets that [`Latest`] remembers.
const MOST_LATEST: usize = 4096;
/// Most corrupted packets that are remembered.
const MOST_CORRUPTED: usize = 64;

/// The index of the first entry that is not before `psn`, in a list that is sorted by `key`.
pub(super) fn position<T>(list: &VecDeque<T>, psn: Psn, key: impl Fn(&T) -> Psn) -> usize {
    list.partition_point(|one| {
        steps::count();
        key(one).is_before(psn)
    })
}

/// To be called before `psn` is appended to a sorted list. Removes entries that are behind it by half of all PSNs or more,
/// because their order would be undefined.
pub(super) fn forget_far<T>(list: &mut VecDeque<T>, psn: Psn, key: impl Fn(&T) -> Psn) {
    while list.front().is_some_and(|first| psn.is_before(key(first))) {
        steps::count();
        list.pop_front();
    }
}

/// The latest entry for each PSN, among the last [`MOST_LATEST`] entries.
#[derive(Debug)]
pub(super) struct Latest<T> {
    /// Each with its number.
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
        if self.order.len() == MOST_LATEST {
            self.forget_oldest();
        }
        self.order.push_back((self.came, psn));
        self.by_psn.insert(psn, (self.came, value));
    }

    fn forget_oldest(&mut self) {
        if let Some((number, oldest)) = self.order.pop_front()
            && self.by_psn.get(&oldest).is_some_and(|(newest, _)| *newest == number)
        {
            self.by_psn.remove(&oldest);
        }
    }

    /// Removes entries that are behind `psn` by half of all PSNs or more, before the same PSNs come again.
    pub(super) fn forget_far(&mut self, psn: Psn) {
        while self.order.front().is_some_and(|(_, first)| psn.is_before(*first)) {
            steps::count();
            self.forget_oldest();
        }
    }

    pub(super) fn get(&self, psn: Psn) -> Option<T> {
        self.by_psn.get(&psn).map(|(_, value)| *value)
    }
}

/// PSNs of packets with a wrong ICRC. Their receiver drops them, but they are in the capture.
#[derive(Debug, Default)]
pub(super) struct Corrupted(Vec<Psn>);

impl Corrupted {
    /// Adds a packet, unless its PSN is before `next`, and not new.
    pub(super) fn put(&mut self, psn: Psn, next: Option<Psn>) {
        if next.is_some_and(|next| psn.is_before(next)) || self.0.contains(&psn) {
            return;
        }
        if self.0.len() == MOST_CORRUPTED {
            self.0.remove(0);
        }
        self.0.push(psn);
    }

    /// Removes those that are not after `psn`, and returns the PSNs from `next` to the one before `psn`.
    pub(super) fn take(&mut self, next: Psn, psn: Psn) -> Vec<Psn> {
        let is_before = |one: &Psn| !one.is_before(next) && one.is_before(psn);
        let found = self.0.iter().copied().filter(is_before).collect();
        self.0.retain(|one| one.is_after(psn));
        found
    }
}

/// What happened to the `count` packets from `first` on, of which some were `corrupted`.
pub(super) fn fate(what: &str, first: Psn, count: u32, corrupted: u32) -> String {
    let (them, was, is) = if count == 1 {
        (format!("the {what} before it (psn {first})"), "was", "is")
    } else {
        (format!("{count} {what}s before it (psn {first} to {})", first.plus(count - 1)), "were", "are")
    };
    match corrupted {
        0 => format!("{them} {is} not in the capture"),
        _ if corrupted == count => format!("{them} {was} corrupted"),
        _ => format!("{them} {is} not in the capture, or were corrupted ({corrupted})"),
    }
}

/// Counts examined elements, for tests of the cost.
pub(super) mod steps {
    #[cfg(test)]
    thread_local! {
        static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// Counts one more element.
    #[inline]
    pub(in crate::flow) fn count() {
        #[cfg(test)]
        STEPS.with(|steps| steps.set(steps.get() + 1));
    }

    /// The count of this thread since the last call.
    #[cfg(test)]
    pub(in crate::flow) fn take() -> u64 {
        STEPS.with(std::cell::Cell::take)
    }
}
