//! One batch under construction: packets for one path, each with its ICRC. All have the same length, except that the last one may be
//! shorter.

use super::Transmit;
use crate::{
    qp::{Path, plan::Spot},
    wire::{FlushIcrc, Ident, Sealer},
};

/// What all packets of a batch have in common.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub path: Path,
    /// Largest number of packets.
    pub max_segments: usize,
    pub ident: Ident,
}

/// A batch under construction in the caller's arena.
#[derive(Default)]
pub(super) struct Batch<'a> {
    arena: &'a mut [u8],
    /// What all its packets have in common. Set when the first packet is added.
    head: Option<(Way, Sealer)>,
    /// Bytes written so far.
    len: usize,
    /// Bytes of each packet but the last.
    segment: usize,
    /// Packets written so far.
    count: usize,
    /// Whether the last packet is shorter than the others, so that no other may follow.
    closed: bool,
}

impl<'a> Batch<'a> {
    /// An empty batch that may fill at most this many bytes of the arena.
    pub(super) fn new(arena: &'a mut [u8], most: usize) -> Self {
        let room = arena.len().min(most);
        Self { arena: &mut arena[..room], ..Self::default() }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes written so far.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether a packet of `len` bytes over `path` may be added.
    pub(super) fn has_room_for(&self, path: &Path, len: usize) -> bool {
        let fits = |(head, _): &(Way, Sealer)| {
            !self.closed && head.path == *path && len <= self.segment && self.count < head.max_segments
        };
        self.len + len <= self.arena.len() && self.head.as_ref().is_none_or(fits)
    }

    /// Whether a packet of `len` bytes would be the first or the last one of the batch. The caller fills in the other fields of the
    /// [`Spot`]. If the packet is the first one, `max_segments` is the largest number of packets of the batch.
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

    /// The bytes of the arena for the next packet.
    pub(super) fn slot(&mut self, len: usize) -> &mut [u8] {
        &mut self.arena[self.len..self.len + len]
    }

    /// Adds the packet of `len` bytes that was written into [`Self::slot`], and writes its ICRC. If it is a FLUSH, its ICRC has the form
    /// `flush`.
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
