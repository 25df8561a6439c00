//! One batch in the making: packets of equal length for one path, the last may be shorter, each sealed with its ICRC.

use super::Transmit;
use crate::{
    qp::{Path, plan::Spot},
    wire::{FlushIcrc, Ident, Sealer},
};

/// What all packets of a batch have in common.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub path: Path,
    /// Packets at most.
    pub max_segments: usize,
    pub ident: Ident,
}

/// A batch under construction in the caller's arena.
#[derive(Default)]
pub(super) struct Batch<'a> {
    arena: &'a mut [u8],
    /// Set by the first packet.
    head: Option<(Way, Sealer)>,
    /// Bytes in it.
    len: usize,
    /// Bytes of each packet but the last.
    segment: usize,
    /// Packets in it.
    count: usize,
    /// A packet shorter than the others has ended it.
    closed: bool,
}

impl<'a> Batch<'a> {
    /// An empty one of at most `most` bytes.
    pub(super) fn new(arena: &'a mut [u8], most: usize) -> Self {
        let room = arena.len().min(most);
        Self { arena: &mut arena[..room], ..Self::default() }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Bytes in it.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether a packet of `len` bytes over `path` may come next.
    pub(super) fn admits(&self, path: &Path, len: usize) -> bool {
        let fits = |(head, _): &(Way, Sealer)| {
            !self.closed && head.path == *path && len <= self.segment && self.count < head.max_segments
        };
        self.len + len <= self.arena.len() && self.head.as_ref().is_none_or(fits)
    }

    /// Where a packet of `len` bytes would stand. A first one may be followed by others up to `max_segments`.
    pub(super) const fn spot(&self, len: usize, max_segments: usize) -> Spot {
        let begins = self.is_empty();
        let most = match &self.head {
            Some((head, _)) => head.max_segments,
            None => max_segments,
        };
        let shorter = !begins && len < self.segment;
        let ends = shorter || self.count + 1 >= most || self.len + 2 * len > self.arena.len();
        Spot { begins, ends, in_turn: false, spent: 0, waiting: 0, awaited: false }
    }

    /// The place for the next packet.
    pub(super) fn slot(&mut self, len: usize) -> &mut [u8] {
        &mut self.arena[self.len..self.len + len]
    }

    /// Seals the packet that was written into the slot of `len` bytes and adds it. `flush`: the form of a FLUSH's ICRC.
    pub(super) fn push(&mut self, way: &Way, len: usize, flush: FlushIcrc) {
        let (_, sealer) = self.head.get_or_insert_with(|| {
            self.segment = len;
            (*way, Sealer::new(&way.path.route(), way.ident))
        });
        sealer.seal(self.count, &mut self.arena[self.len..self.len + len], flush);
        self.len += len;
        self.count += 1;
        self.closed = len < self.segment;
    }

    /// The finished batch, unless it is empty.
    pub(super) fn finish(self) -> Option<Transmit> {
        let (Way { path, ident, .. }, _) = self.head?;
        Some(Transmit {
            src: path.src,
            dst: path.dst,
            src_port: path.src_port,
            ifindex: path.ifindex,
            tos: path.tos,
            hop_limit: path.hop_limit,
            encapsulation: path.encapsulation,
            lane: path.lane,
            ident,
            len: self.len,
            segment: self.segment,
            count: self.count,
        })
    }
}
