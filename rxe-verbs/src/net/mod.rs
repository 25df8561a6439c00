//! Links: how batches of RoCEv2 packets leave this host and arrive at it.
//!
//! A [`Link`] moves UDP payloads (BTH to ICRC) between IP addresses; it knows nothing of queue pairs. There is one per
//! shard. [`UdpLink`] is the usual one, an ordinary UDP socket; [`RawLink`] has whole Ethernet frames, for which one has to be
//! root; [`InprocLink`] connects ends inside one process;
//! [`FaultLink`] and [`TapLink`] wrap another link to disturb it, and to record ([`Capture`]) or print ([`Trace`]) it.
//!
//! The ICRC covers the IPv4 identification field, so a sender has to know it in advance: [`Link::path`] says which IDs
//! the packets of one batch will get. Every IPv4 packet a link sends has DF set, and the IPv6 flow label is always 0.

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

/// Where one batch goes and how it is cut.
///
/// The batch's bytes are UDP payloads laid end to end, each `segment_size` long but the last, which may be shorter.
/// The destination port is always [`ROCE_PORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Source address, one of this host's own. IPv4 addresses are `V4`, never v4-mapped.
    pub src: IpAddr,
    /// Destination address, of the same family; a group of RoCEv1 may be of the other.
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
    /// The TTL or hop limit that its packets get, 64 where the batch takes the system's default.
    pub(crate) const fn hops(&self) -> u8 {
        if self.hop_limit == 0 { 64 } else { self.hop_limit }
    }
}

impl From<&endpoint::Transmit> for Transmit {
    /// What a link has to know of a batch that an endpoint has built.
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
    /// What this link can do. May lose abilities while it lives, see [`SendError::SegmentationRefused`].
    fn capabilities(&self) -> &Capabilities;

    /// What a batch to `dst` by interface `ifindex` may contain. Ask before every batch: a route without checksum
    /// offload may refuse what the others accept.
    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        let _ = (dst, ifindex);
        self.capabilities().path()
    }

    /// Sends one batch of at most [`Path::max_segments`] packets and [`Capabilities::max_batch_bytes`] bytes, without
    /// waiting.
    ///
    /// # Errors
    /// See [`SendError`]: each says how many packets left before it. [`SendError::Other`] with
    /// [`io::ErrorKind::InvalidInput`] is a batch that breaks the rules above.
    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError>;

    /// Replaces the contents of `into` by what has arrived, without waiting; answers the number of runs. 0 means that
    /// every socket of the link was found empty.
    ///
    /// # Errors
    /// An unexpected failure of the socket; arrivals and the link stay usable.
    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize>;

    /// Descriptors that become readable when something arrives. Poll them level-triggered.
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Packets (or whole merged batches) the system threw away because the receive buffer was full, since the link was
    /// opened. Modulo 2^32 per socket.
    fn drops(&self) -> u64 {
        0
    }

    /// Why a batch that it took could not be sent later, and where that was to go; each once.
    fn late_error(&mut self) -> Option<(IpAddr, SendError)> {
        None
    }

    /// Frames that it has thrown away since it was opened, by reason; none where it sees no frames.
    fn frame_drops(&self) -> RawDrops {
        RawDrops::default()
    }

    /// Has the link record its frames; gives the capture back where it sees none, for [`TapLink`] to do what can be done.
    fn record(&mut self, capture: Capture) -> Option<Capture> {
        Some(capture)
    }

    /// Receives packets sent to multicast `group` on interface `ifindex` (0: the system's choice).
    ///
    /// # Errors
    /// Whatever the system says: no such interface, group already joined (`AddrInUse`), too many groups.
    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()>;

    /// Undoes [`join`](Self::join).
    ///
    /// # Errors
    /// Whatever the system says, `AddrNotAvailable` for a group that was not joined there.
    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()>;
}

impl core::fmt::Debug for dyn Link {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.capabilities().fmt(f)
    }
}

/// Checks a batch against the rules every link has; answers the number of its packets.
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
