//! Receives runs of datagrams. Each packet is decoded, its queue pair is found, its ICRC is checked, and it is handed to the queue pair.
//! Every packet that is dropped is counted by reason.

use super::{Endpoint, Notice, Run, RunMeta, Shared, Stray, ahead::AHEAD, places};
use crate::{
    memory::Memory,
    num::Qpn,
    qp::{Path, QueuePair},
    stats::TrafficStats,
    time::Instant,
    wire::{
        CNP_TOS, Class, DecodeError, GRH_LEN, Grh, HeaderSeen, Packet, Verdict, cnp,
        icrc::{Route, RouteCrc},
    },
};
use core::time::Duration;

/// Congestion experienced: both ECN bits of a TOS byte, set by a congested router (RFC 3168, 5).
const CONGESTION_EXPERIENCED: u8 = 3;
/// Shortest time between two congestion notifications of a queue pair (N of DCQCN).
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// No congestion notification is added if this many notices wait to be sent. Notifications are repeated, so this loses little.
const MAX_NOTICES: usize = 256;

/// Stands in for the GRH of packets for connected queue pairs, which do not use it.
const NO_GRH: [u8; GRH_LEN] = [0; GRH_LEN];
/// Largest number of packets for other slots that are kept for [`Endpoint::poll_stray`]. Further ones are dropped.
const MAX_STRAYS: usize = 64;
/// First byte of a packet with which a host tests how it steers packets to processes. No service has this opcode (IBTA vol. 1, 9.2.1
/// leaves it to manufacturers).
pub const STEERING_PROBE: u8 = 0xff;
/// Bytes of such a packet: a BTH without an ICRC. Every other packet is longer.
pub const STEERING_PROBE_LEN: usize = 12;

/// The headers of a run, and what follows from them.
struct Origin<'a> {
    meta: &'a RunMeta,
    /// What the link showed of the headers of the packet that is handled now.
    seen: HeaderSeen,
    route: Route,
    crc: RouteCrc,
}

impl Origin<'_> {
    /// Whether a router marked the packets because of congestion.
    const fn marked(&self) -> bool {
        self.meta.tos & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED
    }
}

impl Endpoint {
    /// Handles the packets of one receive.
    pub fn handle_run(&mut self, now: Instant, run: &Run<'_>, memory: &dyn Memory) {
        let meta = &run.meta;
        let route = meta.route();
        let mut origin = Origin { meta, seen: meta.seen, route, crc: RouteCrc::new(&route) };
        let size = if run.segment == 0 { run.bytes.len().max(1) } else { run.segment };
        // An empty run is an empty packet.
        let packets_received = run.bytes.len().div_ceil(size).max(1) as u64;
        let bytes_received = run.bytes.len() as u64;
        let traffic = TrafficStats { packets_received, bytes_received, ..TrafficStats::default() };
        let lane = self.shared.lanes.of_class(meta.tos);
        self.shared.count((meta.dst, places::MOST_HEARD), lane, traffic);
        let stats = &mut self.shared.stats;
        stats.runs_received += 1;
        stats.ecn_marked += if origin.marked() { packets_received } else { 0 };
        stats.dropped_short += u64::from(run.bytes.is_empty());
        let mut ahead = run.bytes.chunks(size).skip(AHEAD);
        for bytes in run.bytes.chunks(size) {
            if let Some(later) = ahead.next() {
                self.expect_packet(bytes, later);
            }
            self.handle_packet(now, &origin, bytes, memory);
            origin.seen = origin.seen.next();
        }
    }

    fn handle_packet(&mut self, now: Instant, origin: &Origin<'_>, bytes: &[u8], memory: &dyn Memory) {
        if self.shared.config.keep_strays && bytes.len() == STEERING_PROBE_LEN && bytes[0] == STEERING_PROBE {
            self.shared.keep_stray(origin, bytes);
            return;
        }
        let packet = match Packet::decode(bytes) {
            Ok(packet) => packet,
            Err(error) => {
                let stats = &mut self.shared.stats;
                match error {
                    DecodeError::Short | DecodeError::Headers => stats.dropped_short += 1,
                    DecodeError::Opcode(_) => stats.dropped_opcode += 1,
                    DecodeError::Version(_) | DecodeError::Payload(_) => stats.dropped_malformed += 1,
                }
                return;
            }
        };
        let dest = packet.bth.dest_qp;
        if dest == Qpn::MULTICAST {
            self.handle_multicast(now, origin, bytes, &packet, memory);
            return;
        }
        let shared = &mut self.shared;
        let Some(qp) = self.qps.get_mut(dest) else {
            let other = dest != Qpn::GSI && dest.slot() != shared.config.slot;
            let stats = &mut shared.stats;
            *(if other { &mut stats.dropped_other_slot } else { &mut stats.dropped_no_qp }) += 1;
            if other && shared.config.keep_strays {
                shared.keep_stray(origin, bytes);
            }
            return;
        };
        if !shared.is_whole(now, origin, bytes) {
            return;
        }
        if packet.info.class == Class::Congestion {
            shared.on_congestion(now, qp, origin.meta);
            return;
        }
        shared.deliver(now, origin, qp, &packet, bytes.len(), memory);
    }

    fn handle_multicast(
        &mut self,
        now: Instant,
        origin: &Origin<'_>,
        bytes: &[u8],
        packet: &Packet<'_>,
        memory: &dyn Memory,
    ) {
        let members = self.shared.groups.get(&origin.meta.dst).map_or(0, alloc::vec::Vec::len);
        if members == 0 {
            self.shared.stats.dropped_no_group += 1;
            return;
        }
        let shared = &mut self.shared;
        if !shared.is_whole(now, origin, bytes) {
            return;
        }
        for at in 0..members {
            let list = shared.groups.get(&origin.meta.dst);
            if let Some(qp) = list.and_then(|list| self.qps.get_mut(*list.get(at)?)) {
                shared.deliver(now, origin, qp, packet, bytes.len(), memory);
            }
        }
    }
}

impl Shared {
    fn keep_stray(&mut self, origin: &Origin<'_>, bytes: &[u8]) {
        if self.strays.len() < MAX_STRAYS {
            self.strays.push_back(Stray {
                meta: RunMeta { seen: origin.seen, ..*origin.meta },
                bytes: bytes.to_vec(),
            });
        }
    }

    /// Checks the ICRC. If it is wrong, counts the packet as dropped.
    fn is_whole(&mut self, now: Instant, origin: &Origin<'_>, bytes: &[u8]) -> bool {
        let host = self.hosts.of(origin.meta.src);
        let verdict = host.judge(now, &origin.crc, origin.seen, bytes);
        match verdict {
            Verdict::Fragmentable => self.stats.dropped_fragmentable += 1,
            Verdict::Stray { .. } | Verdict::Corrupt => self.stats.dropped_icrc += 1,
            _ => {}
        }
        verdict.is_whole()
    }

    /// Hands a whole packet of `len` bytes (BTH to ICRC) to a queue pair, if the queue pair accepts it.
    fn deliver(
        &mut self,
        now: Instant,
        origin: &Origin<'_>,
        qp: &mut QueuePair,
        packet: &Packet<'_>,
        len: usize,
        memory: &dyn Memory,
    ) {
        if !qp.accepts(packet, &origin.route, &self.pkeys) {
            self.stats.dropped_by_qp += 1;
            return;
        }
        let grh = if qp.path.is_some() {
            NO_GRH
        } else {
            Grh::new(&origin.route, origin.meta.tos, origin.meta.hop_limit, len).emit()
        };
        qp.handle(&mut self.lend(qp.peer, now, memory), packet, &grh);
        let apart = self.config.answers_apart;
        if !apart && qp.has_answer() {
            self.make_owing(qp, now);
        }
        if !apart && qp.must_answer() {
            self.make_answering(qp);
        }
        if !qp.has_sent_all() {
            self.make_ready(qp);
        }
        self.amid = !packet.info.position.is_end() || qp.has_unanswered();
        // If the queue pair refused a request, it is in the error state now and has nothing in flight any more.
        self.settle_failure(qp);
        if !packet.info.is_request() {
            qp.tell_pacer(now);
            self.offer_room(qp.peer);
        }
        self.watch(qp);
        if origin.marked() && packet.info.class != Class::Acknowledge {
            self.notify_of_congestion(now, qp);
        }
    }

    /// Queues a congestion notification for a connected peer whose packets arrive marked (RoCEv2 annex A17.9.3).
    fn notify_of_congestion(&mut self, now: Instant, qp: &mut QueuePair) {
        let Some(path) = qp.path else { return };
        let early = qp.notified.is_some_and(|at| now.since(at) < CNP_INTERVAL);
        if early || self.notices.len() >= MAX_NOTICES {
            return;
        }
        qp.notified = Some(now);
        qp.common.stats.cnps_sent += 1;
        let path = Path { tos: CNP_TOS, ..path };
        self.notices.push_back(Notice::new(path, &cnp(qp.common.attrs.dest_qpn)));
    }

    /// Handles a congestion notification: tells the queue pair's pacer, or shrinks the window to the peer if there is no pacer.
    /// Notifications that do not come from the peer's address are dropped.
    fn on_congestion(&mut self, now: Instant, qp: &mut QueuePair, meta: &RunMeta) {
        if qp.path.is_some_and(|path| (path.src, path.dst) != (meta.dst, meta.src)) {
            qp.common.stats.dropped_address += 1;
            self.stats.dropped_by_qp += 1;
            return;
        }
        qp.common.stats.cnps_received += 1;
        if let Some(pacer) = &mut qp.pacer {
            pacer.pacing.control.on_notified(now);
        } else if let Some(peer) = qp.peer.and_then(|index| self.peers.get_mut(index)) {
            peer.window.notified();
        }
    }
}
