//! The vault keeps the group of port 4791 alive when the service dies.
//!
//! The kernel numbers the members of a `SO_REUSEPORT` group in the order in which they joined. When a member is closed, the last one takes
//! its number. So a service that dies with its sockets would break the steering for all other processes. Therefore no member is
//! closed while any process is left. Duplicates of all sockets are unread messages in a socket pair (`unix(7)`, SCM_RIGHTS), and
//! every client holds both ends of the pair. The next service takes them out, in order, with the state that belongs to them and a
//! pidfd of every client.
//!
//! There are two such pairs. A change is written to the empty pair before the other one is emptied. So one of them is always whole,
//! whenever the service dies.

use super::{
    message::{decode, encode},
    records::Register,
    slots::{Holder, Slot},
};
use crate::sys::unix::{Channel, MAX_DESCRIPTORS, Received, out_of_the_way};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// Most bytes of one message. The state of 256 slots takes a third of it.
const MAX_BYTES: usize = 64 * 1024;

/// A slot that has rested for so many milliseconds is free. How much longer it has rested does not matter.
const LONG: u64 = 60_000;

/// The system's monotonic clock in milliseconds. All processes read the same.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// The state that is stored with the sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// Whether each member has a socket for IPv4, and for IPv6.
    families: (bool, bool),
    /// In the order of the group.
    members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    slot: u8,
    /// Process ID and name, while a process has the slot.
    holder: Option<(i32, String)>,
    /// Since when the slot has rested, in milliseconds of the system's monotonic clock.
    resting: Option<u64>,
    /// Whether a pidfd comes with it, and records.
    pidfd: bool,
    records: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Piece {
    generation: u64,
    index: u8,
    count: u8,
    /// Only in the first message.
    state: Option<State>,
}

/// One member of the group with what belongs to it.
#[derive(Debug)]
pub(crate) struct Deposit {
    pub(crate) slot: u8,
    pub(crate) state: Slot,
    pub(crate) v4: Option<OwnedFd>,
    pub(crate) v6: Option<OwnedFd>,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) records: Option<OwnedFd>,
}

/// The same, to be stored.
#[derive(Debug)]
pub(crate) struct DepositRef<'a> {
    pub(crate) slot: u8,
    pub(crate) state: &'a Slot,
    pub(crate) v4: Option<BorrowedFd<'a>>,
    pub(crate) v6: Option<BorrowedFd<'a>>,
    pub(crate) pidfd: Option<BorrowedFd<'a>>,
    pub(crate) records: Option<BorrowedFd<'a>>,
}

/// What was read from a vault.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) families: (bool, bool),
    pub(crate) register: OwnedFd,
    /// In the order of the group.
    pub(crate) members: Vec<Deposit>,
}

/// The two pairs.
#[derive(Debug)]
pub(crate) struct Vault {
    /// (where to put in, where to take out)
    pairs: [(Channel, Channel); 2],
    generation: u64,
    /// Index of the pair that holds the current state.
    current: usize,
}

impl Vault {
    /// Number of descriptors of a vault.
    pub(crate) const DESCRIPTORS: usize = 4;

    /// A new, empty one.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { pairs: [Channel::pair()?, Channel::pair()?], generation: 0, current: 0 })
    }

    /// A vault that another process passed on as [`Self::DESCRIPTORS`] descriptors.
    pub(crate) fn adopt(fds: [OwnedFd; Self::DESCRIPTORS]) -> Self {
        let [a, b, c, d] = fds.map(|fd| Channel::from_fd(out_of_the_way(fd)));
        Self { pairs: [(a, b), (c, d)], generation: 0, current: 0 }
    }

    /// The descriptors to pass on.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; Self::DESCRIPTORS] {
        let [(a, b), (c, d)] = &self.pairs;
        [a.as_fd(), b.as_fd(), c.as_fd(), d.as_fd()]
    }

    /// Whether its descriptors are still those of the vault.
    pub(crate) fn is_intact(&self) -> bool {
        self.pairs.iter().all(|(a, b)| a.is_intact() && b.is_intact())
    }

    /// Stores the state in place of the old one.
    ///
    /// # Errors
    /// The system passes no more descriptors (`ETOOMANYREFS`: raise the limit of open files). The old state stays.
    pub(crate) fn store(
        &mut self,
        families: (bool, bool),
        register: &Register,
        members: &[DepositRef<'_>],
    ) -> io::Result<()> {
        let state = State { families, members: members.iter().map(Member::of).collect() };
        let mut fds = vec![register.as_fd()];
        for member in members {
            fds.extend([member.v4, member.v6, member.pidfd, member.records].into_iter().flatten());
        }
        let (generation, next) = (self.generation + 1, 1 - self.current);
        // An earlier attempt that failed may have left messages there.
        self.empty(next);
        let count = fds.len().div_ceil(MAX_DESCRIPTORS);
        for (index, fds) in fds.chunks(MAX_DESCRIPTORS).enumerate() {
            let state = (index == 0).then(|| state.clone());
            let piece = Piece { generation, index: index as u8, count: count as u8, state };
            if let Err(error) = self.pairs[next].0.send(&encode(&piece), fds) {
                self.empty(next);
                return Err(error);
            }
        }
        self.empty(self.current);
        (self.generation, self.current) = (generation, next);
        Ok(())
    }

    fn empty(&self, pair: usize) {
        let mut buffer = vec![0; MAX_BYTES];
        let mut more = 0..64;
        // A message that gives an error has been taken out, too.
        while more.next().is_some()
            && !matches!(
                self.pairs[pair].1.receive(&mut buffer, MAX_DESCRIPTORS),
                Ok(Received::Nothing | Received::Closed)
            )
        {}
    }

    /// Reads the newest whole state. It stays there until the next `store`.
    ///
    /// # Errors
    /// `InvalidData` if neither pair holds a whole state. `EMFILE` if this process has too few descriptors.
    pub(crate) fn load(&mut self) -> io::Result<Contents> {
        let found = [self.read(0)?, self.read(1)?];
        let newest = found
            .into_iter()
            .enumerate()
            .filter_map(|(pair, found)| found.map(|(generation, contents)| (generation, pair, contents)))
            .max_by_key(|(generation, ..)| *generation);
        let (generation, pair, contents) =
            newest.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the vault is empty"))?;
        (self.generation, self.current) = (generation, pair);
        Ok(contents)
    }

    fn read(&self, pair: usize) -> io::Result<Option<(u64, Contents)>> {
        let mut buffer = vec![0; MAX_BYTES];
        let (mut fds, mut state, mut next, mut whole) = (Vec::new(), None, 0, None);
        let end = &self.pairs[pair].1;
        end.peek_from_start()?;
        while let Received::Message(len, more) = end.peek(&mut buffer, MAX_DESCRIPTORS)? {
            let piece = decode(&buffer[..len]).filter(|piece: &Piece| piece.index == next);
            let Some(piece) = piece else { return Ok(None) };
            next += 1;
            fds.extend(more);
            state = state.or(piece.state);
            if piece.index + 1 == piece.count {
                whole = Some(piece.generation);
            }
        }
        let contents = state.and_then(|state| Contents::of(&state, fds));
        Ok(whole.zip(contents))
    }
}

impl Member {
    fn of(deposit: &DepositRef<'_>) -> Self {
        let holder = match deposit.state {
            Slot::Held(holder) => Some((holder.pid, holder.name.clone())),
            _ => None,
        };
        let resting = match deposit.state {
            Slot::Resting(since) => Some(clock().saturating_sub(since.elapsed().as_millis() as u64)),
            _ => None,
        };
        let (pidfd, records) = (deposit.pidfd.is_some(), deposit.records.is_some());
        Self { slot: deposit.slot, holder, resting, pidfd, records }
    }
}

impl Contents {
    /// Sorts descriptors by the state with which they came. `None` if they do not fit it.
    fn of(state: &State, fds: Vec<OwnedFd>) -> Option<Self> {
        let mut fds = fds.into_iter();
        let register = fds.next()?;
        let mut members = Vec::new();
        for member in &state.members {
            let mut take = |wanted: bool| if wanted { fds.next().map(Some) } else { Some(None) };
            let (v4, v6) = (take(state.families.0)?, take(state.families.1)?);
            let (pidfd, records) = (take(member.pidfd)?, take(member.records)?);
            let state = match member.holder.clone() {
                Some((pid, name)) => Slot::Held(Holder { pid, name }),
                None => {
                    let rested = clock().saturating_sub(member.resting.unwrap_or(0)).min(LONG);
                    let now = Instant::now();
                    Slot::Resting(now.checked_sub(Duration::from_millis(rested)).unwrap_or(now))
                }
            };
            members.push(Deposit { slot: member.slot, state, v4, v6, pidfd, records });
        }
        fds.next().is_none().then_some(Self { families: state.families, register, members })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::UdpSocket,
        os::fd::{AsRawFd, RawFd},
    };

    fn inode(fd: RawFd) -> std::path::PathBuf {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap()
    }

    fn store(vault: &mut Vault, register: &Register, sockets: &[UdpSocket]) -> io::Result<()> {
        let held = Slot::Held(Holder { pid: 7, name: "program".to_owned() });
        let members: Vec<_> = sockets
            .iter()
            .zip(0..)
            .map(|(socket, slot)| DepositRef {
                slot,
                state: &held,
                v4: Some(socket.as_fd()),
                v6: None,
                pidfd: (slot % 2 == 1).then(|| socket.as_fd()),
                records: (slot % 3 == 1).then(|| socket.as_fd()),
            })
            .collect();
        vault.store((true, false), register, &members)
    }

    fn check(contents: &Contents, sockets: &[UdpSocket]) {
        assert_eq!(contents.members.len(), sockets.len());
        for (member, socket) in contents.members.iter().zip(sockets) {
            let v4 = member.v4.as_ref().unwrap();
            assert_eq!(inode(v4.as_raw_fd()), inode(socket.as_raw_fd()));
            assert_eq!(member.pidfd.is_some(), member.slot % 2 == 1);
            assert_eq!(member.records.is_some(), member.slot % 3 == 1);
            assert!(matches!(&member.state, Slot::Held(holder) if holder.pid == 7));
        }
    }

    fn sockets(count: usize) -> Vec<UdpSocket> {
        (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect()
    }

    #[test]
    fn the_next_service_finds_everything_in_order() {
        let register = Register::new().unwrap();
        let mut vault = Vault::new().unwrap();
        for count in [1, 3, 200] {
            let sockets = sockets(count);
            store(&mut vault, &register, &sockets).unwrap();
            let fds = vault.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
            let mut heir = Vault::adopt(fds);
            check(&heir.load().unwrap(), &sockets);
            store(&mut heir, &register, &sockets).unwrap();
            vault = heir;
        }
        assert!(vault.load().is_ok());
        assert!(vault.load().is_ok(), "still there");
        assert!(Vault::new().unwrap().load().is_err(), "nothing in it");
    }

    /// How long a slot has rested does not begin anew with each service.
    #[test]
    fn rest_goes_on() {
        let register = Register::new().unwrap();
        let mut vault = Vault::new().unwrap();
        let socket = sockets(1);
        let since = Instant::now().checked_sub(Duration::from_secs(20)).unwrap();
        let state = Slot::Resting(since);
        let v4 = Some(socket[0].as_fd());
        let member = DepositRef { slot: 3, state: &state, v4, v6: None, pidfd: None, records: None };
        vault.store((true, false), &register, &[member]).unwrap();
        let found = vault.load().unwrap();
        let Slot::Resting(found) = &found.members[0].state else { panic!("{found:?}") };
        let difference = if *found > since { *found - since } else { since - *found };
        assert!(difference < Duration::from_secs(5), "{difference:?}");
    }

    /// The service dies while it writes: half of the new state is there, and the old one.
    #[test]
    fn half_a_state_is_passed_over() {
        let register = Register::new().unwrap();
        let mut vault = Vault::new().unwrap();
        let sockets = sockets(2);
        store(&mut vault, &register, &sockets).unwrap();
        let piece = Piece { generation: 9, index: 0, count: 2, state: None };
        vault.pairs[1 - vault.current].0.send(&encode(&piece), &[register.as_fd()]).unwrap();
        check(&vault.load().unwrap(), &sockets);
    }
}
