//! Creates, changes and destroys queue pairs and shared receive queues.

use super::{ACK_LEN, Endpoint, MAX_SRQS, Notice, ObjectError, Shared, peer::Peer, place_of};
use crate::{
    memory::{Memory, NoMemory},
    num::{Psn, Qpn},
    qp::{
        ModifyError, Pacing, Path, PostError, QpAttrs, QpChange, QpConfig, QpState, QpType, QueuePair,
        Reasons, apply,
        flow::{Holding, Window},
        plan::{Grant, Plan},
        rq::{RecvQueue, Srq, XrcSrq},
    },
    stats::QpStats,
    time::Instant,
    wire::Encapsulation,
    work::{AddressVector, AsyncEvent, CqId, Event, GidType, PdId, SrqId, XrcdId},
};
use core::net::IpAddr;

impl Endpoint {
    /// Makes a queue pair in RESET (ibv_create_qp).
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn create_qp(&mut self, config: QpConfig) -> Result<Qpn, ObjectError> {
        let target = config.qp_type == QpType::XrcTarget;
        if target != config.xrcd.is_some() || config.qp_type.is_xrc() && config.srq.is_some() {
            return Err(ObjectError::Xrc);
        }
        if let Some(srq) = config.srq
            && self.shared.srqs.get(srq.0 as usize).is_none_or(|srq| srq.xrc.is_some())
        {
            return Err(ObjectError::NoSuchObject);
        }
        let qpn = if config.qp_type == QpType::Gsi {
            if self.qps.get(Qpn::GSI).is_some() {
                return Err(ObjectError::GsiTaken);
            }
            Qpn::GSI
        } else {
            self.qps.free_number().ok_or(ObjectError::Exhausted)?
        };
        self.qps.insert(QueuePair::new(qpn, config));
        Ok(qpn)
    }

    /// Destroys a queue pair (ibv_destroy_qp). Its work requests are dropped without completions. An acknowledgement that it owes still
    /// leaves with the next `poll_transmit`.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`].
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ObjectError> {
        let mut qp = self.qps.remove(qpn).ok_or(ObjectError::NoSuchObject)?;
        self.shared.places.retire(place_of(&qp), qp.common.stats);
        self.shared.last_answer(&mut qp);
        self.shared.leave_peer(&mut qp);
        self.shared.groups.retain(|_, members| {
            members.retain(|member| *member != qpn);
            !members.is_empty()
        });
        Ok(())
    }

    /// Changes a queue pair (ibv_modify_qp).
    ///
    /// # Errors
    /// [`ModifyError`]; nothing was changed.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        change: &QpChange,
        memory: &dyn Memory,
    ) -> Result<(), ModifyError> {
        let qp = self.qps.get_mut(qpn).ok_or(ModifyError::NoSuchQp)?;
        let next = apply(qp.common.config.qp_type, &qp.common.attrs, change)?;
        let before = qp.common.attrs.state;
        if before == QpState::Sqd && matches!(next.state, QpState::Rts) && !qp.is_drained() {
            return Err(ModifyError::Draining);
        }
        let pkey = self.shared.pkey_table(qp.common.pkey_table).get(usize::from(next.pkey_index)).copied();
        // The port's tables may have changed since it was set up. It can end all the same.
        let ends = matches!(next.state, QpState::Error | QpState::Reset);
        let pkey = pkey.or_else(|| ends.then_some(qp.common.pkey)).ok_or_else(|| ModifyError::Value {
            attribute: "PKEY_INDEX",
            value: u64::from(next.pkey_index),
            allowed: "an index of the port's partition table",
        })?;
        if let Some(av) = next.av.filter(|av| !ends && self.shared.lanes.of(av.service_level).is_none()) {
            return Err(ModifyError::Value {
                attribute: "AV",
                value: av.service_level.into(),
                allowed: "a service level that a virtual lane carries (sl2vl)",
            });
        }
        if next.state == QpState::Reset {
            self.shared.last_answer(qp);
        }
        qp.apply(&mut self.shared.lend(qp.peer, now, memory), next);
        qp.common.pkey = pkey;
        if next.state == QpState::Reset {
            self.shared.leave_peer(qp);
            qp.path = None;
        } else if let Some(av) = next.av
            && (change.av.is_some() || change.dest_qpn.is_some())
            && !matches!(qp.common.config.qp_type, QpType::Ud | QpType::Gsi)
        {
            let path = self.shared.path(&av, next.dest_qpn);
            if path.lane != qp.lane() {
                // It waits in the line of its old lane.
                self.shared.unwait(qp);
            }
            qp.path = Some(path);
            let key = (av.dst, next.dest_qpn.slot());
            if qp.peer.is_none_or(|index| self.shared.peers.get(index).is_none_or(|peer| peer.key != key)) {
                qp.let_go(&mut self.shared.lend(qp.peer, now, memory));
                self.shared.leave_peer(qp);
                qp.peer = Some(self.shared.join_peer(key));
                if qp.has_answer() {
                    self.shared.make_owing(qp, now);
                }
            }
        }
        self.shared.settle_failure(qp);
        self.shared.make_ready(qp);
        if qp.must_answer() {
            self.shared.make_answering(qp);
        }
        self.shared.offer_room(qp.peer);
        self.shared.watch(qp);
        Ok(())
    }

    /// Paces a reliable connection from now on. The pacer takes the place of the window to its destination. (The window still counts
    /// what is under way; see [`EndpointConfig::send_window`](super::EndpointConfig::send_window).) False if there is no queue pair of
    /// that number.
    pub fn pace(&mut self, qpn: Qpn, pacing: Pacing) -> bool {
        self.qps.get_mut(qpn).map(|qp| qp.pace(pacing)).is_some()
    }

    /// Bits per second at which a paced queue pair sends now.
    pub fn pace_of(&mut self, now: Instant, qpn: Qpn) -> Option<u64> {
        self.qps.get_mut(qpn)?.pacer.as_mut().map(|pacer| pacer.pacing.control.rate(now))
    }

    /// Present attributes and configuration (ibv_query_qp).
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<(QpAttrs, QpConfig)> {
        self.qps.get(qpn).map(|qp| (qp.common.attrs, qp.common.config))
    }

    /// Whether a queue pair is in SQD, and requests that it has begun are not completed yet (`sq_draining` of ibv_query_qp).
    #[must_use]
    pub fn is_draining(&self, qpn: Qpn) -> bool {
        self.qps.get(qpn).is_some_and(|qp| qp.common.state() == QpState::Sqd && !qp.is_drained())
    }

    /// Counters of a queue pair.
    #[must_use]
    pub fn qp_stats(&self, qpn: Qpn) -> Option<QpStats> {
        self.qps.get(qpn).map(|qp| qp.common.stats)
    }

    /// Why a queue pair last refused a request of its peer, and why its own request failed, since it was last reset. To be asked when
    /// [`Self::poll_event`] returns a completion in error or an event of a queue pair.
    #[must_use]
    pub fn reasons(&self, qpn: Qpn) -> Option<&Reasons> {
        self.qps.get(qpn)?.common.reasons.as_deref()
    }

    /// The PSN that a queue pair sends next, and the one that it expects next.
    #[must_use]
    pub fn psns(&self, qpn: Qpn) -> Option<(Psn, Psn)> {
        self.qps.get(qpn).map(QueuePair::psns)
    }

    /// How many queue pairs there are.
    #[must_use]
    pub const fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Makes a shared receive queue (ibv_create_srq).
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn create_srq(&mut self, pd: PdId, max_wr: u32, max_sge: u32) -> Result<SrqId, ObjectError> {
        if self.shared.srqs.len() >= MAX_SRQS as usize {
            return Err(ObjectError::Exhausted);
        }
        let queue = RecvQueue::new(max_wr, max_sge);
        Ok(SrqId(self.shared.srqs.insert(Srq { pd, queue, limit: 0, xrc: None }) as u32))
    }

    /// Makes a shared receive queue for the XRC targets of a domain, which use it when their peer names it. Its receives complete on `cq`
    /// (ibv_create_srq_ex with IBV_SRQT_XRC). Returns its ID here, and its number for the peer (ibv_get_srq_num).
    ///
    /// # Errors
    /// [`ObjectError`].
    pub fn create_xrc_srq(
        &mut self,
        pd: PdId,
        (domain, cq): (XrcdId, CqId),
        max_wr: u32,
        max_sge: u32,
    ) -> Result<(SrqId, u32), ObjectError> {
        let id = self.create_srq(pd, max_wr, max_sge)?;
        // There is a number for each of `MAX_SRQS` queues.
        let number = XrcSrq::number(self.shared.config.slot, id).ok_or(ObjectError::Exhausted)?;
        if let Some(srq) = self.shared.srqs.get_mut(id.0 as usize) {
            srq.xrc = Some(XrcSrq { domain, cq, number });
        }
        Ok((id, number))
    }

    /// Changes a shared receive queue's size or limit (ibv_modify_srq). If the limit is above what the queue holds, the event is raised at
    /// once.
    ///
    /// # Errors
    /// [`PostError::NoSuchQueue`], [`PostError::Full`] if more is queued than the new size, or [`PostError::Limit`].
    /// Nothing was changed then.
    pub fn modify_srq(
        &mut self,
        srq: SrqId,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), PostError> {
        let (id, armed) = (srq, limit.is_some());
        let srq = self.shared.srqs.get_mut(id.0 as usize).ok_or(PostError::NoSuchQueue)?;
        let (max_wr, limit) = (max_wr.unwrap_or(srq.queue.max_wr), limit.unwrap_or(srq.limit));
        if srq.queue.queue.len() > max_wr as usize {
            return Err(PostError::Full(max_wr));
        }
        if limit > max_wr {
            return Err(PostError::Limit(limit, max_wr));
        }
        (srq.queue.max_wr, srq.limit) = (max_wr, limit);
        if armed && srq.queue.queue.len() < limit as usize {
            srq.limit = 0;
            self.shared.events.push_back(Event::Async(AsyncEvent::SrqLimitReached(id)));
        }
        Ok(())
    }

    /// The most requests that a shared receive queue can hold, and its present limit (ibv_query_srq). The limit is 0 once the event was
    /// raised.
    #[must_use]
    pub fn query_srq(&self, srq: SrqId) -> Option<(u32, u32)> {
        self.shared.srqs.get(srq.0 as usize).map(|srq| (srq.queue.max_wr, srq.limit))
    }

    /// Destroys a shared receive queue (ibv_destroy_srq). XRC targets do not keep it in use: a message that is on its way into it is
    /// refused.
    ///
    /// # Errors
    /// [`ObjectError::Busy`] while queue pairs use it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ObjectError> {
        if !self.shared.srqs.contains(srq.0 as usize) {
            return Err(ObjectError::NoSuchObject);
        }
        let users = self.qps.iter().filter(|qp| qp.common.config.srq == Some(srq)).count();
        if users > 0 {
            return Err(ObjectError::Busy(users));
        }
        self.shared.srqs.remove(srq.0 as usize);
        self.qps.iter_mut().for_each(|qp| qp.forget_srq(srq));
        Ok(())
    }

    /// Has a datagram queue pair receive what is sent to a multicast group (ibv_attach_mcast). The caller joins the group on its socket.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`] for a queue pair that does not exist or is not a datagram one.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), ObjectError> {
        let qp = self.qps.get(qpn).filter(|qp| qp.common.config.qp_type == QpType::Ud);
        qp.ok_or(ObjectError::NoSuchObject)?;
        let members = self.shared.groups.entry(group).or_default();
        if !members.contains(&qpn) {
            members.push(qpn);
        }
        Ok(())
    }

    /// Undoes `attach_multicast` (ibv_detach_mcast).
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`] if it was not attached.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), ObjectError> {
        let members = self.shared.groups.get_mut(&group).ok_or(ObjectError::NoSuchObject)?;
        let at = members.iter().position(|member| *member == qpn).ok_or(ObjectError::NoSuchObject)?;
        members.swap_remove(at);
        if members.is_empty() {
            self.shared.groups.remove(&group);
        }
        Ok(())
    }
}

/// The type of GIDs that packets carried like this go to.
impl From<Encapsulation> for GidType {
    fn from(encapsulation: Encapsulation) -> Self {
        match encapsulation {
            Encapsulation::V1 => Self::RoceV1,
            Encapsulation::V2 | Encapsulation::Memory => Self::RoceV2,
        }
    }
}

impl Shared {
    /// The headers for packets to `dest` over `av`.
    pub(super) fn path(&self, av: &AddressVector, dest: Qpn) -> Path {
        let ports = &self.config.source_ports;
        let src_port = ports.get(usize::from(dest.slot()) % ports.len().max(1)).copied().unwrap_or(0xc000);
        let encapsulation = match av.gid_type {
            _ if self.config.memory => Encapsulation::Memory,
            GidType::RoceV1 => Encapsulation::V1,
            GidType::RoceV2 => Encapsulation::V2,
        };
        let lane = self.lane_of(av);
        Path {
            src: av.src,
            dst: av.dst,
            src_port,
            ifindex: av.ifindex,
            tos: self.lanes.class(lane, av.traffic_class),
            hop_limit: av.hop_limit,
            encapsulation,
            lane,
        }
    }

    /// The lane of packets over `av`. Service levels without a lane were refused before.
    pub(super) fn lane_of(&self, av: &AddressVector) -> u8 {
        self.lanes.of(av.service_level).unwrap_or(0)
    }

    /// A queue pair is about to be destroyed or reset. The acknowledgement that it owes still leaves.
    fn last_answer(&mut self, qp: &mut QueuePair) {
        let mut ctx = self.lend(qp.peer, Instant::ZERO, &NoMemory);
        qp.silence(&mut ctx);
        // What it has under way is given up here, which is no end of its draining.
        qp.common.draining = false;
        let plan = qp.plan_answer();
        let mut packet = [0; ACK_LEN];
        if let Some(path) = qp.path
            && matches!(&plan, Plan::Send(draft) if draft.len() == ACK_LEN)
            && qp.commit(&mut ctx, &plan, Grant::default(), &mut packet)
        {
            self.notices.push_back(Notice::new(path, &packet));
        }
    }

    fn join_peer(&mut self, key: (IpAddr, u8)) -> usize {
        self.reads.users += 1;
        if let Some(&index) = self.peer_index.get(&key)
            && let Some(peer) = self.peers.get_mut(index)
        {
            peer.window.users += 1;
            return index;
        }
        let (start, max) = self.config.send_window;
        let mut window = Window::new(start, max);
        window.users = 1;
        if let Some((streams, index)) = &self.config.streams {
            window = window.shared(streams.to(key.0, key.1), *index);
        }
        let index = self.peers.insert(Peer::new(key, window));
        self.peer_index.insert(key, index);
        index
    }

    /// Takes a queue pair from its destination, to which it has nothing in flight any more, and from all lists.
    fn leave_peer(&mut self, qp: &mut QueuePair) {
        self.unwait(qp);
        self.reads.unlist(qp.common.qpn, &mut qp.holding);
        qp.holding = Holding::default();
        (qp.ready, qp.answering, qp.owes) = (false, false, false);
        let Some(index) = qp.peer.take() else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        self.reads.users -= 1;
        peer.window.users -= 1;
        if peer.window.users == 0 {
            let peer = self.peers.remove(index);
            self.peer_index.remove(&peer.key);
            self.offer_room(None);
        } else {
            self.offer_room(Some(index));
        }
    }
}
