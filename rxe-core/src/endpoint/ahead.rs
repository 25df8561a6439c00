//! Fetching memory ahead of its use. With thousands of queue pairs used in turn, waiting for their memory would take most of
//! the time.
//!
//! This is the only place that knows of it. There is no safe way to ask a processor for it, so the caller brings one
//! ([`EndpointConfig::fetch`](super::EndpointConfig::fetch)); addresses are all that it is given.

use super::Endpoint;
use crate::{
    num::Qpn,
    qp::{QueuePair, common::QpCommon},
};
use core::{mem::offset_of, ptr};

/// Packets of a run in whose time the next one's queue pair is fetched.
pub(super) const AHEAD: usize = 2;

impl Endpoint {
    /// A send request for this queue pair is about to be posted: what one for the queue pair that came next the last time
    /// will touch is fetched. Most programs go through their queue pairs in the same order again and again.
    pub fn expect_post(&mut self, qpn: Qpn) {
        if self.posted == qpn {
            return;
        }
        if let Some(before) = self.qps.get_mut(self.posted) {
            before.follower = qpn;
        }
        self.posted = qpn;
        let follower = self.qps.get(qpn).map(|qp| qp.follower);
        if let Some(next) = follower.and_then(|follower| self.qps.get(follower)) {
            fetch(next, self.shared.config.fetch);
        }
    }

    /// Fetches the queue pair of a packet that comes a little later, if it is another one than that of this.
    pub(super) fn expect_packet(&self, bytes: &[u8], later: &[u8]) {
        let dest = |bytes: &[u8]| Some(Qpn::new(u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?)));
        if let Some(next) = dest(later)
            && dest(bytes) != Some(next)
            && let Some(qp) = self.qps.get(next)
        {
            fetch(qp, self.shared.config.fetch);
        }
    }
}

/// Has what most packets touch of a queue pair fetched: its fields are in the order of their use.
fn fetch(qp: &QueuePair, fetch: fn(*const u8, usize)) {
    fetch(ptr::from_ref(qp).cast(), offset_of!(QueuePair, common));
    let QpCommon { attrs, stats, .. } = &qp.common;
    let (first, last) = (ptr::from_ref(&attrs.access).cast::<u8>(), ptr::from_ref(&stats.bytes_received));
    fetch(first, last.addr() - first.addr());
}
