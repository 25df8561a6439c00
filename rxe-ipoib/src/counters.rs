//! Counters of packets.

use serde::{Deserialize, Serialize};

/// Counts since the interface was created. Every dropped packet is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Counters {
    /// IP packets sent as datagrams.
    pub sent_datagrams: u64,
    /// IP packets sent over connections.
    pub sent_connected: u64,
    /// IP packets received as datagrams.
    pub received_datagrams: u64,
    /// IP packets received over connections.
    pub received_connected: u64,
    /// ARP packets, solicitations and advertisements sent.
    pub sent_resolution: u64,
    /// The same, received.
    pub received_resolution: u64,
    /// Not sent: not a valid IP packet.
    pub dropped_malformed: u64,
    /// Not sent: the neighbour's address could not be resolved, or too many packets wait for it.
    pub dropped_unresolved: u64,
    /// Not sent: too long for the neighbour. The host's IP stack got an ICMP message.
    pub dropped_too_big: u64,
    /// Not sent: too many packets are under way to that neighbour.
    pub dropped_busy: u64,
    /// Not sent: the queue pair refused it, or the connection ended.
    pub dropped_send: u64,
    /// Received, but not a known IPoIB frame.
    pub dropped_frame: u64,
    /// Received, but the interface is down, or its queue is full.
    pub dropped_tun: u64,
    /// Our own packets to groups, which arrive here again.
    pub own_multicast: u64,
    /// Connections that were established.
    pub connections: u64,
    /// Connections that failed, or were ended by the peer.
    pub connections_failed: u64,
    /// Requests for connections that were refused.
    pub connections_refused: u64,
}
