//! What is known of each address that packets come from: its IPv4 IDs, and its [`Quirks`].

use crate::{
    qp::quirks::Quirks,
    time::Instant,
    wire::{HeaderSeen, IdentTracker, Verdict, icrc::RouteCrc},
};
use alloc::vec::Vec;
use core::net::IpAddr;
use hashbrown::HashMap;

/// Largest number of addresses that are remembered. When one more comes, all are forgotten.
const MOST: usize = 4096;

/// What is known of one address.
#[derive(Debug, Default)]
pub(super) struct Host {
    idents: IdentTracker,
    pub quirks: Quirks,
}

impl Host {
    /// Checks the ICRC of a packet from this address (BTH to ICRC), and records what the packet shows of the host.
    pub(super) fn judge(&mut self, now: Instant, crc: &RouteCrc, seen: HeaderSeen, bytes: &[u8]) -> Verdict {
        let verdict = self.idents.judge(now, crc, seen, bytes);
        if let Some(form) = self.idents.take_flush() {
            self.quirks.saw_flush(form);
        }
        verdict
    }
}

/// One entry for each address.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    list: Vec<Host>,
    index: HashMap<IpAddr, usize>,
    /// The address that was looked up last, and its place in the list. Mostly the next packet is from the same address.
    latest: Option<(IpAddr, usize)>,
}

impl Hosts {
    /// The entry of address `src`. It is made if there is none.
    pub(super) fn of(&mut self, src: IpAddr) -> &mut Host {
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
            list.push(Host::default());
            list.len() - 1
        });
        self.latest = Some((src, at));
        at
    }

    /// The quirks of the host at `address`. Default if nothing is known of it.
    pub(super) fn quirks(&self, address: IpAddr) -> Quirks {
        self.index.get(&address).map(|at| self.list[*at].quirks).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::icrc::{Route, seal};

    /// Whether a packet from `src` with this IPv4 ID is accepted.
    fn takes(hosts: &mut Hosts, src: [u8; 4], ident: u16) -> bool {
        let route = Route::v2(src.into(), [10, 0, 0, 1].into(), 49_152);
        let mut packet = [4; 20];
        seal(&route, ident, &mut packet);
        hosts
            .of(route.src)
            .judge(Instant::ZERO, &RouteCrc::new(&route), HeaderSeen::Hidden, &packet)
            .is_whole()
    }

    #[test]
    fn each_address_has_its_own() {
        let mut hosts = Hosts::default();
        for turn in 0..3 {
            for host in 0..3 {
                assert!(takes(&mut hosts, [10, 0, 1, host], u16::from(host) * 10_000 + turn));
            }
        }
        assert!(!takes(&mut hosts, [10, 0, 1, 1], 20_003), "another one's ID");
        let knows = |host| hosts.index.contains_key(&IpAddr::from([10, 0, 1, host]));
        assert!(knows(2) && !knows(3));
    }

    #[test]
    fn too_many_are_forgotten() {
        let mut hosts = Hosts::default();
        for host in 0..MOST as u16 {
            let [high, low] = host.to_be_bytes();
            assert!(takes(&mut hosts, [10, 1, high, low], 7));
        }
        assert!(!takes(&mut hosts, [10, 1, 0, 0], 20_000), "remembered");
        assert!(takes(&mut hosts, [10, 2, 0, 0], 7));
        assert!(takes(&mut hosts, [10, 1, 0, 0], 20_000), "learnt anew");
        assert_eq!(hosts.list.len(), 2);
    }
}
