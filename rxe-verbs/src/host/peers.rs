//! Other hosts that asked this one for a connection or accepted one. `rxe fabric` shows them, and sends nothing for that.

use crate::sys::per_process::PerProcess;
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, net::IpAddr, time::Instant};

/// Most hosts that are remembered. Beyond that, the one that was silent for the longest time is forgotten.
const MOST: usize = 1024;
/// Most P_Keys of a host, which is as many as fit into a line.
const MOST_PKEYS: usize = 8;

/// A host that was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReport {
    /// The address that its messages came from.
    pub address: IpAddr,
    /// The GUID of its channel adapter, as it says.
    pub guid: u64,
    /// P_Keys that it has asked for connections with, in the order in which they were first seen, 8 at most.
    pub pkeys: Vec<u16>,
    /// Seconds since it was last heard of.
    pub seconds: u64,
}

#[derive(Debug)]
struct Peer {
    guid: u64,
    pkeys: Vec<u16>,
    last: Instant,
}

/// A list of hosts that were met.
#[derive(Debug, Default)]
pub(crate) struct Peers(HashMap<IpAddr, Peer>);

/// The hosts that this process has met.
static OWN: PerProcess<Peers> = PerProcess::new(Peers::default);

/// Notes a host that has asked this process for a connection (`pkey` in its REQ), or has accepted one.
pub fn note_peer(address: IpAddr, guid: u64, pkey: Option<u16>) {
    OWN.lock().note(address, guid, pkey.as_slice(), Instant::now());
}

/// The hosts that this process has met, the latest first. Without `waits` it returns none if the list is locked. The calling thread
/// itself may hold the lock, if a signal handler of the program has interrupted it and calls exit(3).
pub(crate) fn met(waits: bool) -> Vec<PeerReport> {
    let own = if waits { Some(OWN.lock()) } else { OWN.try_lock() };
    own.map_or_else(Vec::new, |own| own.reports(Instant::now()))
}

impl Peers {
    fn note(&mut self, address: IpAddr, guid: u64, pkeys: &[u16], last: Instant) {
        if self.0.len() >= MOST && !self.0.contains_key(&address) {
            let oldest = self.0.iter().min_by_key(|(_, peer)| peer.last).map(|(address, _)| *address);
            oldest.map(|address| self.0.remove(&address));
        }
        let peer = self.0.entry(address).or_insert_with(|| Peer { guid, pkeys: Vec::new(), last });
        if last >= peer.last {
            (peer.guid, peer.last) = (guid, last);
        }
        for key in pkeys {
            if !peer.pkeys.contains(key) && peer.pkeys.len() < MOST_PKEYS {
                peer.pkeys.push(*key);
            }
        }
    }

    /// Adds the hosts of another list.
    pub(crate) fn learn(&mut self, reports: &[PeerReport]) {
        let now = Instant::now();
        for PeerReport { address, guid, pkeys, seconds } in reports {
            let last = now.checked_sub(std::time::Duration::from_secs(*seconds)).unwrap_or(now);
            self.note(*address, *guid, pkeys, last);
        }
    }

    /// All hosts, the latest first.
    pub(crate) fn reports(&self, now: Instant) -> Vec<PeerReport> {
        let report = |(address, peer): (&IpAddr, &Peer)| PeerReport {
            address: *address,
            guid: peer.guid,
            pkeys: peer.pkeys.clone(),
            seconds: now.saturating_duration_since(peer.last).as_secs(),
        };
        let mut list: Vec<_> = self.0.iter().map(report).collect();
        list.sort_unstable_by_key(|peer| (peer.seconds, peer.address));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ip(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + number).into()
    }

    /// A thread that was interrupted there does not wait for itself.
    #[test]
    fn who_exits_does_not_wait_for_the_list() {
        let own = OWN.lock();
        assert_eq!(met(false), []);
        drop(own);
    }

    #[test]
    fn hosts_are_kept_by_address_and_forgotten_by_age() {
        let start = Instant::now();
        let mut peers = Peers::default();
        peers.note(ip(1), 7, &[0xffff], start);
        peers.note(ip(1), 8, &[0xffff, 0x8001], start + Duration::from_secs(3));
        let report = PeerReport { address: ip(1), guid: 8, pkeys: vec![0xffff, 0x8001], seconds: 2 };
        assert_eq!(peers.reports(start + Duration::from_secs(5)), std::slice::from_ref(&report));
        // What somebody else has met longer ago changes nothing but what was not known.
        let mut others = Peers::default();
        others.learn(&[report]);
        others.learn(&[PeerReport { address: ip(1), guid: 7, pkeys: vec![0x8002], seconds: 9 }]);
        let known = &others.reports(Instant::now())[0];
        assert_eq!((known.guid, &*known.pkeys), (8, &[0xffff, 0x8001, 0x8002][..]));

        for number in 2..3 * MOST as u32 {
            peers.note(ip(number), 1, &[number as u16], start + Duration::from_secs(number.into()));
            peers.note(ip(number), 1, &[number as u16], start + Duration::from_secs(number.into()));
        }
        let list = peers.reports(start + Duration::from_secs(3 * MOST as u64));
        assert_eq!((list.len(), list[0].address), (MOST, ip(3 * MOST as u32 - 1)));
        for key in 0..100 {
            peers.note(ip(1), 1, &[key], start);
        }
        assert!(peers.reports(start).iter().all(|peer| peer.pkeys.len() <= MOST_PKEYS));
    }
}
