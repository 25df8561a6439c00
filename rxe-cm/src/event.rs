//! What an id tells its program (rdma_cm_event).

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

/// An event. Holds its id: dropping the last handle of an id destroys it, so a connect request that nobody looks at is
/// refused when its event is dropped.
#[derive(Debug)]
pub struct CmEvent {
    /// The id it is about; for a connect request a new one.
    pub id: CmId,
    /// Connect requests: the id that listens.
    pub listener: Option<CmId>,
    /// What happened.
    pub kind: EventKind,
    /// The peer's private data, always the whole field of its message: zeroes follow what was put in. Empty for events
    /// that carry none.
    pub private_data: Box<[u8]>,
    /// Its place in the listener's backlog, until the event is fetched.
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
    /// The way is known (RDMA_CM_EVENT_ROUTE_RESOLVED).
    RouteResolved,
    /// The host's policy or its partitions have no path for this (RDMA_CM_EVENT_ROUTE_ERROR).
    RouteError(CmError),
    /// Somebody wants a connection, or a datagram service: accept or reject (RDMA_CM_EVENT_CONNECT_REQUEST).
    ConnectRequest(Offer),
    /// The peer accepts a connection whose queue pair is not the id's: bring it to RTS, then
    /// [`establish`](CmId::establish) (RDMA_CM_EVENT_CONNECT_RESPONSE).
    ConnectResponse(ConnTerms),
    /// Our queue pair did not take what was agreed (RDMA_CM_EVENT_CONNECT_ERROR).
    ConnectError(CmError),
    /// The peer does not answer what was asked by this RoCE; it may speak the other one alone (RDMA_CM_EVENT_UNREACHABLE).
    Unreachable(GidType),
    /// The peer has no such datagram service (RDMA_CM_EVENT_UNREACHABLE with a SIDR status).
    NoService(SidrStatus),
    /// The peer refuses (RDMA_CM_EVENT_REJECTED).
    Rejected(RejectReason),
    /// The connection stands, or the datagram service is known (RDMA_CM_EVENT_ESTABLISHED).
    Established(Offer),
    /// The peer has ended the connection, or the end that we asked for has come (RDMA_CM_EVENT_DISCONNECTED).
    Disconnected,
    /// The network interface below the id's device has gone, and all that the id had with it: it can only be destroyed
    /// (RDMA_CM_EVENT_DEVICE_REMOVAL). Nothing else is told about it afterwards.
    DeviceRemoval,
    /// The network interface below the id's device has another MAC address, as a bond has after a failover: a hint, for
    /// nothing has ended (RDMA_CM_EVENT_ADDR_CHANGE).
    AddrChange,
    /// The id's group has been joined (RDMA_CM_EVENT_MULTICAST_JOIN).
    MulticastJoin(DatagramTerms),
    /// It could not be joined (RDMA_CM_EVENT_MULTICAST_ERROR).
    MulticastError(CmError),
    /// Packets of the connection can not be on their way any more: queue pair numbers may be used again
    /// (RDMA_CM_EVENT_TIMEWAIT_EXIT).
    TimewaitExit,
    /// Addresses that the program had looked up are there (RDMA_CM_EVENT_ADDRINFO_RESOLVED). Nothing here looks up any: it is
    /// for those who do ([`CmId::tell`]).
    AddrInfoResolved,
    /// The program's own (RDMA_CM_EVENT_USER).
    User {
        /// As the program has it.
        status: i32,
        /// As the program has it.
        arg: u64,
    },
}

/// Enhanced connection establishment options (struct ibv_ece): what vendors' devices agree on beyond the standard, carried
/// in a REQ and its REP (IBTA vol. 1, 1.4, clause 12.6). Our devices have none; they are carried for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// Whose options they are, 24 bits (an IEEE OUI); 0 for none.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// What the peer says about its end: of a connection, or of a datagram service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// A connection.
    Connection(ConnTerms),
    /// A datagram service; none in a request for one.
    Datagram(Option<DatagramTerms>),
}

/// The peer's end of a connection, seen from ours (rdma_conn_param in an event).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnTerms {
    /// READs and atomics that we are asked to take at a time.
    pub responder_resources: u8,
    /// READs and atomics that we may issue at a time.
    pub initiator_depth: u8,
    /// Whether the peer's receive queue grants credits.
    pub flow_control: bool,
    /// Retries after timeouts, 0 to 7; requests only.
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
    /// What a REQ says.
    pub(crate) const fn requested(request: &Request) -> Self {
        let ece = Ece { vendor_id: request.vendor_id, options: request.modifier };
        Self::new(&request.terms, request.retry_count, ece)
    }

    /// What a REP says.
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
    /// The way.
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

    /// Its status in C: 0, the reason of a reject, or a negative errno.
    #[must_use]
    pub fn status(&self) -> i32 {
        match &self.kind {
            EventKind::AddrError(error)
            | EventKind::RouteError(error)
            | EventKind::ConnectError(error)
            | EventKind::MulticastError(error) => -error.errno(),
            EventKind::Unreachable(_) => -libc::ETIMEDOUT,
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
            Self::Disconnected => "DISCONNECTED",
            Self::DeviceRemoval => "DEVICE_REMOVAL",
            Self::AddrChange => "ADDR_CHANGE",
            Self::MulticastJoin(_) => "MULTICAST_JOIN",
            Self::MulticastError(_) => "MULTICAST_ERROR",
            Self::TimewaitExit => "TIMEWAIT_EXIT",
            Self::AddrInfoResolved => "ADDRINFO_RESOLVED",
            Self::User { .. } => "USER",
        }
    }

    /// What it means for somebody who hoped for another event, in words.
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
            Self::Disconnected => "the connection has ended".to_owned(),
            Self::DeviceRemoval => "the network interface has gone".to_owned(),
            other => format!("unexpected event {}", other.name()),
        }
    }
}

/// A request's place in a backlog; given back when the event is fetched or dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// Takes one of `limit` places; `taken` counts them.
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
