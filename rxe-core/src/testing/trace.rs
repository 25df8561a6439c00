//! A record of what happened, in order: packets, with what the link did to them, and notes (posts, completions). Printed when a test
//! fails, and written to a capture file.

use super::link::{Datagram, Verdict};
use crate::{time::Instant, wire::Packet};
use alloc::{collections::VecDeque, string::String};
use core::fmt;

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A packet was put on the wire.
    Packet {
        /// The datagram as it was sent.
        datagram: Datagram,
        /// What the link did to it.
        fate: Verdict,
    },
    /// Something else happened.
    Note(String),
}

/// One entry, with time and place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// When it happened.
    pub at: Instant,
    /// On which side, 0 or 1. For a packet: which side sent it.
    pub side: usize,
    /// What happened.
    pub entry: Entry,
}

/// The latest records, up to a fixed number.
#[derive(Clone, Debug)]
pub struct Trace {
    records: VecDeque<Record>,
    limit: usize,
    forgotten: u64,
}

impl Trace {
    /// Keeps the latest `limit` records; 0 keeps none.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { records: VecDeque::new(), limit, forgotten: 0 }
    }

    /// Whether records are kept. If not, callers need not make them.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        if self.limit == 0 {
            return;
        }
        if self.records.len() == self.limit {
            self.records.pop_front();
            self.forgotten += 1;
        }
        self.records.push_back(record);
    }

    /// Adds a note.
    pub fn note(&mut self, at: Instant, side: usize, text: String) {
        self.push(Record { at, side, entry: Entry::Note(text) });
    }

    /// The records, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.records.iter()
    }

    /// How many old records were dropped, because there were more than the limit.
    #[must_use]
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.at.nanos();
        let side = ['A', 'B'][self.side & 1];
        write!(f, "{:>12}.{:03} us {side} ", nanos / 1000, nanos % 1000)?;
        match &self.entry {
            Entry::Note(text) => write!(f, "   {text}"),
            Entry::Packet { datagram, fate } => {
                match Packet::decode(&datagram.bytes) {
                    Ok(packet) => write!(f, "-> {packet}")?,
                    Err(error) => write!(f, "-> {} bytes: {error}", datagram.bytes.len())?,
                }
                match fate {
                    Verdict::Pass | Verdict::Chance => Ok(()),
                    Verdict::Drop => f.write_str("  [lost]"),
                    Verdict::Duplicate(later) => write!(f, "  [twice, {later:?} apart]"),
                    Verdict::Delay(later) => write!(f, "  [late by {later:?}]"),
                    Verdict::Flip(bit) => write!(f, "  [bit {bit} flipped]"),
                }
            }
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.forgotten > 0 {
            writeln!(f, "({} earlier records are not kept)", self.forgotten)?;
        }
        self.records.iter().try_for_each(|record| writeln!(f, "{record}"))
    }
}
