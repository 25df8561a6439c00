//! Fetches the memory of queue pairs before it is used. With thousands of queue pairs used in turn, waiting for their memory
//! would take most of the time.
//!
//! No safe code can make a processor fetch memory, so the caller of the endpoint brings a function for it
//! ([`EndpointConfig::fetch`](super::EndpointConfig::fetch)). The function gets addresses and lengths, nothing else.

use super::Endpoint;
use crate::{
    num::Qpn,
    qp::{QueuePair, common::QpCommon},
};
use core::{mem::offset_of, ptr};

/// The queue pair of a packet is fetched while the packet that is so many places before it in the run is handled.
pub(super) const AHEAD: usize = 2;

impl Endpoint {
    /// Says that a send request for queue pair `qpn` is about to be posted. Fetches the queue pair to which the program posted
    /// next after `qpn` the last time: most programs go through their queue pairs in the same order again and again.
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

    /// Fetches the queue pair of the packet `later` if the packet `bytes`, which is handled now, is for another one.
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

/// Fetches the fields of a queue pair that most packets touch. They lie together, see [`QueuePair`].
fn fetch(qp: &QueuePair, fetch: fn(*const u8, usize)) {
    fetch(ptr::from_ref(qp).cast(), offset_of!(QueuePair, common));
    let QpCommon { attrs, stats, .. } = &qp.common;
    let (first, last) = (ptr::from_ref(&attrs.access).cast::<u8>(), ptr::from_ref(&stats.bytes_received));
    fetch(first, last.addr() - first.addr());
}
