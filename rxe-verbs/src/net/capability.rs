//! What a link can do.

pub use rxe_core::wire::{Encapsulation, HeaderSeen, Ident};

/// What a batch to one destination may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Most packets in one batch, at least 1.
    pub max_segments: u16,
    /// The IPv4 identifications that the packets get.
    pub ident: Ident,
}

/// RoCEv2 alone.
pub const ROCE_V2: &[Encapsulation] = &[Encapsulation::V2];

/// What a link can do. Opening the link finds it out by trying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Encapsulations that the link carries; the first is the usual one.
    pub encapsulations: &'static [Encapsulation],
    /// IPv4 addresses can be used.
    pub ipv4: bool,
    /// IPv6 addresses can be used.
    pub ipv6: bool,
    /// The system cuts a batch into packets (UDP_SEGMENT).
    pub gso: bool,
    /// The system merges packets of one sender into runs (UDP_GRO). It merges only packets with a UDP checksum. Other
    /// implementations send checksum 0, so their packets come one by one.
    pub gro: bool,
    /// Most packets in one batch: 128 with segmentation (64 where the system has refused more), 32 where one call sends several
    /// datagrams, else 1.
    pub max_segments: u16,
    /// Most bytes in one batch, for either address family.
    pub max_batch_bytes: usize,
    /// The identifications the packets of a batch get.
    pub ident: Ident,
    /// Source ports a batch may name; never empty. Choose the port by destination, so that ECMP spreads the load.
    pub source_ports: Vec<u16>,
    /// Receive buffer that the system granted, in the system's accounting (`SO_RCVBUF` as read back: a single 4 KiB packet
    /// costs 8448, a 60 KiB run 62752). The smallest of the link's sockets.
    pub recv_buffer: usize,
    /// A BPF program chooses the socket of the port-4791 group by the packet's slot. False means one process per IP address.
    pub steering: bool,
}

impl Capabilities {
    /// The limits that [`check_batch`](super::check_batch) checks.
    pub(super) const fn limits(&self) -> (usize, &'static [Encapsulation]) {
        (self.max_batch_bytes, self.encapsulations)
    }

    /// What a batch to an ordinary destination may contain.
    #[must_use]
    pub const fn path(&self) -> Path {
        Path { max_segments: self.max_segments, ident: self.ident }
    }
}
