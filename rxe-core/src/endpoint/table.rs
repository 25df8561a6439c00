//! The table of queue pairs by number. A page of it is allocated when it is first used.

use crate::{num::Qpn, qp::QueuePair};
use alloc::{boxed::Box, vec::Vec};
use core::fmt;

const PAGE: usize = 256;
/// The lower numbers are reserved: 0 (subnet management), 1 (general services), and a few more, as in kernels.
const FIRST: u16 = 17;
/// Largest number of queue pairs of an endpoint, not counting queue pair 1.
pub const MAX_QPS: u32 = (u16::MAX - FIRST) as u32 + 1;

type Page = Box<[Option<Box<QueuePair>>; PAGE]>;

/// Queue pairs by number.
pub(super) struct QpTable {
    slot: u8,
    pages: Vec<Option<Page>>,
    /// Where the search for a free number starts. The search is cyclic, so that it takes long until a number is used again. It begins at
    /// a random place in each process, so that a peer does not take a new queue pair for one of an earlier process.
    next: u16,
    count: usize,
}

impl QpTable {
    pub(super) fn new(slot: u8, seed: u64) -> Self {
        let mut pages = Vec::new();
        pages.resize_with(1 << 8, || None);
        let start = (seed ^ seed >> 32 ^ seed >> 16) as u16;
        Self { slot, pages, next: start.max(FIRST), count: 0 }
    }

    fn place(&self, qpn: Qpn) -> Option<u16> {
        if qpn == Qpn::GSI {
            return Some(1);
        }
        (qpn.slot() == self.slot && qpn.index() >= FIRST).then(|| qpn.index())
    }

    pub(super) fn get(&self, qpn: Qpn) -> Option<&QueuePair> {
        let index = usize::from(self.place(qpn)?);
        self.pages[index / PAGE].as_ref()?[index % PAGE].as_deref()
    }

    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut QueuePair> {
        let index = usize::from(self.place(qpn)?);
        self.pages[index / PAGE].as_mut()?[index % PAGE].as_deref_mut()
    }

    /// A free number. `None` if all are in use.
    pub(super) fn free_number(&mut self) -> Option<Qpn> {
        (0..=u16::MAX).find_map(|_| {
            let qpn = Qpn::from_parts(self.slot, self.next);
            self.next = self.next.checked_add(1).unwrap_or(FIRST);
            (qpn != Qpn::MULTICAST && self.get(qpn).is_none()).then_some(qpn)
        })
    }

    pub(super) fn insert(&mut self, qp: QueuePair) {
        let Some(index) = self.place(qp.common.qpn).map(usize::from) else { return };
        let page = self.pages[index / PAGE].get_or_insert_with(|| Box::new([const { None }; PAGE]));
        self.count += usize::from(page[index % PAGE].is_none());
        page[index % PAGE] = Some(Box::new(qp));
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Box<QueuePair>> {
        let index = usize::from(self.place(qpn)?);
        let qp = self.pages[index / PAGE].as_mut()?[index % PAGE].take();
        self.count -= usize::from(qp.is_some());
        qp
    }

    /// How many queue pairs there are.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// All queue pairs, mutable.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut QueuePair> {
        self.pages.iter_mut().flatten().flat_map(|page| page.iter_mut()).flatten().map(|qp| &mut **qp)
    }

    /// All queue pairs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.pages.iter().flatten().flat_map(|page| page.iter()).filter_map(Option::as_deref)
    }
}

impl fmt::Debug for QpTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{QpType, fake::World};

    #[test]
    fn the_number_of_groups_is_given_to_no_queue_pair() {
        let mut table = QpTable::new(0xff, 0);
        table.next = u16::MAX - 1;
        let numbers = [(); 2].map(|()| table.free_number());
        assert_eq!(numbers, [Some(Qpn::new(0xff_fffe)), Some(Qpn::from_parts(0xff, FIRST))]);
    }

    #[test]
    fn queue_pair_1_has_one_number() {
        let mut table = QpTable::new(3, 0);
        table.insert(QueuePair::new(Qpn::GSI, World::new(QpType::Gsi).qp.config));
        assert!(table.get(Qpn::GSI).is_some());
        assert!(table.get(Qpn::from_parts(3, 1)).is_none());
    }
}
