//! What goes into an endpoint and what comes out of it.

use super::Streams;
use crate::{
    num::Pkey,
    wire::{Encapsulation, HeaderSeen, Ident, icrc::Route},
};
use alloc::{sync::Arc, vec::Vec};
use core::net::IpAddr;
use thiserror::Error;

/// Shared receive queues of an endpoint at most: their numbers for peers have 16 bits, and 0 is none.
pub const MAX_SRQS: u32 = 65_535;

/// What the endpoint must know of its link and host.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// This process's slot: the top byte of its queue pair numbers.
    pub slot: u8,
    /// Packets of one batch at most, 1 to 128.
    pub max_segments: u16,
    /// Bytes of one batch at most.
    pub max_batch: usize,
    /// IDs that the link gives the IPv4 packets of a batch.
    pub ident: Ident,
    /// Whether the link is memory that both ends share, and packets need no ICRC.
    pub memory: bool,
    /// UDP source ports of the link's send sockets, at least one.
    pub source_ports: Vec<u16>,
    /// Bytes of READ responses we can take in at once.
    pub receive_window: u32,
    /// Bytes in flight to one destination socket, at the start and at most. A largest window of `u32::MAX` is none: nothing
    /// shrinks it, so queue pairs should be paced.
    pub send_window: (u32, u32),
    /// Where it finds what it shares with other endpoints that send from this host to the same sockets, and its number among
    /// those, below [`Stream::MOST`](super::Stream::MOST) and no other one's. They divide what a socket takes by those that have
    /// something under way there. Without this there are no others.
    pub streams: Option<(Arc<dyn Streams>, u8)>,
    /// Whether acknowledgements and answers leave only by [`Endpoint::poll_answer`](super::Endpoint::poll_answer), for which
    /// the caller asks after each packet that it handed over. For links that send them apart from data.
    pub answers_apart: bool,
    /// Whether a reliable WRITE that is one of several may leave as messages of one packet each, and a READ ask for two packets
    /// at a time: all packets have one length then, and fill batches. Both forms mean the same to a responder, but for what it
    /// has placed when it refuses a later part.
    pub parts: bool,
    /// P_Key table, until [`Endpoint::set_pkeys`](super::Endpoint::set_pkeys) gives others; index 0 is the default one.
    pub pkeys: Vec<Pkey>,
    /// Largest datagram payload: the port's active MTU in bytes.
    pub port_mtu: u32,
    /// Seed for anything that is to be unpredictable.
    pub seed: u64,
    /// Whether packets for other slots of the host are kept for [`Endpoint::poll_stray`](super::Endpoint::poll_stray).
    pub keep_strays: bool,
    /// Has the processor fetch that many bytes from an address on, which will soon be touched; that is all it does with it.
    /// There is no safe way to say so.
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

/// Where a run came from: the headers of its packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunMeta {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port; 0 where there is none.
    pub src_port: u16,
    /// Interface it came in by.
    pub ifindex: u32,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    pub tos: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// What was seen of the headers, and so what carried the packets.
    pub seen: HeaderSeen,
}

impl RunMeta {
    /// What the ICRC covers of them.
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

/// Packets that came in one receive: all from the same source port to the same address, all `segment` bytes long but the
/// last, which may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Their headers.
    pub meta: RunMeta,
    /// The packets, BTH to ICRC, one behind the other.
    pub bytes: &'a [u8],
    /// Bytes of each packet; 0 means one packet.
    pub segment: usize,
}

/// A packet that the host's steering brought to the wrong process, or a probe of that steering: to be handed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stray {
    /// Its headers.
    pub meta: RunMeta,
    /// The packet, BTH to ICRC.
    pub bytes: Vec<u8>,
}

/// A batch to be sent: the first `len` bytes of the caller's arena, cut into packets of `segment` bytes (the last may be
/// shorter), all with the same headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port, one of the configured ones.
    pub src_port: u16,
    /// Interface to leave by, 0 for the routing table's choice.
    pub ifindex: u32,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// TTL or hop limit, 0 for the system's.
    pub hop_limit: u8,
    /// What carries the packets.
    pub encapsulation: Encapsulation,
    /// Virtual lane, 0 to 14.
    pub lane: u8,
    /// IPv4 IDs that the packets were sealed for.
    pub ident: Ident,
    /// Bytes used in the arena.
    pub len: usize,
    /// Bytes of each packet.
    pub segment: usize,
    /// Packets in the batch.
    pub count: usize,
}

impl Transmit {
    /// What the ICRCs cover of the headers.
    #[must_use]
    pub const fn route(&self) -> Route {
        Route { src: self.src, dst: self.dst, src_port: self.src_port, encapsulation: self.encapsulation }
    }
}

/// Whether acknowledgements that wait for company leave now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Acks {
    /// Only behind data to the same peer: for a caller that sees to it that they do not wait for long.
    Hold,
    /// Only behind data to the same peer, or when their time is up.
    Wait,
    /// All of them.
    Flush,
}

/// Why a queue pair or shared receive queue was not made, or not destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ObjectError {
    /// All numbers are in use (ENOMEM).
    #[error("no free number left")]
    Exhausted,
    /// No such object (EINVAL).
    #[error("no such object")]
    NoSuchObject,
    /// Still used by queue pairs (EBUSY).
    #[error("still used by {0} queue pairs")]
    Busy(usize),
    /// An XRC target without a domain, another queue pair with one, or an XRC queue pair with a shared receive queue
    /// (EINVAL).
    #[error("an XRC target has a domain and nothing else to receive with")]
    Xrc,
    /// Queue pair 1 exists already, or is not for this slot (EBUSY).
    #[error("queue pair 1 is taken")]
    GsiTaken,
}
