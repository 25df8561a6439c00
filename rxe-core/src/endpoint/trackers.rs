//! What is known of the IPv4 IDs of each address that packets come from.

use crate::wire::IdentTracker;
use alloc::vec::Vec;
use core::net::IpAddr;
use hashbrown::HashMap;

/// Addresses remembered at most; beyond, all are forgotten and learnt again.
const MOST: usize = 4096;

/// One tracker for each address.
#[derive(Debug, Default)]
pub(super) struct Trackers {
    list: Vec<IdentTracker>,
    index: HashMap<IpAddr, usize>,
    /// The latest one asked for: packets come in runs.
    latest: Option<(IpAddr, usize)>,
}

impl Trackers {
    /// The one for packets from `src`.
    pub(super) fn of(&mut self, src: IpAddr) -> &mut IdentTracker {
        let at = match self.latest {
            Some((known, at)) if known == src => at,
            _ => self.find(src),
        };
        &mut self.list[at]
    }

    fn find(&mut self, src: IpAddr) -> usize {
        if self.list.len() >= MOST && !self.index.contains_key(&src) {
            self.list.clear();
            self.index.clear();
        }
        let Self { list, index, .. } = self;
        let at = *index.entry(src).or_insert_with(|| {
            list.push(IdentTracker::default());
            list.len() - 1
        });
        self.latest = Some((src, at));
        at
    }

    /// The one for packets from `src`, if there have been any.
    pub(super) fn get(&self, src: IpAddr) -> Option<&IdentTracker> {
        self.list.get(*self.index.get(&src)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        time::Instant,
        wire::{
            HeaderSeen,
            icrc::{Route, seal},
        },
    };

    /// Whether a packet from `src` with this IPv4 ID is taken.
    fn takes(trackers: &mut Trackers, src: [u8; 4], ident: u16) -> bool {
        let route = Route { src: src.into(), dst: [10, 0, 0, 1].into(), src_port: 49_152 };
        let mut packet = [4; 20];
        seal(&route, ident, &mut packet);
        trackers.of(route.src).verify(Instant::ZERO, &route, HeaderSeen::Hidden, &packet)
    }

    #[test]
    fn each_address_has_its_own() {
        let mut trackers = Trackers::default();
        for turn in 0..3 {
            for host in 0..3 {
                assert!(takes(&mut trackers, [10, 0, 1, host], u16::from(host) * 10_000 + turn));
            }
        }
        assert!(!takes(&mut trackers, [10, 0, 1, 1], 20_003), "another one's ID");
        assert!(trackers.get([10, 0, 1, 2].into()).is_some() && trackers.get([10, 0, 1, 3].into()).is_none());
    }

    #[test]
    fn too_many_are_forgotten() {
        let mut trackers = Trackers::default();
        for host in 0..MOST as u16 {
            let [high, low] = host.to_be_bytes();
            assert!(takes(&mut trackers, [10, 1, high, low], 7));
        }
        assert!(!takes(&mut trackers, [10, 1, 0, 0], 20_000), "remembered");
        assert!(takes(&mut trackers, [10, 2, 0, 0], 7));
        assert!(takes(&mut trackers, [10, 1, 0, 0], 20_000), "learnt anew");
        assert_eq!(trackers.list.len(), 2);
    }
}
