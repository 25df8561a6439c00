//! The neighbour table: the link-layer addresses of neighbours, for IPv4 and IPv6, and packets that wait for one.
//!
//! States and times are those of neighbour discovery (RFC 4861, 7.3 and 10), with one difference. If an address that was not
//! confirmed for a while is used, it is asked for at once. The RFC waits 5 s for a confirmation by TCP, which we cannot see.
//!
//! `heard_*` and `handle_timeout` report events, `find` and `wait` ask for addresses, and `poll_action` returns what is to be
//! done.

use super::address::LinkAddress;
use core::{net::IpAddr, time::Duration};
use std::collections::{HashMap, VecDeque};

/// How long an address is valid without being confirmed.
pub const REACHABLE: Duration = Duration::from_secs(30);
/// How long to wait for an answer.
pub const RETRANSMIT: Duration = Duration::from_secs(1);
/// How often the neighbour itself is asked, and then all nodes.
pub const TRIES: u8 = 3;
/// Most neighbours. If there are more, the one that was not used for the longest time is removed.
pub const MOST_NEIGHBOURS: usize = 1024;
/// Most packets that wait for one address,
pub const MOST_WAITING: usize = 16;
/// and for all addresses.
pub const MOST_WAITING_IN_ALL: usize = 64;

/// An action that the caller has to carry out.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<P> {
    /// Ask for an address: the neighbour that had it last, or all nodes.
    Ask {
        /// The IP address.
        ip: IpAddr,
        /// The last link-layer address, if known.
        last: Option<LinkAddress>,
    },
    /// The address for a packet is known.
    Release {
        /// The caller's handle of the packet.
        packet: P,
        /// The link-layer address.
        to: LinkAddress,
    },
    /// The address could not be resolved.
    Discard {
        /// The caller's handle of the packet.
        packet: P,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// All nodes are being asked; packets wait.
    Incomplete { tries: u8, due: Duration },
    /// Confirmed at that time.
    Confirmed(Duration),
    /// Not confirmed, or not lately.
    Stale,
    /// It is being asked for a confirmation; packets are sent meanwhile.
    Probe { tries: u8, due: Duration },
}

#[derive(Debug)]
struct Entry<P> {
    state: State,
    address: Option<LinkAddress>,
    used: Duration,
    waiting: VecDeque<P>,
}

/// A neighbour, for showing the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its link-layer address, if known.
    pub address: Option<LinkAddress>,
    /// Its state, in the words of `ip neigh`.
    pub state: &'static str,
}

/// The table. `P` stands for a packet that waits.
#[derive(Debug)]
pub struct Neighbours<P> {
    entries: HashMap<IpAddr, Entry<P>>,
    /// Number of packets that wait, for all neighbours.
    waiting: usize,
    /// Entries that wait for an answer.
    asked: usize,
    actions: VecDeque<Action<P>>,
}

impl<P> Default for Neighbours<P> {
    fn default() -> Self {
        Self { entries: HashMap::new(), waiting: 0, asked: 0, actions: VecDeque::new() }
    }
}

impl<P> Neighbours<P> {
    /// The link-layer address of a neighbour; `None` if it has to be resolved: see [`Self::wait`].
    pub fn find(&mut self, now: Duration, ip: IpAddr) -> Option<LinkAddress> {
        let entry = self.entries.get_mut(&ip)?;
        entry.used = now;
        let doubtful = match entry.state {
            State::Confirmed(at) => now.saturating_sub(at) >= REACHABLE,
            State::Stale => true,
            State::Incomplete { .. } | State::Probe { .. } => false,
        };
        if doubtful {
            entry.state = State::Probe { tries: 1, due: now + RETRANSMIT };
            self.asked += 1;
            self.actions.push_back(Action::Ask { ip, last: entry.address });
        }
        entry.address
    }

    /// Keeps a packet until the address of its neighbour is known, and asks for the address unless that was done already.
    ///
    /// # Errors
    /// The packet, if too many wait (the address is asked for all the same) or there are too many neighbours.
    pub fn wait(&mut self, now: Duration, ip: IpAddr, packet: P) -> Result<(), P> {
        if !self.entries.contains_key(&ip) {
            if !self.make_room() {
                return Err(packet);
            }
            let state = State::Incomplete { tries: 1, due: now + RETRANSMIT };
            self.entries.insert(ip, Entry { state, address: None, used: now, waiting: VecDeque::new() });
            self.asked += 1;
            self.actions.push_back(Action::Ask { ip, last: None });
        }
        // An address is asked for even if its packet cannot wait. Otherwise packets to dead neighbours would keep living ones unknown.
        let room = self.waiting < MOST_WAITING_IN_ALL;
        match self.entries.get_mut(&ip) {
            Some(entry) if room && entry.waiting.len() < MOST_WAITING => entry.waiting.push_back(packet),
            _ => return Err(packet),
        }
        self.waiting += 1;
        Ok(())
    }

    /// A neighbour has asked for our address, and its request contains its own address (RFC 826; RFC 4861, 7.2.3).
    pub fn heard_request(&mut self, now: Duration, ip: IpAddr, address: LinkAddress) {
        if let Some(entry) = self.entries.get(&ip) {
            // The address is accepted, but it is not confirmed that packets reach the neighbour.
            if entry.address != Some(address) {
                self.settle(ip, address, State::Stale);
            }
        } else if self.make_room() {
            let entry =
                Entry { state: State::Stale, address: Some(address), used: now, waiting: VecDeque::new() };
            self.entries.insert(ip, entry);
        }
    }

    /// A neighbour has announced its address: to us, if we `asked`, or to all nodes. Nothing is kept for neighbours that are
    /// not in the table. An announcement without the override flag does not replace an address, but makes it unconfirmed (RFC
    /// 4861, 7.2.5).
    pub fn heard_reply(
        &mut self,
        now: Duration,
        ip: IpAddr,
        address: LinkAddress,
        asked: bool,
        replaces: bool,
    ) {
        let Some(entry) = self.entries.get(&ip) else { return };
        let differs = entry.address.is_some_and(|known| known != address);
        if differs && !replaces {
            if let (State::Confirmed(_), Some(known)) = (entry.state, entry.address) {
                self.settle(ip, known, State::Stale);
            }
            return;
        }
        if asked {
            self.settle(ip, address, State::Confirmed(now));
        } else if entry.address != Some(address) {
            self.settle(ip, address, State::Stale);
        }
    }

    /// Something else indicates that this link-layer address may be gone: neighbours with it are asked when they are used.
    pub fn doubt(&mut self, address: LinkAddress) {
        for entry in self.entries.values_mut() {
            if entry.address == Some(address) && matches!(entry.state, State::Confirmed(_)) {
                entry.state = State::Stale;
            }
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.asked == 0 {
            return;
        }
        let mut gone = Vec::new();
        for (&ip, entry) in &mut self.entries {
            let next = match entry.state {
                State::Incomplete { tries, due } if due <= now && tries < TRIES => {
                    State::Incomplete { tries: tries + 1, due: now + RETRANSMIT }
                }
                State::Incomplete { due, .. } if due <= now => {
                    gone.push(ip);
                    continue;
                }
                State::Probe { tries, due } if due <= now && tries < TRIES => {
                    State::Probe { tries: tries + 1, due: now + RETRANSMIT }
                }
                State::Probe { due, .. } if due <= now => {
                    entry.address = None;
                    State::Incomplete { tries: 1, due: now + RETRANSMIT }
                }
                _ => continue,
            };
            entry.state = next;
            self.actions.push_back(Action::Ask { ip, last: entry.address });
        }
        for ip in gone {
            self.remove(ip);
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.asked == 0 {
            return None;
        }
        let due = |entry: &Entry<P>| match entry.state {
            State::Incomplete { due, .. } | State::Probe { due, .. } => Some(due),
            State::Confirmed(_) | State::Stale => None,
        };
        self.entries.values().filter_map(due).min()
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action<P>> {
        self.actions.pop_front()
    }

    /// All neighbours, in any order.
    pub fn iter(&self, now: Duration) -> impl Iterator<Item = Neighbour> {
        self.entries.iter().map(move |(&ip, entry)| {
            let state = match entry.state {
                State::Incomplete { .. } => "INCOMPLETE",
                State::Confirmed(at) if now.saturating_sub(at) < REACHABLE => "REACHABLE",
                State::Confirmed(_) | State::Stale => "STALE",
                State::Probe { .. } => "PROBE",
            };
            Neighbour { ip, address: entry.address, state }
        })
    }

    /// Stores the address of a neighbour that is in the table, and releases the packets that wait for it.
    fn settle(&mut self, ip: IpAddr, address: LinkAddress, state: State) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        self.asked -= usize::from(is_asked(entry.state));
        (entry.state, entry.address) = (state, Some(address));
        self.waiting -= entry.waiting.len();
        let released = entry.waiting.drain(..).map(|packet| Action::Release { packet, to: address });
        self.actions.extend(released);
    }

    fn remove(&mut self, ip: IpAddr) {
        let Some(entry) = self.entries.remove(&ip) else { return };
        self.asked -= usize::from(is_asked(entry.state));
        self.waiting -= entry.waiting.len();
        self.actions.extend(entry.waiting.into_iter().map(|packet| Action::Discard { packet }));
    }

    /// Makes room for one more neighbour. False if packets wait for all of them.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < MOST_NEIGHBOURS {
            return true;
        }
        let idle = self.entries.iter().filter(|(_, entry)| entry.waiting.is_empty());
        let Some(ip) = idle.min_by_key(|(_, entry)| entry.used).map(|(&ip, _)| ip) else { return false };
        self.remove(ip);
        true
    }
}

const fn is_asked(state: State) -> bool {
    matches!(state, State::Incomplete { .. } | State::Probe { .. })
}
