//! From the endpoint's batches to the link, and what to do when the link does not take one.

use super::state::State;
use crate::{
    events::AsyncEvent,
    net::{Ident, SendError, Transmit},
    regions::View,
};
use core::net::IpAddr;
use rxe_core::{
    endpoint::{self, Acks, BatchIdent},
    time::Instant,
    wire::icrc::{Route, seal},
};
use std::io;

/// Batches of one turn at most.
const BATCHES: usize = 64;
/// Destinations remembered as told of a too large MTU.
const DESTINATIONS: usize = 64;

/// What the network did with what we sent and should have received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkReport {
    /// Batches with packets larger than the interface's MTU.
    pub too_long: u64,
    /// Batches without a way to their destination.
    pub unreachable: u64,
    /// Times a batch had to wait because the send buffer was full.
    pub blocked: u64,
    /// Batches that failed for another reason.
    pub failed: u64,
    /// Receives that failed.
    pub receive_errors: u64,
    /// Packets, or whole merged batches, that the system threw away because the receive buffer was full.
    pub receive_drops: u64,
    /// Datagrams thrown away because they were empty, or came incomplete from the system.
    pub malformed: u64,
    /// Arrivals of several packets that the system had merged into one (UDP_GRO).
    pub merged: u64,
    /// Destinations that packets were too large for.
    pub too_long_for: Vec<IpAddr>,
    /// The last error, in words.
    pub last_error: Option<String>,
}

impl LinkReport {
    /// Both together: what the links of several shards report.
    pub(crate) fn and(self, other: Self) -> Self {
        let mut too_long_for = self.too_long_for;
        too_long_for.extend(other.too_long_for);
        too_long_for.sort_unstable();
        too_long_for.dedup();
        Self {
            too_long: self.too_long + other.too_long,
            unreachable: self.unreachable + other.unreachable,
            blocked: self.blocked + other.blocked,
            failed: self.failed + other.failed,
            receive_errors: self.receive_errors + other.receive_errors,
            receive_drops: self.receive_drops + other.receive_drops,
            malformed: self.malformed + other.malformed,
            merged: self.merged + other.merged,
            too_long_for,
            last_error: other.last_error.or(self.last_error),
        }
    }

    pub(super) fn receive_failed(&mut self, error: &io::Error) {
        self.receive_errors += 1;
        self.last_error = Some(format!("receiving: {error}"));
    }
}

/// A batch in the arena of which only a part has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    batch: endpoint::Transmit,
    /// Packets that have left.
    sent: usize,
    /// Identifications that the rest's ICRCs were computed with, if they are still those of the whole batch.
    built: Option<Ident>,
}

impl State {
    /// Sends what waits; gives the number of batches. A batch that the link cannot take stays in the arena, and nothing
    /// overtakes it.
    pub(super) fn transmit(&mut self, now: Instant, view: View<'_>, acks: Acks) -> usize {
        let mut count = 0;
        if let Some(pending) = self.pending.take() {
            if !self.send(pending) {
                return 0;
            }
            count += 1;
        }
        while count < BATCHES {
            let Some(batch) = self.endpoint.poll_transmit(now, &view, &mut self.arena, acks) else { break };
            let built = match self.endpoint.config().ident {
                BatchIdent::Sequential => Ident::Sequential,
                BatchIdent::Zero => Ident::Zero,
            };
            count += 1;
            if !self.send(Pending { batch, sent: 0, built: Some(built) }) {
                break;
            }
        }
        self.unfinished = count == BATCHES;
        count
    }

    /// Sends the rest of a batch; false if the link has no room, and the batch is kept.
    fn send(&mut self, mut pending: Pending) -> bool {
        let Pending { batch, .. } = pending;
        let transmit = Transmit {
            src: batch.src,
            dst: batch.dst,
            ifindex: batch.ifindex,
            source_port: batch.src_port,
            tos: batch.tos,
            hop_limit: batch.hop_limit,
            segment_size: batch.segment,
        };
        while pending.sent < batch.count {
            // Asked anew each time: a route may turn out to be unable to segment.
            let path = self.link.path(batch.dst, batch.ifindex);
            let count = (batch.count - pending.sent).min(usize::from(path.max_segments.max(1)));
            let start = pending.sent * batch.segment;
            let end = (start + count * batch.segment).min(batch.len);
            let bytes = &mut self.arena[start..end];
            if pending.sent > 0 || pending.built != Some(path.ident) {
                reseal(&batch, path.ident, bytes);
                pending.built = None;
            }
            match self.link.send(&transmit, bytes) {
                Ok(()) => pending.sent += count,
                Err(SendError::WouldBlock { sent }) => {
                    self.report.blocked += 1;
                    pending.sent += sent;
                    pending.built = pending.built.filter(|_| sent == 0);
                    self.pending = Some(pending);
                    return false;
                }
                Err(SendError::SegmentationRefused { sent }) => {
                    pending.sent += sent;
                    pending.built = None;
                    // Later batches are built for what the route can do.
                    let path = self.link.path(batch.dst, batch.ifindex);
                    let ident = core_ident(path.ident);
                    self.endpoint.limit_route(batch.dst, batch.ifindex, path.max_segments, ident);
                }
                Err(error) => {
                    self.lose(batch.dst, &error);
                    return true;
                }
            }
        }
        true
    }

    /// Notes why a batch was given up; as far as the protocol goes it is lost on the way.
    fn lose(&mut self, dst: IpAddr, error: &SendError) {
        self.report.last_error = Some(format!("sending to {dst}: {error}"));
        match error {
            SendError::MessageTooLong { .. } => {
                self.report.too_long += 1;
                let told = &mut self.report.too_long_for;
                if !told.contains(&dst) && told.len() < DESTINATIONS {
                    told.push(dst);
                    self.tell_everyone(AsyncEvent::PathMtuExceeded(dst));
                }
            }
            SendError::Unreachable { .. } => self.report.unreachable += 1,
            _ => self.report.failed += 1,
        }
    }
}

/// Computes the ICRCs anew for packets that leave with other IPv4 identifications than they were built for.
fn reseal(batch: &endpoint::Transmit, ident: Ident, bytes: &mut [u8]) {
    if !batch.dst.is_ipv4() {
        return;
    }
    let route = Route { src: batch.src, dst: batch.dst, src_port: batch.src_port };
    for (index, packet) in bytes.chunks_mut(batch.segment.max(1)).enumerate() {
        seal(&route, ident.of(index), packet);
    }
}

/// Identifications in the core's words.
pub(super) const fn core_ident(ident: Ident) -> BatchIdent {
    match ident {
        Ident::Sequential => BatchIdent::Sequential,
        Ident::Zero => BatchIdent::Zero,
    }
}
