//! Filling batches: one destination at a time, data first, then the acknowledgements owed to it.

use super::{Acks, BatchIdent, Endpoint, Notice, Transmit, batch::Batch, scene, schedule::Source};
use crate::{
    memory::Memory,
    num::Qpn,
    qp::{
        Path, Wish,
        common::Ctx,
        flow::{Flow, Place},
    },
    time::Instant,
    wire::{IdentTracker, Opcode},
};

/// How filling from one queue pair ended.
#[derive(PartialEq, Eq)]
enum Filled {
    /// It has nothing more to send now.
    Dry,
    /// Its next packet does not go into this batch.
    Full,
}

impl Endpoint {
    /// Whether [`Self::poll_transmit`] may have something: without this, it has nothing, whatever the time.
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        !self.shared.notices.is_empty() || self.shared.schedule.has_any()
    }

    /// Fills `arena` (at least `max_batch` bytes) with one batch of packets to one destination and slot; `None` if there
    /// is nothing to send. With [`Acks::Wait`] acknowledgements leave only behind data or when their time is up.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        memory: &dyn Memory,
        arena: &mut [u8],
        acks: Acks,
    ) -> Option<Transmit> {
        let room = arena.len().min(self.shared.config.max_batch);
        let arena = &mut arena[..room];
        while let Some(qpn) = self.shared.schedule.pop_woken() {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.queued = false;
                self.shared.make_ready(qp);
            }
        }
        loop {
            let mut batch = Batch::new(&mut *arena);
            if let Some(Notice { path, packet, len }) = self.shared.notices.pop_front() {
                batch.slot(len).copy_from_slice(&packet[..len]);
                batch.push(&path, len, self.limits(&path), false);
                return self.counted(batch);
            }
            match self.shared.schedule.pop() {
                Some(Source::Peer(index)) => {
                    self.fill_from_peer(now, memory, index, &mut batch);
                    if !batch.is_empty() {
                        self.add_owed(now, memory, index, &mut batch);
                    }
                }
                Some(Source::Qp(qpn)) => self.fill_from_datagrams(now, memory, qpn, &mut batch),
                None => {
                    let index = self.shared.schedule.pop_owing(now, acks == Acks::Flush)?;
                    self.add_owed(now, memory, index, &mut batch);
                    if self.shared.peers.get(index).is_some_and(|peer| !peer.owing.is_empty()) {
                        self.shared.schedule.owe(index, now);
                    }
                }
            }
            if !batch.is_empty() {
                return self.counted(batch);
            }
        }
    }

    fn counted(&mut self, batch: Batch<'_>) -> Option<Transmit> {
        let transmit = batch.finish()?;
        let stats = &mut self.shared.stats;
        stats.batches_sent += 1;
        stats.packets_sent += transmit.count as u64;
        stats.bytes_sent += transmit.len as u64;
        Some(transmit)
    }

    fn fill_from_peer(&mut self, now: Instant, memory: &dyn Memory, index: usize, batch: &mut Batch<'_>) {
        let full = loop {
            let Some(peer) = self.shared.peers.get_mut(index) else { return };
            let Some(&qpn) = peer.ready.front() else { return };
            let Some(path) = self.qps.get(qpn).filter(|qp| qp.peer == Some(index)).and_then(|qp| qp.path)
            else {
                peer.ready.pop_front();
                continue;
            };
            if self.fill_from_qp(now, memory, qpn, &path, batch) == Filled::Full {
                break true;
            }
            if let Some(peer) = self.shared.peers.get_mut(index) {
                peer.ready.pop_front();
            }
        };
        if full && let Some(peer) = self.shared.peers.get_mut(index) {
            // Others of this destination first next time, and other destinations before that.
            peer.ready.rotate_left(1);
            self.shared.schedule.push_peer(index);
        }
    }

    /// Adds packets of one queue pair over `path` until it or the batch has had enough.
    fn fill_from_qp(
        &mut self,
        now: Instant,
        memory: &dyn Memory,
        qpn: Qpn,
        path: &Path,
        batch: &mut Batch<'_>,
    ) -> Filled {
        let port_mtu = self.shared.config.port_mtu;
        let limits = self.limits(path);
        let Some(qp) = self.qps.get_mut(qpn) else { return Filled::Dry };
        loop {
            let (mut ctx, mut flow) = scene!(&mut self.shared, qp.peer, now, memory);
            flow.place = Place { first: batch.is_empty(), last: false };
            match qp.wish(&flow, port_mtu) {
                Wish::Packet(len) => {
                    if !batch.admits(path, len) {
                        return Filled::Full;
                    }
                    flow.place.last = batch.ends_with(len, limits.0);
                    let emitted = qp.emit(&mut ctx, &mut flow, port_mtu, batch.slot(len));
                    if emitted {
                        let rxe_flush = batch.slot(1)[0] == Opcode::RC_FLUSH.0
                            && (qp.flushes_like_rxe()
                                || self.shared.trackers.get(path.dst).is_some_and(IdentTracker::rxe_flush));
                        batch.push(path, len, limits, rxe_flush);
                    }
                    self.shared.watch(qp);
                    self.shared.unblock_after_failure(qp);
                }
                Wish::Local => {
                    qp.emit(&mut ctx, &mut flow, port_mtu, &mut []);
                    self.shared.unblock_after_failure(qp);
                }
                Wish::Nothing => {
                    qp.queued = false;
                    return Filled::Dry;
                }
                Wish::AwaitsWindow => {
                    // It stays marked as queued: `unblock` puts it back.
                    if let Some(peer) = qp.peer.and_then(|index| self.shared.peers.get_mut(index)) {
                        peer.blocked.push_back(qpn);
                    }
                    return Filled::Dry;
                }
                Wish::AwaitsReadBudget => {
                    self.shared.schedule.await_reads(qpn);
                    return Filled::Dry;
                }
            }
        }
    }

    fn fill_from_datagrams(&mut self, now: Instant, memory: &dyn Memory, qpn: Qpn, batch: &mut Batch<'_>) {
        loop {
            let Some(qp) = self.qps.get_mut(qpn) else { return };
            let Some((av, dest)) = qp.next_destination() else {
                qp.queued = false;
                return;
            };
            let path = self.shared.path(&av, dest);
            match self.fill_datagram(now, memory, qpn, &path, batch) {
                Some(Filled::Full) => {
                    self.shared.schedule.push_qp(qpn);
                    return;
                }
                Some(Filled::Dry) => return,
                None => {}
            }
        }
    }

    /// Adds one datagram; `None` if it went in.
    fn fill_datagram(
        &mut self,
        now: Instant,
        memory: &dyn Memory,
        qpn: Qpn,
        path: &Path,
        batch: &mut Batch<'_>,
    ) -> Option<Filled> {
        let port_mtu = self.shared.config.port_mtu;
        let limits = self.limits(path);
        let qp = self.qps.get_mut(qpn)?;
        let (mut ctx, mut flow) = scene!(&mut self.shared, qp.peer, now, memory);
        match qp.wish(&flow, port_mtu) {
            Wish::Packet(len) if batch.admits(path, len) => {
                if qp.emit(&mut ctx, &mut flow, port_mtu, batch.slot(len)) {
                    batch.push(path, len, limits, false);
                }
                None
            }
            Wish::Packet(_) => Some(Filled::Full),
            Wish::Local => {
                qp.emit(&mut ctx, &mut flow, port_mtu, &mut []);
                None
            }
            _ => {
                qp.queued = false;
                Some(Filled::Dry)
            }
        }
    }

    /// Adds acknowledgements owed to a destination as far as they fit.
    fn add_owed(&mut self, now: Instant, memory: &dyn Memory, index: usize, batch: &mut Batch<'_>) {
        loop {
            let Some(peer) = self.shared.peers.get_mut(index) else { return };
            let Some(&qpn) = peer.owing.front() else { return };
            let Some(qp) = self.qps.get_mut(qpn).filter(|qp| qp.peer == Some(index)) else {
                peer.owing.pop_front();
                continue;
            };
            let (Some(path), Some(len)) = (qp.path, qp.deferred_ack()) else {
                qp.owes = false;
                peer.owing.pop_front();
                continue;
            };
            if !batch.admits(&path, len) {
                return;
            }
            let (mut ctx, mut flow) = scene!(&mut self.shared, Some(index), now, memory);
            if qp.emit_ack(&mut ctx, &mut flow, batch.slot(len)) {
                let limits = self.limits(&path);
                batch.push(&path, len, limits, false);
            } else {
                self.shared.unblock_after_failure(qp);
                // What it owed turned into something else: its turn comes with the data.
                self.drop_owing(index, qpn);
            }
        }
    }

    fn drop_owing(&mut self, index: usize, qpn: Qpn) {
        if let Some(peer) = self.shared.peers.get_mut(index) {
            peer.owing.pop_front();
        }
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.owes = false;
            self.shared.make_ready(qp);
        }
    }

    /// Packets and IDs of a batch over `path`.
    fn limits(&self, path: &Path) -> (u16, BatchIdent) {
        let config = &self.shared.config;
        let usual = (config.max_segments, config.ident);
        if self.shared.route_limits.is_empty() {
            return usual;
        }
        self.shared.route_limits.get(&(path.dst, path.ifindex)).copied().unwrap_or(usual)
    }
}
