//! Types that the calls of an endpoint take and return.

use super::Streams;
use crate::{
    num::Pkey,
    wire::{Encapsulation, HeaderSeen, Ident, icrc::Route},
};
use alloc::{sync::Arc, vec::Vec};
use core::net::IpAddr;
use thiserror::Error;

/// Largest number of shared receive queues of an endpoint. Their numbers for peers have 16 bits, and 0 is not used.
pub const MAX_SRQS: u32 = 65_535;

/// What the endpoint must know of its link and host.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// This process's slot: the top byte of its queue pair numbers.
    pub slot: u8,
    /// Largest number of packets in a batch, 1 to 128.
    pub max_segments: u16,
    /// Largest number of bytes in a batch.
    pub max_batch: usize,
    /// Which IPv4 IDs the link gives the packets of a batch.
    pub ident: Ident,
    /// Whether the link is memory that both ends share. Then packets need no ICRC.
    pub memory: bool,
    /// UDP source ports of the link's send sockets, at least one.
    pub source_ports: Vec<u16>,
    /// Bytes of READ responses that the receive buffer has room for at once.
    pub receive_window: u32,
    /// Window for one destination socket (bytes in flight to it): at the start, and the largest one. If the largest is `u32::MAX` there
    /// is no window: nothing shrinks it, so queue pairs should be paced.
    pub send_window: (u32, u32),
    /// What this endpoint shares with other endpoints of the host that send to the same sockets, and its number among these endpoints:
    /// below [`Stream::MOST`](super::Stream::MOST), different for each. The room of a socket is divided among the endpoints that have
    /// something under way to it. `None`: there are no other endpoints.
    pub streams: Option<(Arc<dyn Streams>, u8)>,
    /// Whether acknowledgements and answers leave only by [`Endpoint::poll_answer`](super::Endpoint::poll_answer). The caller calls it
    /// after each packet that it handed over. For links that send them apart from data.
    pub answers_apart: bool,
    /// Whether a reliable WRITE that is one of several may be sent as messages of one packet each, and a READ may ask for two packets at
    /// a time. Then all packets have the same length and fill batches. For a responder both forms mean the same, except for what it has
    /// placed in memory when it refuses a later part.
    pub parts: bool,
    /// The first P_Key table, until [`Endpoint::set_pkeys`](super::Endpoint::set_pkeys) replaces it. Index 0 is the default P_Key.
    pub pkeys: Vec<Pkey>,
    /// Largest datagram payload: the port's active MTU in bytes.
    pub port_mtu: u32,
    /// Random seed, which chooses the number of the first queue pair.
    pub seed: u64,
    /// Whether packets for other slots of the host are kept for [`Endpoint::poll_stray`](super::Endpoint::poll_stray).
    pub keep_strays: bool,
    /// Has the processor prefetch this many bytes from this address on, which will soon be used. It must do nothing else with the
    /// address. A function, because safe Rust has no prefetch instruction.
    pub fetch: fn(*const u8, usize),
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            slot: 0,
            max_segments: 64,
            max_batch: 65_000,
            ident: Ident::Sequential,
            memory: false,
            source_ports: alloc::vec![0xc000],
            receive_window: 256 * 1024,
            send_window: (96 * 1024, 192 * 1024),
            streams: None,
            answers_apart: false,
            parts: true,
            pkeys: alloc::vec![Pkey::DEFAULT],
            port_mtu: 4096,
            seed: 0,
            keep_strays: false,
            fetch: |_, _| (),
        }
    }
}

/// The headers in front of the packets of a run, as far as the link shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunMeta {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port; 0 if there is none.
    pub src_port: u16,
    /// Index of the interface on which the run arrived.
    pub ifindex: u32,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    pub tos: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// What the link showed of the headers. It also says what carried the packets.
    pub seen: HeaderSeen,
}

impl RunMeta {
    /// The header fields that the ICRC covers.
    #[must_use]
    pub const fn route(&self) -> Route {
        Route {
            src: self.src,
            dst: self.dst,
            src_port: self.src_port,
            encapsulation: self.seen.encapsulation(),
        }
    }
}

/// Packets that came in one receive, all from the same source address and port to the same address. All have `segment` bytes, except that
/// the last one may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Their headers.
    pub meta: RunMeta,
    /// The packets (BTH to ICRC), one after the other.
    pub bytes: &'a [u8],
    /// Bytes of each packet; 0 means one packet.
    pub segment: usize,
}

/// A packet that the host steered to the wrong process, or a probe of that steering. The caller hands it on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stray {
    /// Its headers.
    pub meta: RunMeta,
    /// The packet, BTH to ICRC.
    pub bytes: Vec<u8>,
}

/// A batch to be sent: the first `len` bytes of the caller's arena. They are packets of `segment` bytes (the last one may be shorter),
/// all with the same headers in front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port, one of the configured ones.
    pub src_port: u16,
    /// Index of the interface to send on. 0: the routing table decides.
    pub ifindex: u32,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// TTL or hop limit. 0: the system's default.
    pub hop_limit: u8,
    /// What carries the packets.
    pub encapsulation: Encapsulation,
    /// Virtual lane, 0 to 14.
    pub lane: u8,
    /// The IPv4 IDs for which the packets' ICRCs were computed.
    pub ident: Ident,
    /// Bytes used in the arena.
    pub len: usize,
    /// Bytes of each packet.
    pub segment: usize,
    /// Packets in the batch.
    pub count: usize,
}

impl Transmit {
    /// The header fields that the ICRCs cover.
    #[must_use]
    pub const fn route(&self) -> Route {
        Route { src: self.src, dst: self.dst, src_port: self.src_port, encapsulation: self.encapsulation }
    }
}

/// Which acknowledgements leave now. They wait for a while, so that they may leave together with data or with other acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Acks {
    /// Only behind data to the same peer. The caller sees to it that the others do not wait for long.
    Hold,
    /// Behind data to the same peer, and those that have waited long enough.
    Wait,
    /// All of them.
    Flush,
}

/// Why a queue pair or shared receive queue was not created or not destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ObjectError {
    /// All numbers are in use (ENOMEM).
    #[error("no free number left")]
    Exhausted,
    /// There is no such object (EINVAL).
    #[error("no such object")]
    NoSuchObject,
    /// This many queue pairs still use it (EBUSY).
    #[error("still used by {0} queue pairs")]
    Busy(usize),
    /// An XRC target without an XRC domain, another queue pair with one, or an XRC queue pair with a shared receive queue (EINVAL).
    #[error("an XRC target has a domain and nothing else to receive with")]
    Xrc,
    /// Queue pair 1 exists already (EBUSY).
    #[error("queue pair 1 is taken")]
    GsiTaken,
}
