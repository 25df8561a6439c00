//! Which process has which slot, and which slots are free. A slot rests after its process has gone: packets of its old connections may
//! still be on their way, and must not reach a new process.

use super::message::MAX_NAME;
use std::time::{Duration, Instant};

/// How long a slot rests, while others are free. Peers of a dead process go on sending for a while. (Queue pair numbers are random,
/// too, so a late packet rarely finds a new queue pair.)
pub(crate) const REST: Duration = Duration::from_secs(3);

/// What is known of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No process has had it yet.
    #[default]
    Fresh,
    /// A process has it.
    Held(Holder),
    /// Its process gave it back at this time.
    Resting(Instant),
}

/// A process that has a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its process ID in the PID namespace of the service. 0 if it has none there.
    pub(crate) pid: i32,
    /// The program.
    pub(crate) name: String,
}

/// Slots 1 to 255. Slot 0 is the service's own.
#[derive(Debug)]
pub(crate) struct Slots(Vec<Slot>);

impl Default for Slots {
    fn default() -> Self {
        Self(vec![Slot::Fresh; 256])
    }
}

impl Slots {
    /// Gives a slot to a process: the one that has rested longest, if it has rested enough, and else an unused one. If there is
    /// none, programs come and go so fast (a test suite that opens the device for each test) that slots rest less. `None` while all
    /// are held.
    pub(crate) fn take(&mut self, now: Instant, holder: Holder) -> Option<u8> {
        debug_assert!(holder.name.chars().count() <= MAX_NAME);
        let resting = (1..=u8::MAX)
            .filter_map(|slot| match self.get(slot) {
                Slot::Resting(since) => Some((*since, slot)),
                _ => None,
            })
            .min();
        let rested = resting.filter(|(since, _)| now.duration_since(*since) >= REST);
        let fresh = || (1..=u8::MAX).find(|slot| *self.get(*slot) == Slot::Fresh);
        let slot = rested.map(|(_, slot)| slot).or_else(fresh).or_else(|| resting.map(|(_, slot)| slot))?;
        self.set(slot, Slot::Held(holder));
        Some(slot)
    }

    /// A slot's process is gone.
    pub(crate) fn give_back(&mut self, now: Instant, slot: u8) {
        self.set(slot, Slot::Resting(now));
    }

    pub(crate) fn get(&self, slot: u8) -> &Slot {
        &self.0[usize::from(slot)]
    }

    pub(crate) fn set(&mut self, slot: u8, state: Slot) {
        self.0[usize::from(slot)] = state;
    }

    /// All slots that a process has or has had.
    pub(crate) fn known(&self) -> impl Iterator<Item = (u8, &Slot)> {
        (0..=u8::MAX).zip(&self.0).filter(|(_, slot)| **slot != Slot::Fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: i32) -> Holder {
        Holder { pid, name: "test".to_owned() }
    }

    #[test]
    fn a_slot_rests_before_it_is_given_again() {
        let mut slots = Slots::default();
        let start = Instant::now();
        assert_eq!([1, 2, 3].map(|pid| slots.take(start, holder(pid))), [Some(1), Some(2), Some(3)]);
        slots.give_back(start, 2);
        slots.give_back(start + Duration::from_millis(1), 1);
        assert_eq!(slots.take(start + REST / 2, holder(4)), Some(4));
        let later = start + REST + Duration::from_millis(1);
        assert_eq!([5, 6, 7].map(|pid| slots.take(later, holder(pid))), [Some(2), Some(1), Some(5)]);
    }

    #[test]
    fn there_are_255() {
        let mut slots = Slots::default();
        let now = Instant::now();
        assert!((1..=255).all(|pid| slots.take(now, holder(pid)) == u8::try_from(pid).ok()));
        assert_eq!(slots.take(now, holder(256)), None);
        slots.give_back(now + REST / 4, 9);
        slots.give_back(now, 11);
        let later = now + REST / 2;
        assert_eq!(
            slots.take(later, holder(256)),
            Some(11),
            "it has rested longer than the other, if not long"
        );
        assert_eq!([257, 258].map(|pid| slots.take(later, holder(pid))), [Some(9), None]);
    }
}
