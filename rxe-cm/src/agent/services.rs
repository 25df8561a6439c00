//! Who has which port of this process, and who listens there. The host service keeps the same for the whole host.

use crate::proto::ServiceId;
use std::{collections::HashMap, net::IpAddr};

/// A claim to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Claim {
    /// Which id.
    pub(super) id: usize,
    /// On one address, or on all of a family.
    pub(super) place: Place,
    /// Others may have the same port on other addresses.
    pub(super) reuse: bool,
}

/// Addresses that a claim is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// One.
    Address(IpAddr),
    /// All of IPv4.
    V4,
    /// All of IPv6.
    V6,
    /// All.
    All,
}

impl Place {
    /// Whether it is about `address`.
    pub(super) fn covers(self, address: IpAddr) -> bool {
        match self {
            Self::Address(own) => own == address,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
            Self::All => true,
        }
    }

    /// The one address.
    pub(crate) const fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            _ => None,
        }
    }

    fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Address(a), b) | (b, Self::Address(a)) => b.covers(a),
            (Self::V4, Self::V6) | (Self::V6, Self::V4) => false,
            _ => true,
        }
    }
}

/// All claims of a process.
#[derive(Debug, Default)]
pub(super) struct Services {
    claims: HashMap<ServiceId, Vec<Claim>>,
}

impl Services {
    /// Adds a claim; false if another one stands against it. As with TCP, an address may be had beside all addresses if
    /// both sides allow it.
    pub(super) fn add(&mut self, service: ServiceId, claim: Claim) -> bool {
        let list = self.claims.entry(service).or_default();
        let against = |other: &Claim| {
            let shared = claim.reuse && other.reuse && claim.place != other.place;
            claim.place.overlaps(other.place) && !shared
        };
        let free = !list.iter().any(against);
        if free {
            list.push(claim);
        }
        free
    }

    /// Removes an id's claim.
    pub(super) fn remove(&mut self, service: ServiceId, id: usize) {
        if let Some(list) = self.claims.get_mut(&service) {
            list.retain(|claim| claim.id != id);
            if list.is_empty() {
                self.claims.remove(&service);
            }
        }
    }

    /// The ids that a request for `service` may be for, the one on the very address first.
    pub(super) fn find(&self, service: ServiceId, address: IpAddr) -> impl Iterator<Item = usize> {
        let list = self.claims.get(&service).map_or(&[][..], Vec::as_slice);
        let exact = list.iter().filter(move |claim| claim.place == Place::Address(address));
        let wide = list
            .iter()
            .filter(move |claim| claim.place.covers(address) && claim.place != Place::Address(address));
        exact.chain(wide).map(|claim| claim.id)
    }

    /// All ids that claim a port, on whatever address.
    pub(super) fn of(&self, service: ServiceId) -> impl Iterator<Item = usize> {
        self.claims.get(&service).into_iter().flatten().map(|claim| claim.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: ServiceId = ServiceId(0x106_1234);

    fn claim(id: usize, place: Place, reuse: bool) -> Claim {
        Claim { id, place, reuse }
    }

    #[test]
    fn the_very_address_comes_first() {
        let (here, there): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut all = Services::default();
        assert!(all.add(PORT, claim(1, Place::V4, true)));
        assert!(all.add(PORT, claim(2, Place::Address(here), true)));
        assert_eq!(all.find(PORT, here).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(all.find(PORT, there).collect::<Vec<_>>(), [1]);
        assert_eq!(all.find(PORT, "::1".parse().unwrap()).count(), 0);
        all.remove(PORT, 1);
        assert_eq!(all.of(PORT).count(), 1);
        all.remove(PORT, 2);
        assert_eq!(all.of(PORT).count(), 0);
    }

    #[test]
    fn conflicts() {
        let here = Place::Address([10, 0, 0, 1].into());
        let mut all = Services::default();
        assert!(all.add(PORT, claim(1, here, false)));
        for (place, reuse, fits) in [
            (here, true, false),
            (Place::V4, true, false),
            (Place::All, false, false),
            (Place::V6, false, true),
        ] {
            assert_eq!(all.add(PORT, claim(2, place, reuse)), fits, "{place:?}");
        }
        assert!(!all.add(PORT, claim(3, Place::All, true)), "the IPv6 one does not share");
    }
}
