//! What a datagram socket knows of others.

use crate::Domain;
use rxe_verbs::{AddressVector, Qpn};
use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

/// If a destination was not heard of for this long, its queue pair may be gone, and what it is sent goes by UDP again.
const SILENCE: Duration = Duration::from_secs(1);

/// Whom a connected socket sends to, and receives from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// Where its packets come from. It differs for a loopback address.
    pub(super) also: IpAddr,
}

impl Peer {
    /// Whether a datagram is its. `from` is in the form of the connection manager.
    pub(super) fn is(&self, domain: Domain, from: SocketAddr) -> bool {
        let address = domain.plain(self.address);
        from.port() == address.port() && [address.ip(), self.also].contains(&from.ip())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    pub(super) way: usize,
    pub(super) av: AddressVector,
    /// The peer's queue pair, once it is known, and when the peer was last heard of.
    pub(super) heard: Option<(Qpn, Instant)>,
}

impl Destination {
    /// The peer's queue pair. Nobody tells us if it ends, and another socket may have the peer's port by now. That one
    /// answers what it gets by UDP.
    pub(super) fn qpn(&self) -> Option<Qpn> {
        self.heard.filter(|(_, when)| when.elapsed() < SILENCE).map(|(qpn, _)| qpn)
    }
}
