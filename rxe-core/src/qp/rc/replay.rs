//! What a responder remembers of the READs, atomics, ATOMIC WRITEs and FLUSHes that it executed. So a repeated request gets its
//! answer again, and no atomic is executed twice (IBTA vol. 1, 9.7.5.1.5).

use crate::{
    num::Psn,
    wire::{Class, Reth},
};
use alloc::collections::VecDeque;

/// FLUSHes remembered at most. Kernel rxe does not count FLUSHes as responder resources and sends any number of them. So they
/// have a limit of their own and do not push out atomics. Forgetting a FLUSH does no harm, because its answer can be repeated
/// without an entry.
const FLUSHES: usize = 16;

/// An entry that ends more than this many PSNs before the expected PSN is forgotten. It is half of the 2^23 PSNs that count as
/// behind.
const STALE: u32 = 1 << 22;

/// A request that was executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Its first PSN.
    pub first: Psn,
    /// PSNs it takes, at least 1.
    pub psns: u32,
    pub result: Outcome,
}

/// What a repeated request is answered from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// A READ. It is executed again.
    Read(Reth),
    /// CmpSwap or FetchAdd: the original value.
    Atomic(Class, u64),
    /// ATOMIC WRITE or FLUSH: it was done.
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
    /// Number of FLUSHes among the entries.
    flushes: usize,
}

/// PSNs that the response to a READ of `len` bytes takes.
pub(super) const fn read_psns(len: u32, mtu: u32) -> u32 {
    if len == 0 { 1 } else { len.div_ceil(mtu) }
}

impl Replay {
    /// Remembers a request. Forgets the oldest one of its kind if there are `capacity` of them; FLUSHes have a capacity of their
    /// own.
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

    /// Forgets entries that are so far behind the expected PSN that a new request may soon have the same PSN.
    pub(super) fn expire(&mut self, expected: Psn) {
        while let Some(oldest) = self.entries.front()
            && expected.since(oldest.first.plus(oldest.psns)) > STALE
        {
            self.forget(0);
        }
    }

    /// The last PSN that an acknowledgement for a repeated SEND or WRITE at `psn` may name. It covers everything that was
    /// executed up to the next READ or atomic, whose answer may have been lost, too.
    pub(super) fn acknowledgeable(&self, psn: Psn, expected: Psn) -> Psn {
        // Counted from `psn` up to `expected`, because the oldest READ may be more than half of all PSNs behind.
        let left = expected.since(psn);
        let next = self.entries.iter().find(|entry| (1..left).contains(&entry.first.since(psn)));
        next.map_or(expected, |entry| entry.first).minus(1)
    }

    /// Whether `psn` and `reth` ask for a part or all of a remembered READ, or of several adjacent ones.
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
            // The rest must be in the next READ. That is possible only if this one ends with a full packet.
            if !here.is_multiple_of(mtu) || here == 0 {
                return false;
            }
            (at, addr, left) =
                (entry.first.plus(entry.psns), addr.wrapping_add(u64::from(here)), left - here);
        }
        false
    }

    /// The original value that the atomic at `psn` returned.
    pub(super) fn atomic(&self, psn: Psn, class: Class) -> Option<u64> {
        self.entries.iter().find_map(|entry| match entry.result {
            Outcome::Atomic(known, original) if entry.first == psn && known == class => Some(original),
            _ => None,
        })
    }

    /// Whether an ATOMIC WRITE or FLUSH at `psn` was done.
    pub(super) fn is_done(&self, psn: Psn, class: Class) -> bool {
        self.entries.iter().any(|entry| entry.first == psn && entry.result == Outcome::Done(class))
    }
}

#[cfg(test)]
mod tests;
