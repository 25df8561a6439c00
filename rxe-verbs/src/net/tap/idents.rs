//! Guesses the IPv4 identifications of received packets whose headers are hidden.

use core::net::IpAddr;
use std::collections::HashMap;
use std::time::Instant;

use rxe_core::time::Instant as CoreInstant;
use rxe_core::wire::{HeaderSeen, IdentTracker, icrc::RouteCrc};

use super::Run;

/// Most sources that are remembered. When there are more, all are forgotten and learnt again.
const MAX_SOURCES: usize = 4096;

/// Finds identifications as the receiving endpoint does: the one that makes the ICRC right, if the tracker accepts it.
#[derive(Debug)]
pub(in crate::net) struct Idents {
    start: Instant,
    sources: HashMap<IpAddr, IdentTracker>,
}

impl Idents {
    pub(in crate::net) fn new() -> Self {
        Self { start: Instant::now(), sources: HashMap::new() }
    }

    /// The identification of each packet of a run. It is 0 over IPv6, and for a packet whose ICRC is wrong.
    pub(in crate::net) fn of_run(&mut self, run: &Run<'_>) -> impl Iterator<Item = u16> {
        if self.sources.len() >= MAX_SOURCES && !self.sources.contains_key(&run.src) {
            self.sources.clear();
        }
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let route = RouteCrc::new(&run.meta().route());
        let mut seen = run.seen;
        let tracker = self.sources.entry(run.src).or_default();
        run.packets().map(move |packet| {
            if let HeaderSeen::Seen { ident, .. } = seen {
                seen = seen.next();
                return ident;
            }
            let verdict = tracker.judge(CoreInstant::from_nanos(nanos), &route, seen, packet);
            verdict.ident().unwrap_or(0)
        })
    }
}
