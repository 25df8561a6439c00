//! Counters by local address. The devices of a host share its port, and each device shows the counters of its own addresses.

use crate::stats::{QpStats, TrafficStats};
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
    list: Vec<(IpAddr, TrafficStats, QpStats)>,
    /// The index of the address that had packets last.
    last: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self { list: vec![(NOWHERE, TrafficStats::default(), QpStats::default())], last: 0 }
    }
}

impl Places {
    /// Counts packets for an address. A new address gets a place in the list if that is shorter than `most`: [`MOST`] for an address from
    /// which packets leave, [`MOST_HEARD`] for one to which they come, which need not be an address of this host.
    #[inline(always)]
    pub(super) fn count(&mut self, address: IpAddr, most: usize, traffic: TrafficStats) {
        if self.list[self.last].0 != address {
            self.last = self.find(address, most);
        }
        let sum = &mut self.list[self.last].1;
        *sum = sum.plus(traffic);
    }

    /// The index of an address. A new address gets a place if the list is shorter than `most`.
    #[cold]
    fn find(&mut self, address: IpAddr, most: usize) -> usize {
        if let Some(index) = self.list.iter().position(|(known, ..)| *known == address) {
            return index;
        }
        if self.list.len() >= most {
            // The first place stands for no address.
            return 0;
        }
        self.list.push((address, TrafficStats::default(), QpStats::default()));
        self.list.len() - 1
    }

    /// A queue pair was destroyed. Its counters stay with its address.
    pub(super) fn retire(&mut self, address: IpAddr, stats: QpStats) {
        let index = self.find(address, MOST);
        let sum = &mut self.list[index].2;
        *sum = sum.plus(stats);
    }

    /// All counters.
    pub(super) fn each(&self) -> impl Iterator<Item = (IpAddr, TrafficStats, QpStats)> {
        self.list.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: TrafficStats = TrafficStats {
        packets_sent: 0,
        batches_sent: 0,
        bytes_sent: 0,
        packets_received: 0,
        bytes_received: 0,
    };
    const SENT: TrafficStats = TrafficStats { packets_sent: 1, ..NONE };
    const RECEIVED: TrafficStats = TrafficStats { packets_received: 1, ..NONE };

    fn address(n: u32) -> IpAddr {
        IpAddr::from((n + 1).to_be_bytes())
    }

    #[test]
    fn each_address_has_its_own_and_a_flood_of_them_ends() {
        let mut places = Places::default();
        for n in 0..1000 {
            places.count(address(n), MOST, SENT);
            places.count(address(0), MOST_HEARD, RECEIVED);
        }
        places.retire(address(0), QpStats { timeouts: 3, ..QpStats::default() });
        places.retire(address(0), QpStats { timeouts: 4, ..QpStats::default() });
        let list: Vec<_> = places.each().collect();
        assert_eq!(list.len(), MOST);
        let (first, traffic, qps) = list[1];
        assert_eq!((first, traffic.packets_sent, traffic.packets_received), (address(0), 1, 1000));
        assert_eq!(qps.timeouts, 7);
        assert_eq!(list[2].1.packets_sent, 1);
        assert_eq!(list[MOST - 1].1.packets_sent, 1);
        assert_eq!((list[0].0, list[0].1.packets_sent), (NOWHERE, 1001 - MOST as u64), "all the rest");
        assert_eq!(list.iter().map(|(_, traffic, _)| traffic.packets_sent).sum::<u64>(), 1000);
    }

    /// Frames to addresses that somebody has made up.
    #[test]
    fn strangers_leave_places_for_our_own_addresses() {
        let mut places = Places::default();
        for n in 0..1000 {
            places.count(address(n), MOST_HEARD, RECEIVED);
        }
        // To an address of ours that had no place yet, and from it.
        places.count(address(5000), MOST_HEARD, RECEIVED);
        places.count(address(5000), MOST, SENT);
        places.count(address(5000), MOST_HEARD, RECEIVED);
        let list: Vec<_> = places.each().collect();
        assert_eq!(list.len(), MOST_HEARD + 1);
        let (own, traffic, _) = list[MOST_HEARD];
        assert_eq!((own, traffic.packets_sent, traffic.packets_received), (address(5000), 1, 1));
        assert_eq!(list.iter().map(|(_, traffic, _)| traffic.packets_received).sum::<u64>(), 1002);
    }
}
