//! What every kind of queue pair has: identity, attributes, receive queue and counters. And what a queue pair may touch outside
//! itself during one call ([`Ctx`]).

use super::{
    attrs::{QpAttrs, QpConfig, QpState, QpType},
    flow::{Holding, ReadBudget, Window},
    reason::{Reason, Reasons},
    rq::{Named, RecvQueue, RecvWqe, Srq, XrcSrq},
    sq,
};
use crate::{
    memory::{Asker, Memory},
    num::{Pkey, Psn, Qpn},
    stats::QpStats,
    time::Instant,
    violation::Violation,
    wire::{Opcode, Packet, Syndrome},
    work::{AsyncEvent, Completion, Event, WcStatus},
};
use alloc::{boxed::Box, collections::VecDeque};
use slab::Slab;

/// What a queue pair may touch outside itself. It is lent for one call.
pub(crate) struct Ctx<'a> {
    pub now: Instant,
    pub memory: &'a dyn Memory,
    /// Completions and asynchronous events, in order.
    pub events: &'a mut VecDeque<Event>,
    pub srqs: &'a mut Slab<Srq>,
    /// The window to the queue pair's destination.
    pub window: &'a mut Window,
    /// Room for READ responses.
    pub reads: &'a mut ReadBudget,
}

/// What the transport notes about a request that it has begun to send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// First PSN.
    pub first_psn: Psn,
    /// PSNs it takes; 0 for local operations.
    pub psns: u32,
    /// Whether it is sent in parts, each of which is a message of its own.
    pub in_parts: bool,
}

/// The send queue with the notes of this transport.
pub(crate) type SendQueue = sq::SendQueue<Sent>;
/// A request in it.
pub(crate) type SendWqe = sq::SendWqe<Sent>;

/// What the sending half of a queue pair may touch in one call.
pub(crate) struct Scene<'a, 'c> {
    pub qp: &'a mut QpCommon,
    pub sq: &'a mut SendQueue,
    pub holding: &'a mut Holding,
    pub ctx: &'a mut Ctx<'c>,
}

/// The parts of a queue pair that both halves use. The fields have this order because the addresses, at the start of the
/// attributes, and most counters are seldom read.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QpCommon {
    pub attrs: QpAttrs,
    pub qpn: Qpn,
    /// The partition key that `attrs.pkey_index` stands for.
    pub pkey: Pkey,
    /// Index of its P_Key table among those of the endpoint.
    pub pkey_table: u16,
    /// Whether COMM_EST was raised since RTR.
    pub established: bool,
    /// Whether LAST_WQE_REACHED was raised since the last reset.
    pub last_wqe_raised: bool,
    /// The queue pair went to SQD, and its send queue has not drained since.
    pub draining: bool,
    pub config: QpConfig,
    /// XRC targets: the shared receive queue that the latest request in sequence names.
    pub named: Option<Named>,
    pub stats: QpStats,
    /// Why requests were refused or failed, once that has happened.
    pub reasons: Option<Box<Reasons>>,
    /// Own receive queue; unused with a shared one.
    pub rq: RecvQueue,
}

impl QpCommon {
    pub(crate) fn new(qpn: Qpn, config: QpConfig) -> Self {
        Self {
            attrs: QpAttrs::default(),
            qpn,
            pkey: Pkey::DEFAULT,
            pkey_table: 0,
            established: false,
            last_wqe_raised: false,
            draining: false,
            config,
            named: None,
            stats: QpStats::default(),
            reasons: None,
            rq: RecvQueue::new(config.caps.max_recv_wr, config.caps.max_recv_sge),
        }
    }

    pub(crate) fn asker(&self) -> Asker {
        Asker { pd: self.named.map_or(self.config.pd, |named| named.pd), qpn: self.qpn }
    }

    /// The opcode of its reliable service (RC or XRC), given that of RC.
    pub(crate) const fn opcode(&self, rc: Opcode) -> Opcode {
        if self.config.qp_type.is_xrc() { rc.on(Opcode::XRC) } else { rc }
    }

    /// The shared receive queue that a request to an XRC target names; it must be in the target's domain. `None` for queue pairs
    /// of other kinds.
    pub(crate) fn find_named(&self, ctx: &Ctx<'_>, packet: &Packet<'_>) -> Result<Option<Named>, Violation> {
        if self.config.qp_type != QpType::XrcTarget {
            return Ok(None);
        }
        let found = self.config.xrcd.and_then(|xrcd| XrcSrq::find(ctx.srqs, xrcd, packet.ext.xrc_srq));
        found.map(Some).ok_or(Violation::XrcSrq)
    }

    /// A packet came. The first one in RTR raises COMM_EST.
    pub(crate) fn establish(&mut self, ctx: &mut Ctx<'_>) {
        if !self.established && self.state() == QpState::Rtr {
            self.established = true;
            ctx.events.push_back(Event::Async(AsyncEvent::CommunicationEstablished(self.qpn)));
        }
    }

    /// Stores why a request of the peer was refused.
    pub(crate) fn note_refused(&mut self, reason: Reason) {
        self.reasons.get_or_insert_default().refused = Some(reason);
    }

    /// Stores why an own request failed.
    pub(crate) fn note_failed(&mut self, reason: Reason) {
        self.reasons.get_or_insert_default().failed = Some(reason);
    }

    pub(crate) fn state(&self) -> QpState {
        self.attrs.state
    }

    /// Payload bytes of a full packet.
    pub(crate) fn mtu(&self) -> u32 {
        self.attrs.path_mtu.bytes()
    }

    /// Takes a receive request from the own or the shared queue. Raises the limit event of the shared queue.
    pub(crate) fn take_recv(&mut self, ctx: &mut Ctx<'_>) -> Option<RecvWqe> {
        let Some(id) = self.config.srq.or_else(|| self.named.map(|named| named.srq)) else {
            return self.rq.queue.pop_front();
        };
        let srq = ctx.srqs.get_mut(id.0 as usize)?;
        let wqe = srq.queue.queue.pop_front()?;
        if (srq.queue.queue.len() as u64) < u64::from(srq.limit) {
            srq.limit = 0;
            ctx.events.push_back(Event::Async(AsyncEvent::SrqLimitReached(id)));
        }
        Some(wqe)
    }

    /// Adds a receive completion. It is a solicited one if the packet was, or if it is an error.
    pub(crate) fn complete_recv(&self, ctx: &mut Ctx<'_>, wc: Completion) {
        let solicited = wc.solicited || wc.status != WcStatus::Success;
        let cq = self.named.map_or(self.config.recv_cq, |named| named.cq);
        ctx.events.push_back(Event::Completion { cq, solicited, wc });
    }

    /// Completes a receive in error because of a violation. `vendor_error` is the syndrome of the NAK for it.
    pub(crate) fn fail_recv(&self, ctx: &mut Ctx<'_>, wr_id: u64, violation: Violation) {
        let vendor_error = Syndrome::Nak(violation.into()).bits().into();
        let wc = Completion { vendor_error, ..Completion::error(wr_id, violation.into(), self.qpn) };
        self.complete_recv(ctx, wc);
    }

    /// Adds a send completion.
    pub(crate) fn complete_send(&self, ctx: &mut Ctx<'_>, wc: Completion) {
        let solicited = wc.status != WcStatus::Success;
        ctx.events.push_back(Event::Completion { cq: self.config.send_cq, solicited, wc });
    }

    /// Completes all waiting receives of the own queue with the flush status.
    pub(crate) fn flush_recv(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(wqe) = self.rq.queue.pop_front() {
            self.complete_recv(ctx, Completion::error(wqe.wr_id, WcStatus::WorkRequestFlushed, self.qpn));
        }
    }
}

impl Completion {
    /// A completion in error.
    pub(crate) fn error(wr_id: u64, status: WcStatus, qpn: Qpn) -> Self {
        Self { wr_id, status, qpn, ..Self::default() }
    }
}
