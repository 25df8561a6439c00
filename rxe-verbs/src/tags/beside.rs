//! What completions of tag matching queues have beside a completion's fields, kept with the completion queue: most programs
//! have none, and their completions are not to become longer for it.

use bitflags::bitflags;
use rxe_core::work::WcExtra;
use std::collections::VecDeque;

bitflags! {
    /// What a completion of a tag matching queue says; the values are those of ibv_wc_flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct TagFlags: u32 {
        /// Messages were unexpected that the program has not said to have handled (IBV_WC_TM_SYNC_REQ): entries added do not
        /// count before it does.
        const SYNC_NEEDED = 1 << 4;
        /// The message matched an entry (IBV_WC_TM_MATCH).
        const MATCH = 1 << 5;
        /// All its data is in the entry's memory (IBV_WC_TM_DATA_VALID).
        const DATA_VALID = 1 << 6;
    }
}

/// What a completion of a tag matching queue has beside its fields (struct ibv_wc_tm_info, and flags).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TagInfo {
    /// The message's tag; 0 where nothing matched, and where the data of a rendezvous has come.
    pub tag: u64,
    /// What the sender has put beside it; 0 in the same places.
    pub app_ctx: u32,
    /// What happened.
    pub flags: TagFlags,
    /// The message's immediate data or invalidated key.
    pub extra: WcExtra,
}

/// Those of one completion queue, numbered in the order of their completions.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// Number of the first one that is kept.
    first: u32,
    kept: VecDeque<TagInfo>,
}

impl Beside {
    /// Keeps one more, and no more than `most` of them: those before have been polled, and never been asked for.
    pub(crate) fn keep(&mut self, info: TagInfo, most: usize) -> u32 {
        while self.kept.len() >= most.max(1) {
            self.drop_first();
        }
        self.kept.push_back(info);
        self.first.wrapping_add(self.kept.len() as u32 - 1)
    }

    /// The one with this number; those before it are forgotten.
    pub(crate) fn get(&mut self, number: u32) -> Option<TagInfo> {
        let place = number.wrapping_sub(self.first) as usize;
        if place >= self.kept.len() {
            return None;
        }
        for _ in 0..place {
            self.drop_first();
        }
        self.kept.front().copied()
    }

    fn drop_first(&mut self) {
        self.kept.pop_front();
        self.first = self.first.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(tag: u64) -> TagInfo {
        TagInfo { tag, ..TagInfo::default() }
    }

    #[test]
    fn each_is_found_until_a_later_one_was_asked_for() {
        let mut beside = Beside { first: u32::MAX - 1, ..Beside::default() };
        let numbers: Vec<_> = (0..5).map(|tag| beside.keep(info(tag), 8)).collect();
        assert_eq!(beside.get(numbers[1]), Some(info(1)));
        assert_eq!(beside.get(numbers[1]), Some(info(1)));
        assert_eq!(beside.get(numbers[3]), Some(info(3)));
        assert_eq!(beside.get(numbers[2]), None);
        assert_eq!(beside.get(numbers[4].wrapping_add(1)), None);
        assert_eq!(beside.kept.len(), 2);
    }

    #[test]
    fn nobody_asks_and_it_does_not_grow() {
        let mut beside = Beside::default();
        for tag in 0..1000 {
            beside.keep(info(tag), 4);
        }
        assert_eq!(beside.kept.len(), 4);
        assert_eq!(beside.get(999), Some(info(999)));
    }
}
