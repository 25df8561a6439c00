//! Extra events, for programs that cannot bear a readable channel without an event.
//!
//! The descriptor of a lookout ([`crate::engine`]) is also readable for packets that bring no event. A program that asks until there is
//! no event knows that answer. But many ask once each time that poll(2) finds the channel readable, as in the example of
//! ibv_get_cq_event(3), and take a failure for fatal. They do bear an event whose queue turns out to be empty ("there may be an extra
//! event", says the same page): on any device the completion may have been polled before its event is taken. So they are given
//! such an event, of a queue that they have armed.

use crate::{cq::CqRing, sys::lock};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rxe_core::work::CqId;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
};

/// A program that is given so many extra events in a row, and asks for the next each time before its descriptor is readable, asks until
/// there is none.
const MOST: u32 = 16;

/// What a channel knows of how its program asks for events.
#[derive(Debug, Default)]
pub(super) struct Extra {
    queues: Mutex<BTreeMap<CqId, Weak<CqRing>>>,
    /// Whether packets may have made the descriptor readable since the program last asked.
    is_called: AtomicBool,
    /// The program has asked while nothing can have made the descriptor readable, so it expects that there may be none.
    bears_none: AtomicBool,
    in_a_row: AtomicU32,
}

impl Extra {
    pub(super) fn add(&self, cq: &Arc<CqRing>) {
        lock(&self.queues).insert(cq.id(), Arc::downgrade(cq));
    }

    pub(super) fn remove(&self, cq: &CqRing) {
        lock(&self.queues).remove(&cq.id());
    }

    /// The program asks. Whether the descriptor is readable is of interest only if it was given an extra event the last time.
    pub(super) fn begin(&self, is_readable: impl FnOnce() -> bool) {
        if self.in_a_row.load(Ordering::Relaxed) > 0 && is_readable() {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the program that has asked is to be given an extra event. `found`: there is an event. `looks_out`: from now on packets
    /// may make the descriptor readable.
    pub(super) fn is_due(&self, found: bool, looks_out: bool) -> bool {
        let was_called = self.is_called.swap(looks_out, Ordering::Relaxed);
        if found || self.bears_none.load(Ordering::Relaxed) {
            return false;
        }
        let is_due = was_called && self.in_a_row.fetch_add(1, Ordering::Relaxed) < MOST;
        self.bears_none.store(!is_due, Ordering::Relaxed);
        is_due
    }

    /// A queue that the program has armed.
    pub(super) fn armed(&self) -> Option<Arc<CqRing>> {
        lock(&self.queues).values().filter_map(Weak::upgrade).find(|ring| ring.is_armed())
    }
}
