//! The events of a simulation, ordered by time, and at the same time by their code.
//!
//! Nearly all events are in the near future, as a packet takes a short time over a wire. They are in a timer wheel with short
//! slots, where adding an event and taking the next one cost the same for any number of events. Events in the far future
//! (timeouts, starts of flows) are in a heap until the wheel comes near.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Slots of the wheel.
const SLOTS: usize = 4096;
/// Slots in a word of [`Calendar::filled`].
const BITS: usize = 64;

/// The time in picoseconds, and the event's code.
type Entry = (u64, u32);

/// Events in the order of their time.
#[derive(Debug)]
pub(super) struct Calendar {
    /// The length of a slot is two to the power of this, in picoseconds.
    shift: u32,
    /// The number of the present slot, counted from time 0.
    slot: u64,
    /// The remaining events of that slot, the latest first.
    present: Vec<Entry>,
    /// The slots after it, as a ring.
    slots: Vec<Vec<Entry>>,
    /// A bit for each slot: whether it has events.
    filled: [u64; SLOTS / BITS],
    /// Events in `slots`.
    near: usize,
    far: BinaryHeap<Reverse<Entry>>,
}

impl Calendar {
    /// An empty calendar at time 0. Most events should be less than `usual` picoseconds ahead when they are added.
    pub(super) fn new(usual: u64) -> Self {
        let shift = (usual / SLOTS as u64).checked_ilog2().map_or(0, |log| log + 1).min(63);
        Self {
            shift,
            slot: 0,
            present: Vec::new(),
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            filled: [0; SLOTS / BITS],
            near: 0,
            far: BinaryHeap::new(),
        }
    }

    /// Adds an event. If it is earlier than the event that was taken last, it is the next one.
    #[inline]
    pub(super) fn push(&mut self, at: u64, code: u32) {
        let slot = at >> self.shift;
        if slot <= self.slot {
            let place = self.present.partition_point(|entry| *entry > (at, code));
            self.present.insert(place, (at, code));
        } else if slot - self.slot < SLOTS as u64 {
            self.put(slot, (at, code));
        } else {
            self.far.push(Reverse((at, code)));
        }
    }

    #[inline]
    fn put(&mut self, slot: u64, entry: Entry) {
        let index = slot as usize % SLOTS;
        self.slots[index].push(entry);
        self.filled[index / BITS] |= 1 << (index % BITS);
        self.near += 1;
    }

    /// Takes the next event: the earliest, and among several at that time the one with the lowest code.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Entry> {
        if self.present.is_empty() {
            self.turn()?;
        }
        self.present.pop()
    }

    /// Goes to the next slot that has events. `None` if there is none.
    fn turn(&mut self) -> Option<()> {
        let near = (self.near > 0).then(|| self.next_filled());
        let far = self.far.peek().map(|Reverse((at, _))| at >> self.shift);
        self.slot = near.into_iter().chain(far).min()?;
        let index = self.slot as usize % SLOTS;
        if near == Some(self.slot) {
            std::mem::swap(&mut self.present, &mut self.slots[index]);
            self.filled[index / BITS] &= !(1 << (index % BITS));
            self.near -= self.present.len();
        }
        // Events of the heap that are near now. They may belong to the present slot.
        while let Some(Reverse((at, _))) = self.far.peek()
            && (at >> self.shift) - self.slot < SLOTS as u64
            && let Some(Reverse((at, code))) = self.far.pop()
        {
            match at >> self.shift {
                slot if slot == self.slot => self.present.push((at, code)),
                slot => self.put(slot, (at, code)),
            }
        }
        self.present.sort_unstable_by(|one, other| other.cmp(one));
        Some(())
    }

    /// The number of the first slot after the present one that has events. There must be one.
    fn next_filled(&self) -> u64 {
        let from = (self.slot as usize + 1) % SLOTS;
        let first = self.filled[from / BITS] >> (from % BITS) << (from % BITS);
        // The first word is looked at again at the end, for its slots before the present one.
        let words = std::iter::once((from / BITS, first)).chain(
            (1..=SLOTS / BITS)
                .map(|step| (from / BITS + step) % (SLOTS / BITS))
                .map(|at| (at, self.filled[at])),
        );
        let index = words
            .filter(|(_, bits)| *bits != 0)
            .map(|(word, bits)| word * BITS + bits.trailing_zeros() as usize)
            .next()
            .unwrap_or(from);
        self.slot + 1 + ((index + SLOTS - from) % SLOTS) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Compares the calendar with a heap: near events, some of them in the present slot, and far ones, with pauses between.
    #[test]
    fn events_come_out_as_from_a_heap() {
        for (usual, seed) in [(0, 1), (1 << 20, 2), (3_000_000, 3), (1 << 40, 4)] {
            let (mut calendar, mut heap) = (Calendar::new(usual), BinaryHeap::new());
            let (mut rng, mut now) = (Rng::new(seed, 1), 0);
            for round in 0..200_000 {
                let ahead = match rng.below(20) {
                    0 => 0,
                    1 => rng.below(1 << 36),
                    2 => rng.below(1 << 12),
                    _ => rng.below(2 * usual as usize + 1),
                };
                let entry = (now + ahead as u64, rng.below(8) as u32);
                calendar.push(entry.0, entry.1);
                heap.push(Reverse(entry));
                // Sometimes more events are added than taken, sometimes fewer, and sometimes all are taken.
                let takes =
                    if round % 50_000 == 49_999 { heap.len() } else { rng.below(2 + round / 20_000 % 2) };
                for _ in 0..takes {
                    let wanted = heap.pop().map(|Reverse(entry)| entry);
                    assert_eq!(calendar.pop(), wanted, "round {round}");
                    now = wanted.map_or(now, |(at, _)| at);
                }
            }
            while let Some(Reverse(wanted)) = heap.pop() {
                assert_eq!(calendar.pop(), Some(wanted));
            }
            assert_eq!(calendar.pop(), None);
        }
    }
}
