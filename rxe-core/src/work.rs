//! Work requests, completions and events: the data types of verbs, which need no verbs library.

use crate::num::{Key, Pkey, Qkey, Qpn};
use bitflags::bitflags;
use core::net::IpAddr;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
        pub struct $name(pub u32);
    };
}

id!(
    /// A protection domain, named by the caller.
    PdId
);
id!(
    /// A completion queue, named by the caller.
    CqId
);
id!(
    /// A shared receive queue, named by the endpoint.
    SrqId
);
id!(
    /// An XRC domain, named by the caller.
    XrcdId
);

/// A scatter/gather element (ibv_sge): a piece of registered local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes; 0 is none.
    pub len: u32,
    /// L_Key of the region.
    pub lkey: Key,
}

/// Remote memory that an operation names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Address of the first byte in the peer's region.
    pub addr: u64,
    /// R_Key of the peer's region or window.
    pub rkey: Key,
}

bitflags! {
    /// Access rights of memory regions, windows and queue pairs; the values are those of ibv_access_flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct Access: u32 {
        /// Receives and READ responses may write here.
        const LOCAL_WRITE = 1;
        /// A peer may write.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
        /// A peer may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to this region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the start of the region instead of its virtual address.
        const ZERO_BASED = 1 << 5;
        /// Pages may come and go.
        const ON_DEMAND = 1 << 6;
        /// Backed by huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may FLUSH for global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Ordering between writes may be relaxed (ours never is).
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// Flags of a send work request; the values are those of ibv_send_flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Wait for all earlier READs and atomics of this queue pair.
        const FENCE = 1;
        /// Make a completion even if the request succeeds.
        const SIGNALED = 1 << 1;
        /// The receiver's completion is a solicited one.
        const SOLICITED = 1 << 2;
    }
}

/// A memory window's binding (ibv_mw_bind_info and the window it is for).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BindWindow {
    /// The window, by its present R_Key.
    pub window: Key,
    /// The R_Key that the window is to have. Only the low 8 bits count; the window keeps its index. For a type 1 window the
    /// provider chooses the key before it posts the request.
    pub new_rkey: Key,
    /// L_Key of the region to bind to.
    pub region: Key,
    /// First byte.
    pub addr: u64,
    /// Bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// Remote rights, and [`Access::ZERO_BASED`].
    pub access: Access,
}

/// What a send work request does (ibv_wr_opcode).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with four bytes of immediate data.
    SendImm([u8; 4]),
    /// SEND, and the receiver invalidates this R_Key of its own.
    SendInvalidate(Key),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA WRITE with four bytes of immediate data.
    WriteImm(Remote, [u8; 4]),
    /// RDMA READ into the payload's elements.
    Read(Remote),
    /// Compare 8 bytes with `compare`, and store `swap` if they are equal. The original is placed into the payload's elements.
    CompareSwap {
        /// The 8 bytes; the address is a multiple of 8.
        remote: Remote,
        /// What to compare with.
        compare: u64,
        /// What to store.
        swap: u64,
    },
    /// Add to 8 bytes. The original is placed into the payload's elements.
    FetchAdd {
        /// The 8 bytes; the address is a multiple of 8.
        remote: Remote,
        /// What to add.
        add: u64,
    },
    /// Store 8 bytes in one piece (ATOMIC WRITE).
    AtomicWrite {
        /// The 8 bytes; the address is a multiple of 8.
        remote: Remote,
        /// The bytes as they lie in memory.
        value: [u8; 8],
    },
    /// Make earlier writes visible or persistent.
    Flush {
        /// Start of the range.
        remote: Remote,
        /// Bytes of the range.
        len: u32,
        /// Bit 0 global visibility, bit 1 persistence.
        placement: u8,
        /// 0 the range, 1 the whole region.
        selectivity: u8,
    },
    /// Invalidate a local window's R_Key or region's keys.
    LocalInvalidate(Key),
    /// Bind a memory window.
    BindWindow(BindWindow),
}

/// The local data of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Bytes copied when posted (IBV_SEND_INLINE).
    Inline(&'a [u8]),
}

/// The version of RoCE that a GID stands for (ibv_gid_type). Both ends of a connection have the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum GidType {
    /// "IB/RoCE v1" (IBV_GID_TYPE_ROCE_V1): Ethertype 0x8915.
    RoceV1,
    /// "RoCE v2" (IBV_GID_TYPE_ROCE_V2): UDP.
    #[default]
    RoceV2,
}

/// The text that sysfs shows.
impl core::fmt::Display for GidType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::RoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// How to reach a peer (ibv_ah_attr for RoCE): both addresses are GIDs turned into IP addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressVector {
    /// Our address: the GID at sgid_index.
    pub src: IpAddr,
    /// The peer's address: the destination GID.
    pub dst: IpAddr,
    /// Index of the interface by which packets leave. 0 lets routing choose, which is not possible for link-local addresses.
    pub ifindex: u32,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 takes the system's.
    pub hop_limit: u8,
    /// Flow label, 20 bits. It is only kept for queries: packets have 0 there, and a source port that follows from the slot of
    /// their destination.
    pub flow_label: u32,
    /// Service level, 0 to 15; kept for queries.
    pub service_level: u8,
    /// GID table index that `src` came from; kept for queries.
    pub sgid_index: u8,
    /// Type of the GID there.
    pub gid_type: GidType,
}

/// Destination of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdDest {
    /// The way there.
    pub av: AddressVector,
    /// The receiving queue pair, or [`Qpn::MULTICAST`].
    pub remote_qpn: Qpn,
    /// Its Q_Key; with the top bit set the sender's own is used (IBTA vol. 1, 10.2.5).
    pub remote_qkey: Qkey,
    /// The P_Key of the packet, if the sender is queue pair 1, which serves all partitions (the kernel's ib_ud_wr.pkey_index). `None`
    /// stands for the queue pair's own; other queue pairs always use that.
    pub pkey: Option<Pkey>,
}

/// A send work request (ibv_send_wr). Everything is copied when posted.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Flags.
    pub flags: SendFlags,
    /// Local data.
    pub payload: Payload<'a>,
    /// Destination: datagram queue pairs only.
    pub dest: Option<UdDest>,
    /// The peer's XRC shared receive queue number: XRC queue pairs only.
    pub xrc_srq: u32,
}

impl<'a> SendWr<'a> {
    /// A signaled request with nothing special.
    #[must_use]
    pub const fn new(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> Self {
        Self { wr_id, op, flags: SendFlags::SIGNALED, payload: Payload::Sges(sges), dest: None, xrc_srq: 0 }
    }
}

/// A receive work request (ibv_recv_wr).
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// Status of a completion; the values are those of ibv_wc_status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Success.
    #[default]
    Success = 0,
    /// A message longer than the receive's elements, or than the local limit.
    LocalLength = 1,
    /// The state of the queue pair, or the request itself, did not allow the operation.
    LocalQpOperation = 2,
    /// A local key, range or access right did not allow the access.
    LocalProtection = 4,
    /// The queue pair went to the error state before this request was done.
    WorkRequestFlushed = 5,
    /// A window could not be bound.
    MemoryWindowBind = 6,
    /// The peer answered with something that makes no sense.
    BadResponse = 7,
    /// Our memory did not allow what the peer asked, on a request with a receive.
    LocalAccess = 8,
    /// The peer says that the request is invalid.
    RemoteInvalidRequest = 9,
    /// The peer says that a key, range or access right did not allow the access.
    RemoteAccess = 10,
    /// The peer could not carry out the request, by a fault of its own.
    RemoteOperation = 11,
    /// No answer after all retries.
    RetryExceeded = 12,
    /// The peer was not ready after all RNR retries.
    RnrRetryExceeded = 13,
    /// The peer aborted.
    RemoteAborted = 16,
    /// An error without recovery.
    Fatal = 19,
    /// Anything else.
    General = 21,
    /// A tag matching queue: the entry to be removed does not exist (any more).
    TagMatching = 22,
    /// A tag matching queue: the entry that a rendezvous matched is too small for it.
    RendezvousIncomplete = 23,
}

/// What completed; the values are those of ibv_wc_opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[repr(u16)]
pub enum WcOpcode {
    /// A SEND.
    #[default]
    Send = 0,
    /// An RDMA WRITE.
    Write = 1,
    /// An RDMA READ.
    Read = 2,
    /// A compare and swap.
    CompareSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// A window bind.
    BindWindow = 5,
    /// A local invalidate.
    LocalInvalidate = 6,
    /// A FLUSH.
    Flush = 8,
    /// An ATOMIC WRITE.
    AtomicWrite = 9,
    /// A receive.
    Recv = 128,
    /// A receive used up by an RDMA WRITE with immediate.
    RecvRdmaWithImm = 129,
    /// An entry was added to a tag matching queue.
    TagAdd = 130,
    /// An entry was removed from a tag matching queue.
    TagRemove = 131,
    /// A tag matching queue was told what its program has handled.
    TagSync = 132,
    /// A message with a tag, matched or not.
    TagRecv = 133,
    /// A message without a tag that arrived in a tag matching queue.
    NoTag = 134,
}

/// Extra information in a receive's completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum WcExtra {
    /// None.
    #[default]
    None,
    /// Immediate data as the sender gave it.
    Immediate([u8; 4]),
    /// The R_Key that the message invalidated.
    Invalidated(Key),
    /// Of a tag matching queue: the number by which the completion queue finds the tag and the rest.
    Tag(u32),
}

/// A work completion (ibv_wc). After an error only `wr_id`, `status`, `qpn` and `vendor_error` are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Completion {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Success, or why the request failed.
    pub status: WcStatus,
    /// The kind of request.
    pub opcode: WcOpcode,
    /// Bytes received (a datagram's 40-byte GRH area counts) or, on the send side, of the request.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: WcExtra,
    /// Local queue pair.
    pub qpn: Qpn,
    /// Sending queue pair: datagrams only.
    pub src_qp: Qpn,
    /// The message has a global route header (IBV_WC_GRH). With RoCE that is true of all receives. Only a datagram's buffer begins
    /// with the 40 bytes for that header.
    pub grh: bool,
    /// Service level (4 bits). Packets over UDP have none; for datagrams it is what ConnectX cards report there, and UCX
    /// reads: 10 for an IPv4 header, 9 for IPv6 (bits 2:0: 2 or 1; bit 3: UDP). 0 for all others.
    pub sl: u8,
    /// The packet's partition key: queue pair 1 only.
    pub pkey: Pkey,
    /// Whether the sender set the solicited bit.
    pub solicited: bool,
    /// The AETH syndrome that caused an error, else 0.
    pub vendor_error: u32,
}

/// An asynchronous event (ibv_async_event).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AsyncEvent {
    /// A queue pair went to the error state because its partition is not in the P_Key table any more (IBV_EVENT_QP_FATAL).
    /// Other errors are told by a completion, or by an event for the cause.
    QpFatal(Qpn),
    /// The responder refused a malformed request (IBV_EVENT_QP_REQ_ERR).
    QpRequestError(Qpn),
    /// The responder refused an access (IBV_EVENT_QP_ACCESS_ERR).
    QpAccessError(Qpn),
    /// The first packet came while still in RTR (IBV_EVENT_COMM_EST).
    CommunicationEstablished(Qpn),
    /// The send queue drained in SQD (IBV_EVENT_SQ_DRAINED).
    SqDrained(Qpn),
    /// A queue pair on a shared receive queue drew its last request (IBV_EVENT_QP_LAST_WQE_REACHED).
    LastWqeReached(Qpn),
    /// Fewer requests left than the armed limit (IBV_EVENT_SRQ_LIMIT_REACHED).
    SrqLimitReached(SrqId),
}

/// Something that the endpoint reports to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A completion for a completion queue. If `solicited`, it also wakes a consumer that armed the queue for solicited ones only.
    Completion {
        /// The queue.
        cq: CqId,
        /// Whether it is a receive with the solicited bit, or an error.
        solicited: bool,
        /// The entry.
        wc: Completion,
    },
    /// An asynchronous event.
    Async(AsyncEvent),
}
