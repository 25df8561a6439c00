//! The LIDs of hosts. LIDs in a network follow from its addresses. A host of another network has the LID of its address if no host of
//! this network has the same, else a free one.

use crate::Device;
use rxe_fabric::mad::{PERMISSIVE_LID, SWITCH_LID, address_of_lid, lid_of};
use std::{collections::HashMap, net::IpAddr};

/// Most hosts that are remembered.
const MOST: usize = 1024;
/// Beyond this many, hosts that send something unasked are not remembered. They may have any address, and there has to be room for
/// hosts that programs ask for.
const STRANGERS: usize = MOST / 2;
/// The LIDs for hosts whose usual one belongs to another host.
const SPARE: u16 = 0x9000;

/// LIDs that were told to programs for hosts that are in none of our networks, or have no IPv4 address.
#[derive(Debug, Default)]
pub(super) struct Lids(HashMap<u16, IpAddr>);

impl Lids {
    /// The LID of a device's port: that of its first address.
    pub(super) fn own(device: &Device) -> u16 {
        device.gids().get(0).address().map_or(0, lid_of)
    }

    /// The host with a LID, as seen by a device.
    pub(super) fn address(&self, lid: u16, device: &Device) -> Option<IpAddr> {
        let own = device.gids().get(0).address()?;
        if matches!(lid, 0 | PERMISSIVE_LID) || lid == lid_of(own) {
            return Some(own);
        }
        // Spare LIDs that were told come first, because in a wide network there is an address for each of them. A usual one was told where
        // no network had it, and this device may be in one that has.
        let told = self.0.get(&lid).copied();
        told.filter(|address| lid_of(*address) != lid).or_else(|| Self::in_network(lid, device)).or(told)
    }

    fn in_network(lid: u16, device: &Device) -> Option<IpAddr> {
        let each = device.interface().addresses.iter().filter(|address| address.usable);
        let mut found = each.filter_map(|address| match address.ip {
            IpAddr::V4(v4) => address_of_lid(lid, v4, address.prefix).map(IpAddr::from),
            IpAddr::V6(_) => None,
        });
        found.next()
    }

    /// The LID that was told for a host, and that means this host to this device.
    pub(super) fn known(&self, address: IpAddr, device: &Device) -> Option<u16> {
        let told = self.0.iter().filter(|(_, who)| **who == address).map(|(lid, _)| *lid);
        told.filter(|lid| self.address(*lid, device) == Some(address)).min()
    }

    /// The LID of a host that has sent something unasked.
    pub(super) fn of_stranger(&mut self, address: IpAddr, device: &Device) -> u16 {
        if self.0.len() < STRANGERS {
            return self.of(address, device);
        }
        self.known(address, device).unwrap_or_else(|| lid_of(address))
    }

    /// The LID of a host, as seen by a device. It is remembered, so that an answer finds the host.
    pub(super) fn of(&mut self, address: IpAddr, device: &Device) -> u16 {
        if device.addresses().any(|own| own == address) {
            return Self::own(device);
        }
        let usual = lid_of(address);
        match self.address(usual, device) {
            Some(who) if who == address => return usual,
            None => {}
            Some(_) => {
                if let Some(lid) = self.known(address, device) {
                    return lid;
                }
            }
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let is_free = self.address(usual, device).is_none();
        let own = Self::own(device);
        // LIDs that were told come first, because in a wide network there is an address for each of them.
        let spare = (SPARE..SWITCH_LID).find(|lid| *lid != own && !self.0.contains_key(lid));
        let lid = if is_free { usual } else { spare.unwrap_or(usual) };
        self.0.insert(lid, address);
        lid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_other_networks_have_lids_that_nobody_has_here() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut device = Device::virtual_one("x", &[]);
        device.set_address(ip("10.0.0.1"), 24);
        let mut lids = Lids::default();
        assert_eq!((Lids::own(&device), lids.address(0, &device)), (1, Some(ip("10.0.0.1"))));
        assert_eq!((lids.of(ip("10.0.0.7"), &device), lids.address(9, &device)), (7, Some(ip("10.0.0.9"))));
        assert_eq!(lids.of(ip("10.0.0.1"), &device), 1);
        // 10.0.0.7 would have it, too.
        let far = lids.of(ip("10.9.0.7"), &device);
        assert!(far >= SPARE && lids.address(far, &device) == Some(ip("10.9.0.7")));
        assert_eq!(lids.of(ip("10.9.0.7"), &device), far);
        // The same in a network that has somebody for every LID.
        let mut wide = Device::virtual_one("y", &[]);
        wide.set_address(ip("172.17.0.1"), 16);
        let mut of_wide = Lids::default();
        let told = of_wide.of(ip("10.9.0.7"), &wide);
        assert!(told >= SPARE && of_wide.address(told, &wide) == Some(ip("10.9.0.7")));
        assert_eq!((of_wide.of(ip("10.9.0.7"), &wide), of_wide.of(ip("172.17.0.7"), &wide)), (told, 7));
        // A device of the network in which another host has that LID.
        assert_eq!(lids.of(ip("10.9.1.7"), &device), 263);
        let mut next = Device::virtual_one("z", &[]);
        next.set_address(ip("10.0.1.1"), 24);
        assert_eq!((lids.address(263, &next), lids.of(ip("10.0.1.7"), &next)), (Some(ip("10.0.1.7")), 263));
        let far = lids.of(ip("10.9.1.7"), &next);
        assert!(far >= SPARE && lids.address(far, &next) == Some(ip("10.9.1.7")));
        assert_eq!((lids.of(ip("10.9.1.7"), &device), lids.known(ip("10.9.1.7"), &device)), (263, Some(263)));
        assert_eq!(lids.known(ip("10.9.1.7"), &next), Some(far));
        assert_eq!(lids.address(263, &device), Some(ip("10.9.1.7")));
        assert_eq!(lids.address(264, &device), None);
        // Whatever others send, what programs were told stays.
        for number in 0..3000_u32 {
            lids.of_stranger(std::net::Ipv4Addr::from(0x0c00_0100 + number).into(), &device);
        }
        assert_eq!(lids.address(263, &device), Some(ip("10.9.1.7")));
        assert!(lids.0.len() <= STRANGERS);
        let met = lids.of(ip("10.9.2.7"), &device);
        assert_eq!(lids.address(met, &device), Some(ip("10.9.2.7")));
        for number in 0..3000_u32 {
            lids.of(std::net::Ipv4Addr::from(0x0b00_0100 + number).into(), &device);
        }
        assert!(lids.0.len() <= MOST);
    }
}
