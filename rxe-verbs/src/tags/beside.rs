//! What completions of tag matching queues say beside the usual fields. It is kept with the completion queue, because most
//! programs match no tags, and their completions should not become longer.

use bitflags::bitflags;
use rxe_core::work::WcExtra;
use std::collections::VecDeque;

bitflags! {
    /// What a completion of a tag matching queue says; the values are those of ibv_wc_flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct TagFlags: u32 {
        /// There were unexpected messages of which the program has not yet said that it has handled them (IBV_WC_TM_SYNC_REQ).
        /// Until it says so, added entries match nothing.
        const SYNC_NEEDED = 1 << 4;
        /// The message matched an entry (IBV_WC_TM_MATCH).
        const MATCH = 1 << 5;
        /// All its data is in the entry's memory (IBV_WC_TM_DATA_VALID).
        const DATA_VALID = 1 << 6;
    }
}

/// What a completion of a tag matching queue says beside the usual fields (struct ibv_wc_tm_info, and flags).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TagInfo {
    /// The message's tag. 0 if nothing matched, and in the second completion of a rendezvous (its data has come).
    pub tag: u64,
    /// The sender's own value from the header (`app_ctx`). 0 in the same cases.
    pub app_ctx: u32,
    /// What happened.
    pub flags: TagFlags,
    /// The message's immediate data or invalidated key.
    pub extra: WcExtra,
}

/// The [`TagInfo`]s of one completion queue, numbered in the order of their completions.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// Number of the first kept one.
    first: u32,
    kept: VecDeque<TagInfo>,
}

impl Beside {
    /// Keeps one more and returns its number. At most `most` are kept: older ones belong to completions that were polled, and whose
    /// info the program did not ask for.
    pub(crate) fn keep(&mut self, info: TagInfo, most: usize) -> u32 {
        while self.kept.len() >= most.max(1) {
            self.drop_first();
        }
        self.kept.push_back(info);
        self.first.wrapping_add(self.kept.len() as u32 - 1)
    }

    /// The one with this number. Those before it are dropped.
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
