//! The endpoint: all queue pairs behind one socket, and the calls that drive them.

mod ahead;
mod batch;
mod hosts;
mod lanes;
mod objects;
mod partitions;
mod peer;
mod places;
mod receive;
mod schedule;
mod table;
mod transmit;
mod types;
mod waiting;

pub use crate::qp::flow::{Stream, Streams};
pub use lanes::{Arbitration, LANES, Lanes, NO_LANE};
pub use receive::{STEERING_PROBE, STEERING_PROBE_LEN};
pub use table::MAX_QPS;
pub use types::{Acks, EndpointConfig, MAX_SRQS, ObjectError, Run, RunMeta, Stray, Transmit};

use crate::{
    memory::{Memory, NoMemory},
    num::{Pkey, Qpn},
    qp::{
        Path, PostError, QpState, QpType, QueuePair,
        common::Ctx,
        flow::{ReadBudget, Window},
        rq::Srq,
    },
    stats::{PortStats, QpStats, TrafficStats},
    time::Instant,
    wire::{CNP_LEN, Ident},
    work::{Event, RecvWr, SendWr, SrqId},
};
use alloc::{collections::VecDeque, vec::Vec};
use core::net::IpAddr;
use hashbrown::HashMap;
use hosts::Hosts;
use peer::Peer;
use places::Places;
use schedule::{Due, Schedule, Source};
use slab::Slab;
use table::QpTable;

/// An endpoint: the queue pairs behind one socket.
///
/// `handle_run` and `handle_timeout` tell it what has happened. `post_send`, `post_recv` and `modify_qp` tell it what the program wants.
/// After any of these, call `poll_transmit` and then `poll_event` until they have nothing more, and ask `poll_timeout` when to call
/// `handle_timeout` next. Time and memory are arguments of each call.
#[derive(Debug)]
pub struct Endpoint {
    qps: QpTable,
    /// The queue pair to which a send request was posted last.
    posted: Qpn,
    shared: Shared,
}

/// Everything of an endpoint except its queue pairs.
#[derive(Debug)]
struct Shared {
    config: EndpointConfig,
    events: VecDeque<Event>,
    srqs: Slab<Srq>,
    peers: Slab<Peer>,
    peer_index: HashMap<(IpAddr, u8), usize>,
    reads: ReadBudget,
    /// Whether the timer list has an entry for silent holders of READ responses, and when they were last looked for.
    watches_readers: bool,
    readers_looked_at: Instant,
    /// The window of queue pairs that have none: those of datagram services, and those that are not connected.
    no_window: Window,
    hosts: Hosts,
    groups: HashMap<IpAddr, Vec<Qpn>>,
    /// P_Key tables. Queue pairs use the first one, unless another one is set.
    pkeys: Vec<Vec<Pkey>>,
    route_limits: HashMap<(IpAddr, u32), (u16, Ident)>,
    schedule: Schedule,
    /// Packets that leave without a queue pair: last acknowledgements of destroyed ones, and congestion notifications.
    notices: VecDeque<Notice>,
    /// Packets for other slots.
    strays: VecDeque<Stray>,
    /// What the lanes do not count.
    stats: PortStats,
    places: Places,
    lanes: Lanes,
    lane_stats: [TrafficStats; LANES],
    /// See [`Endpoint::is_amid`].
    amid: bool,
}

/// The local address to which a queue pair's counters belong.
fn place_of(qp: &QueuePair) -> IpAddr {
    qp.path.map_or(places::NOWHERE, |path| path.src)
}

/// The last acknowledgement of a destroyed queue pair, or a congestion notification. It has no ICRC yet.
#[derive(Debug)]
struct Notice {
    path: Path,
    packet: [u8; CNP_LEN],
    len: usize,
}

impl Notice {
    /// `packet` is not longer than a congestion notification.
    fn new(path: Path, packet: &[u8]) -> Self {
        let mut notice = Self { path, packet: [0; CNP_LEN], len: packet.len().min(CNP_LEN) };
        notice.packet[..notice.len].copy_from_slice(&packet[..notice.len]);
        notice
    }
}

/// Bytes of an acknowledgement, BTH to ICRC.
const ACK_LEN: usize = 20;

impl Endpoint {
    /// An endpoint without queue pairs.
    #[must_use]
    pub fn new(config: EndpointConfig) -> Self {
        Self {
            qps: QpTable::new(config.slot, config.seed),
            posted: Qpn::GSI,
            shared: Shared {
                events: VecDeque::new(),
                srqs: Slab::new(),
                peers: Slab::new(),
                peer_index: HashMap::new(),
                reads: ReadBudget::new(config.receive_window),
                watches_readers: false,
                readers_looked_at: Instant::ZERO,
                no_window: Window::new(u32::MAX, u32::MAX),
                hosts: Hosts::default(),
                groups: HashMap::new(),
                pkeys: alloc::vec![config.pkeys.clone()],
                route_limits: HashMap::new(),
                schedule: Schedule::default(),
                notices: VecDeque::new(),
                strays: VecDeque::new(),
                stats: PortStats::default(),
                places: Places::default(),
                lanes: Lanes::default(),
                lane_stats: Default::default(),
                amid: false,
                config,
            },
        }
    }

    /// What it was made with.
    #[must_use]
    pub const fn config(&self) -> &EndpointConfig {
        &self.shared.config
    }

    /// Counters of the whole endpoint.
    #[must_use]
    pub fn port_stats(&self) -> PortStats {
        let traffic =
            self.shared.lane_stats.iter().fold(TrafficStats::default(), |sum, lane| sum.plus(*lane));
        let TrafficStats { packets_sent, batches_sent, bytes_sent, packets_received, bytes_received } =
            traffic;
        PortStats {
            packets_sent,
            batches_sent,
            bytes_sent,
            packets_received,
            bytes_received,
            ..self.shared.stats
        }
    }

    /// Counters by local address: packets sent and received, and the counters of the queue pairs on it, destroyed ones included. Queue
    /// pairs that are not connected count for the unspecified address.
    #[must_use]
    pub fn place_stats(&self) -> Vec<(IpAddr, TrafficStats, QpStats)> {
        let mut list: Vec<_> = self.shared.places.each().collect();
        for qp in self.qps.iter() {
            let address = place_of(qp);
            match list.iter_mut().find(|(known, ..)| *known == address) {
                Some((.., sum)) => *sum = sum.plus(qp.common.stats),
                None => list.push((address, TrafficStats::default(), qp.common.stats)),
            }
        }
        list
    }

    /// Gives the endpoint other lanes. Queue pairs that are connected stay in theirs.
    pub fn set_lanes(&mut self, lanes: Lanes) {
        self.shared.lanes = lanes;
    }

    /// Counters of each virtual lane that has any.
    pub fn lane_stats(&self) -> impl Iterator<Item = (u8, TrafficStats)> {
        (0..).zip(self.shared.lane_stats).filter(|(_, stats)| *stats != TrafficStats::default())
    }

    /// Number, service, state and counters of every queue pair.
    pub fn queue_pairs(&self) -> impl Iterator<Item = (Qpn, QpType, QpState, QpStats)> {
        let all = self.qps.iter().map(|qp| &qp.common);
        all.map(|qp| (qp.qpn, qp.config.qp_type, qp.attrs.state, qp.stats))
    }

    /// From now on batches to `dst` by `ifindex` hold at most `max_segments` packets, with IDs as `ident` says. To be called when the link
    /// finds that the route does not take more.
    pub fn limit_route(&mut self, dst: IpAddr, ifindex: u32, max_segments: u16, ident: Ident) {
        self.shared.route_limits.insert((dst, ifindex), (max_segments.max(1), ident));
    }

    /// Queues a send request (ibv_post_send).
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_send_all(now, qpn, core::slice::from_ref(wr)).map_err(|(_, reason)| reason)
    }

    /// Queues all of these send requests, or none if one of them is refused (ibv_wr_complete).
    ///
    /// # Errors
    /// The index of the request that was refused, and why. Nothing was queued.
    pub fn post_send_all(
        &mut self,
        now: Instant,
        qpn: Qpn,
        list: &[SendWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        let qp = self.qps.get_mut(qpn).ok_or((0, PostError::NoSuchQueue))?;
        let port_mtu = self.shared.config.port_mtu;
        qp.post_send_all(&mut self.shared.lend(qp.peer, now, &NoMemory), list, port_mtu)?;
        self.shared.make_ready(qp);
        Ok(())
    }

    /// Whether this reliable queue pair has unanswered packets, or other queue pairs have some to the same destination.
    #[must_use]
    pub fn has_unanswered(&self, qpn: Qpn) -> bool {
        let Some(qp) = self.qps.get(qpn).filter(|qp| qp.common.config.qp_type == QpType::Rc) else {
            return false;
        };
        let peer = qp.peer.and_then(|index| self.shared.peers.get(index));
        peer.is_some_and(|peer| !peer.window.is_empty()) || qp.has_unanswered()
    }

    /// Whether packets of this queue pair are never answered (UC, UD). Not true for queue pair 1: peers answer its datagrams.
    #[must_use]
    pub fn is_never_answered(&self, qpn: Qpn) -> bool {
        self.qps.get(qpn).is_some_and(|qp| matches!(qp.common.config.qp_type, QpType::Uc | QpType::Ud))
    }

    /// Queues a receive request (ibv_post_recv).
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::NoSuchQueue)?;
        qp.post_recv(&mut self.shared.lend(qp.peer, Instant::ZERO, &NoMemory), wr)
    }

    /// Queues a receive request of a shared receive queue (ibv_post_srq_recv).
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let srq = self.shared.srqs.get_mut(srq.0 as usize).ok_or(PostError::NoSuchQueue)?;
        srq.queue.post(wr)
    }

    /// The next completion or asynchronous event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// Whether [`Self::poll_event`] has any.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.shared.events.is_empty()
    }

    /// Whether the packet that was handled last left something in the middle: its message goes on, or its queue pair waits for answers
    /// to more requests. The next packet is then likely to come soon.
    #[must_use]
    pub const fn is_amid(&self) -> bool {
        self.shared.amid
    }

    /// The next packet that belongs to another slot of the host, if the configuration wants them kept.
    pub fn poll_stray(&mut self) -> Option<Stray> {
        self.shared.strays.pop_front()
    }

    /// When to call `handle_timeout`, if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.shared.schedule.next_deadline()
    }

    /// Runs timers that are due: retransmissions, ends of RNR waits, acknowledgements that have waited long enough.
    pub fn handle_timeout(&mut self, now: Instant, memory: &dyn Memory) {
        while let Some(due) = self.shared.schedule.timers.pop_due(now) {
            match due {
                Due::Qp(qpn) => self.end_wait(qpn, now, memory),
                Due::Room(index) => self.end_patience(index, now),
                Due::Responses => self.lapse_reads(now),
            }
        }
    }

    fn end_wait(&mut self, qpn: Qpn, now: Instant, memory: &dyn Memory) {
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        if qp.timer.take_if(|timer| *timer <= now).is_none() {
            return;
        }
        qp.timer = qp.later.take();
        // The deadline has usually moved on since the timer list was told of it.
        if qp.next_deadline().is_some_and(|deadline| deadline <= now) {
            let unanswered = qp.handle_timeout(&mut self.shared.lend(qp.peer, now, memory));
            if let (Some(sent), Some(path)) = (unanswered, qp.path) {
                self.shared.hosts.of(path.dst).quirks.flush_unanswered(sent);
            }
            self.shared.make_ready(qp);
            self.shared.offer_room(qp.peer);
        }
        self.shared.watch(qp);
    }

    /// How many deadlines are in the timer list. Some of them are not needed any more.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn deadlines(&self) -> usize {
        self.shared.schedule.timers.len()
    }

    /// Checks that all that is shared adds up: what queue pairs hold of a window or of the `ReadBudget` is what is missing
    /// there, and a queue pair that waits is in one line.
    ///
    /// # Panics
    /// If something does not.
    #[cfg(any(test, feature = "testing"))]
    pub fn check_admission(&self) {
        use crate::qp::{flow::Line, plan::Wait};
        self.shared.reads.check(self.qps.iter().map(QueuePair::responses).sum());
        for (index, peer) in &self.shared.peers {
            let mut nothing = true;
            for qp in self.qps.iter().filter(|qp| qp.peer == Some(index)) {
                qp.holding.check(&peer.window, qp.responses());
                nothing &= qp.holding.is_empty();
                let places = |line: &Line| line.iter().filter(|qpn| *qpn == qp.common.qpn).count();
                let in_lanes = peer.lanes().map(|(_, lists)| places(&lists.line)).sum();
                let turn = usize::from(self.shared.reads.turn == Some(qp.common.qpn) && qp.waits.is_some());
                let wanted = [Wait::Room, Wait::Responses].map(|wait| usize::from(qp.waits == Some(wait)));
                assert_eq!([in_lanes, places(&self.shared.reads.line) + turn], wanted, "{:?}", qp.waits);
            }
            peer.window.check(nothing);
            for (lane, lists) in peer.lanes() {
                let waits = |qp: &QueuePair| qp.peer == Some(index) && qp.lane() == lane;
                let strangers = lists.line.iter().filter(|qpn| !self.qps.get(*qpn).is_some_and(waits));
                assert_eq!(strangers.collect::<Vec<_>>(), [], "in line for room, in lane {lane}");
            }
        }
    }
}

impl Shared {
    /// Counts packets that were sent or have come, for their lane and their local address. See [`Places::count`] for `most`.
    // Inlined, so that nothing is added that is always 0.
    #[inline(always)]
    fn count(&mut self, (address, most): (IpAddr, usize), lane: u8, traffic: TrafficStats) {
        let sum = &mut self.lane_stats[usize::from(lane).min(LANES - 1)];
        *sum = sum.plus(traffic);
        self.places.count(address, most, traffic);
    }

    /// What a call of a queue pair with destination `peer` may use beside the queue pair itself.
    fn lend<'a>(&'a mut self, peer: Option<usize>, now: Instant, memory: &'a dyn Memory) -> Ctx<'a> {
        let window = match peer.and_then(|index| self.peers.get_mut(index)) {
            Some(peer) => &mut peer.window,
            None => &mut self.no_window,
        };
        let Self { events, srqs, reads, .. } = self;
        Ctx { now, memory, events, srqs, window, reads }
    }

    /// Puts a queue pair among those that may have requests to send, unless it waits in a line.
    fn make_ready(&mut self, qp: &mut QueuePair) {
        if core::mem::take(&mut qp.holding.turned) && qp.waits.is_some() {
            self.unwait(qp);
        }
        if qp.ready || qp.waits.is_some() {
            return;
        }
        qp.ready = true;
        let qpn = qp.common.qpn;
        match qp.peer.and_then(|index| self.peers.get_mut(index).map(|peer| (index, peer))) {
            Some((index, peer)) => {
                let lists = peer.lane(qp.lane());
                lists.ready.push_back(qpn);
                self.schedule.push_peer(qp.lane(), index, lists);
            }
            None => {
                let lane = qp.next_destination().map_or(0, |(av, _)| self.lane_of(&av));
                self.schedule.push(lane, Source::Qp(qpn));
            }
        }
    }

    /// Puts a queue pair among those that have answers to send.
    fn make_answering(&mut self, qp: &mut QueuePair) {
        if let Some(index) = qp.peer
            && let Some(peer) = self.peers.get_mut(index)
            && !qp.answering
        {
            qp.answering = true;
            let lists = peer.lane(qp.lane());
            lists.answering.push_back(qp.common.qpn);
            self.schedule.push_peer(qp.lane(), index, lists);
        }
    }

    /// Puts a queue pair among those that owe an acknowledgement.
    fn make_owing(&mut self, qp: &mut QueuePair, now: Instant) {
        if !qp.owes
            && let Some(index) = qp.peer
            && let Some(peer) = self.peers.get_mut(index)
        {
            qp.owes = true;
            if peer.owing.is_empty() {
                peer.owed_since = now;
            }
            peer.owing.push_back(qp.common.qpn);
            if !core::mem::replace(&mut peer.owed, true) {
                self.schedule.owing.push_back((now, index));
            }
        }
    }

    /// Tells the timer list of a queue pair's deadline. A later one that is in the list stays known, because short waits may come before
    /// it again and again.
    fn watch(&mut self, qp: &mut QueuePair) {
        if let Some(deadline) = qp.next_deadline()
            && qp.timer.is_none_or(|known| deadline < known)
        {
            let known = qp.timer.replace(deadline);
            qp.later = qp.later.or(known);
            self.schedule.timers.push(deadline, Due::Qp(qp.common.qpn));
        }
    }

    /// If the queue pair is in the error state: takes it out of all lines, because it has nothing in flight any more.
    #[inline]
    fn settle_failure(&mut self, qp: &mut QueuePair) {
        if qp.common.state() == QpState::Error {
            self.unwait(qp);
            self.offer_room(qp.peer);
        }
    }
}
