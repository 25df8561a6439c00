//! Who wants which connection requests.
//!
//! A service ID may be listened to once for each address, or once for all of them. Both together is a conflict unless
//! both listeners allow it; the one on the address then comes first, as with TCP.

use super::message::Listen;
use std::{collections::HashMap, net::IpAddr};

/// Listeners of one client at most.
pub(crate) const MAX_PER_OWNER: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: usize,
    token: u32,
    listen: Listen,
}

/// All listeners of the host. Owners and tokens are the caller's numbers.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_service: HashMap<u64, Vec<Entry>>,
    owned: HashMap<usize, usize>,
}

impl Listeners {
    /// Adds one; false if somebody else listens there, the owner's token is in use, or it has too many. To say the same
    /// again does no harm.
    pub(crate) fn add(&mut self, owner: usize, token: u32, listen: Listen) -> bool {
        let owned = self.owned.entry(owner).or_default();
        let list = self.by_service.entry(listen.service_id).or_default();
        if list.iter().any(|entry| (entry.owner, entry.token, entry.listen) == (owner, token, listen)) {
            return true;
        }
        let same = |entry: &Entry| entry.owner == owner && entry.token == token;
        if *owned >= MAX_PER_OWNER || list.iter().any(|entry| conflict(&entry.listen, &listen) || same(entry))
        {
            return false;
        }
        list.push(Entry { owner, token, listen });
        *owned += 1;
        true
    }

    /// Removes one.
    pub(crate) fn remove(&mut self, owner: usize, token: u32) {
        self.retain(|entry| entry.owner != owner || entry.token != token);
    }

    /// Removes all of an owner.
    pub(crate) fn remove_owner(&mut self, owner: usize) {
        self.retain(|entry| entry.owner != owner);
        self.owned.remove(&owner);
    }

    fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        let owned = &mut self.owned;
        self.by_service.retain(|_, list| {
            list.retain(|entry| {
                let stays = keep(entry);
                if !stays && let Some(count) = owned.get_mut(&entry.owner) {
                    *count -= 1;
                }
                stays
            });
            !list.is_empty()
        });
    }

    /// The owner to whom a request for `service_id` that came to `address` belongs.
    pub(crate) fn find(&self, service_id: u64, address: IpAddr) -> Option<usize> {
        let list = self.by_service.get(&service_id)?;
        let on = |wanted: Option<IpAddr>| list.iter().find(|entry| entry.listen.address == wanted);
        on(Some(address)).or_else(|| on(None)).map(|entry| entry.owner)
    }

    /// Owner, token and wish of every listener.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u32, Listen)> {
        self.by_service.values().flatten().map(|entry| (entry.owner, entry.token, entry.listen))
    }
}

fn conflict(a: &Listen, b: &Listen) -> bool {
    match (a.address, b.address) {
        (Some(a), Some(b)) => a == b,
        (None, None) => true,
        _ => !(a.reuse && b.reuse),
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
