//! What a datagram socket knows of others.

use rxe_verbs::{AddressVector, Qpn};
use std::time::{Duration, Instant};

/// If a destination was not heard of for this long, its queue pair may be gone, and what it is sent goes by UDP again.
const SILENCE: Duration = Duration::from_secs(1);

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
