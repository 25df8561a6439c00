//! P_Key tables, which may change while queue pairs use them (IBTA vol. 1, 10.9).

use super::{Endpoint, Shared};
use crate::{
    memory::Memory,
    num::{Pkey, Qpn},
    qp::{QpState, QpType, QueuePair},
    time::Instant,
    work::{AsyncEvent, Event},
};
use alloc::vec::Vec;

impl Shared {
    /// The table of this number, or the first one if there is no such table.
    pub(super) fn pkey_table(&self, table: u16) -> &[Pkey] {
        self.pkeys.get(usize::from(table)).or_else(|| self.pkeys.first()).map_or(&[], Vec::as_slice)
    }

    /// Index and value of the P_Key that a queue pair has after a change of the tables: the same P_Key at the same index, else the same
    /// P_Key elsewhere, else one of the same partition with the other membership. If there is none: for queue pair 1 the table's first
    /// P_Key, for others `None`.
    fn find_pkey(&self, qp: &QueuePair) -> Option<(u16, Pkey)> {
        let (own, at) = (qp.common.pkey, qp.common.attrs.pkey_index);
        let mut keys = (0..=u16::MAX).zip(self.pkey_table(qp.common.pkey_table).iter().copied());
        keys.clone()
            .find(|found| *found == (at, own))
            .or_else(|| keys.clone().find(|(_, key)| *key == own))
            .or_else(|| keys.clone().find(|(_, key)| key.partition() == own.partition()))
            .or_else(|| keys.next().filter(|_| qp.common.config.qp_type == QpType::Gsi))
    }
}

impl Endpoint {
    /// Sets the P_Key table of a queue pair in RESET. Without this it uses the first one.
    pub fn use_pkeys(&mut self, qpn: Qpn, table: u16) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.common.pkey_table = table;
        }
    }

    /// The P_Key table of a queue pair; `None` if there is no such queue pair.
    #[must_use]
    pub fn pkey_table_of(&self, qpn: Qpn) -> Option<u16> {
        self.qps.get(qpn).map(|qp| qp.common.pkey_table)
    }

    /// How many P_Key tables there are.
    #[must_use]
    pub const fn pkey_tables(&self) -> usize {
        self.shared.pkeys.len()
    }

    /// Replaces all P_Key tables. Queue pairs keep their partition, with the index and the membership that it now has in their table. If
    /// the partition of a queue pair is no longer in its table, the queue pair goes to the error state: its work requests are flushed,
    /// and IBV_EVENT_QP_FATAL is reported (as Linux does to queue pairs that lose the right to their P_Key).
    pub fn set_pkeys(&mut self, now: Instant, tables: Vec<Vec<Pkey>>, memory: &dyn Memory) {
        let Self { qps, shared, .. } = self;
        shared.pkeys = tables;
        for qp in qps.iter_mut() {
            if qp.common.state() == QpState::Reset {
                continue;
            }
            match shared.find_pkey(qp) {
                Some(found) => (qp.common.attrs.pkey_index, qp.common.pkey) = found,
                None if qp.common.state() == QpState::Error => {}
                None => {
                    qp.enter_error(&mut shared.lend(qp.peer, now, memory));
                    shared.events.push_back(Event::Async(AsyncEvent::QpFatal(qp.common.qpn)));
                    shared.settle_failure(qp);
                }
            }
        }
    }
}
