//! A queue pair as the endpoint drives it. It hands packets, work requests and time to the two halves of its service
//! (`Machine`), and goes to the error state when a half reports a failure.

use super::{
    PostError, QpAttrs, QpConfig, QpState, QpType,
    common::{Ctx, QpCommon, Scene, SendQueue, SendWqe},
    flow::{Holding, ReadBudget},
    pacing::{Pacer, Pacing},
    plan::{Grant, Half, Plan, Wait},
    rc::{completer::Failure, requester::Requester, responder::Responder},
    reason::Reason,
    sender::Sender,
    sq::MAX_MESSAGE,
    uc_receiver::UcReceiver,
    ud_receiver,
};
use crate::{
    num::{Pkey, Psn, Qpn},
    time::Instant,
    wire::{Encapsulation, FlushIcrc, GRH_LEN, Packet, Service, icrc::Route},
    work::{AddressVector, AsyncEvent, Event, RecvWr, SendOp, SendWr, SrqId, WcStatus},
};
use alloc::{boxed::Box, vec::Vec};
use core::net::IpAddr;

/// The network headers of the packets that a queue pair sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub src_port: u16,
    pub ifindex: u32,
    pub tos: u8,
    pub hop_limit: u8,
    pub encapsulation: Encapsulation,
    /// Virtual lane, 0 to 14.
    pub lane: u8,
}

impl Path {
    /// Whether a packet that came by this route came from the other end of the path.
    fn leads_to(&self, from: &Route) -> bool {
        self.encapsulation == from.encapsulation && self.dst == from.src && self.src == from.dst
    }

    /// The fields that the ICRC covers.
    pub(crate) const fn route(&self) -> Route {
        Route { src: self.src, dst: self.dst, src_port: self.src_port, encapsulation: self.encapsulation }
    }
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "most queue pairs are RC")]
enum Machine {
    Rc { requester: Requester, responder: Responder },
    Uc { sender: Sender, receiver: UcReceiver },
    Ud { sender: Sender },
}

/// A queue pair.
///
/// It is one allocation, and the fields that every packet touches lie together. When thousands of queue pairs are used in turn,
/// the time of a message is the time to fetch its cache lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QueuePair {
    sq: SendQueue,
    /// What it has in the two shared buffers (see `flow`).
    pub holding: Holding,
    /// The path to the peer. Connected services only.
    pub path: Option<Path>,
    /// Whether it is in a list of queue pairs that may have requests to send.
    pub ready: bool,
    /// Whether it is in the list of queue pairs that have answers to send.
    pub answering: bool,
    /// What it waits for in a line (see `flow`). Meanwhile it is in no list with its requests.
    pub waits: Option<Wait>,
    /// Whether it is in a list of queue pairs that owe an acknowledgement.
    pub owes: bool,
    /// The queue pair to which the program posted next, after it last posted to this one.
    pub follower: Qpn,
    /// Index of the destination socket's entry. Connected services only.
    pub peer: Option<usize>,
    /// The earliest deadline that the endpoint's timer list holds for this queue pair.
    pub timer: Option<Instant>,
    machine: Machine,
    pub common: QpCommon,
    /// A later deadline that is in the timer list, too.
    pub later: Option<Instant>,
    /// When the last CNP was sent to the peer.
    pub notified: Option<Instant>,
    /// Paces the requests, if the queue pair is paced.
    pub pacer: Option<Box<Pacer>>,
    /// The form of ICRC that the latest FLUSH was sent with.
    pub flush_icrc: FlushIcrc,
}

impl QueuePair {
    pub(crate) fn new(qpn: Qpn, config: QpConfig) -> Self {
        let machine = match config.qp_type {
            QpType::Rc | QpType::XrcInitiator | QpType::XrcTarget => {
                Machine::Rc { requester: Requester::default(), responder: Responder::default() }
            }
            QpType::Uc => Machine::Uc { sender: Sender::default(), receiver: UcReceiver::default() },
            QpType::Ud | QpType::Gsi => Machine::Ud { sender: Sender::default() },
        };
        Self {
            common: QpCommon::new(qpn, config),
            sq: SendQueue::default(),
            holding: Holding::default(),
            machine,
            path: None,
            follower: qpn,
            peer: None,
            ready: false,
            answering: false,
            waits: None,
            owes: false,
            notified: None,
            pacer: None,
            flush_icrc: FlushIcrc::Standard,
            timer: None,
            later: None,
        }
    }

    /// The PSN of the next packet to be sent, and the PSN expected next.
    pub(crate) fn psns(&self) -> (Psn, Psn) {
        match &self.machine {
            Machine::Rc { requester, responder } => (requester.next, responder.expected),
            Machine::Uc { sender, receiver } => (sender.next, receiver.expected),
            Machine::Ud { sender } => (sender.next, self.common.attrs.rq_psn),
        }
    }

    /// Whether a packet may reach the halves of the service. If not, counts the reason. Queue pair 1 accepts the partitions of all `tables`,
    /// because every device of the process uses it. It also accepts limited members where it is one itself, so that the connection manager
    /// can tell them why it refuses them.
    pub(crate) fn accepts(&mut self, packet: &Packet<'_>, from: &Route, tables: &[Vec<Pkey>]) -> bool {
        let common = &mut self.common;
        let service = match common.config.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud | QpType::Gsi => Service::Ud,
            QpType::XrcInitiator | QpType::XrcTarget => Service::Xrc,
        };
        let ready = match common.attrs.state {
            QpState::Rtr => packet.info.is_request(),
            QpState::Rts | QpState::Sqd | QpState::Sqe => true,
            QpState::Reset | QpState::Init | QpState::Error => false,
        };
        let pkey = packet.bth.pkey;
        let in_tables = || tables.iter().flatten().any(|own| own.partition() == pkey.partition());
        let serves_all = common.config.qp_type == QpType::Gsi && pkey.partition() != 0;
        let member = pkey.matches(common.pkey) || serves_all && in_tables();
        let stats = &mut common.stats;
        let wrong_way = match common.config.qp_type {
            QpType::XrcInitiator => packet.info.is_request(),
            QpType::XrcTarget => !packet.info.is_request(),
            _ => false,
        };
        let drop = if packet.info.service != service || wrong_way {
            &mut stats.dropped_service
        } else if !ready {
            &mut stats.dropped_state
        } else if let Some(path) = self.path.as_ref().filter(|path| !path.leads_to(from)) {
            let addresses = (path.src, path.dst) != (from.dst, from.src);
            if addresses { &mut stats.dropped_address } else { &mut stats.dropped_gid_type }
        } else if !member {
            &mut stats.dropped_pkey
        } else {
            stats.packets_received += 1;
            return true;
        };
        *drop += 1;
        false
    }

    /// Processes a packet that [`Self::accepts`] accepted and whose ICRC is right. `grh`: the area in front of a datagram.
    pub(crate) fn handle(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>, grh: &[u8; GRH_LEN]) {
        if packet.info.is_request() {
            self.common.stats.bytes_received += packet.payload.len() as u64;
        }
        let refused = match &mut self.machine {
            Machine::Rc { responder, .. } if packet.info.is_request() => {
                responder.handle(&mut self.common, ctx, packet)
            }
            Machine::Rc { requester, .. } => {
                let mut scene =
                    Scene { qp: &mut self.common, sq: &mut self.sq, holding: &mut self.holding, ctx };
                let result = requester.handle(&mut scene, packet);
                if Requester::ends(&mut scene, result) {
                    self.enter_error(ctx);
                }
                Ok(())
            }
            Machine::Uc { receiver, .. } => receiver.handle(&mut self.common, ctx, packet),
            Machine::Ud { .. } => ud_receiver::receive(&mut self.common, ctx, packet, grh),
        };
        if let Err(violation) = refused {
            self.common.note_refused(Reason::of_packet(packet, violation));
            self.enter_error(ctx);
        }
        self.check_drained(ctx);
    }

    /// Queues all of the send requests or, if one is refused, none.
    ///
    /// # Errors
    /// The index of the refused request, and the reason.
    pub(crate) fn post_send_all(
        &mut self,
        ctx: &mut Ctx<'_>,
        list: &[SendWr<'_>],
        port_mtu: u32,
    ) -> Result<(), (usize, PostError)> {
        for (index, wr) in list.iter().enumerate() {
            if let Err(reason) = self.queue_send(wr, port_mtu) {
                self.sq.withdraw(index);
                return Err((index, reason));
            }
        }
        if matches!(self.common.state(), QpState::Error | QpState::Sqe) {
            self.sq.flush(&self.common, ctx);
        }
        Ok(())
    }

    fn queue_send(&mut self, wr: &SendWr<'_>, port_mtu: u32) -> Result<(), PostError> {
        let state = self.common.state();
        if !matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error) {
            return Err(PostError::State(state));
        }
        let allowed = match self.common.config.qp_type {
            QpType::Rc | QpType::XrcInitiator => true,
            QpType::XrcTarget => false,
            QpType::Uc => matches!(
                wr.op,
                SendOp::Send
                    | SendOp::SendImm(_)
                    | SendOp::Write(_)
                    | SendOp::WriteImm(..)
                    | SendOp::BindWindow(_)
                    | SendOp::LocalInvalidate(_)
            ),
            QpType::Ud | QpType::Gsi => {
                matches!(wr.op, SendOp::Send | SendOp::SendImm(_)) && wr.dest.is_some()
            }
        };
        if !allowed {
            return Err(PostError::Operation);
        }
        let is_datagram = matches!(self.machine, Machine::Ud { .. });
        let limit = if is_datagram { u64::from(port_mtu) } else { MAX_MESSAGE };
        self.sq.post(&self.common, wr, limit)
    }

    /// Queues a receive request.
    pub(crate) fn post_recv(&mut self, ctx: &mut Ctx<'_>, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.common.state() == QpState::Reset {
            return Err(PostError::State(QpState::Reset));
        }
        if self.common.config.srq.is_some() || self.common.config.qp_type.is_xrc() {
            return Err(PostError::Operation);
        }
        self.common.rq.post(wr)?;
        if self.common.state() == QpState::Error {
            self.common.flush_recv(ctx);
        }
        Ok(())
    }

    /// The next step of the requests. `parts`: whether WRITEs and READs may be sent as several messages.
    pub(crate) fn plan(&self, port_mtu: u32, parts: bool) -> Plan {
        if !self.may_send() {
            return Plan::Nothing;
        }
        match &self.machine {
            Machine::Rc { requester, .. } => requester.plan(&self.common, &self.sq, parts),
            Machine::Uc { sender, .. } | Machine::Ud { sender } => {
                sender.plan(&self.common, &self.sq, port_mtu)
            }
        }
    }

    /// The next answer. This includes an acknowledgement that may still wait for other packets to share a batch with.
    pub(crate) fn plan_answer(&self) -> Plan {
        let Machine::Rc { responder, .. } = &self.machine else { return Plan::Nothing };
        responder.plan(&self.common).map_or(Plan::Nothing, Plan::Send)
    }

    /// Whether every request was sent (reliable connections), or none is left (others), so that there is none to plan.
    pub(crate) fn has_sent_all(&self) -> bool {
        match &self.machine {
            Machine::Rc { requester, .. } => requester.has_sent_all(&self.sq),
            _ => self.sq.ring.is_empty(),
        }
    }

    /// Whether there is an answer that must not wait for other packets.
    pub(crate) fn must_answer(&self) -> bool {
        matches!(&self.machine, Machine::Rc { responder, .. } if !responder.may_wait())
    }

    /// Whether sent requests are unanswered. Reliable connections only.
    pub(crate) fn has_unanswered(&self) -> bool {
        matches!(&self.machine, Machine::Rc { requester, .. } if requester.has_outstanding())
    }

    /// The virtual lane of the packets to the peer; 0 without a path.
    pub(crate) fn lane(&self) -> u8 {
        self.path.map_or(0, |path| path.lane)
    }

    fn may_send(&self) -> bool {
        matches!(self.common.state(), QpState::Rts | QpState::Sqd)
    }

    /// Whether there is an answer. This includes an acknowledgement that may still wait.
    pub(crate) fn has_answer(&self) -> bool {
        matches!(&self.machine, Machine::Rc { responder, .. } if responder.has_answer())
    }

    /// Destination of the next datagram. Datagram services only.
    pub(crate) fn next_destination(&self) -> Option<(AddressVector, Qpn)> {
        self.sq.dests.front().map(|dest| (dest.av, dest.remote_qpn))
    }

    /// Carries out `plan`, for which admission gave `grant`. A packet is written into `out`, which has the length of the packet.
    /// False if there is no packet.
    pub(crate) fn commit(&mut self, ctx: &mut Ctx<'_>, plan: &Plan, grant: Grant, out: &mut [u8]) -> bool {
        let mut scene = Scene { qp: &mut self.common, sq: &mut self.sq, holding: &mut self.holding, ctx };
        let (emitted, failed) = match (&mut self.machine, plan) {
            (_, Plan::Nothing) => (false, false),
            (Machine::Rc { responder, .. }, Plan::Send(draft)) if draft.half == Half::Responder => {
                let emitted = responder.commit(scene.qp, scene.ctx, draft, out);
                (emitted, responder.take_failure().is_some())
            }
            (Machine::Rc { requester, .. }, plan) => {
                let emitted = match plan {
                    Plan::Send(draft) => requester.commit(&mut scene, draft, grant, out),
                    Plan::Fail(status) => requester.break_off((*status).into()),
                    _ => requester.run_local(&mut scene),
                };
                if !emitted {
                    requester.complete_answered(&mut scene);
                }
                (emitted, !emitted && Requester::ends(&mut scene, requester.check_broken()))
            }
            (Machine::Uc { sender, .. } | Machine::Ud { sender }, plan) => {
                let done = match plan {
                    Plan::Send(draft) => sender.commit(&mut scene, draft, out),
                    Plan::Fail(status) => Err(*status),
                    _ => Sender::run_local(&mut scene),
                };
                if let Err(status) = done {
                    self.enter_send_error(ctx, status);
                }
                (done == Ok(true), false)
            }
        };
        if failed {
            self.enter_error(ctx);
        }
        self.check_drained(ctx);
        emitted
    }

    /// When to call `handle_timeout`.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let Machine::Rc { requester, .. } = &self.machine else { return None };
        if !self.may_send() {
            return None;
        }
        let pace = self.pacer.as_ref().and_then(|pacer| pacer.deadline());
        match (requester.retry.next_deadline(), pace) {
            (Some(retry), Some(pace)) => Some(retry.min(pace)),
            (retry, pace) => retry.or(pace),
        }
    }

    /// Paces the queue pair from now on. Has no effect on other services than reliable connections.
    pub(crate) fn pace(&mut self, pacing: Pacing) {
        if let Machine::Rc { requester, .. } = &mut self.machine {
            requester.retry.timing = pacing.timing;
            self.pacer = Some(Box::new(Pacer::new(pacing)));
        }
    }

    /// Passes a newly measured round trip to the pacer.
    pub(crate) fn tell_pacer(&mut self, now: Instant) {
        if let Some(pacer) = &mut self.pacer
            && let Machine::Rc { requester, .. } = &mut self.machine
            && let Some(trip) = requester.retry.take_trip()
        {
            pacer.pacing.control.on_round_trip(now, trip);
        }
    }

    /// Time passed. If the ACK timeout of a FLUSH ran out, returns the form of ICRC that the FLUSH was sent with.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) -> Option<FlushIcrc> {
        let Machine::Rc { requester, .. } = &mut self.machine else { return None };
        let now = ctx.now;
        if let Some(pacer) = &mut self.pacer {
            pacer.end_wait(now);
        }
        let mut scene = Scene { qp: &mut self.common, sq: &mut self.sq, holding: &mut self.holding, ctx };
        let flushes = matches!(scene.sq.ring.front(), Some(SendWqe { op: SendOp::Flush { .. }, .. }));
        let timeouts = scene.qp.stats.timeouts;
        let result = requester.handle_timeout(&mut scene, now);
        if Requester::ends(&mut scene, result) {
            self.enter_error(ctx);
        }
        (flushes && self.common.stats.timeouts != timeouts).then_some(self.flush_icrc)
    }

    /// Stores the attributes after a modify call that the table allows, and acts on the transition.
    pub(crate) fn apply(&mut self, ctx: &mut Ctx<'_>, next: QpAttrs) {
        let before = self.common.attrs.state;
        if next.state == QpState::Error && before != QpState::Error {
            self.common.attrs = QpAttrs { state: before, ..next };
            self.enter_error(ctx);
            return;
        }
        self.common.attrs = next;
        match (before, next.state) {
            (_, QpState::Reset) => self.reset(ctx),
            (QpState::Init, QpState::Rtr) => match &mut self.machine {
                Machine::Rc { responder, .. } => responder.start(&self.common),
                Machine::Uc { receiver, .. } => receiver.start(&self.common),
                Machine::Ud { .. } => {}
            },
            (QpState::Rtr, QpState::Rts) => match &mut self.machine {
                Machine::Rc { requester, .. } => requester.start(&self.common),
                Machine::Uc { sender, .. } | Machine::Ud { sender } => sender.start(&self.common),
            },
            (QpState::Rts, QpState::Sqd) => {
                self.common.draining = true;
                self.check_drained(ctx);
            }
            _ => {}
        }
    }

    /// Whether the send queue has drained, so that SQD may be left.
    pub(crate) fn is_drained(&self) -> bool {
        match &self.machine {
            Machine::Rc { requester, .. } => requester.is_drained(),
            Machine::Uc { sender, .. } | Machine::Ud { sender } => sender.is_drained(),
        }
    }

    fn check_drained(&mut self, ctx: &mut Ctx<'_>) {
        if self.common.state() != QpState::Sqd || !self.common.draining || !self.is_drained() {
            return;
        }
        self.common.draining = false;
        if self.common.attrs.sqd_notify {
            ctx.events.push_back(Event::Async(AsyncEvent::SqDrained(self.common.qpn)));
        }
    }

    /// The oldest request of an unreliable service could not be sent. It fails, the others are flushed, and nothing more is sent
    /// until the program leaves this state. Packets are received as before (IBTA vol. 1, 10.3.1.5: send queue error).
    fn enter_send_error(&mut self, ctx: &mut Ctx<'_>, status: WcStatus) {
        let mut scene = Scene { qp: &mut self.common, sq: &mut self.sq, holding: &mut self.holding, ctx };
        Failure::from(status).complete(&mut scene);
        self.common.attrs.state = QpState::Sqe;
        self.sq.flush(&self.common, ctx);
        if let Machine::Uc { sender, .. } | Machine::Ud { sender } = &mut self.machine {
            sender.abandon();
        }
    }

    fn reset(&mut self, ctx: &mut Ctx<'_>) {
        self.silence(ctx);
        let fresh = Self::new(self.common.qpn, self.common.config);
        let QpCommon { attrs, stats, pkey_table, .. } = self.common;
        self.common = QpCommon { attrs, stats, pkey_table, ..fresh.common };
        self.sq = fresh.sq;
        self.machine = fresh.machine;
        if let (Some(pacer), Machine::Rc { requester, .. }) = (&mut self.pacer, &mut self.machine) {
            pacer.restart();
            requester.retry.timing = pacer.pacing.timing;
        }
    }

    /// A shared receive queue was destroyed. An XRC target forgets it.
    pub(crate) fn forget_srq(&mut self, id: SrqId) {
        if self.common.named.is_some_and(|named| named.srq == id)
            && let Machine::Rc { responder, .. } = &mut self.machine
        {
            responder.inbound.forget_receive();
            self.common.named = None;
        }
    }

    /// Forgets what is in flight, also in the accounts of the shared buffers. Called before it is destroyed, reset or in error.
    pub(crate) fn silence(&mut self, ctx: &mut Ctx<'_>) {
        if let Machine::Rc { requester, .. } = &mut self.machine {
            let mut scene = Scene { qp: &mut self.common, sq: &mut self.sq, holding: &mut self.holding, ctx };
            requester.stop(&mut scene);
        }
    }

    /// The same before the queue pair gets another destination. The requests stay, and are not sent again by this.
    pub(crate) fn let_go(&mut self, ctx: &mut Ctx<'_>) {
        self.holding.given_up(ctx.window, ctx.reads);
        if let Machine::Rc { requester, .. } = &mut self.machine {
            requester.lapse();
        }
    }

    /// Its READ responses did not come in time. From now on they do not count in the budget (see `flow`).
    pub(crate) fn lapse(&mut self, reads: &mut ReadBudget) {
        self.holding.lapse(reads);
        if let Machine::Rc { requester, .. } = &mut self.machine {
            requester.lapse();
        }
    }

    /// Bytes of READ responses to come, summed over the READs.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn responses(&self) -> u64 {
        if let Machine::Rc { requester, .. } = &self.machine { requester.responses() } else { 0 }
    }

    /// Enters the error state: everything that is left is flushed.
    pub(crate) fn enter_error(&mut self, ctx: &mut Ctx<'_>) {
        self.common.attrs.state = QpState::Error;
        self.silence(ctx);
        self.sq.flush(&self.common, ctx);
        match &mut self.machine {
            Machine::Rc { responder, .. } => responder.flush(&mut self.common, ctx),
            Machine::Uc { receiver, .. } => receiver.flush(&mut self.common, ctx),
            Machine::Ud { .. } => {}
        }
        self.common.flush_recv(ctx);
        if self.common.config.srq.is_some() && !self.common.last_wqe_raised {
            self.common.last_wqe_raised = true;
            ctx.events.push_back(Event::Async(AsyncEvent::LastWqeReached(self.common.qpn)));
        }
    }
}
