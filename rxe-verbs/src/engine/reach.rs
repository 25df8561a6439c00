//! Sets of the shards of a stack.

use core::sync::atomic::{AtomicU32, Ordering};

/// Some of a stack's shards, by their index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShardSet(u32);

impl ShardSet {
    /// All shards, also those that are made later.
    pub(crate) const ALL: Self = Self(u32::MAX);

    /// The set itself, or the first shard alone if the set is empty.
    pub(super) const fn or_first(self) -> Self {
        if self.0 == 0 { Self(1) } else { self }
    }

    pub(super) const fn has(self, index: usize) -> bool {
        self.0 >> index & 1 != 0
    }
}

/// The shards that have queue pairs of a completion queue, or of the completion queues of a channel. A thread that waits for these
/// looks for packets in these shards. The updates need no memory ordering: until the thread sees a new shard here, the background thread of
/// that shard looks for its packets.
#[derive(Debug, Default)]
pub(crate) struct Reach(AtomicU32);

impl Reach {
    pub(crate) fn get(&self) -> ShardSet {
        ShardSet(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn add(&self, index: u8) {
        self.0.fetch_or(1 << index, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, index: u8) {
        self.0.fetch_and(!(1 << index), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_added_and_removed() {
        let reach = Reach::default();
        assert!(reach.get().or_first().has(0) && !reach.get().or_first().has(1));
        reach.add(15);
        reach.add(3);
        assert!(reach.get().has(3) && reach.get().has(15) && !reach.get().has(0));
        reach.remove(3);
        assert_eq!(reach.get().or_first(), ShardSet(1 << 15));
        assert!((0..16).all(|index| ShardSet::ALL.has(index)));
    }
}
