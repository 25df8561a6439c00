//! Hands the endpoint's batches to the link, and keeps or drops a batch that the link does not take.

use super::{clock, state::State};
use crate::{
    events::AsyncEvent,
    net::{RawDrops, SendError, Transmit},
    regions::View,
};
use core::{net::IpAddr, time::Duration};
use rxe_core::{
    endpoint::{self, Acks},
    time::Instant,
    wire::{Ident, Sealer},
};
use std::io;

/// Most batches of one turn.
const BATCHES: usize = 64;
/// For so long a batch is tried again if the interface takes nothing of it.
const LONGEST_STUCK: Duration = Duration::from_millis(100);
/// For so long after that, a batch to the same destination is not tried again.
const LONGEST_REFUSAL: Duration = Duration::from_secs(1);
/// Most destinations in [`LinkReport::too_long_for`] and [`Refusing`].
const DESTINATIONS: usize = 64;

/// What happened to batches at the link, and to arrivals before they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkReport {
    /// Batches with packets larger than the interface's MTU.
    pub too_long: u64,
    /// Batches without a way to their destination, for whatever reason.
    pub unreachable: u64,
    /// Those of `unreachable` whose next hop is not known (ARP, neighbour discovery).
    pub no_neighbour: u64,
    /// Those of `unreachable` whose interface is down.
    pub interface_down: u64,
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
    /// Frames that the raw link has thrown away, by reason.
    pub frames: RawDrops,
    /// Arrivals of several packets that the system had merged into one (UDP_GRO).
    pub merged: u64,
    /// Destinations that packets were too large for.
    pub too_long_for: Vec<IpAddr>,
    /// The last error, in words.
    pub last_error: Option<String>,
}

impl LinkReport {
    /// The sum of two reports, for the links of several shards.
    pub(crate) fn and(self, other: Self) -> Self {
        let mut too_long_for = self.too_long_for;
        too_long_for.extend(other.too_long_for);
        too_long_for.sort_unstable();
        too_long_for.dedup();
        Self {
            too_long: self.too_long + other.too_long,
            unreachable: self.unreachable + other.unreachable,
            no_neighbour: self.no_neighbour + other.no_neighbour,
            interface_down: self.interface_down + other.interface_down,
            frames: self.frames.and(other.frames),
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

    /// Each counter with the name that `rxe stat` prints.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("receive_drops", self.receive_drops),
            ("dropped_empty", self.malformed),
            ("merged_receives", self.merged),
            ("unreachable", self.unreachable),
            ("no_neighbour", self.no_neighbour),
            ("interface_down", self.interface_down),
        ]
        .into_iter()
        .chain(self.frames.each())
    }

    pub(super) fn receive_failed(&mut self, error: &io::Error) {
        self.receive_errors += 1;
        self.last_error = Some(format!("receiving: {error}"));
    }
}

/// A batch in the arena that has not left, or of which only a part has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    batch: endpoint::Transmit,
    /// Packets that have left.
    sent: usize,
    /// The form of IPv4 IDs for which the rest is sealed, and the packet whose ID is the first of them.
    sealed: (Ident, usize),
    /// Since when the interface has taken nothing of it.
    stuck: Option<Instant>,
}

/// Destinations for which an interface took nothing for [`LONGEST_STUCK`], and when it last did so.
#[derive(Debug, Default)]
pub(super) struct Refusing(Vec<(IpAddr, Instant)>);

impl Refusing {
    /// The interface takes nothing of a batch to `dst`, `since` this time. Whether the batch counts as lost: after
    /// [`LONGEST_STUCK`], or at once if that was so for the same destination a moment ago. Until then it keeps all others back.
    fn gives_up(&mut self, now: Instant, dst: IpAddr, since: Instant) -> bool {
        self.0.retain(|(_, at)| now.since(*at) < LONGEST_REFUSAL);
        let again = self.0.iter().position(|(other, _)| *other == dst);
        if again.is_none() && now.since(since) < LONGEST_STUCK {
            return false;
        }
        let place = again.or_else(|| (self.0.len() == DESTINATIONS).then_some(0));
        place.map(|place| self.0.remove(place));
        self.0.push((dst, now));
        true
    }
}

impl Pending {
    const fn new(batch: endpoint::Transmit) -> Self {
        Self { batch, sent: 0, sealed: (batch.ident, 0), stuck: None }
    }

    /// Seals the rest again if the link will give it other IDs than those for which it is sealed. That happens after a part of the batch
    /// has left, and if the route turned out to be unable to segment.
    fn fit(&mut self, ident: Ident, arena: &mut [u8]) {
        let Self { batch, sent, sealed, .. } = *self;
        self.sealed = (ident, sent);
        if self.sealed == sealed
            || sealed.0 == Ident::Zero && ident == Ident::Zero
            || !batch.route().is_ipv4()
        {
            return;
        }
        let sealer = Sealer::new(&batch.route(), ident);
        let packets = arena[..batch.len].chunks_mut(batch.segment.max(1)).enumerate().skip(sent);
        for (index, packet) in packets {
            sealer.reseal(index - sent, sealed.0.of(index - sealed.1), packet);
        }
    }
}

impl State {
    /// Sends what waits, and returns the number of batches. A batch that the link cannot take now stays in the arena, and no other one
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
            count += 1;
            if !self.send(Pending::new(batch)) {
                break;
            }
        }
        self.unfinished = count == BATCHES;
        count
    }

    /// Sends the rest of a batch. If the link has no room it keeps the batch and returns false.
    fn send(&mut self, mut pending: Pending) -> bool {
        let Pending { batch, .. } = pending;
        let transmit = Transmit::from(&batch);
        while pending.sent < batch.count {
            // The link is asked each time, because a route may turn out to be unable to segment.
            let path = self.link.path(batch.dst, batch.ifindex);
            let count = (batch.count - pending.sent).min(usize::from(path.max_segments.max(1)));
            let start = pending.sent * batch.segment;
            let end = (start + count * batch.segment).min(batch.len);
            if pending.sent == 0
                && (path.ident != batch.ident || batch.count > usize::from(path.max_segments))
            {
                self.build_for(&batch);
            }
            pending.fit(path.ident, &mut self.arena);
            match self.link.send(&transmit, &self.arena[start..end]) {
                Ok(()) => pending.sent += count,
                Err(error @ (SendError::WouldBlock { sent } | SendError::QueueFull { sent })) => {
                    let is_stuck = matches!(error, SendError::QueueFull { sent: 0 });
                    pending.stuck = is_stuck.then(|| pending.stuck.unwrap_or_else(clock::now));
                    if let Some(since) = pending.stuck
                        && self.refusing.gives_up(clock::now(), batch.dst, since)
                    {
                        self.lose(batch.dst, &error);
                        return true;
                    }
                    self.report.blocked += 1;
                    pending.sent += sent;
                    self.pending = Some(pending);
                    return false;
                }
                Err(SendError::SegmentationRefused { sent }) => {
                    pending.sent += sent;
                    self.build_for(&batch);
                }
                Err(error) => {
                    self.lose(batch.dst, &error);
                    return true;
                }
            }
        }
        true
    }

    /// Has later batches over this route built for what the link can do.
    fn build_for(&mut self, batch: &endpoint::Transmit) {
        let path = self.link.path(batch.dst, batch.ifindex);
        self.endpoint.limit_route(batch.dst, batch.ifindex, path.max_segments, path.ident);
    }

    /// Counts why a batch was given up. To the protocol it is lost on the way.
    pub(super) fn lose(&mut self, dst: IpAddr, error: &SendError) {
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
            SendError::Unreachable { source } => {
                self.report.unreachable += 1;
                match source.kind() {
                    io::ErrorKind::HostUnreachable => self.report.no_neighbour += 1,
                    io::ErrorKind::NetworkDown => self.report.interface_down += 1,
                    _ => {}
                }
            }
            _ => self.report.failed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_destinations_never_take_is_waited_for_once() {
        let mut refusing = Refusing::default();
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let [one, two] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        assert!(!refusing.gives_up(at(0), one, at(0)) && !refusing.gives_up(at(99), one, at(0)));
        assert!(refusing.gives_up(at(100), one, at(0)));
        assert!(!refusing.gives_up(at(150), two, at(100)) && refusing.gives_up(at(200), two, at(100)));
        for now in 300..900 {
            assert!(refusing.gives_up(at(now), one, at(now)) && refusing.gives_up(at(now), two, at(now)));
        }
        assert!(!refusing.gives_up(at(1900), one, at(1900)), "perhaps the queue was only full");
        (0..=255).for_each(|host| _ = refusing.gives_up(at(2000), [10, 0, 1, host].into(), at(0)));
        assert_eq!(refusing.0.len(), DESTINATIONS);
    }
}
