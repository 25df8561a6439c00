//! How the lanes of the host's policy share a link: OpenSM's tables at work in an endpoint.
//!
//! IBTA arbitrates packet by packet. Here a batch is what has the turn, because the system takes batches: its bytes are
//! taken off the turns of its lane, so the shares are the same, over longer times (a lane with little weight sends a batch,
//! and then none for long).

use rxe_core::endpoint::{Arbitration, Lanes};
use rxe_fabric::{Arbiter, SL_COUNT, Tables, VL_COUNT};

/// Weighted arbitration by tables (IBTA vol. 1, 7.6.9).
#[derive(Debug)]
struct Weighted {
    arbiter: Arbiter,
    /// The lane that has the turn.
    named: Option<u8>,
}

impl Arbitration for Weighted {
    fn next(&mut self, waiting: u16) -> Option<u8> {
        self.named = self.arbiter.next(|lane| lane < 16 && waiting & 1 << lane != 0);
        self.named
    }

    fn sent(&mut self, lane: u8, bytes: usize) {
        if self.named.take() == Some(lane) {
            self.arbiter.sent(bytes);
        } else {
            self.arbiter.charge(lane, bytes);
        }
    }
}

/// Lanes by OpenSM's tables: of each service level its lane, of each lane its traffic class, and their weights.
pub(crate) fn lanes_of_tables(sl2vl: [u8; SL_COUNT], classes: [u8; VL_COUNT], tables: &Tables) -> Lanes {
    Lanes::new(sl2vl, classes, Box::new(Weighted { arbiter: Arbiter::new(tables), named: None }))
}

#[cfg(test)]
mod tests;
