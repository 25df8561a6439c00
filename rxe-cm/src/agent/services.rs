//! Which id of this process has which port, and which ones listen. The host service stores the same for the whole host.

use crate::proto::ServiceId;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A claim to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    /// The id.
    pub(crate) id: usize,
    /// The addresses.
    pub(crate) place: Place,
    /// Whether other ids may have the same port on other addresses.
    pub(crate) reuse: bool,
}

/// The addresses of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// One address.
    Address(IpAddr),
    /// All IPv4 addresses.
    V4,
    /// All IPv6 addresses.
    V6,
    /// All addresses.
    All,
}

impl Place {
    /// The addresses of an id that is bound to `ip`. The unspecified IPv6 address means both families, unless told otherwise.
    pub(crate) const fn of(ip: IpAddr, family_only: bool) -> Self {
        match ip {
            _ if !ip.is_unspecified() => Self::Address(ip),
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) if family_only => Self::V6,
            IpAddr::V6(_) => Self::All,
        }
    }

    /// Whether `address` is one of them.
    pub(super) fn covers(self, address: IpAddr) -> bool {
        match self {
            Self::Address(own) => own == address,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
            Self::All => true,
        }
    }

    /// In the form of the host service: one address, the unspecified address for all of a family, `None` for all addresses.
    pub(crate) const fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::V4 => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            Self::V6 => Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            Self::All => None,
        }
    }

    /// Whether rdma_cm treats it as a wildcard. It treats loopback addresses so, too.
    pub(crate) fn is_wide(self) -> bool {
        !matches!(self, Self::Address(address) if !address.is_loopback())
    }

    fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Address(a), b) | (b, Self::Address(a)) => b.covers(a),
            (Self::V4, Self::V6) | (Self::V6, Self::V4) => false,
            _ => true,
        }
    }
}

/// Why a claim was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// Another id has the same address.
    Same,
    /// One of the two claims is for all addresses.
    Wide,
}

/// From which hosts an id takes requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Audience {
    /// From all hosts.
    Anyone,
    /// From this host only.
    ThisHost,
}

/// All claims of a process.
#[derive(Debug, Default)]
pub(crate) struct Services {
    claims: HashMap<ServiceId, Vec<Claim>>,
}

impl Services {
    /// Adds a claim, unless it conflicts with another one. As with TCP, a claim for one address and a claim for all addresses go
    /// together if both ids allow it.
    pub(crate) fn add(&mut self, service: ServiceId, claim: Claim) -> Result<(), Taken> {
        let list = self.claims.entry(service).or_default();
        let against = |other: &Claim| {
            let shared = claim.reuse && other.reuse && claim.place != other.place;
            claim.place.overlaps(other.place) && !shared
        };
        // The two errors are told apart as in cma_check_port of rdma_cm.
        if let Some(other) = list.iter().find(|other| against(other)) {
            let wide = claim.place.is_wide() || other.place.is_wide();
            return Err(if wide { Taken::Wide } else { Taken::Same });
        }
        list.push(claim);
        Ok(())
    }

    /// Removes an id's claim.
    pub(crate) fn remove(&mut self, service: ServiceId, id: usize) {
        if let Some(list) = self.claims.get_mut(&service) {
            list.retain(|claim| claim.id != id);
            if list.is_empty() {
                self.claims.remove(&service);
            }
        }
    }

    /// The ids that a request for `service` may be for. The one with exactly that address comes first. Those on another loopback address
    /// come last: they take requests for all addresses. An id on a loopback address takes requests only from this host, which the caller
    /// has to check.
    pub(super) fn find(
        &self,
        service: ServiceId,
        address: IpAddr,
    ) -> impl Iterator<Item = (usize, Audience)> {
        let list = self.claims.get(&service).map_or(&[][..], Vec::as_slice);
        let exact = list.iter().filter(move |claim| claim.place == Place::Address(address));
        let wide = list
            .iter()
            .filter(move |claim| claim.place.covers(address) && claim.place != Place::Address(address));
        let loopback = list.iter().filter(move |claim| {
            matches!(claim.place, Place::Address(own) if own != address && own.is_loopback()
                && own.is_ipv4() == address.is_ipv4())
        });
        let by_address =
            if address.to_canonical().is_loopback() { Audience::ThisHost } else { Audience::Anyone };
        let exact = exact.map(move |claim| (claim.id, by_address));
        let wide = wide.map(|claim| (claim.id, Audience::Anyone));
        exact.chain(wide).chain(loopback.map(|claim| (claim.id, Audience::ThisHost)))
    }

    /// All ids that claim a port, whatever their addresses.
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
        assert_eq!(all.add(PORT, claim(1, Place::V4, true)), Ok(()));
        assert_eq!(all.add(PORT, claim(2, Place::Address(here), true)), Ok(()));
        let found = |all: &Services, address| all.find(PORT, address).map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(found(&all, here), [2, 1]);
        assert_eq!(found(&all, there), [1]);
        assert_eq!(found(&all, "::1".parse().unwrap()), [0; 0]);
        all.remove(PORT, 1);
        assert_eq!(all.of(PORT).count(), 1);
        all.remove(PORT, 2);
        assert_eq!(all.of(PORT).count(), 0);
    }

    #[test]
    fn a_loopback_address_is_there_for_this_host() {
        let loopback: IpAddr = [127, 0, 0, 1].into();
        let mut all = Services::default();
        assert_eq!(all.add(PORT, claim(1, Place::Address(loopback), false)), Ok(()));
        let find = |address: &str| all.find(PORT, address.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(find("127.0.0.1"), [(1, Audience::ThisHost)]);
        assert_eq!(find("10.0.0.1"), [(1, Audience::ThisHost)]);
        assert_eq!(find("fd00::1"), []);
    }

    #[test]
    fn conflicts() {
        let (here, loopback) = (Place::Address([10, 0, 0, 1].into()), Place::Address([127, 0, 0, 1].into()));
        let mut all = Services::default();
        assert_eq!(all.add(PORT, claim(1, here, false)), Ok(()));
        for (place, reuse, outcome) in [
            (here, true, Err(Taken::Same)),
            (Place::V4, true, Err(Taken::Wide)),
            (Place::All, false, Err(Taken::Wide)),
            (Place::V6, false, Ok(())),
            (loopback, false, Ok(())),
            (loopback, false, Err(Taken::Wide)),
        ] {
            assert_eq!(all.add(PORT, claim(2, place, reuse)), outcome, "{place:?}");
        }
        assert_eq!(
            all.add(PORT, claim(3, Place::All, true)),
            Err(Taken::Wide),
            "the IPv6 one does not share"
        );
    }
}
