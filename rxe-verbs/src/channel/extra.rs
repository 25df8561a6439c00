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

/// A program that is given so many extra events in a row, without packets or another event in between, asks until there is none.
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

    /// Notes whether packets may make the descriptor readable from now on. Gives whether they could before.
    pub(super) fn called_from_now(&self, looks_out: bool) -> bool {
        self.is_called.swap(looks_out, Ordering::Relaxed)
    }

    /// Packets have arrived, or an event.
    pub(super) fn came(&self) {
        if self.in_a_row.load(Ordering::Relaxed) != 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// There is no event: the armed queue of which the program is given an extra one. `was_called`: packets may have made the
    /// descriptor readable.
    pub(super) fn due(&self, was_called: bool) -> Option<Arc<CqRing>> {
        if self.bears_none.load(Ordering::Relaxed) {
            return None;
        }
        if !was_called || self.in_a_row.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.bears_none.store(true, Ordering::Relaxed);
            return None;
        }
        lock(&self.queues).values().filter_map(Weak::upgrade).find(|ring| ring.is_armed())
    }
}
