//! Filling batches: one destination at a time, data first, then the acknowledgements owed to it.

use super::{
    Acks, Endpoint, EndpointConfig, Notice, Shared, Transmit,
    batch::{Batch, Way},
    schedule::Source,
};
use crate::{
    memory::Memory,
    num::Qpn,
    qp::{
        Path, QueuePair,
        plan::{Grant, Half, Plan, Wait},
    },
    time::Instant,
    wire::{IdentTracker, Opcode},
};
use core::net::IpAddr;

/// What is lent for one call.
#[derive(Clone, Copy)]
struct Call<'a> {
    now: Instant,
    memory: &'a dyn Memory,
}

/// What became of one plan.
enum Carried {
    /// There was none.
    Nothing,
    /// It was carried out.
    Done,
    /// Its packet does not go into this batch.
    Full,
    /// It was not granted.
    Waits(Wait),
}

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
        let call = Call { now, memory };
        loop {
            let mut batch = Batch::new(&mut *arena);
            if let Some(Notice { path, packet, len }) = self.shared.notices.pop_front() {
                batch.slot(len).copy_from_slice(&packet[..len]);
                batch.push(&self.shared.way(path), len, false);
                return self.counted(batch);
            }
            match self.shared.schedule.pop() {
                Some(Source::Peer(index)) => {
                    self.fill_from_peer(call, index, &mut batch);
                    if !batch.is_empty() {
                        self.add_owed(call, index, &mut batch);
                    }
                }
                Some(Source::Qp(qpn)) => self.fill_from_datagrams(call, qpn, &mut batch),
                None => {
                    let index = self.shared.schedule.pop_owing(now, acks == Acks::Flush)?;
                    self.add_owed(call, index, &mut batch);
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

    fn fill_from_peer(&mut self, call: Call<'_>, index: usize, batch: &mut Batch<'_>) {
        let full = loop {
            let Some(peer) = self.shared.peers.get_mut(index) else { return };
            let Some(&qpn) = peer.ready.front() else { return };
            let Some(qp) = self.qps.get_mut(qpn).filter(|qp| qp.peer == Some(index) && qp.path.is_some())
            else {
                peer.ready.pop_front();
                continue;
            };
            if self.shared.fill_from_qp(call, qp, batch) == Filled::Full {
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

    fn fill_from_datagrams(&mut self, call: Call<'_>, qpn: Qpn, batch: &mut Batch<'_>) {
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        loop {
            let Some((av, dest)) = qp.next_destination() else {
                qp.queued = false;
                return;
            };
            let way = self.shared.way(self.shared.path(&av, dest));
            let plan = qp.plan(self.shared.config.port_mtu, false);
            match self.shared.carry_out(call, qp, &plan, &way, batch) {
                Carried::Done => {}
                Carried::Full => {
                    self.shared.schedule.push_qp(qpn);
                    return;
                }
                Carried::Nothing | Carried::Waits(_) => {
                    qp.queued = false;
                    return;
                }
            }
        }
    }

    /// Adds acknowledgements owed to a destination as far as they fit.
    fn add_owed(&mut self, call: Call<'_>, index: usize, batch: &mut Batch<'_>) {
        loop {
            let Some(peer) = self.shared.peers.get_mut(index) else { return };
            let Some(&qpn) = peer.owing.front() else { return };
            let Some(qp) = self.qps.get_mut(qpn).filter(|qp| qp.peer == Some(index)) else {
                peer.owing.pop_front();
                continue;
            };
            let (Some(path), plan @ Plan::Send(_)) = (qp.path, qp.plan_answer()) else {
                qp.owes = false;
                peer.owing.pop_front();
                continue;
            };
            let (way, before) = (self.shared.way(path), batch.count());
            match self.shared.carry_out(call, qp, &plan, &way, batch) {
                Carried::Done if batch.count() == before => {
                    // What it owed turned into something else: its turn comes with the data.
                    self.drop_owing(index, qpn);
                }
                Carried::Done => {}
                _ => return,
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
}

impl Shared {
    /// Adds packets of a connected queue pair until it or the batch has had enough.
    fn fill_from_qp(&mut self, call: Call<'_>, qp: &mut QueuePair, batch: &mut Batch<'_>) -> Filled {
        let EndpointConfig { port_mtu, parts, .. } = self.config;
        let Some(path) = qp.path else { return Filled::Dry };
        let way = self.way(path);
        loop {
            let plan = qp.plan(port_mtu, parts);
            match self.carry_out(call, qp, &plan, &way, batch) {
                Carried::Done => {}
                Carried::Full => return Filled::Full,
                Carried::Nothing => {
                    qp.queued = false;
                    return Filled::Dry;
                }
                Carried::Waits(Wait::Room) => {
                    // It stays marked as queued: `unblock` puts it back.
                    if let Some(peer) = qp.peer.and_then(|index| self.peers.get_mut(index)) {
                        peer.blocked.push_back(qp.common.qpn);
                    }
                    return Filled::Dry;
                }
                Carried::Waits(Wait::Responses) => {
                    self.schedule.await_reads(qp.common.qpn);
                    return Filled::Dry;
                }
            }
        }
    }

    /// Carries out what a queue pair plans: admission grants what that needs, the batch takes a packet of its length, and
    /// the queue pair commits itself to it.
    #[inline]
    fn carry_out(
        &mut self,
        call: Call<'_>,
        qp: &mut QueuePair,
        plan: &Plan,
        way: &Way,
        batch: &mut Batch<'_>,
    ) -> Carried {
        let draft = match plan {
            Plan::Nothing => return Carried::Nothing,
            Plan::Send(draft) => draft,
            Plan::Local | Plan::Fail(_) => {
                qp.commit(&mut self.lend(qp.peer, call.now, call.memory), plan, Grant::default(), &mut []);
                self.unblock_after_failure(qp);
                return Carried::Done;
            }
        };
        let mut ctx = self.lend(qp.peer, call.now, call.memory);
        let len = draft.len();
        let grant = match ctx.admit(&draft.need, batch.spot(len, way.max_segments)) {
            Ok(grant) => grant,
            Err(wait) => return Carried::Waits(wait),
        };
        if !batch.admits(&way.path, len) {
            return Carried::Full;
        }
        if qp.commit(&mut ctx, plan, grant, batch.slot(len)) {
            let rxe_flush = draft.opcode == Opcode::RC_FLUSH && self.expects_rxe_flush(qp, way.path.dst);
            batch.push(way, len, rxe_flush);
        }
        if draft.half == Half::Requester {
            self.watch(qp);
        }
        self.unblock_after_failure(qp);
        Carried::Done
    }

    /// Whether a FLUSH to `dst` is to have the ICRC that kernel rxe computes.
    fn expects_rxe_flush(&self, qp: &QueuePair, dst: IpAddr) -> bool {
        qp.flushes_like_rxe() || self.trackers.get(dst).is_some_and(IdentTracker::rxe_flush)
    }

    /// The way of a batch over `path`.
    fn way(&self, path: Path) -> Way {
        let config = &self.config;
        let usual = (config.max_segments, config.ident);
        let limit = if self.route_limits.is_empty() {
            None
        } else {
            self.route_limits.get(&(path.dst, path.ifindex)).copied()
        };
        let (max_segments, ident) = limit.unwrap_or(usual);
        Way { path, max_segments: max_segments.into(), ident }
    }
}
