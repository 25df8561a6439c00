//! What a responder remembers of the READs, atomics, ATOMIC WRITEs and FLUSHes it executed, so that a repeated request
//! gets its answer again and nothing is executed twice (IBTA vol. 1, 9.7.5.1.5).

use crate::{
    num::Psn,
    wire::{Class, Reth},
};
use alloc::collections::VecDeque;

/// FLUSHes remembered. They are no responder resource to kernel rxe, which sends any number, so they must not push out
/// atomics; and forgetting one does no harm, because repeating its answer needs nothing remembered.
const FLUSHES: usize = 16;

/// PSNs after which an entry is too old to be meant: the number space is half used up.
const STALE: u32 = 1 << 22;

/// A request that was executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Its PSN.
    pub first: Psn,
    /// PSNs it takes, at least 1.
    pub psns: u32,
    pub result: Outcome,
}

/// What a repeated request is answered from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// A READ: executed again.
    Read(Reth),
    /// CmpSwap or FetchAdd: the original value.
    Atomic(Class, u64),
    /// ATOMIC WRITE or FLUSH: that it was done.
    Done(Class),
}

impl Entry {
    fn is_flush(&self) -> bool {
        self.result == Outcome::Done(Class::Flush)
    }
}

/// The table, oldest first.
#[derive(Debug, Default)]
pub(super) struct Replay {
    entries: VecDeque<Entry>,
    /// FLUSHes among them.
    flushes: usize,
}

/// PSNs that the response to a READ of `len` bytes takes.
pub(super) const fn read_psns(len: u32, mtu: u32) -> u32 {
    if len == 0 { 1 } else { len.div_ceil(mtu) }
}

impl Replay {
    /// Remembers a request, forgetting the oldest of its kind beyond `capacity`.
    pub(super) fn remember(&mut self, entry: Entry, capacity: usize) {
        let flush = entry.is_flush();
        let (alike, limit) =
            if flush { (self.flushes, FLUSHES) } else { (self.entries.len() - self.flushes, capacity) };
        if alike > 0 && alike >= limit {
            let oldest = self.entries.iter().position(|old| old.is_flush() == flush);
            self.forget(oldest.unwrap_or(0));
        }
        self.flushes += usize::from(flush);
        self.entries.push_back(entry);
    }

    fn forget(&mut self, at: usize) {
        if let Some(entry) = self.entries.remove(at) {
            self.flushes -= usize::from(entry.is_flush());
        }
    }

    /// Forgets what is so far behind the expected PSN that a PSN like it would mean something else.
    pub(super) fn expire(&mut self, expected: Psn) {
        while let Some(oldest) = self.entries.front()
            && expected.since(oldest.first.plus(oldest.psns)) > STALE
        {
            self.forget(0);
        }
    }

    /// The last PSN that an acknowledgement for a repeated SEND or WRITE at `psn` may name: all that was executed, but
    /// not past a READ or atomic, whose answer may have been lost too.
    pub(super) fn acknowledgeable(&self, psn: Psn, expected: Psn) -> Psn {
        let next = self.entries.iter().find(|entry| entry.first.is_after(psn));
        next.map_or(expected, |entry| entry.first).minus(1)
    }

    /// Whether `psn` and `reth` ask for (part of) what a remembered READ, or several adjacent ones, asked for.
    pub(super) fn covers_read(&self, psn: Psn, reth: &Reth, mtu: u32) -> bool {
        let (mut at, mut addr, mut left) = (psn, reth.addr, reth.len);
        for entry in &self.entries {
            let skipped = at.since(entry.first);
            if skipped >= entry.psns {
                continue;
            }
            let Outcome::Read(known) = entry.result else { return false };
            let offset = u64::from(skipped) * u64::from(mtu);
            if known.rkey != reth.rkey || known.addr.wrapping_add(offset) != addr {
                return false;
            }
            let here = known.len - (offset as u32).min(known.len);
            if left <= here {
                return true;
            }
            // The rest must be in the READ behind this one, and whole packets must come before it.
            if !here.is_multiple_of(mtu) || here == 0 {
                return false;
            }
            (at, addr, left) =
                (entry.first.plus(entry.psns), addr.wrapping_add(u64::from(here)), left - here);
        }
        false
    }

    /// The original value that an atomic returned.
    pub(super) fn atomic(&self, psn: Psn, class: Class) -> Option<u64> {
        self.entries.iter().find_map(|entry| match entry.result {
            Outcome::Atomic(known, original) if entry.first == psn && known == class => Some(original),
            _ => None,
        })
    }

    /// Whether an ATOMIC WRITE or FLUSH was done.
    pub(super) fn is_done(&self, psn: Psn, class: Class) -> bool {
        self.entries.iter().any(|entry| entry.first == psn && entry.result == Outcome::Done(class))
    }
}

#[cfg(test)]
mod tests;
