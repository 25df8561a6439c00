//! The processes that have slots: from when one gets its slot, or is found in the vault, until the
//! slot is taken back.

use crate::sys::kept::Kept;
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// Whether a process is connected to this service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    /// An earlier service gave it the slot, and it has not rejoined yet.
    Awaited,
    /// Connected, by this connection.
    Connected(usize),
    /// It has closed its connection to this service, and is alive.
    HungUp,
}

/// A process with a slot.
#[derive(Debug)]
pub(super) struct Presence {
    contact: Contact,
    /// Since when it is not connected. Has no meaning while it is.
    away_since: Instant,
    /// Its pidfd, which tells of its death. Some systems have none.
    pidfd: Option<Kept<OwnedFd>>,
}

/// All processes that hold slots, by slot.
#[derive(Debug, Default)]
pub(super) struct Presences(BTreeMap<u8, Presence>);

impl Presences {
    /// Adds a process that has got a slot.
    pub(super) fn begin(&mut self, slot: u8, contact: Contact) {
        self.0.insert(slot, Presence { contact, away_since: Instant::now(), pidfd: None });
    }

    /// Removes the process of a slot, and returns its pidfd.
    pub(super) fn end(&mut self, slot: u8) -> Option<Kept<OwnedFd>> {
        self.0.remove(&slot)?.pidfd
    }

    /// Sets the pidfd of a slot's process.
    pub(super) fn watch(&mut self, slot: u8, pidfd: Kept<OwnedFd>) {
        if let Some(presence) = self.0.get_mut(&slot) {
            presence.pidfd = Some(pidfd);
        }
    }

    /// The pidfd of a slot's process.
    pub(super) fn pidfd(&self, slot: u8) -> Option<BorrowedFd<'_>> {
        self.0.get(&slot)?.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// The process has connected, or connected again.
    pub(super) fn connect(&mut self, slot: u8, key: usize) {
        if let Some(presence) = self.0.get_mut(&slot) {
            presence.contact = Contact::Connected(key);
        }
    }

    /// The connection of a process was closed.
    pub(super) fn hang_up(&mut self, slot: u8) {
        if let Some(presence) = self.0.get_mut(&slot) {
            (presence.contact, presence.away_since) = (Contact::HungUp, Instant::now());
        }
    }

    /// The connection of a slot's process.
    pub(super) fn connection(&self, slot: u8) -> Option<usize> {
        match self.0.get(&slot)?.contact {
            Contact::Connected(key) => Some(key),
            Contact::Awaited | Contact::HungUp => None,
        }
    }

    /// Whether a process has this slot.
    pub(super) fn is_known(&self, slot: u8) -> bool {
        self.0.contains_key(&slot)
    }

    pub(super) fn is_connected(&self, slot: u8) -> bool {
        self.connection(slot).is_some()
    }

    pub(super) fn has_hung_up(&self, slot: u8) -> bool {
        self.0.get(&slot).is_some_and(|presence| presence.contact == Contact::HungUp)
    }

    /// Slots and connections of the processes that are connected.
    pub(super) fn connected(&self) -> impl Iterator<Item = (u8, usize)> {
        self.0.keys().filter_map(|slot| Some((*slot, self.connection(*slot)?)))
    }

    /// Slots of the processes that are not connected.
    pub(super) fn away(&self) -> impl Iterator<Item = u8> {
        self.0.keys().copied().filter(|slot| !self.is_connected(*slot))
    }

    /// Slots of processes without a pidfd that have not been connected for longer than that.
    pub(super) fn missing(&self, now: Instant, longest: Duration) -> impl Iterator<Item = u8> {
        let is_missing = move |presence: &Presence| {
            presence.pidfd.is_none() && now.duration_since(presence.away_since) > longest
        };
        self.away().filter(move |slot| self.0.get(slot).is_some_and(is_missing))
    }

    /// Whether all these descriptors are still the service's own.
    pub(super) fn are_intact(&self) -> bool {
        self.0.values().filter_map(|presence| presence.pidfd.as_ref()).all(Kept::is_intact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn one_comes_goes_and_is_missed() {
        let mut all = Presences::default();
        all.begin(3, Contact::Awaited);
        all.begin(4, Contact::Connected(7));
        assert!(!all.is_connected(3) && all.connection(4) == Some(7) && !all.has_hung_up(3));
        assert!(all.connected().eq([(4, 7)]) && all.away().eq([3]));
        all.connect(3, 9);
        all.hang_up(4);
        assert!(all.connected().eq([(3, 9)]) && all.has_hung_up(4));
        let later = Instant::now() + Duration::from_secs(10);
        let longest = Duration::from_secs(5);
        assert!(all.missing(later, longest).eq([4]), "the other one is there");
        assert!(all.missing(Instant::now(), longest).eq([]), "not yet");
        let file = File::open("/dev/null").unwrap();
        all.watch(4, Kept::new(file.into()));
        assert!(all.missing(later, longest).eq([]), "its death will be told");
        assert!(all.end(4).is_some() && all.end(4).is_none() && all.away().eq([]));
        // Calls for a slot that no process has do nothing.
        all.connect(4, 1);
        all.hang_up(4);
        assert!(!all.is_connected(4) && all.pidfd(4).is_none() && all.are_intact());
    }
}
