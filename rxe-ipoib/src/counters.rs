//! What became of packets.

use serde::{Deserialize, Serialize};

/// Counts since the interface was made. Nothing is dropped without being counted.
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
    /// Not sent: no sound IP packet.
    pub dropped_malformed: u64,
    /// Not sent: nobody has the neighbour's address, or too many packets wait for one.
    pub dropped_unresolved: u64,
    /// Not sent: too long for the neighbour; the host's stack was told.
    pub dropped_too_big: u64,
    /// Not sent: too much is under way to that neighbour.
    pub dropped_busy: u64,
    /// Not sent: the queue pair refused it, or the connection was cut.
    pub dropped_send: u64,
    /// Received, and no frame of IPoIB that we know.
    pub dropped_frame: u64,
    /// Received, and the interface is down or takes no more.
    pub dropped_tun: u64,
    /// Our own packets to groups, which Ethernet brings back.
    pub own_multicast: u64,
    /// Connections that stood.
    pub connections: u64,
    /// Connections that were not made, or cut.
    pub connections_failed: u64,
    /// Requests for connections that were refused.
    pub connections_refused: u64,
}
