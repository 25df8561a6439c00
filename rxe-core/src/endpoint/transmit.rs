//! Fills batches. Each is for one destination: first data, then the acknowledgements owed to that destination.

use super::{
    Acks, Endpoint, EndpointConfig, Notice, Shared, Transmit,
    batch::{Batch, Way},
    peer::{List, Peer},
    places,
    schedule::{Source, is_overdue},
    waiting::call_reader,
};
use crate::{
    memory::Memory,
    num::Qpn,
    qp::{
        Path, QueuePair,
        plan::{Grant, Half, Need, Plan, Spot, Wait},
    },
    stats::TrafficStats,
    time::Instant,
    wire::{FlushIcrc, Opcode},
};

/// Time and memory, which the caller of the endpoint passes for one call.
#[derive(Clone, Copy)]
struct Call<'a> {
    now: Instant,
    memory: &'a dyn Memory,
}

/// What happened to a plan.
enum Carried {
    /// There was no plan.
    Nothing,
    /// It was carried out.
    Done,
    /// Its packet does not fit into the batch.
    Full,
    /// Admission did not grant what it needs.
    Waits(Wait),
}

impl Endpoint {
    /// Whether [`Self::poll_transmit`] may have something to send. If false, it has nothing at any time.
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        self.owes_any() || self.shared.schedule.waiting != 0 || self.shared.reads.turn.is_some()
    }

    /// Whether several queue pairs owe an acknowledgement.
    #[must_use]
    pub fn owes_several(&self) -> bool {
        self.peers_owed().flat_map(|peer| &peer.owing).nth(1).is_some()
    }

    /// Whether several queue pairs owe acknowledgements, or may soon do so: several destinations are owed some, or the one that is owed
    /// some has several queue pairs.
    #[must_use]
    pub fn may_owe_several(&self) -> bool {
        let mut owed = self.peers_owed();
        owed.next().is_some_and(|first| first.window.users > 1 || owed.next().is_some())
    }

    /// Destinations that are owed acknowledgements. The schedule may also list destinations whose acknowledgements have left behind data;
    /// they are left out.
    fn peers_owed(&self) -> impl Iterator<Item = &Peer> {
        let listed = self.shared.schedule.owing.iter().filter_map(|(_, index)| self.shared.peers.get(*index));
        listed.filter(|peer| !peer.owing.is_empty())
    }

    /// Bytes under way to the destination of a connected queue pair, sent by any queue pair: those that are not known to have left the
    /// destination socket's buffer. A packet counts as its payload and 64 bytes more. READs and atomics do not count. 0 if the queue pair
    /// is not connected or does not exist.
    #[must_use]
    pub fn under_way(&self, qpn: Qpn) -> u64 {
        let peer = self.qps.get(qpn).and_then(|qp| self.shared.peers.get(qp.peer?));
        peer.map_or(0, |peer| peer.window.in_flight())
    }

    /// Fills `arena` (at least `max_batch` bytes) with one batch of packets to one destination and slot. `None` if there is nothing to
    /// send. `acks` says which acknowledgements leave without data to the same peer.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        memory: &dyn Memory,
        arena: &mut [u8],
        acks: Acks,
    ) -> Option<Transmit> {
        if !self.may_transmit() {
            return None;
        }
        let mut batch = Batch::new(arena, self.shared.config.max_batch);
        let call = Call { now, memory };
        // Batches of data alternate with batches of notices or of acknowledgements that have waited long enough, so that
        // neither kind waits for all of the other.
        if core::mem::take(&mut self.shared.schedule.data_last) && self.owes_any() {
            self.fill_from_owed(call, acks.min(Acks::Wait), &mut batch);
        }
        if batch.is_empty() {
            self.fill_from_sources(call, &mut batch);
            if !batch.is_empty() {
                self.shared.schedule.data_last = true;
            } else if self.owes_any() {
                self.fill_from_owed(call, acks, &mut batch);
            }
        }
        self.counted(batch)
    }

    /// Fills `arena` with a notice if there is one, else with one packet (acknowledgement or answer) that a queue pair owes its peer. For
    /// links that send answers apart from data and before it, as cards do. `None` if there is neither.
    pub fn poll_answer(
        &mut self,
        now: Instant,
        qpn: Qpn,
        memory: &dyn Memory,
        arena: &mut [u8],
    ) -> Option<Transmit> {
        let mut batch = Batch::new(arena, self.shared.config.max_batch);
        let call = Call { now, memory };
        if !self.shared.notices.is_empty() {
            self.fill_from_owed(call, Acks::Wait, &mut batch);
            return self.counted(batch);
        }
        let qp = self.qps.get_mut(qpn)?;
        let (path, plan) = (qp.path?, qp.plan_answer());
        if plan == Plan::Nothing {
            return None;
        }
        let way = Way { max_segments: 1, ..self.shared.way(path) };
        self.shared.carry_out(call, qp, &plan, (&way, List::Answers, 0), &mut batch);
        self.counted(batch)
    }

    /// Whether there is a notice, or the schedule lists a destination that may be owed acknowledgements.
    fn owes_any(&self) -> bool {
        !self.shared.notices.is_empty() || !self.shared.schedule.owing.is_empty()
    }

    /// Fills a batch with one notice, or with acknowledgements alone.
    fn fill_from_owed(&mut self, call: Call<'_>, acks: Acks, batch: &mut Batch<'_>) {
        if !self.shared.notices.is_empty()
            && let Some(Notice { path, packet, len }) = self.shared.notices.pop_front()
        {
            batch.slot(len).copy_from_slice(&packet[..len]);
            batch.push(&self.shared.way(path), len, FlushIcrc::Standard);
            return;
        }
        if acks == Acks::Hold {
            return;
        }
        let all = acks == Acks::Flush;
        while batch.is_empty()
            && let Some(index) = self.shared.schedule.pop_owing(call.now, all)
        {
            let Some(peer) = self.shared.peers.get_mut(index) else { continue };
            peer.owed = false;
            // Acknowledgements may have left behind data since this entry was made. Those that are owed now may be newer than it.
            if all || is_overdue(peer.owed_since, call.now) {
                self.add_owed(call, index, batch);
            }
            if let Some(peer) = self.shared.peers.get_mut(index)
                && !peer.owing.is_empty()
            {
                peer.owed = true;
                self.shared.schedule.owing.push_back((peer.owed_since, index));
            }
        }
    }

    /// Fills a batch with requests and answers, and then with acknowledgements owed to their destination.
    fn fill_from_sources(&mut self, call: Call<'_>, batch: &mut Batch<'_>) {
        while batch.is_empty() {
            call_reader(&mut self.qps, &mut self.shared);
            let waiting = self.shared.schedule.waiting;
            if waiting == 0 {
                return;
            }
            let lane = self.shared.lanes.next(waiting);
            let mut several = waiting & (waiting - 1) != 0;
            match self.shared.schedule.pop(lane) {
                Some(Source::Peer(index)) => {
                    self.fill_from_peer(call, (lane, index), batch);
                    if !batch.is_empty() {
                        self.add_owed(call, index, batch);
                        several |=
                            self.shared.peers.get(index).is_some_and(|peer| peer.is_awaited_beside(lane));
                    }
                }
                Some(Source::Qp(qpn)) => self.fill_from_datagrams(call, (lane, qpn), batch),
                None => {}
            }
            if several && !batch.is_empty() {
                self.shared.lanes.sent(lane, batch.len());
            }
        }
    }

    /// The finished batch, counted; `None` if it is empty.
    // Inlined, because a call would copy the batch.
    #[inline(always)]
    fn counted(&mut self, batch: Batch<'_>) -> Option<Transmit> {
        let transmit = batch.finish()?;
        let (packets_sent, bytes_sent) = (transmit.count as u64, transmit.len as u64);
        let traffic = TrafficStats { packets_sent, batches_sent: 1, bytes_sent, ..TrafficStats::default() };
        self.shared.count((transmit.src, places::MOST), transmit.lane, traffic);
        Some(transmit)
    }

    /// Adds packets of the queue pairs in a lane that are connected to one destination.
    fn fill_from_peer(&mut self, call: Call<'_>, (lane, index): (u8, usize), batch: &mut Batch<'_>) {
        let Self { qps, shared, .. } = self;
        let Some(peer) = shared.peers.get_mut(index) else { return };
        let lists = peer.lane(lane);
        lists.scheduled = false;
        for list in lists.order() {
            loop {
                if shared.reads.turn.is_some() {
                    call_reader(qps, shared);
                }
                let Some(peer) = shared.peers.get_mut(index) else { return };
                let Some(qpn) = peer.next(lane, list, batch.is_empty()) else { break };
                let connected = |qp: &&mut QueuePair| qp.peer == Some(index);
                let Some(qp) = qps.get_mut(qpn).filter(connected) else { continue };
                if !leave(list, qp) {
                    continue;
                }
                let before = batch.len();
                let carried = shared.fill_from_qp(call, qp, list, batch);
                let in_turn = list == List::Line || shared.reads.turn == Some(qpn);
                let first = in_turn && batch.len() == before;
                if list == List::Line
                    && batch.len() > before
                    && let Some(peer) = shared.peers.get_mut(index)
                {
                    peer.window.line_had_turn();
                }
                match carried {
                    Carried::Full => {
                        // Other destinations send before this one sends again. Then its other queue pairs are first.
                        shared.enlist_again(qp, list, first, call.now);
                        shared.schedule_peer(lane, index);
                        return;
                    }
                    Carried::Waits(wait) => {
                        shared.wait(qp, wait, first, call.now);
                        if (wait, list) == (Wait::Room, List::Line) {
                            break;
                        }
                    }
                    Carried::Nothing | Carried::Done => {}
                }
                if list != List::Answers {
                    shared.pass_turn(qpn, first && qp.waits == Some(Wait::Responses));
                }
            }
        }
    }

    /// Adds datagrams of a queue pair until one is in another lane.
    fn fill_from_datagrams(&mut self, call: Call<'_>, (lane, qpn): (u8, Qpn), batch: &mut Batch<'_>) {
        // A queue pair that has been connected since it was listed here is now in a list of its destination.
        let Some(qp) = self.qps.get_mut(qpn).filter(|qp| qp.peer.is_none()) else { return };
        while let Some((av, dest)) = qp.next_destination() {
            let way = self.shared.way(self.shared.path(&av, dest));
            if way.path.lane != lane {
                self.shared.schedule.push(way.path.lane, Source::Qp(qpn));
                return;
            }
            let plan = qp.plan(self.shared.config.port_mtu, false);
            match self.shared.carry_out(call, qp, &plan, (&way, List::Ready, 0), batch) {
                Carried::Done => {}
                Carried::Full => {
                    self.shared.schedule.push(lane, Source::Qp(qpn));
                    return;
                }
                Carried::Nothing | Carried::Waits(_) => break,
            }
        }
        qp.ready = false;
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
            let plan = qp.plan_answer();
            if let Plan::Send(_) = plan
                && let Some(path) = qp.path
            {
                let (way, before) = (self.shared.way(path), batch.len());
                let carried = self.shared.carry_out(call, qp, &plan, (&way, List::Answers, 0), batch);
                if !matches!(carried, Carried::Done) {
                    return;
                }
                if batch.len() == before && qp.must_answer() {
                    // No packet was written: another answer is due instead, which leaves with the data.
                    self.shared.make_answering(qp);
                } else if qp.has_answer() {
                    continue;
                }
            }
            qp.owes = false;
            if let Some(peer) = self.shared.peers.get_mut(index) {
                peer.owing.pop_front();
            }
        }
    }
}

/// Marks a queue pair that was just taken from `list` as not in that list. False if it was already marked so: its entry in the list was
/// out of date.
fn leave(list: List, qp: &mut QueuePair) -> bool {
    match list {
        List::Answers => core::mem::replace(&mut qp.answering, false),
        List::Ready => core::mem::replace(&mut qp.ready, false),
        List::Line => qp.waits.take_if(|wait| *wait == Wait::Room).is_some(),
    }
}

impl Shared {
    /// Puts a queue pair that has more to send into its list again. It is the last one there, or the `first` of the line if it had its
    /// turn and sent nothing in this batch.
    fn enlist_again(&mut self, qp: &mut QueuePair, list: List, first: bool, now: Instant) {
        match list {
            List::Answers => self.make_answering(qp),
            List::Ready => self.make_ready(qp),
            List::Line => self.wait(qp, Wait::Room, first, now),
        }
    }

    /// Adds packets of a connected queue pair until it has no more or no more fit: answers if it was taken from the list of answers, else
    /// requests. Returns why it ended.
    fn fill_from_qp(
        &mut self,
        call: Call<'_>,
        qp: &mut QueuePair,
        list: List,
        batch: &mut Batch<'_>,
    ) -> Carried {
        let EndpointConfig { port_mtu, parts, .. } = self.config;
        let Some(path) = qp.path else { return Carried::Nothing };
        let (way, start) = (self.way(path), batch.len());
        loop {
            let plan = match list {
                List::Answers if qp.must_answer() => qp.plan_answer(),
                List::Answers => Plan::Nothing,
                List::Ready | List::Line => qp.plan(port_mtu, parts),
            };
            match self.carry_out(call, qp, &plan, (&way, list, start), batch) {
                Carried::Done => {}
                end => return end,
            }
        }
    }

    /// Carries out what a queue pair plans (see [`crate::qp::plan`]): admission grants what the packet needs, the batch provides its
    /// space, and the queue pair commits the plan.
    fn carry_out(
        &mut self,
        call: Call<'_>,
        qp: &mut QueuePair,
        plan: &Plan,
        (way, list, start): (&Way, List, usize),
        batch: &mut Batch<'_>,
    ) -> Carried {
        let Plan::Send(draft) = plan else {
            if *plan == Plan::Nothing {
                return Carried::Nothing;
            }
            qp.commit(&mut self.lend(qp.peer, call.now, call.memory), plan, Grant::default(), &mut []);
            self.settle_failure(qp);
            return Carried::Done;
        };
        let len = draft.len();
        let mut grant = Grant::default();
        let mut asks = false;
        if let (Need::Room { cost, next, .. }, Some(pacer)) = (draft.need, &mut qp.pacer) {
            if pacer.is_full(&qp.holding, cost) {
                return Carried::Waits(Wait::Answer);
            }
            if pacer.holds_back(call.now) {
                self.watch(qp);
                return Carried::Waits(Wait::Pace);
            }
            asks = pacer.asks(&qp.holding, cost, next);
        }
        if draft.need != Need::Nothing {
            let in_turn = match draft.need {
                Need::Responses(_) => self.reads.turn == Some(qp.common.qpn),
                Need::Nothing | Need::Room { .. } => list == List::Line,
            };
            let spent = (batch.len() - start) as u32;
            let (waiting, awaited) = match qp.peer.and_then(|index| self.peers.get_mut(index)) {
                Some(peer) if peer.is_awaited() => (peer.lane(way.path.lane).line.len(), true),
                _ => (0, false),
            };
            let spot = Spot { in_turn, spent, waiting, awaited, ..batch.spot(len, way.max_segments) };
            grant = match self.lend(qp.peer, call.now, call.memory).admit(&draft.need, &qp.holding, spot) {
                Ok(grant) => grant,
                Err(wait) => return Carried::Waits(wait),
            };
        }
        grant.ask |= asks;
        if !batch.has_room_for(&way.path, len) {
            return Carried::Full;
        }
        let mut ctx = self.lend(qp.peer, call.now, call.memory);
        if qp.commit(&mut ctx, plan, grant, batch.slot(len)) {
            let flush = if draft.opcode == Opcode::RC_FLUSH {
                qp.flush_icrc = self.hosts.quirks(way.path.dst).flush_icrc();
                qp.flush_icrc
            } else {
                FlushIcrc::Standard
            };
            batch.push(way, len, flush);
        }
        if let (Need::Room { cost, .. }, Some(pacer)) = (draft.need, &mut qp.pacer) {
            pacer.sent(call.now, cost);
        }
        if draft.half == Half::Requester {
            self.watch(qp);
        }
        self.settle_failure(qp);
        Carried::Done
    }

    /// What all packets of a batch over `path` have in common.
    fn way(&self, path: Path) -> Way {
        let config = &self.config;
        let usual = (config.max_segments, config.ident);
        let (max_segments, ident) = *self.route_limits.get(&(path.dst, path.ifindex)).unwrap_or(&usual);
        Way { path, max_segments: max_segments.into(), ident }
    }
}
