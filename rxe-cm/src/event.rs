//! Events of ids (rdma_cm_event).

use crate::{
    error::CmError,
    id::CmId,
    proto::{
        RejectReason, SidrStatus,
        machine::{Accepted, Request, Terms},
    },
};
use rxe_verbs::{AddressVector, GidType, Qkey, Qpn};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// An event. It has a handle of its id, and dropping the last handle of an id destroys it. So a connect request is
/// refused if its event is dropped and the program has taken no handle.
#[derive(Debug)]
pub struct CmEvent {
    /// The id that it is about. For a connect request it is a new id.
    pub id: CmId,
    /// For connect requests: the id that listens.
    pub listener: Option<CmId>,
    /// What happened.
    pub kind: EventKind,
    /// The peer's private data. It is the whole field of the message, so zeroes follow the peer's bytes. Empty for events
    /// without private data.
    pub private_data: Box<[u8]>,
    /// The request's place in the listener's backlog, until the event is fetched.
    pub(crate) place: Option<Place>,
}

/// What happened (rdma_cm_event_type).
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The peer's address and our own are known (RDMA_CM_EVENT_ADDR_RESOLVED).
    AddrResolved,
    /// There is no way to the address (RDMA_CM_EVENT_ADDR_ERROR).
    AddrError(CmError),
    /// The path to the peer is known (RDMA_CM_EVENT_ROUTE_RESOLVED).
    RouteResolved,
    /// The host's policy or its partitions have no path for this (RDMA_CM_EVENT_ROUTE_ERROR).
    RouteError(CmError),
    /// A peer asks for a connection, or for a datagram service. Accept or reject it (RDMA_CM_EVENT_CONNECT_REQUEST).
    ConnectRequest(Offer),
    /// The peer accepts a connection whose queue pair is not managed by the id. Bring it to RTS, then call
    /// [`establish`](CmId::establish) (RDMA_CM_EVENT_CONNECT_RESPONSE).
    ConnectResponse(ConnTerms),
    /// Our queue pair refused the attributes that were agreed (RDMA_CM_EVENT_CONNECT_ERROR).
    ConnectError(CmError),
    /// The peer does not answer requests by this version of RoCE. It may only have the other one (RDMA_CM_EVENT_UNREACHABLE).
    Unreachable(GidType),
    /// The peer has no such datagram service (RDMA_CM_EVENT_UNREACHABLE with a SIDR status).
    NoService(SidrStatus),
    /// The peer refuses (RDMA_CM_EVENT_REJECTED).
    Rejected(RejectReason),
    /// The connection is established, or the datagram service is known (RDMA_CM_EVENT_ESTABLISHED).
    Established(Offer),
    /// The connection has ended: the peer has ended it, or we did (RDMA_CM_EVENT_DISCONNECTED).
    Disconnected {
        /// Whether we have ended it and the peer did not answer. The status is ETIMEDOUT then, as with Linux.
        unanswered: bool,
    },
    /// The network interface of the id's device was removed, and everything that the id had there. The id can only be destroyed
    /// (RDMA_CM_EVENT_DEVICE_REMOVAL). It gets no further events.
    DeviceRemoval,
    /// The MAC address of the id's network interface has changed, as that of a bond does after a failover. This is a hint only:
    /// nothing has ended (RDMA_CM_EVENT_ADDR_CHANGE).
    AddrChange,
    /// The id's group has been joined (RDMA_CM_EVENT_MULTICAST_JOIN).
    MulticastJoin(DatagramTerms),
    /// The group could not be joined (RDMA_CM_EVENT_MULTICAST_ERROR).
    MulticastError(CmError),
    /// No packets of the connection can be under way any more. Its queue pair numbers may be used again
    /// (RDMA_CM_EVENT_TIMEWAIT_EXIT).
    TimewaitExit,
    /// Addresses that the program has asked for were found (RDMA_CM_EVENT_ADDRINFO_RESOLVED). This crate looks up none. Its users do, and
    /// report it by [`CmId::tell`].
    AddrInfoResolved,
    /// An event of the program (RDMA_CM_EVENT_USER).
    User {
        /// A value of the program.
        status: i32,
        /// A value of the program.
        arg: u64,
    },
}

/// Enhanced connection establishment options (struct ibv_ece). Devices of a vendor agree by them on features beyond the standard. They are
/// carried in a REQ and its REP (IBTA vol. 1, 1.4, clause 12.6). Our devices have none, and carry those of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// The vendor, 24 bits (an IEEE OUI). 0 for none.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// The peer's parameters, of a connection or of a datagram service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// A connection.
    Connection(ConnTerms),
    /// A datagram service. `None` in a request for one.
    Datagram(Option<DatagramTerms>),
}

/// The peer's end of a connection, seen from ours (rdma_conn_param in an event).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnTerms {
    /// Most READs and atomics that the peer will have outstanding.
    pub responder_resources: u8,
    /// Most READs and atomics that we may have outstanding.
    pub initiator_depth: u8,
    /// Whether the peer's receive queue grants credits.
    pub flow_control: bool,
    /// Retries after timeouts, 0 to 7. In requests only.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7.
    pub rnr_retry_count: u8,
    /// Whether the peer uses a shared receive queue.
    pub srq: bool,
    /// Its queue pair.
    pub qpn: Qpn,
    /// Its vendor's options.
    pub ece: Ece,
}

impl ConnTerms {
    /// The parameters in a REQ.
    pub(crate) const fn requested(request: &Request) -> Self {
        let ece = Ece { vendor_id: request.vendor_id, options: request.modifier };
        Self::new(&request.terms, request.retry_count, ece)
    }

    /// The parameters in a REP.
    pub(crate) const fn accepted(accepted: &Accepted) -> Self {
        let ece = Ece { vendor_id: accepted.vendor_id, options: accepted.modifier };
        Self::new(&accepted.terms, 0, ece)
    }

    const fn new(terms: &Terms, retry_count: u8, ece: Ece) -> Self {
        Self {
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            flow_control: terms.flow_control,
            retry_count,
            rnr_retry_count: terms.rnr_retry_count,
            srq: terms.srq,
            qpn: terms.qpn,
            ece,
        }
    }
}

/// Where to send datagrams (rdma_ud_param in an event).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramTerms {
    /// The address.
    pub av: AddressVector,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
}

impl CmEvent {
    /// Whether it is about `id`, or a request to it.
    pub(crate) fn concerns(&self, id: &CmId) -> bool {
        self.id.is_same(id) || self.listener.as_ref().is_some_and(|listener| listener.is_same(id))
    }

    /// Its status in C: 0, the reason of a reject, or a negative errno value.
    #[must_use]
    pub fn status(&self) -> i32 {
        match &self.kind {
            EventKind::AddrError(error)
            | EventKind::RouteError(error)
            | EventKind::ConnectError(error)
            | EventKind::MulticastError(error) => -error.errno(),
            EventKind::Unreachable(_) | EventKind::Disconnected { unanswered: true } => -libc::ETIMEDOUT,
            EventKind::NoService(status) => status.0.into(),
            EventKind::Rejected(reason) => reason.0.into(),
            EventKind::User { status, .. } => *status,
            _ => 0,
        }
    }
}

impl EventKind {
    /// Its name in rdma_cma.h, without the prefix.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AddrResolved => "ADDR_RESOLVED",
            Self::AddrError(_) => "ADDR_ERROR",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::RouteError(_) => "ROUTE_ERROR",
            Self::ConnectRequest(_) => "CONNECT_REQUEST",
            Self::ConnectResponse(_) => "CONNECT_RESPONSE",
            Self::ConnectError(_) => "CONNECT_ERROR",
            Self::Unreachable(_) | Self::NoService(_) => "UNREACHABLE",
            Self::Rejected(_) => "REJECTED",
            Self::Established(_) => "ESTABLISHED",
            Self::Disconnected { .. } => "DISCONNECTED",
            Self::DeviceRemoval => "DEVICE_REMOVAL",
            Self::AddrChange => "ADDR_CHANGE",
            Self::MulticastJoin(_) => "MULTICAST_JOIN",
            Self::MulticastError(_) => "MULTICAST_ERROR",
            Self::TimewaitExit => "TIMEWAIT_EXIT",
            Self::AddrInfoResolved => "ADDRINFO_RESOLVED",
            Self::User { .. } => "USER",
        }
    }

    /// Its meaning for a call that waited for another event, as text.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::AddrError(error)
            | Self::RouteError(error)
            | Self::ConnectError(error)
            | Self::MulticastError(error) => error.to_string(),
            Self::Unreachable(GidType::RoceV2) => "the peer does not answer".to_owned(),
            Self::Unreachable(GidType::RoceV1) => {
                "the peer does not answer to RoCE v1; it may have RoCE v2 alone. By which of the two we ask is \
                 said by rdma_cm in [[port]] of the host's configuration"
                    .to_owned()
            }
            Self::NoService(status) => format!("the peer has no such service: {status}"),
            Self::Rejected(reason) => format!("the peer refuses: {reason}"),
            Self::Disconnected { unanswered: false } => "the connection has ended".to_owned(),
            Self::Disconnected { unanswered: true } => "the connection has ended, and the peer did not answer".to_owned(),
            Self::DeviceRemoval => "the network interface has gone".to_owned(),
            other => format!("unexpected event {}", other.name()),
        }
    }
}

/// A request's place in a backlog. It becomes free when the event is fetched or dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// Takes one of `limit` places. `taken` counts the places in use.
    pub(crate) fn take(taken: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let room = |count: usize| (count < limit).then_some(count + 1);
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
