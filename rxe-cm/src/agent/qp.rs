//! The queue pair of a connection: which attributes follow from what was agreed (rdma_init_qp_attr; the kernel's
//! ib_cm_init_qp_attr).

use super::Turn;
use crate::{
    error::CmError,
    proto::{
        Rep,
        machine::{Request, Terms, ack_timeout},
    },
    route::PathRecord,
};
use rxe_verbs::{Access, AddressVector, Mtu, Psn, Qp, QpChange, QpState, QpType, Qpn, limits::MAX_RD_ATOMIC};

/// How long a peer whose message found no receive waits before it tries again, as a code, if we let it try `retries`
/// times: 0.64 ms where that is without end. rdma_cm leaves it at 0, which means 655 ms, and stalls programs that post a
/// receive a little late; but a peer that gives up some day is to have as much time as there.
#[must_use]
pub const fn min_rnr_timer(retries: u8) -> u8 {
    match retries {
        1..=6 => 0,
        _ => 12,
    }
}

/// What both sides of a connection have agreed on, seen from ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) av: AddressVector,
    pub(crate) mtu: Mtu,
    pub(crate) pkey_index: u16,
    /// The PSN that we expect first.
    pub(crate) rq_psn: Psn,
    /// The PSN that we start with, once the peer has named it.
    pub(crate) sq_psn: Psn,
    pub(crate) dest_qpn: Qpn,
    /// READs and atomics that we take at a time.
    pub(crate) responder_resources: u8,
    /// READs and atomics that we issue at a time.
    pub(crate) initiator_depth: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// The program's own wish, in place of `timeout`.
    pub(crate) own_timeout: Option<u8>,
    pub(crate) packet_lifetime: u8,
}

impl Agreed {
    /// What the active side knows when it sends the REQ.
    pub(crate) fn asked(path: &PathRecord, rq_psn: Psn, responder_resources: u8, timeout: u8) -> Self {
        Self {
            av: path.av,
            mtu: path.mtu,
            pkey_index: path.pkey_index,
            rq_psn,
            sq_psn: Psn::new(0),
            dest_qpn: Qpn::new(0),
            responder_resources,
            initiator_depth: 0,
            timeout,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: min_rnr_timer(7),
            own_timeout: None,
            packet_lifetime: path.packet_lifetime,
        }
    }

    /// The REP has come (active side).
    pub(crate) fn accepted(&mut self, terms: &Terms, target_ack_delay: u8) {
        self.sq_psn = terms.starting_psn;
        self.dest_qpn = terms.qpn;
        self.responder_resources = terms.responder_resources;
        self.initiator_depth = terms.initiator_depth;
        self.rnr_retry = terms.rnr_retry_count.min(7);
        self.timeout = ack_timeout(target_ack_delay, self.packet_lifetime);
    }

    /// The request has come, and will be answered by what it asks for unless the program wants less (passive side).
    pub(crate) fn requested(path: &PathRecord, request: &Request, rq_psn: Psn) -> Self {
        let rep = Rep {
            starting_psn: rq_psn,
            responder_resources: request.terms.responder_resources.min(MAX_RD_ATOMIC),
            initiator_depth: request.terms.initiator_depth.min(MAX_RD_ATOMIC),
            ..Rep::default()
        };
        Self::granted(path, request, &rep)
    }

    /// Request and answer are known (passive side).
    pub(crate) fn granted(path: &PathRecord, request: &Request, rep: &Rep) -> Self {
        Self {
            av: path.av,
            mtu: path.mtu,
            pkey_index: path.pkey_index,
            rq_psn: rep.starting_psn,
            sq_psn: request.terms.starting_psn,
            dest_qpn: request.terms.qpn,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            timeout: request.primary.ack_timeout,
            retry_count: request.retry_count.min(7),
            rnr_retry: request.terms.rnr_retry_count.min(7),
            min_rnr_timer: min_rnr_timer(rep.rnr_retry_count),
            own_timeout: None,
            packet_lifetime: path.packet_lifetime,
        }
    }

    /// RESET or INIT to INIT.
    pub(crate) fn enter_init(&self, qp_type: QpType) -> QpChange {
        QpChange { access: Some(self.access(qp_type)), ..init(self.pkey_index) }
    }

    /// INIT to RTR.
    pub(crate) fn enter_rtr(&self, qp_type: QpType) -> QpChange {
        let answers = answers(qp_type);
        QpChange {
            state: Some(QpState::Rtr),
            av: Some(self.av),
            path_mtu: Some(self.mtu),
            dest_qpn: Some(self.dest_qpn),
            rq_psn: Some(self.rq_psn),
            max_dest_rd_atomic: answers.then_some(self.responder_resources),
            min_rnr_timer: answers.then_some(self.min_rnr_timer),
            ..QpChange::default()
        }
    }

    /// RTR to RTS.
    pub(crate) fn enter_rts(&self, qp_type: QpType) -> QpChange {
        let (reliable, asks) = (is_reliable(qp_type), asks(qp_type));
        QpChange {
            state: Some(QpState::Rts),
            sq_psn: Some(self.sq_psn),
            timeout: reliable.then_some(self.own_timeout.unwrap_or(self.timeout)),
            retry_count: asks.then_some(self.retry_count),
            rnr_retry: asks.then_some(self.rnr_retry),
            max_rd_atomic: asks.then_some(self.initiator_depth),
            ..QpChange::default()
        }
    }

    /// A connected peer may write; and read, if we said that we take READs.
    fn access(&self, qp_type: QpType) -> Access {
        let write = Access::REMOTE_WRITE;
        if !answers(qp_type) {
            return write;
        }
        let flush = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let read = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if self.responder_resources > 0 { write | flush | read } else { write | flush }
    }
}

/// Whether a kind of queue pair asks of its peer, and is answered.
pub(crate) const fn asks(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::Rc | QpType::XrcInitiator)
}

/// Whether it answers what its peer asks.
pub(crate) const fn answers(qp_type: QpType) -> bool {
    matches!(qp_type, QpType::Rc | QpType::XrcTarget)
}

/// Whether one of both.
pub(crate) const fn is_reliable(qp_type: QpType) -> bool {
    asks(qp_type) || answers(qp_type)
}

/// To INIT, with no rights yet.
pub(crate) fn init(pkey_index: u16) -> QpChange {
    QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(pkey_index),
        port: Some(1),
        access: Some(Access::empty()),
        ..QpChange::default()
    }
}

impl Turn<'_> {
    /// Brings an id's queue pair to RTS.
    pub(crate) fn connect_qp(qp: &Qp, agreed: &Agreed) -> Result<(), CmError> {
        let kind = qp.qp_type();
        qp.modify(&agreed.enter_init(kind))?;
        qp.modify(&agreed.enter_rtr(kind))?;
        qp.modify(&agreed.enter_rts(kind))?;
        Ok(())
    }
}
