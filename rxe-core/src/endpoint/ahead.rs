//! Prefetches the memory of queue pairs. If thousands of queue pairs are used in turn, their memory is not in the processor's caches, and
//! waiting for it would take most of the time.
//!
//! Safe Rust has no prefetch instruction. So the caller of the endpoint provides a function for it
//! ([`EndpointConfig::fetch`](super::EndpointConfig::fetch)), which gets addresses and lengths.

use super::Endpoint;
use crate::{
    num::Qpn,
    qp::{QueuePair, common::QpCommon},
};
use core::{mem::offset_of, ptr};

/// While a packet is handled, the queue pair of the packet that is this many places behind it in the run is fetched.
pub(super) const AHEAD: usize = 2;

impl Endpoint {
    /// To be called before a send request is posted to queue pair `qpn`. Fetches the queue pair to which the program posted next after
    /// `qpn` the last time, because most programs go through their queue pairs in the same order each time.
    pub fn expect_post(&mut self, qpn: Qpn) {
        if self.posted == qpn {
            return;
        }
        if let Some(before) = self.qps.get_mut(self.posted) {
            before.follower = qpn;
        }
        self.posted = qpn;
        if let Some(next) = self.qps.get(qpn).and_then(|qp| self.qps.get(qp.follower)) {
            fetch(next, self.shared.config.fetch);
        }
    }

    /// Fetches the queue pair of the packet `later`, unless the packet `bytes`, which is handled now, is for the same one.
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

/// Fetches the fields of a queue pair that most packets use. They are next to each other in memory, see [`QueuePair`].
fn fetch(qp: &QueuePair, fetch: fn(*const u8, usize)) {
    fetch(ptr::from_ref(qp).cast(), offset_of!(QueuePair, common));
    let QpCommon { attrs, stats, .. } = &qp.common;
    let (first, last) = (ptr::from_ref(&attrs.access).cast::<u8>(), ptr::from_ref(&stats.bytes_received));
    fetch(first, last.addr() - first.addr());
}
