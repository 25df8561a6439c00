//! Counters by address of ours: a host's devices share its port, and each is asked for what was its own.
//!
//! Nothing is counted twice: what the endpoint has counted since the last change of the address is that address's.

use crate::stats::{PlaceStats, PortStats, QpStats};
use alloc::{vec, vec::Vec};
use core::net::{IpAddr, Ipv4Addr};

/// Addresses that are told apart; the rest count for the last. A loopback interface has millions.
const MOST: usize = 64;
/// What is on no address.
pub(super) const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What was sent from, and came to, each address, and what destroyed queue pairs on it had counted.
#[derive(Debug)]
pub(super) struct Places {
    list: Vec<(IpAddr, PlaceStats, QpStats)>,
    /// The address that packets are on now, and where it stands in the list.
    address: IpAddr,
    current: usize,
    /// The endpoint's counters when it became that.
    since: PlaceStats,
}

impl Default for Places {
    fn default() -> Self {
        let list = vec![(NOWHERE, PlaceStats::default(), QpStats::default())];
        Self { list, address: NOWHERE, current: 0, since: PlaceStats::default() }
    }
}

impl Places {
    /// What is counted from now on was on this address; `counted` is what the endpoint has counted so far.
    #[inline]
    pub(super) fn enter(&mut self, address: IpAddr, counted: &PortStats) {
        if self.address != address {
            self.change(address, counted);
        }
    }

    #[cold]
    fn change(&mut self, address: IpAddr, counted: &PortStats) {
        let now = of_places(counted);
        let sum = &mut self.list[self.current].1;
        *sum = sum.plus(since(&self.since, &now));
        (self.since, self.address, self.current) = (now, address, self.find(address));
    }

    fn find(&mut self, address: IpAddr) -> usize {
        let found = self.list.iter().position(|(known, ..)| *known == address);
        found.unwrap_or_else(|| {
            if self.list.len() < MOST {
                self.list.push((address, PlaceStats::default(), QpStats::default()));
            }
            self.list.len() - 1
        })
    }

    /// A queue pair is gone; what it had counted stays.
    pub(super) fn retire(&mut self, address: IpAddr, stats: QpStats) {
        let index = self.find(address);
        let sum = &mut self.list[index].2;
        *sum = sum.plus(stats);
    }

    /// All of them, up to date with what the endpoint has counted.
    pub(super) fn each(&self, counted: &PortStats) -> impl Iterator<Item = (IpAddr, PlaceStats, QpStats)> {
        let fresh = since(&self.since, &of_places(counted));
        let current = self.current;
        self.list.iter().enumerate().map(move |(index, (address, stats, qps))| {
            (*address, if index == current { stats.plus(fresh) } else { *stats }, *qps)
        })
    }
}

/// The part of an endpoint's counters that is told by address.
const fn of_places(stats: &PortStats) -> PlaceStats {
    PlaceStats {
        packets_sent: stats.packets_sent,
        bytes_sent: stats.bytes_sent,
        packets_received: stats.packets_received,
        bytes_received: stats.bytes_received,
    }
}

const fn since(then: &PlaceStats, now: &PlaceStats) -> PlaceStats {
    PlaceStats {
        packets_sent: now.packets_sent.wrapping_sub(then.packets_sent),
        bytes_sent: now.bytes_sent.wrapping_sub(then.bytes_sent),
        packets_received: now.packets_received.wrapping_sub(then.packets_received),
        bytes_received: now.bytes_received.wrapping_sub(then.bytes_received),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_and_a_flood_of_them_ends() {
        let (mut places, mut stats) = (Places::default(), PortStats::default());
        let address = |n: u32| IpAddr::from((n + 1).to_be_bytes());
        for n in 0..1000 {
            places.enter(address(n), &stats);
            stats.packets_sent += 1;
            places.enter(address(0), &stats);
            stats.packets_received += 2;
        }
        places.retire(address(0), QpStats { timeouts: 3, ..QpStats::default() });
        places.retire(address(0), QpStats { timeouts: 4, ..QpStats::default() });
        let list: Vec<_> = places.each(&stats).collect();
        assert_eq!(list.len(), MOST);
        let (first, traffic, qps) = list[1];
        assert_eq!((first, traffic.packets_sent, traffic.packets_received), (address(0), 1, 2000));
        assert_eq!(qps.timeouts, 7);
        assert_eq!(list[2].1.packets_sent, 1);
        assert_eq!(list[MOST - 1].1.packets_sent, 1002 - MOST as u64, "all the rest");
        assert_eq!(list.iter().map(|(_, traffic, _)| traffic.packets_sent).sum::<u64>(), stats.packets_sent);
    }
}
