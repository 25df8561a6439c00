//! Processes that have several slots: for several stacks, or for several threads of a stack.

use super::Service;
use crate::{
    host::slots::{Holder, Slot},
    sys::unix::same_process,
};
use std::os::fd::{AsFd, OwnedFd};

/// A process that has this many slots gets no further ones for threads; with the second number it gets no more at all.
const MOST_FURTHER: usize = 16;
const MOST_OF_A_PROCESS: usize = 32;
/// Once this many slots are held, the others are kept for first slots of stacks.
const SLOTS_TO_SPARE: usize = 64;
/// Once this many are held, the others are kept for processes that have none.
const SLOTS_SCARCE: usize = 192;

impl Service {
    /// Called when a process asks for a slot. If it has lost all its connections, it has closed all its descriptors or executed another
    /// program, and its old slots are taken back. If it has another connection, it still uses all its sockets. And if it has
    /// not rejoined yet after the death of an earlier service, it will.
    pub(super) fn release_orphans(&mut self, pid: i32) {
        let held = |(slot, state): (u8, &Slot)| match state {
            Slot::Held(holder) if pid != 0 && holder.pid == pid => Some(slot),
            _ => None,
        };
        let own: Vec<u8> = self.slots.known().filter_map(held).collect();
        if own.iter().any(|slot| self.presences.is_connected(*slot)) {
            return;
        }
        for slot in own.into_iter().filter(|slot| self.presences.has_hung_up(*slot)).collect::<Vec<_>>() {
            self.retire(slot);
        }
    }

    /// Refuses a slot to a process that has so many that too few would be left for others.
    pub(super) fn check_share(&self, pid: i32, pidfd: Option<&OwnedFd>, further: bool) -> Result<(), String> {
        let is_its = |slot: u8, holder: &Holder| match (self.presences.pidfd(slot), pidfd) {
            (Some(known), Some(its)) => same_process(known, its.as_fd()),
            _ => pid != 0 && holder.pid == pid,
        };
        let (mut all, mut own) = (0, 0);
        for (slot, state) in self.slots.known() {
            if let Slot::Held(holder) = state {
                all += 1;
                own += usize::from(is_its(slot, holder));
            }
        }
        let most = if further { MOST_FURTHER } else { MOST_OF_A_PROCESS };
        if own >= most {
            return Err(format!("this process has {own} slots of the port already"));
        }
        if further && all >= SLOTS_TO_SPARE || own > 0 && all >= SLOTS_SCARCE {
            return Err(format!("{all} slots of the port are in use, and the rest is for other processes"));
        }
        Ok(())
    }
}
