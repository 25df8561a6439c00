//! Admission: who may send how much, and who waits. Two buffers are shared. The destination's socket holds what was sent
//! and not yet taken by the peer: the [`Window`] of that address and slot, and the [`Stream`] of all endpoints of a process that send
//! there. Our own socket holds READ responses: the [`ReadBudget`]. A queue pair asks with each packet and is granted, or waits in a line, first come first served.
//!
//! What a queue pair holds of both is its [`Holding`]. A peer that answers nothing must not keep others waiting:
//! * a part of each pot, the reserve, is kept for those who hold nothing: a message or a READ of one packet leaves at once;
//! * an acknowledgement proves that all that was sent to that socket before has left it, whoever sent it;
//! * READ responses that do not come are given back to the pot after [`PATIENCE`], if somebody waits; what comes of them
//!   later is a debt, which is taken in and returned to nobody;
//! * who was not answered sends one packet at a time, until something is answered.

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

/// What each request packet counts besides its payload: headers and the receiver's bookkeeping.
pub(crate) const PACKET_COST: u32 = 64;
/// What somebody may hold at least while others wait: a batch.
const QUANTUM: u32 = 64 * 1024;
/// What somebody may send at least when it is his turn, while others wait: a few large packets.
const LEAST_TURN: u32 = 16 * 1024;
/// A pot keeps this part of itself for those who hold nothing.
const RESERVE: u32 = 8;
/// Who waits for so long although nothing is answered is not kept waiting: a few round trips of a busy host.
pub(crate) const PATIENCE: Duration = Duration::from_micros(500);

/// Those who wait for a pot, first come first served.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: VecDeque<Qpn>,
    /// Used while the line is put into another order, and empty else. Its memory is kept for the next time.
    behind: Vec<Qpn>,
}

impl Line {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Somebody waits, behind the others or as the `first`.
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

    /// Takes somebody out.
    pub(crate) fn leave(&mut self, qpn: Qpn) {
        self.waiting.retain(|waiting| *waiting != qpn);
    }

    /// All, first come first.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Qpn> {
        self.waiting.iter().copied()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Those for whom `first` is true come first, in the order in which they wait. How many they are.
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

/// The part of `pot` bytes that each of `waiting` has, and one more.
fn part(waiting: usize, pot: u32) -> u32 {
    pot / u32::try_from(waiting).unwrap_or(u32::MAX).saturating_add(1)
}

/// What one more than the `waiting` may hold of `pot` bytes. If nobody waits there is no bound but the pot itself.
fn share(waiting: usize, pot: u32) -> u32 {
    if waiting == 0 { u32::MAX } else { part(waiting, pot).max(QUANTUM) }
}

/// What one more than the `waiting` may send of `pot` bytes in a turn.
fn turn(waiting: usize, pot: u32) -> u32 {
    if waiting == 0 { u32::MAX } else { part(waiting, pot).max(LEAST_TURN) }
}

/// Of `pot` bytes, those that somebody may use who holds something already; `shared` if there are others.
const fn common(pot: u32, shared: bool) -> u32 {
    if shared { pot - pot / RESERVE } else { pot }
}

impl Ctx<'_> {
    /// Whether a packet that needs `need` may leave now at `spot` of a batch, from a queue pair that holds `holding`.
    pub(crate) fn admit(&self, need: &Need, holding: &Holding, spot: Spot) -> Result<Grant, Wait> {
        match *need {
            Need::Nothing => Ok(Grant::default()),
            Need::Room { cost, next, ends } => self.window.admit(holding, (cost, next, ends), spot),
            Need::Responses(wanted) => self.reads.admit(holding, &wanted, spot),
        }
    }

    /// Packets were lost that a READ needs (`read`), or another request.
    pub(crate) fn lost(&mut self, read: bool) {
        if read { self.reads.limit.lost() } else { self.window.limit.lost() }
    }

    /// The same, and nothing else came back for long. A peer that is silent says little about the READs of others, who have
    /// the budget in common.
    pub(crate) fn silent(&mut self, read: bool) {
        if read { self.reads.limit.lost() } else { self.window.limit.silent() }
    }
}
