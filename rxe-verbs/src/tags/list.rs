//! The matching list: entries with tags, in the order in which they were posted. It also tracks whether the program has handled
//! all unexpected messages (those that matched no entry).

use rxe_core::{qp::PostError, work::Sge};

/// An entry: memory for one message whose tag matches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// Returned in the completions of the message that matches.
    pub(super) wr_id: u64,
    /// Where its data goes.
    pub(super) sges: Vec<Sge>,
    /// A message matches if `message_tag & mask` is this.
    pub(super) tag: u64,
    pub(super) mask: u64,
}

#[derive(Debug)]
struct Listed {
    handle: u32,
    /// The entry may match. True if the program had handled all unexpected messages when the entry was posted, or at any time
    /// since.
    counts: bool,
    entry: Entry,
}

/// The list. When an entry is posted, an unexpected message that it would match may still wait in the completion queue. If the
/// entry could match at once, a later message would overtake that one. So the list counts unexpected messages, and the program
/// says how many it has handled. An entry can match as soon as both numbers agree.
#[derive(Debug)]
pub(super) struct List {
    /// In the order in which they were posted.
    entries: Vec<Listed>,
    /// Most entries.
    most: u32,
    /// Next handle.
    next: u32,
    /// Unexpected messages so far, modulo 2^32.
    unexpected: u32,
    /// How many of them the program has handled.
    handled: u32,
}

impl List {
    pub(super) const fn new(most: u32) -> Self {
        Self { entries: Vec::new(), most, next: 0, unexpected: 0, handled: 0 }
    }

    /// Whether the program has handled all unexpected messages.
    pub(super) const fn is_in_step(&self) -> bool {
        self.unexpected == self.handled
    }

    /// Notes that the program has handled this many unexpected messages since the queue was made.
    pub(super) fn confirm(&mut self, handled: u32) {
        self.handled = handled;
        if self.is_in_step() {
            self.entries.iter_mut().for_each(|listed| listed.counts = true);
        }
    }

    /// Adds an entry and returns its handle.
    pub(super) fn add(&mut self, entry: Entry) -> Result<u32, PostError> {
        if self.entries.len() >= self.most as usize {
            return Err(PostError::Full(self.most));
        }
        // Handles wrap around after 2^32. An entry that is so old may still be in the list.
        while self.entries.iter().any(|listed| listed.handle == self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1);
        self.entries.push(Listed { handle, counts: self.is_in_step(), entry });
        Ok(handle)
    }

    /// Removes an entry. Returns whether it was there.
    pub(super) fn remove(&mut self, handle: u32) -> bool {
        let place = self.entries.iter().position(|listed| listed.handle == handle);
        place.map(|place| self.entries.remove(place)).is_some()
    }

    /// Removes and returns the first entry that matches a message's tag.
    pub(super) fn take(&mut self, tag: u64) -> Option<Entry> {
        let matches = |listed: &Listed| listed.counts && tag & listed.entry.mask == listed.entry.tag;
        let place = self.entries.iter().position(matches)?;
        Some(self.entries.remove(place).entry)
    }

    /// Counts an unexpected message.
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
