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
    /// A table; the first in the place of one that is not there.
    pub(super) fn pkey_table(&self, table: u16) -> &[Pkey] {
        self.pkeys.get(usize::from(table)).or_else(|| self.pkeys.first()).map_or(&[], Vec::as_slice)
    }

    /// Where the table has a queue pair's partition now: at the same index, else with the same membership, else with the
    /// other one. If it is not there, queue pair 1 takes the first key of the table.
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
    /// Gives a queue pair in RESET another P_Key table than the first.
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

    /// Replaces all P_Key tables. Queue pairs keep their partition, at whatever place of their table it is now and with the
    /// membership that it says. One whose partition is not in its table any more goes to the error state: what it had is
    /// flushed, and IBV_EVENT_QP_FATAL tells of it (as Linux does to queue pairs that lose the right to their key).
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
