//! Which client listens for which connection requests.
//!
//! A service ID may be listened to once for each address, or once for all of them. Both together is a conflict unless
//! both listeners allow it; the one on the address then comes first, as with TCP.

use super::message::Listen;
use slab::Slab;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Most ports of one client. An id that is bound to an address has one, too, and a program may have as many of them as
/// there are ports to give (Linux: 32768 to 60999).
pub(crate) const MAX_PER_OWNER: usize = 32_768;
/// Most ports of all clients. An entry takes about 150 bytes, so that is 40 MB.
const MAX: usize = 1 << 18;

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: usize,
    token: u32,
    listen: Listen,
    place: usize,
}

/// The place where an entry is kept for the next service, and its content: owner, token and what it listens for.
pub(crate) type Change = (usize, Option<(usize, u32, Listen)>);

/// All listeners of the host. Owners and tokens are the caller's numbers.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_service: HashMap<u64, Vec<Entry>>,
    /// The service ID of each owner's token.
    by_owner: HashMap<usize, HashMap<u32, u64>>,
    /// Each entry has a number of its own: the lowest that is free.
    places: Slab<()>,
    changes: Vec<Change>,
}

impl Listeners {
    /// Adds a listener. False if another one listens there, the owner's token is in use, or the owner has too many. Adding the same
    /// one again has no effect.
    pub(crate) fn add(&mut self, owner: usize, token: u32, listen: Listen) -> bool {
        let list = self.by_service.get(&listen.service_id).map_or(&[][..], Vec::as_slice);
        if list.iter().any(|entry| (entry.owner, entry.token, entry.listen) == (owner, token, listen)) {
            return true;
        }
        let owned = self.by_owner.entry(owner).or_default();
        let full = owned.len() >= MAX_PER_OWNER || self.places.len() >= MAX;
        if full || owned.contains_key(&token) || list.iter().any(|entry| conflict(&entry.listen, &listen)) {
            return false;
        }
        owned.insert(token, listen.service_id);
        let place = self.places.insert(());
        self.by_service.entry(listen.service_id).or_default().push(Entry { owner, token, listen, place });
        self.changes.push((place, Some((owner, token, listen))));
        true
    }

    /// Removes a listener.
    pub(crate) fn remove(&mut self, owner: usize, token: u32) {
        let service = self.by_owner.get_mut(&owner).and_then(|owned| owned.remove(&token));
        if let Some(service) = service {
            self.forget(service, owner);
        }
    }

    /// Removes all listeners of an owner.
    pub(crate) fn remove_owner(&mut self, owner: usize) {
        for service in self.by_owner.remove(&owner).unwrap_or_default().into_values() {
            self.forget(service, owner);
        }
    }

    /// Removes the entries of a service ID that their owner has no token for any more.
    fn forget(&mut self, service: u64, owner: usize) {
        let Some(list) = self.by_service.get_mut(&service) else { return };
        let tokens = self.by_owner.get(&owner);
        list.retain(|entry| {
            let stays = entry.owner != owner || tokens.is_some_and(|all| all.contains_key(&entry.token));
            if !stays {
                self.places.remove(entry.place);
                self.changes.push((entry.place, None));
            }
            stays
        });
        if list.is_empty() {
            self.by_service.remove(&service);
        }
    }

    /// The changes since the last call, in order.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        core::mem::take(&mut self.changes)
    }

    /// The owner that gets a request for `service_id` at `address`: the one that listens at that address, else at all addresses.
    /// Else, if only one client listens to that service ID, it gets the request whatever its address is, and refuses it.
    pub(crate) fn find(&self, service_id: u64, address: IpAddr) -> Option<usize> {
        let list = self.by_service.get(&service_id)?;
        let on = |wanted: Option<IpAddr>| list.iter().find(|entry| entry.listen.address == wanted);
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let found = on(Some(address)).or_else(|| on(Some(any))).or_else(|| on(None)).map(|entry| entry.owner);
        found.or_else(|| self.only_owner(service_id))
    }

    /// The client that listens to a service ID, if only one does.
    pub(crate) fn only_owner(&self, service_id: u64) -> Option<usize> {
        let (first, others) = self.by_service.get(&service_id)?.split_first()?;
        others.iter().all(|entry| entry.owner == first.owner).then_some(first.owner)
    }

    /// Owner, token and content of every listener.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u32, Listen)> {
        self.by_service.values().flatten().map(|entry| (entry.owner, entry.token, entry.listen))
    }
}

fn conflict(a: &Listen, b: &Listen) -> bool {
    let shared = a.reuse && b.reuse;
    match (a.address, b.address) {
        (a, b) if a == b => true,
        (Some(a), Some(b)) => {
            a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()) && !shared
        }
        _ => !shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u64 = 0x0000_0000_0106_1234;

    fn listen(address: Option<&str>, reuse: bool) -> Listen {
        Listen { service_id: PORT, address: address.map(|text| text.parse().unwrap()), reuse }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_comes_before_all_addresses() {
        let mut all = Listeners::default();
        assert!(all.add(1, 1, listen(None, true)));
        assert!(all.add(2, 1, listen(Some("10.0.0.1"), true)));
        assert_eq!(all.find(PORT, ip("10.0.0.1")), Some(2));
        assert_eq!(all.find(PORT, ip("fd00::1")), Some(1));
        assert_eq!(all.find(PORT + 1, ip("10.0.0.1")), None);
        all.remove(2, 1);
        assert_eq!(all.find(PORT, ip("10.0.0.1")), Some(1));
    }

    #[test]
    fn conflicts() {
        let mut all = Listeners::default();
        assert!(all.add(1, 1, listen(Some("10.0.0.1"), false)));
        assert!(!all.add(2, 1, listen(Some("10.0.0.1"), true)), "taken");
        assert!(!all.add(2, 1, listen(None, true)), "the other one does not share");
        assert!(all.add(2, 1, listen(Some("10.0.0.2"), false)));
        assert!(!all.add(1, 1, listen(Some("10.0.0.3"), false)), "a token of its own");
        assert!(all.add(1, 1, listen(Some("10.0.0.1"), false)), "as before");
        all.remove_owner(1);
        assert!(all.add(3, 1, listen(Some("10.0.0.1"), false)));
        assert_eq!(all.iter().count(), 2);
    }

    #[test]
    fn all_of_one_family() {
        let mut all = Listeners::default();
        assert!(all.add(1, 1, listen(Some("0.0.0.0"), false)));
        assert!(all.add(2, 1, listen(Some("::"), false)), "another family");
        assert!(!all.add(3, 1, listen(None, false)), "both");
        assert!(!all.add(3, 1, listen(Some("10.0.0.1"), true)), "the other one does not share");
        assert_eq!((all.find(PORT, ip("10.0.0.1")), all.find(PORT, ip("fd00::1"))), (Some(1), Some(2)));
        all.remove(1, 1);
        assert!(all.add(1, 1, listen(Some("0.0.0.0"), true)));
        assert!(all.add(3, 1, listen(Some("10.0.0.1"), true)));
        assert_eq!((all.find(PORT, ip("10.0.0.1")), all.find(PORT, ip("10.0.0.2"))), (Some(3), Some(1)));
    }

    #[test]
    fn who_is_alone_gets_all_requests() {
        let mut all = Listeners::default();
        assert_eq!(all.only_owner(PORT), None);
        assert!(all.add(1, 1, listen(Some("10.0.0.1"), false)));
        assert!(all.add(1, 2, listen(Some("10.0.0.2"), false)));
        assert_eq!((all.only_owner(PORT), all.find(PORT, ip("10.0.0.3"))), (Some(1), Some(1)));
        assert!(all.add(2, 1, listen(Some("10.0.0.3"), false)));
        assert_eq!((all.only_owner(PORT), all.find(PORT, ip("10.0.0.4"))), (None, None));
        all.remove(2, 1);
        assert_eq!(all.only_owner(PORT), Some(1));
    }

    /// Whoever follows the changes knows the same.
    #[test]
    fn changes() {
        let mut all = Listeners::default();
        let mut copy = std::collections::BTreeMap::new();
        let other = |n: u32| Listen { service_id: n.into(), address: None, reuse: false };
        for n in 0..20u32 {
            assert!(all.add(n as usize % 3, n, other(n)));
            if n % 4 == 3 {
                all.remove(n as usize % 3, n);
            }
            if n == 10 {
                all.remove_owner(2);
            }
        }
        for (place, change) in all.take_changes() {
            match change {
                Some(entry) => assert!(copy.insert(place, entry).is_none(), "a place of its own"),
                None => assert!(copy.remove(&place).is_some(), "there was something"),
            }
        }
        assert!(all.take_changes().is_empty());
        let sorted = |entries: Vec<(usize, u32, Listen)>| {
            let mut tokens: Vec<u32> = entries.into_iter().map(|(_, token, _)| token).collect();
            tokens.sort_unstable();
            tokens
        };
        assert_eq!(sorted(copy.into_values().collect()), sorted(all.iter().collect()));
    }

    #[test]
    fn one_owner_cannot_have_them_all() {
        let mut all = Listeners::default();
        for token in 0..MAX_PER_OWNER as u32 {
            assert!(all.add(1, token, Listen { service_id: token.into(), address: None, reuse: false }));
        }
        assert!(!all.add(1, u32::MAX, listen(None, false)));
        all.remove(1, 7);
        assert!(all.add(1, 7, listen(None, false)));
    }
}
