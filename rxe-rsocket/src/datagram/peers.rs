//! What a datagram socket knows of others.

use super::State;
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

impl State {
    /// Notes whom the datagrams are from that have arrived behind the first `before`.
    pub(super) fn hear(&mut self, before: usize) {
        let now = Instant::now();
        for one in self.inbox.range(before..) {
            if let Some(known) = self.destinations.get_mut(&self.domain.told(one.from))
                && let Some((qpn, when)) = &mut known.heard
                && *qpn == one.sender
            {
                *when = now;
            }
        }
        if self.inbox.range(before..).any(|one| self.is_stranger(one.from)) {
            let fresh = self.inbox.split_off(before);
            let (domain, peer) = (self.domain, self.peer);
            self.inbox
                .extend(fresh.into_iter().filter(|one| peer.is_none_or(|peer| peer.is(domain, one.from))));
        }
    }

    /// Whether the socket is connected to somebody else.
    pub(super) fn is_stranger(&self, from: SocketAddr) -> bool {
        self.peer.is_some_and(|peer| !peer.is(self.domain, from))
    }
}
