//! Counters by local address. The devices of a host share its port, and each device shows the counters of its own addresses.
//!
//! Packets are counted once, by the endpoint. What it counts between two changes of the address belongs to the address of that time.

use crate::stats::{PlaceStats, PortStats, QpStats};
use alloc::{vec, vec::Vec};
use core::net::{IpAddr, Ipv4Addr};

/// Most addresses with counters of their own. The rest count for no address. (A loopback interface has millions of addresses.)
pub(super) const MOST: usize = 64;
/// How many of these may be addresses to which packets have only come. On a link that shows whole frames any sender can make up such an
/// address, and must not use up the places of addresses from which packets leave.
pub(super) const MOST_HEARD: usize = MOST / 2;
/// Stands for no address.
pub(super) const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The packets of each address, and the counters of destroyed queue pairs on it.
#[derive(Debug)]
pub(super) struct Places {
    list: Vec<(IpAddr, PlaceStats, QpStats)>,
    /// The address of the packets that are counted now, and its index in the list.
    address: IpAddr,
    current: usize,
    /// The endpoint's counters when packets began to be on that address.
    since: PlaceStats,
}

impl Default for Places {
    fn default() -> Self {
        let list = vec![(NOWHERE, PlaceStats::default(), QpStats::default())];
        Self { list, address: NOWHERE, current: 0, since: PlaceStats::default() }
    }
}

impl Places {
    /// Has packets from now on counted for this address. `counted` is what the endpoint has counted so far. A new address gets a place in
    /// the list if that is shorter than `most`: [`MOST`] for an address from which packets leave, [`MOST_HEARD`] for one to which they
    /// come, which need not be an address of this host.
    #[inline]
    pub(super) fn enter(&mut self, address: IpAddr, most: usize, counted: &PortStats) {
        if self.address != address {
            self.change(address, most, counted);
        }
    }

    #[cold]
    fn change(&mut self, address: IpAddr, most: usize, counted: &PortStats) {
        let now = of_places(counted);
        let sum = &mut self.list[self.current].1;
        *sum = sum.plus(now.since(self.since));
        (self.since, self.current) = (now, self.find(address, most));
        self.address = self.list[self.current].0;
    }

    /// The index of an address. A new address gets a place if the list is shorter than `most`.
    fn find(&mut self, address: IpAddr, most: usize) -> usize {
        if let Some(index) = self.list.iter().position(|(known, ..)| *known == address) {
            return index;
        }
        if self.list.len() >= most {
            // The first place stands for no address.
            return 0;
        }
        self.list.push((address, PlaceStats::default(), QpStats::default()));
        self.list.len() - 1
    }

    /// A queue pair was destroyed. Its counters stay with its address.
    pub(super) fn retire(&mut self, address: IpAddr, stats: QpStats) {
        let index = self.find(address, MOST);
        let sum = &mut self.list[index].2;
        *sum = sum.plus(stats);
    }

    /// All counters, up to date with what the endpoint has counted.
    pub(super) fn each(&self, counted: &PortStats) -> impl Iterator<Item = (IpAddr, PlaceStats, QpStats)> {
        let fresh = of_places(counted).since(self.since);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::from((n + 1).to_be_bytes())
    }

    #[test]
    fn each_address_has_its_own_and_a_flood_of_them_ends() {
        let (mut places, mut stats) = (Places::default(), PortStats::default());
        for n in 0..1000 {
            places.enter(address(n), MOST, &stats);
            stats.packets_sent += 1;
            places.enter(address(0), MOST_HEARD, &stats);
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
        assert_eq!(list[MOST - 1].1.packets_sent, 1);
        assert_eq!((list[0].0, list[0].1.packets_sent), (NOWHERE, 1001 - MOST as u64), "all the rest");
        assert_eq!(list.iter().map(|(_, traffic, _)| traffic.packets_sent).sum::<u64>(), stats.packets_sent);
    }

    /// Frames to addresses that somebody has made up.
    #[test]
    fn strangers_leave_places_for_our_own_addresses() {
        let (mut places, mut stats) = (Places::default(), PortStats::default());
        for n in 0..1000 {
            places.enter(address(n), MOST_HEARD, &stats);
            stats.packets_received += 1;
        }
        // To an address of ours that had no place yet, and from it.
        places.enter(address(5000), MOST_HEARD, &stats);
        stats.packets_received += 1;
        places.enter(address(5000), MOST, &stats);
        stats.packets_sent += 1;
        places.enter(address(5000), MOST_HEARD, &stats);
        stats.packets_received += 1;
        let list: Vec<_> = places.each(&stats).collect();
        assert_eq!(list.len(), MOST_HEARD + 1);
        let (own, traffic, _) = list[MOST_HEARD];
        assert_eq!((own, traffic.packets_sent, traffic.packets_received), (address(5000), 1, 1));
        assert_eq!(list.iter().map(|(_, traffic, _)| traffic.packets_received).sum::<u64>(), 1002);
    }
}
