//! What a link can do.

pub use rxe_core::wire::{Encapsulation, HeaderSeen, Ident};

/// What a batch to one destination may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Most packets in one batch, at least 1.
    pub max_segments: u16,
    /// The identifications they get.
    pub ident: Ident,
}

/// RoCEv2 alone.
pub const ROCE_V2: &[Encapsulation] = &[Encapsulation::V2];

/// What a link can do, found by trying when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What it carries packets in; the first is the usual one.
    pub encapsulations: &'static [Encapsulation],
    /// IPv4 addresses can be used.
    pub ipv4: bool,
    /// IPv6 addresses can be used.
    pub ipv6: bool,
    /// The system cuts a batch into packets (UDP_SEGMENT).
    pub gso: bool,
    /// The system merges packets of one sender into runs (UDP_GRO). Only packets with a UDP checksum are merged, so
    /// those of other implementations, which send 0, still come one by one.
    pub gro: bool,
    /// Most packets in one batch: 128 with segmentation, 32 where one call sends several datagrams, else 1.
    pub max_segments: u16,
    /// Most bytes in one batch, for either address family.
    pub max_batch_bytes: usize,
    /// The identifications the packets of a batch get.
    pub ident: Ident,
    /// Source ports a batch may name; never empty. Vary them by destination so that networks spread the load.
    pub source_ports: Vec<u16>,
    /// Receive buffer granted by the system, in its own accounting (`SO_RCVBUF` as read back: a single 4 KiB packet
    /// costs 8448, a 60 KiB run 62752). The smaller of the two families'.
    pub recv_buffer: usize,
    /// A program chooses the socket of the 4791 group by the packet's slot; false means one process per IP address.
    pub steering: bool,
}

impl Capabilities {
    /// What [`check_batch`](super::check_batch) wants to know.
    pub(super) const fn limits(&self) -> (usize, &'static [Encapsulation]) {
        (self.max_batch_bytes, self.encapsulations)
    }

    /// What holds for a destination nothing special is known about.
    #[must_use]
    pub const fn path(&self) -> Path {
        Path { max_segments: self.max_segments, ident: self.ident }
    }
}
