//! Links: how batches of RoCEv2 packets leave this host and arrive at it.
//!
//! A [`Link`] moves UDP payloads (BTH to ICRC) between IP addresses. It knows nothing of queue pairs. Each shard has one link.
//! [`UdpLink`] is the usual one and uses ordinary UDP sockets. [`RawLink`] sends and receives whole Ethernet frames, which
//! needs CAP_NET_RAW. [`InprocLink`] connects ends inside one process. [`FaultLink`] wraps another link and disturbs its
//! packets. [`TapLink`] wraps another link and records ([`Capture`]) or prints ([`Trace`]) its packets.
//!
//! The ICRC covers the IPv4 identification field, so a sender has to know the identification in advance. [`Link::path`] says
//! which identifications the packets of one batch get. Every IPv4 packet of a link has DF set. The IPv6 flow label is always 0.
//!
//! Read [`Link`] and [`Transmit`] first, then the `udp` module.

mod batch;
mod bpf;
mod capability;
mod config;
mod error;
pub mod fault;
pub(crate) mod file;
pub mod inproc;
pub mod interfaces;
mod memory;
mod raw;
pub mod steer;
pub mod tap;
pub mod trace;
mod udp;

use core::net::IpAddr;
use rxe_core::endpoint;
use std::io;
use std::os::fd::BorrowedFd;

pub use batch::{Packets, RecvBatch, Run};
pub use capability::{Capabilities, Encapsulation, HeaderSeen, Ident, Path, ROCE_V2};
pub use config::{BufferSize, ConfigError, Features, LinkKind, Sharing, UdpConfig};
pub use error::{Holder, OpenError, SendError};
pub use fault::{FaultLink, FaultPlan};
pub use inproc::{InprocLink, InprocNet};
pub(crate) use memory::{Inbox, InboxFiles, MemoryLink, Ways};
pub use raw::{RawDrops, RawLink};
pub(crate) use steer::MAX_SERVICES;
pub use steer::SlotTable;
pub use tap::{Capture, TapLink};
pub use trace::Trace;
pub(crate) use udp::holder::is_ours as port_is_ours;
pub use udp::{GroupSockets, UdpLink};

/// The UDP destination port of RoCEv2 (IBTA vol. 1, annex A17; IANA "roce").
pub const ROCE_PORT: u16 = 4791;

/// Where one batch goes and how it is cut into packets.
///
/// The batch's bytes are UDP payloads laid end to end, each `segment_size` long but the last, which may be shorter.
/// The destination port is always [`ROCE_PORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Source address, one of this host's own. IPv4 addresses are `V4`, never v4-mapped.
    pub src: IpAddr,
    /// Destination address, of the same family as `src`. Only a multicast group of RoCEv1 may be of the other family.
    pub dst: IpAddr,
    /// Interface to leave by. Needed for link-local and multicast destinations; 0 leaves it to the routing table.
    pub ifindex: u32,
    /// One of [`Capabilities::source_ports`].
    pub source_port: u16,
    /// IPv4 TOS or IPv6 traffic class, both ECN bits included.
    pub tos: u8,
    /// TTL or hop limit; 0 takes the system's default (1 for an IPv4 multicast destination).
    pub hop_limit: u8,
    /// What carries the packets; one of [`Capabilities::encapsulations`].
    pub encapsulation: Encapsulation,
    /// Bytes of every segment but the last, at least 1.
    pub segment_size: usize,
}

impl Transmit {
    /// The TTL or hop limit that the packets get. It is 64 where the batch takes the system's default.
    pub(crate) const fn hops(&self) -> u8 {
        if self.hop_limit == 0 { 64 } else { self.hop_limit }
    }
}

impl From<&endpoint::Transmit> for Transmit {
    /// Takes from a batch of an endpoint what a link has to know.
    fn from(batch: &endpoint::Transmit) -> Self {
        Self {
            src: batch.src,
            dst: batch.dst,
            ifindex: batch.ifindex,
            source_port: batch.src_port,
            tos: batch.tos,
            hop_limit: batch.hop_limit,
            encapsulation: batch.encapsulation,
            segment_size: batch.segment,
        }
    }
}

/// One shard's way to the network.
pub trait Link: Send {
    /// What this link can do. A link may lose abilities while it is open, see [`SendError::SegmentationRefused`].
    fn capabilities(&self) -> &Capabilities;

    /// What a batch to `dst` by interface `ifindex` may contain. Ask before every batch: a route without checksum offload may
    /// refuse batches that other routes accept.
    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        let _ = (dst, ifindex);
        self.capabilities().path()
    }

    /// Sends one batch of at most [`Path::max_segments`] packets and [`Capabilities::max_batch_bytes`] bytes, without
    /// waiting.
    ///
    /// # Errors
    /// See [`SendError`]: each error says how many packets left before it. [`SendError::Other`] with
    /// [`io::ErrorKind::InvalidInput`] means that the batch breaks the rules above.
    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError>;

    /// Replaces the contents of `into` by what has arrived, without waiting. Returns the number of runs, and of arrivals that are thrown
    /// away, such as empty datagrams. So 0 means that every socket of the link was empty.
    ///
    /// # Errors
    /// An unexpected failure of the socket. The link, and the runs already in `into`, stay usable.
    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize>;

    /// Descriptors that become readable when something arrives. Poll them level-triggered.
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Packets (or whole merged batches) that the system dropped since the link was opened, because the receive buffer was
    /// full. Modulo 2^32 per socket.
    fn drops(&self) -> u64 {
        0
    }

    /// A batch that [`send`](Self::send) accepted and that the link later failed to send: its destination, and the error. Each
    /// failure is returned once.
    fn late_error(&mut self) -> Option<(IpAddr, SendError)> {
        None
    }

    /// Frames that the link has dropped since it was opened, by reason. All zero for a link that sees no frames.
    fn frame_drops(&self) -> RawDrops {
        RawDrops::default()
    }

    /// Makes the link record its frames. A link that sees no frames returns the capture, so that the caller can use a
    /// [`TapLink`] instead.
    fn record(&mut self, capture: Capture) -> Option<Capture> {
        Some(capture)
    }

    /// Receives packets sent to multicast `group` on interface `ifindex` (0: the system's choice).
    ///
    /// # Errors
    /// The system's error: no such interface, group already joined (`AddrInUse`), too many groups.
    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()>;

    /// Undoes [`join`](Self::join).
    ///
    /// # Errors
    /// The system's error, for instance `AddrNotAvailable` for a group that was not joined on the interface.
    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()>;
}

impl core::fmt::Debug for dyn Link {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.capabilities().fmt(f)
    }
}

/// Checks a batch against the rules of every link. Returns the number of its packets.
fn check_batch(
    batch: &Transmit,
    bytes: &[u8],
    path: Path,
    (max_bytes, encapsulations): (usize, &[Encapsulation]),
) -> Result<usize, SendError> {
    let wrong = |why: &'static str| Err(SendError::Other(io::Error::new(io::ErrorKind::InvalidInput, why)));
    if !encapsulations.contains(&batch.encapsulation) {
        return wrong("an encapsulation (RoCEv1, RoCEv2) that the link does not carry");
    }
    if batch.encapsulation != Encapsulation::V1 && batch.src.is_ipv4() != batch.dst.is_ipv4() {
        return wrong("source and destination of a batch are of different families");
    }
    if batch.segment_size == 0 || bytes.is_empty() {
        return wrong("an empty batch or a segment size of 0");
    }
    let segments = bytes.len().div_ceil(batch.segment_size);
    if segments > usize::from(path.max_segments) || bytes.len() > max_bytes {
        return wrong("a batch larger than the link's capabilities");
    }
    Ok(segments)
}
