//! The matching list: what tags are waited for, in the order in which they were posted, and whether the program has handled
//! all that was not waited for.

use rxe_core::{qp::PostError, work::Sge};

/// A tag that is waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// What the completions of a message that matches say.
    pub(super) wr_id: u64,
    /// Where its data goes.
    pub(super) sges: Vec<Sge>,
    /// A message matches if its tag, as far as `mask` says, is this.
    pub(super) tag: u64,
    pub(super) mask: u64,
}

#[derive(Debug)]
struct Listed {
    handle: u32,
    /// Posted while the program knew of all that was unexpected, or confirmed since.
    counts: bool,
    entry: Entry,
}

/// The list. Entries may be posted while messages that would have matched wait in the completion queue, unexpected. If they
/// counted at once, a later message could overtake such a one. So the list counts unexpected messages, the program says how many it
/// has handled, and entries count from when both numbers agree.
#[derive(Debug)]
pub(super) struct List {
    /// In the order in which they were posted.
    entries: Vec<Listed>,
    /// Entries at most.
    most: u32,
    next: u32,
    unexpected: u32,
    handled: u32,
}

impl List {
    pub(super) const fn new(most: u32) -> Self {
        Self { entries: Vec::new(), most, next: 0, unexpected: 0, handled: 0 }
    }

    /// Whether the program has handled all that was unexpected.
    pub(super) const fn is_in_step(&self) -> bool {
        self.unexpected == self.handled
    }

    /// The program has handled so many unexpected messages since the queue was made.
    pub(super) fn confirm(&mut self, handled: u32) {
        self.handled = handled;
        if self.is_in_step() {
            self.entries.iter_mut().for_each(|listed| listed.counts = true);
        }
    }

    /// Adds an entry; gives its handle.
    pub(super) fn add(&mut self, entry: Entry) -> Result<u32, PostError> {
        if self.entries.len() >= self.most as usize {
            return Err(PostError::Full(self.most));
        }
        // A handle is used again only if there have been 2^32 since; one of so long ago may still be in use.
        while self.entries.iter().any(|listed| listed.handle == self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1);
        self.entries.push(Listed { handle, counts: self.is_in_step(), entry });
        Ok(handle)
    }

    /// Removes an entry; whether it was there.
    pub(super) fn remove(&mut self, handle: u32) -> bool {
        let place = self.entries.iter().position(|listed| listed.handle == handle);
        place.map(|place| self.entries.remove(place)).is_some()
    }

    /// Takes the first entry that a message's tag matches.
    pub(super) fn take(&mut self, tag: u64) -> Option<Entry> {
        let matches = |listed: &Listed| listed.counts && tag & listed.entry.mask == listed.entry.tag;
        let place = self.entries.iter().position(matches)?;
        Some(self.entries.remove(place).entry)
    }

    /// Counts a message that nothing matches.
    pub(super) fn miss(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(wr_id: u64, tag: u64, mask: u64) -> Entry {
        Entry { wr_id, sges: Vec::new(), tag, mask }
    }

    #[test]
    fn the_first_that_matches_is_taken() {
        let mut list = List::new(8);
        list.add(entry(1, 0x10, 0xff)).unwrap();
        list.add(entry(2, 0, 0)).unwrap();
        list.add(entry(3, 0x10, u64::MAX)).unwrap();
        let mut taken = |tag| list.take(tag).map(|entry| entry.wr_id);
        assert_eq!(taken(0x7_0010), Some(1));
        assert_eq!(taken(0x10), Some(2));
        assert_eq!(taken(0x11), None);
        assert_eq!(taken(0x10), Some(3));
        assert_eq!(taken(0x10), None);
    }

    #[test]
    fn an_entry_posted_behind_an_unexpected_message_waits_for_the_program() {
        let mut list = List::new(8);
        list.add(entry(1, 5, u64::MAX)).unwrap();
        assert_eq!(list.take(6), None);
        list.miss();
        assert!(!list.is_in_step());
        list.add(entry(2, 6, u64::MAX)).unwrap();
        assert_eq!(list.take(6), None, "it would overtake the one that waits");
        list.miss();
        assert_eq!(list.take(5).unwrap().wr_id, 1, "posted before");
        list.confirm(1);
        assert_eq!(list.take(6), None, "the second one was not handled");
        list.miss();
        list.confirm(3);
        assert!(list.is_in_step());
        assert_eq!(list.take(6).unwrap().wr_id, 2);
    }

    #[test]
    fn handles_name_entries_while_they_are_there() {
        let mut list = List::new(2);
        let (one, two) = (list.add(entry(1, 1, 1)).unwrap(), list.add(entry(2, 1, 1)).unwrap());
        assert_eq!(list.add(entry(3, 1, 1)), Err(PostError::Full(2)));
        assert!(list.remove(one) && !list.remove(one));
        list.next = two;
        assert_ne!(list.add(entry(3, 1, 1)).unwrap(), two);
        assert_eq!(list.take(1).unwrap().wr_id, 2);
        assert!(!list.remove(two));
    }
}
