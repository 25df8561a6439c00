//! The events of a connection.

use crate::proto::{
    CommId, Concerns, Datagram, Guid, Message, Path, PrivateData, Rej, RejectReason, Rep, Req, ServiceId,
    Transport,
};
use rxe_core::num::{Pkey, Psn, Qpn};

/// What the other end said about itself, in REQ or REP, seen from this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Its communication ID for the connection.
    pub comm_id: CommId,
    /// Its channel adapter.
    pub ca_guid: Guid,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The PSN that **we** start sending with: our sq_psn.
    pub starting_psn: Psn,
    /// Most READs and atomics that the peer will have outstanding: its initiator depth.
    pub responder_resources: u8,
    /// Most READs and atomics that we may have outstanding: the peer's responder resources.
    pub initiator_depth: u8,
    /// Retries after RNR NAKs that we are to make, 0 to 7.
    pub rnr_retry_count: u8,
    /// Whether its receive queue grants end-to-end credits.
    pub flow_control: bool,
    /// Whether its queue pair uses a shared receive queue.
    pub srq: bool,
}

/// A connection asked for: what a REQ says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The peer's part.
    pub terms: Terms,
    /// What it asks for.
    pub service_id: ServiceId,
    /// The transport service.
    pub transport: Transport,
    /// 1 for XRC, where `transport` says extended.
    pub extended_transport: u8,
    /// Retries after timeouts and sequence NAKs that we are to make, 0 to 7.
    pub retry_count: u8,
    /// Path MTU as a code; 1 to 5 are defined.
    pub path_mtu: u8,
    /// Partition.
    pub pkey: Pkey,
    /// How long we may take to answer, as a code.
    pub remote_cm_response_timeout: u8,
    /// How long the peer may take to answer, as a code.
    pub local_cm_response_timeout: u8,
    /// How often messages are repeated.
    pub max_cm_retries: u8,
    /// The way between the two; "local" is the peer's side.
    pub primary: Path,
    /// Another way; all zero for none.
    pub alternate: Path,
    /// Vendor of the enhanced connection establishment options, 0 for none.
    pub vendor_id: u32,
    /// Those options.
    pub modifier: u32,
    /// Private data, with the IP CM header in front.
    pub private_data: PrivateData<92>,
}

impl Request {
    /// What `req` says, with the attribute modifier of its header.
    #[must_use]
    pub const fn new(req: &Req, modifier: u32) -> Self {
        Self {
            terms: Terms {
                comm_id: req.local_comm_id,
                ca_guid: req.local_ca_guid,
                qpn: req.local_qpn,
                starting_psn: req.starting_psn,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                rnr_retry_count: req.rnr_retry_count,
                flow_control: req.flow_control,
                srq: req.srq,
            },
            service_id: req.service_id,
            transport: req.transport,
            extended_transport: req.extended_transport,
            retry_count: req.retry_count,
            path_mtu: req.path_mtu,
            pkey: req.pkey,
            remote_cm_response_timeout: req.remote_cm_response_timeout,
            local_cm_response_timeout: req.local_cm_response_timeout,
            max_cm_retries: req.max_cm_retries,
            primary: req.primary,
            alternate: req.alternate,
            vendor_id: req.vendor_id,
            modifier,
            private_data: req.private_data,
        }
    }
}

/// A request accepted: what a REP says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The peer's part.
    pub terms: Terms,
    /// How long the peer takes to acknowledge a packet, as a code.
    pub target_ack_delay: u8,
    /// What became of the alternate path: 0 accepted.
    pub failover_accepted: u8,
    /// Vendor of the enhanced connection establishment options, 0 for none.
    pub vendor_id: u32,
    /// Those options.
    pub modifier: u32,
    /// Private data.
    pub private_data: PrivateData<196>,
}

impl Accepted {
    /// What `rep` says, with the attribute modifier of its header.
    #[must_use]
    pub const fn new(rep: &Rep, modifier: u32) -> Self {
        Self {
            terms: Terms {
                comm_id: rep.local_comm_id,
                ca_guid: rep.local_ca_guid,
                qpn: rep.qpn(),
                starting_psn: rep.starting_psn,
                responder_resources: rep.initiator_depth,
                initiator_depth: rep.responder_resources,
                rnr_retry_count: rep.rnr_retry_count,
                flow_control: rep.flow_control,
                srq: rep.srq,
            },
            target_ack_delay: rep.target_ack_delay,
            failover_accepted: rep.failover_accepted,
            vendor_id: rep.vendor_id,
            modifier,
            private_data: rep.private_data,
        }
    }
}

/// A refusal: what a REJ says. Reasons that are not defined are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// Why.
    pub reason: RejectReason,
    /// Which message was refused.
    pub message: Concerns,
    /// Bytes of `info` that are valid.
    pub info_len: u8,
    /// Additional reject information.
    pub info: PrivateData<72>,
    /// Private data.
    pub private_data: PrivateData<148>,
}

impl Rejection {
    /// A refusal with nothing but a reason.
    #[must_use]
    pub fn because(reason: RejectReason) -> Self {
        Self {
            reason,
            message: Concerns::Other,
            info_len: 0,
            info: PrivateData::default(),
            private_data: PrivateData::default(),
        }
    }

    /// A consumer's refusal, with its private data.
    #[must_use]
    pub fn by_consumer(private_data: PrivateData<148>) -> Self {
        Self { private_data, ..Self::because(RejectReason::CONSUMER_DEFINED) }
    }

    /// The REJ with this refusal.
    pub(super) const fn rej(&self, local: CommId, remote: CommId) -> Rej {
        Rej {
            local_comm_id: local,
            remote_comm_id: remote,
            message: self.message,
            info_len: self.info_len,
            reason: self.reason,
            info: self.info,
            private_data: self.private_data,
        }
    }
}

impl From<&Rej> for Rejection {
    fn from(rej: &Rej) -> Self {
        Self {
            reason: rej.reason,
            message: rej.message,
            info_len: rej.info_len,
            info: rej.info,
            private_data: rej.private_data,
        }
    }
}

/// How a passive side learned that the connection is established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// By RTU.
    Rtu,
    /// By the first packet on the queue pair; the RTU was late or lost.
    Data,
}

/// How an established connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The peer answered our DREQ, with this private data.
    Answered(PrivateData<224>),
    /// Both sides sent a DREQ at the same time. The peer's had this private data.
    Crossed(PrivateData<220>),
    /// We answered the peer's DREQ.
    Granted,
    /// The peer did not answer our DREQ, nor any repetition of it.
    TimedOut,
    /// The peer answered our DREQ with a REJ.
    Rejected(RejectReason),
}

/// What happened to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Passive side: a peer asks for a connection. Always the first event of that side. Answer with `accept` or `reject`.
    Requested(Request),
    /// Active side: the peer accepts. Answer with `confirm` or `reject`.
    Accepted(Accepted),
    /// Passive side: the connection is established.
    Established {
        /// How we know.
        proof: Proof,
        /// The RTU's private data, zeroes without an RTU.
        private_data: PrivateData<224>,
    },
    /// The peer refuses, or ends the connection by a REJ.
    Rejected(Rejection),
    /// The peer says that its answer will take longer (MRA): it may take 4.096 us << `service_timeout` longer.
    Delayed {
        /// The code of that time.
        service_timeout: u8,
        /// Private data.
        private_data: PrivateData<222>,
    },
    /// No answer to our REQ or REP, nor to any repetition of it.
    Unreachable,
    /// The peer wants to end the connection. Answer with `confirm_disconnect`.
    DisconnectRequested(PrivateData<220>),
    /// The connection has ended. Its communication ID stays in use until [`Event::Closed`].
    Disconnected(Ending),
    /// TIMEWAIT is over, too. The communication ID and the queue pair may be used again. Always the last event, and only once.
    Closed,
}

/// Why a message was ignored. The caller counts these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Ignored {
    /// Its communication IDs are not this connection's.
    #[error("communication IDs of another connection")]
    CommId,
    /// It names a queue pair that is not ours.
    #[error("another queue pair than ours")]
    Qpn,
    /// It is not expected now.
    #[error("not expected in this state")]
    State,
    /// It repeats a message that was handled, and needs no answer.
    #[error("a repetition that needs no answer")]
    Duplicate,
    /// This machine does not deal with such messages.
    #[error("not a message for this machine")]
    Message,
}

/// `message` as the answer to `datagram`: with the same transaction ID.
pub(super) fn in_answer(datagram: &Datagram, message: impl Into<Message>) -> Datagram {
    Datagram { transaction: datagram.transaction, modifier: 0, message: message.into() }
}
