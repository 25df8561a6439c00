//! Admission: which queue pair may send how much, and which ones wait.
//!
//! Two buffers are shared, and are called pots here:
//! * the buffer of a destination's socket, for what was sent and not yet taken by the peer. Its account is the [`Window`] of that
//!   address and slot, and the [`Stream`] of all endpoints of a process that send there;
//! * the buffer of our own socket, for READ responses. Its account is the [`ReadBudget`].
//!
//! A queue pair asks with each packet. It is granted, or waits in a [`Line`], first come first served. What a queue pair has in
//! both buffers is its [`Holding`].
//!
//! A peer that answers nothing must not keep others waiting:
//! * A part of each pot, the reserve, is for queue pairs that hold nothing. So a message or a READ of one packet is sent at once.
//! * An acknowledgement proves that everything that was sent to that socket before has left its buffer, from any queue pair.
//! * If READ responses do not come for [`PATIENCE`] and somebody waits, their bytes are returned to the pot (they lapse).
//!   Responses that come later are taken in, and return nothing to the pot.
//! * A queue pair that was not answered in time is silent: it sends one packet at a time until something is answered.

mod holding;
mod limit;
mod reads;
mod stream;
mod window;

use super::{
    common::Ctx,
    plan::{Grant, Need, Spot, Wait},
};
use crate::num::Qpn;
use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;
pub(crate) use holding::Holding;
pub(crate) use reads::ReadBudget;
pub use stream::{Stream, Streams};
pub(crate) use window::Window;

/// Bytes that each request packet counts besides its payload, for headers and the receiver's bookkeeping.
pub(crate) const PACKET_COST: u32 = 64;
/// Bytes that a queue pair may hold at least while others wait: a batch.
const QUANTUM: u32 = 64 * 1024;
/// Bytes that a queue pair may send at least in one batch while others wait: a few large packets.
const LEAST_TURN: u32 = 16 * 1024;
/// The reserve for queue pairs that hold nothing is one part in this many of a pot.
const RESERVE: u32 = 8;
/// After this time without any answer a queue pair that waits is let through: a few round trips of a busy host.
pub(crate) const PATIENCE: Duration = Duration::from_micros(500);

/// The queue pairs that wait for a pot, first come first served.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: VecDeque<Qpn>,
    /// Used only while [`Self::prefer`] sorts the line, otherwise empty. A field so that its memory is allocated once.
    behind: Vec<Qpn>,
}

impl Line {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a queue pair, at the end or as the `first`.
    pub(crate) fn join(&mut self, qpn: Qpn, first: bool) {
        if first {
            self.waiting.push_front(qpn);
        } else {
            self.waiting.push_back(qpn);
        }
    }

    pub(crate) fn next(&mut self) -> Option<Qpn> {
        self.waiting.pop_front()
    }

    /// Removes a queue pair.
    pub(crate) fn leave(&mut self, qpn: Qpn) {
        self.waiting.retain(|waiting| *waiting != qpn);
    }

    /// All queue pairs in order.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Qpn> {
        self.waiting.iter().copied()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Moves those for which `first` is true to the front, and keeps the order otherwise. Returns how many they are.
    pub(crate) fn prefer(&mut self, mut first: impl FnMut(Qpn) -> bool) -> usize {
        for _ in 0..self.waiting.len() {
            let Some(qpn) = self.waiting.pop_front() else { break };
            if first(qpn) {
                self.waiting.push_back(qpn);
            } else {
                self.behind.push(qpn);
            }
        }
        let count = self.waiting.len();
        self.waiting.extend(self.behind.drain(..));
        count
    }
}

/// The part of each, if `pot` bytes are divided among the `waiting` queue pairs and one more.
fn part(waiting: usize, pot: u32) -> u32 {
    pot / u32::try_from(waiting).unwrap_or(u32::MAX).saturating_add(1)
}

/// Bytes of the pot that a queue pair may hold while `waiting` others wait. If nobody waits only the pot itself is a bound.
fn share(waiting: usize, pot: u32) -> u32 {
    if waiting == 0 { u32::MAX } else { part(waiting, pot).max(QUANTUM) }
}

/// Bytes that a queue pair may send in one batch while `waiting` others wait.
fn turn(waiting: usize, pot: u32) -> u32 {
    if waiting == 0 { u32::MAX } else { part(waiting, pot).max(LEAST_TURN) }
}

/// Bytes of the pot that a queue pair may use that holds something already. `shared`: whether several use the pot.
const fn common(pot: u32, shared: bool) -> u32 {
    if shared { pot - pot / RESERVE } else { pot }
}

impl Ctx<'_> {
    /// Whether a queue pair with this `holding` may send a packet with this `need` at `spot` of a batch.
    pub(crate) fn admit(&self, need: &Need, holding: &Holding, spot: Spot) -> Result<Grant, Wait> {
        match *need {
            Need::Nothing => Ok(Grant::default()),
            Need::Room { cost, next, ends } => self.window.admit(holding, (cost, next, ends), spot),
            Need::Responses(wanted) => self.reads.admit(holding, &wanted, spot),
        }
    }

    /// Packets of a READ (`read`) or of another request were lost.
    pub(crate) fn lost(&mut self, read: bool) {
        if read { self.reads.limit.lost() } else { self.window.limit.lost() }
    }

    /// The same, and nothing else came back for long. A silent peer says little about the READs of other queue pairs, with which
    /// it shares the budget. So the budget shrinks only as after a loss.
    pub(crate) fn silent(&mut self, read: bool) {
        if read { self.reads.limit.lost() } else { self.window.limit.silent() }
    }
}
