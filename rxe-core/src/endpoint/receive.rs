//! From a run of datagrams to queue pairs: decode, find, judge, hand over. Every drop is counted by its reason.

use super::{Endpoint, Notice, Run, RunMeta, Stray, scene};
use crate::{
    memory::Memory,
    num::Qpn,
    qp::{Arrival, Path, common::Ctx, flow::Flow},
    time::Instant,
    wire::{
        CNP_TOS, Class, DecodeError, GRH_LEN, Grh, Packet, cnp,
        icrc::{Route, RouteCrc},
    },
};
use core::time::Duration;

/// Peers whose IPv4 IDs are remembered at most; beyond, all are forgotten and learnt again.
const MAX_TRACKERS: usize = 4096;
/// The ECN bits of a TOS byte that a congested router set (RFC 3168, 5).
const CONGESTION_EXPERIENCED: u8 = 3;
/// A queue pair's peer is told of congestion this often at most (DCQCN's N).
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// Notifications that wait to be sent at most: more would tell nothing new.
const MAX_NOTICES: usize = 256;

/// Strays kept at most, until somebody asks for them.
const MAX_STRAYS: usize = 64;
/// First byte of a packet by which a host examines its own steering: an opcode that no service has (IBTA vol. 1, 9.2.1
/// leaves it to manufacturers).
pub const STEERING_PROBE: u8 = 0xff;
/// Bytes of such a packet: a BTH without an ICRC, which nothing else is.
pub const STEERING_PROBE_LEN: usize = 12;

/// The headers of a run, worked out once.
struct Origin<'a> {
    meta: &'a RunMeta,
    route: Route,
    crc: RouteCrc,
}

impl Origin<'_> {
    const fn marked(&self) -> bool {
        self.meta.tos & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED
    }
}

impl Endpoint {
    /// Takes the packets of one receive.
    pub fn handle_run(&mut self, now: Instant, run: &Run<'_>, memory: &dyn Memory) {
        let meta = &run.meta;
        let route = Route { src: meta.src, dst: meta.dst, src_port: meta.src_port };
        let origin = Origin { meta, route, crc: RouteCrc::new(&route) };
        self.shared.stats.runs_received += 1;
        if run.bytes.is_empty() {
            self.shared.stats.packets_received += 1;
            self.shared.stats.dropped_short += 1;
        }
        let size = if run.segment == 0 { run.bytes.len().max(1) } else { run.segment };
        for bytes in run.bytes.chunks(size) {
            let stats = &mut self.shared.stats;
            stats.packets_received += 1;
            stats.bytes_received += bytes.len() as u64;
            stats.ecn_marked += u64::from(origin.marked());
            self.handle_packet(now, &origin, bytes, memory);
        }
    }

    fn handle_packet(&mut self, now: Instant, origin: &Origin<'_>, bytes: &[u8], memory: &dyn Memory) {
        if self.shared.config.keep_strays && bytes.len() == STEERING_PROBE_LEN && bytes[0] == STEERING_PROBE {
            self.keep_stray(origin, bytes);
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
        if self.qps.get(dest).is_none() {
            let other = dest != Qpn::GSI && dest.slot() != self.shared.config.slot;
            let stats = &mut self.shared.stats;
            *(if other { &mut stats.dropped_other_slot } else { &mut stats.dropped_no_qp }) += 1;
            if other && self.shared.config.keep_strays {
                self.keep_stray(origin, bytes);
            }
            return;
        }
        if packet.info.class == Class::Congestion {
            if self.is_whole(now, origin, bytes) {
                self.on_congestion(dest, origin.meta);
            }
            return;
        }
        if !self.is_whole(now, origin, bytes) {
            return;
        }
        let grh = [0; GRH_LEN];
        let arrival = Arrival { src: origin.meta.src, dst: origin.meta.dst, grh: &grh };
        if self.qps.get_mut(dest).is_some_and(|qp| qp.admits(&packet, &arrival)) {
            self.deliver(now, origin, dest, &packet, bytes.len(), memory);
            if origin.marked() && packet.info.class != Class::Acknowledge {
                self.notify_of_congestion(now, dest);
            }
        } else {
            self.shared.stats.dropped_by_qp += 1;
        }
    }

    fn keep_stray(&mut self, origin: &Origin<'_>, bytes: &[u8]) {
        if self.shared.strays.len() < MAX_STRAYS {
            self.shared.strays.push_back(Stray { meta: *origin.meta, bytes: bytes.to_vec() });
        }
    }

    /// Judges the ICRC, and counts a wrong one.
    fn is_whole(&mut self, now: Instant, origin: &Origin<'_>, bytes: &[u8]) -> bool {
        let trackers = &mut self.shared.trackers;
        if trackers.len() >= MAX_TRACKERS && !trackers.contains_key(&origin.meta.src) {
            trackers.clear();
        }
        let tracker = trackers.entry(origin.meta.src).or_default();
        let whole = tracker.judge(now, &origin.crc, origin.meta.seen, bytes).is_whole();
        self.shared.stats.dropped_icrc += u64::from(!whole);
        whole
    }

    fn deliver(
        &mut self,
        now: Instant,
        origin: &Origin<'_>,
        dest: Qpn,
        packet: &Packet<'_>,
        len: usize,
        memory: &dyn Memory,
    ) {
        let Some(qp) = self.qps.get_mut(dest) else { return };
        let grh = if qp.path.is_some() {
            [0; GRH_LEN]
        } else {
            Grh::new(&origin.route, origin.meta.tos, origin.meta.hop_limit, len).emit()
        };
        let arrival = Arrival { src: origin.meta.src, dst: origin.meta.dst, grh: &grh };
        let (mut ctx, mut flow) = scene!(&mut self.shared, qp.peer, now, memory);
        qp.handle(&mut ctx, &mut flow, packet, &arrival);
        if qp.deferred_ack().is_some() {
            self.shared.make_owing(qp, now);
        }
        if !qp.is_quiet() {
            self.shared.make_ready(qp);
        }
        // A request that was refused ends the queue pair, and what it had in flight.
        if packet.info.is_request() {
            self.shared.unblock_after_failure(qp);
        } else {
            self.shared.unblock(qp.peer);
        }
        self.shared.watch(qp);
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
        if !self.is_whole(now, origin, bytes) {
            return;
        }
        let grh = [0; GRH_LEN];
        let arrival = Arrival { src: origin.meta.src, dst: origin.meta.dst, grh: &grh };
        for at in 0..members {
            let member = self.shared.groups.get(&origin.meta.dst).and_then(|list| list.get(at)).copied();
            let Some(qpn) = member else { continue };
            if self.qps.get_mut(qpn).is_some_and(|qp| qp.admits(packet, &arrival)) {
                self.deliver(now, origin, qpn, packet, bytes.len(), memory);
            } else {
                self.shared.stats.dropped_by_qp += 1;
            }
        }
    }

    /// Tells a connected peer that its packets arrive marked (RoCEv2 annex A17.9.3).
    fn notify_of_congestion(&mut self, now: Instant, dest: Qpn) {
        let Some(qp) = self.qps.get_mut(dest) else { return };
        let Some(path) = qp.path else { return };
        let early = qp.notified.is_some_and(|at| now.since(at) < CNP_INTERVAL);
        if early || self.shared.notices.len() >= MAX_NOTICES {
            return;
        }
        qp.notified = Some(now);
        qp.common.stats.cnps_sent += 1;
        let path = Path { tos: CNP_TOS, ..path };
        self.shared.notices.push_back(Notice::new(path, &cnp(qp.common.attrs.dest_qpn)));
    }

    /// A congestion notification: the window to that peer shrinks. Only the peer may ask for it.
    fn on_congestion(&mut self, dest: Qpn, meta: &RunMeta) {
        let Some(qp) = self.qps.get_mut(dest) else { return };
        if qp.path.is_some_and(|path| (path.src, path.dst) != (meta.dst, meta.src)) {
            qp.common.stats.dropped_address += 1;
            self.shared.stats.dropped_by_qp += 1;
            return;
        }
        qp.common.stats.cnps_received += 1;
        if let Some(peer) = qp.peer.and_then(|index| self.shared.peers.get_mut(index)) {
            peer.window.notified();
        }
    }
}
