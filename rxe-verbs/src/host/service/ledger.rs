//! The counters of all processes by device. They include processes that have ended, so that counters never decrease.

use crate::{device::devices, host::report::PlaceReport};
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

/// Most addresses whose device is remembered.
const MOST_ADDRESSES: usize = 4096;

/// Most names of counters of a device. (There are about 80.)
const MOST_NAMES: usize = 256;

/// Counters by name.
type Counters = BTreeMap<String, u64>;
/// The counters of each device by its number, because its name may change.
type ByDevice = BTreeMap<usize, Counters>;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The counters of processes that have ended, by device.
    gone: ByDevice,
    /// The last report of the others, by slot and device.
    told: HashMap<u8, ByDevice>,
    /// The device on which an address was first seen. The address may be removed from it later.
    homes: HashMap<IpAddr, usize>,
}

impl Ledger {
    /// A slot's process has reported its counters.
    pub(super) fn note(&mut self, slot: u8, places: &[PlaceReport]) {
        self.find_homes(places);
        let mut sums = ByDevice::new();
        for place in places {
            let Some(&home) = self.homes.get(&place.address) else { continue };
            add(sums.entry(home).or_default(), place.counters.iter().map(|(n, v)| (n, *v)));
        }
        // A process's counters only grow. If one is smaller now, the report left something out.
        let told = self.told.entry(slot).or_default();
        for (device, counters) in sums {
            let before = told.entry(device).or_default();
            for (name, value) in counters {
                if before.len() < MOST_NAMES || before.contains_key(&name) {
                    let known = before.entry(name).or_default();
                    *known = value.max(*known);
                }
            }
        }
    }

    fn find_homes(&mut self, places: &[PlaceReport]) {
        let unknown = |place: &&PlaceReport| !self.homes.contains_key(&place.address);
        let unknown: Vec<IpAddr> = places.iter().filter(unknown).map(|place| place.address).collect();
        if unknown.is_empty() || self.homes.len() + unknown.len() > MOST_ADDRESSES {
            return;
        }
        let list = devices().unwrap_or_default();
        for address in unknown {
            let has = |device: &&crate::Device| device.addresses().any(|own| own == address);
            let loopback = |device: &&crate::Device| device.interface().loopback && address.is_loopback();
            let found = list.iter().find(has).or_else(|| list.iter().find(loopback)).or_else(|| list.first());
            if let Some(device) = found {
                self.homes.insert(address, device.number());
            }
        }
    }

    /// A slot's process has ended.
    pub(super) fn close(&mut self, slot: u8) {
        for (device, counters) in self.told.remove(&slot).unwrap_or_default() {
            let sum = self.gone.entry(device).or_default();
            add(sum, counters.iter().map(|(name, value)| (name, *value)));
        }
    }

    /// The sums over all processes, by the devices' numbers.
    pub(super) fn sums(&self) -> ByDevice {
        let mut sums = self.gone.clone();
        for (device, counters) in self.told.values().flatten() {
            let sum = sums.entry(*device).or_default();
            add(sum, counters.iter().map(|(name, value)| (name, *value)));
        }
        sums
    }
}

fn add<'a>(sum: &mut Counters, counters: impl Iterator<Item = (&'a String, u64)>) {
    for (name, value) in counters {
        if sum.len() >= MOST_NAMES && !sum.contains_key(name) {
            continue;
        }
        let sum = sum.entry(name.clone()).or_default();
        *sum = sum.wrapping_add(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_never_go_back() {
        let report = |value| {
            let counters = vec![("packets_sent".to_owned(), value)];
            [PlaceReport { address: [127, 0, 0, 1].into(), counters }]
        };
        let mut ledger = Ledger::default();
        let sent = |ledger: &Ledger| ledger.sums().values().map(|sum| sum["packets_sent"]).sum::<u64>();
        ledger.note(1, &report(5));
        ledger.note(2, &report(7));
        ledger.note(1, &report(6));
        assert_eq!(sent(&ledger), 13);
        ledger.close(1);
        ledger.close(1);
        assert_eq!(sent(&ledger), 13);
        // What is left out of a report has been told before.
        ledger.note(2, &[]);
        assert_eq!(sent(&ledger), 13);
        // The slot's next process begins again.
        ledger.note(1, &report(1));
        assert_eq!(sent(&ledger), 14);
    }

    #[test]
    fn names_that_nobody_has_end() {
        let mut ledger = Ledger::default();
        for round in 0..10 {
            let counters = (0..100).map(|number| (format!("{round} {number}"), 1)).collect();
            ledger.note(1, &[PlaceReport { address: [127, 0, 0, 1].into(), counters }]);
            ledger.close(1);
        }
        assert!(ledger.sums().values().all(|sum| sum.len() <= MOST_NAMES));
    }
}
