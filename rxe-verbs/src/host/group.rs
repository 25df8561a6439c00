//! The sockets of port 4791: a `SO_REUSEPORT` group for each address family. Each slot has one member in each, and members are in
//! the order in which they joined.

use super::{memberships::leave_all, records::Records, vault::Deposit};
use crate::{
    net::{
        BufferSize, ConfigError, GroupSockets, InboxFiles, OpenError, ROCE_PORT, Sharing, SlotTable,
        UdpConfig,
    },
    sys::{
        kept::Kept,
        socket::{attach_reuseport_program, discard},
        unix::out_of_the_way,
    },
};
use nix::sys::{
    socket::{SockaddrStorage, getpeername},
    stat::fstat,
};
use rxe_core::endpoint::{STEERING_PROBE, STEERING_PROBE_LEN};
use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

/// Probes of one round and family, each from another source port. In a group without its program, or if the group has no member of the
/// wanted number, the kernel spreads them over several members, and so this shows.
pub(crate) const PROBES: usize = 8;

/// An address family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// A slot's sockets, and what is known of its process's connections.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) v4: Option<Kept<OwnedFd>>,
    pub(crate) v6: Option<Kept<OwnedFd>>,
    /// The connections of its process.
    pub(crate) records: Option<Records>,
    /// The inbox of its process, if it has one (memory link).
    pub(crate) inbox: Option<InboxFiles>,
}

impl Member {
    fn new(sockets: GroupSockets) -> Self {
        let [v4, v6] = [sockets.v4, sockets.v6].map(|fd| fd.map(|fd| Kept::new(out_of_the_way(fd))));
        Self { v4, v6, records: None, inbox: None }
    }

    /// Its sockets.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.v4.iter().chain(&self.v6).map(AsFd::as_fd)
    }

    /// Replaces sockets that have left the group because their process connected them.
    fn renew(&mut self) -> Result<(), OpenError> {
        let (v4, v6) =
            (self.v4.as_ref().is_some_and(is_connected), self.v6.as_ref().is_some_and(is_connected));
        if v4 || v6 {
            let fresh = Self::new(GroupSockets::bind(&config(v4, v6, Sharing::Group))?);
            if (fresh.v4.is_some(), fresh.v6.is_some()) != (v4, v6) {
                return Err(OpenError::NoFamily);
            }
            self.v4 = fresh.v4.or_else(|| self.v4.take());
            self.v6 = fresh.v6.or_else(|| self.v6.take());
        }
        Ok(())
    }
}

fn is_connected(socket: &Kept<OwnedFd>) -> bool {
    getpeername::<SockaddrStorage>(socket.as_raw_fd()).is_ok()
}

/// The group of both families. Members are never closed while the group lives, so that none ever changes its number.
#[derive(Debug)]
pub(crate) struct Group {
    families: (bool, bool),
    members: Vec<Member>,
    /// Where the sockets of a slot are: in `members`, and in the group as the kernel counts.
    place: BTreeMap<u8, usize>,
    /// The kernel's number of each member, where it is not the place in `members`. Each family has a group of its own.
    moved: BTreeMap<(Family, usize), u16>,
    /// Service IDs whose requests go to a slot without the service.
    direct: Vec<(u64, u8)>,
}

impl Group {
    /// The first member, of slot 0.
    ///
    /// # Errors
    /// [`OpenError::PortHeld`] if somebody else has the port.
    pub(crate) fn found() -> Result<Self, OpenError> {
        let first = GroupSockets::bind(&config(true, true, Sharing::Exclusive))?;
        let families = (first.v4.is_some(), first.v6.is_some());
        let mut group = Self::empty(families);
        group.add(0, first);
        Ok(group)
    }

    /// The group that an earlier service left.
    pub(crate) fn adopt(families: (bool, bool), deposits: &mut [Deposit]) -> Self {
        let mut group = Self::empty(families);
        for deposit in deposits {
            let sockets = GroupSockets { v4: deposit.v4.take(), v6: deposit.v6.take() };
            let place = group.add(deposit.slot, sockets);
            // A descriptor that is no records file is ignored.
            let records = deposit.records.take().and_then(|fd| Records::adopt(fd).ok());
            group.members[place].records = records;
        }
        group
    }

    const fn empty(families: (bool, bool)) -> Self {
        Self {
            families,
            members: Vec::new(),
            place: BTreeMap::new(),
            moved: BTreeMap::new(),
            direct: Vec::new(),
        }
    }

    /// Adds the next member, and returns its place.
    fn add(&mut self, slot: u8, sockets: GroupSockets) -> usize {
        self.place.insert(slot, self.members.len());
        self.members.push(Member::new(sockets));
        self.members.len() - 1
    }

    /// The names of a slot's sockets as links in /proc/PID/fd have them.
    pub(crate) fn links(&self, slot: u8) -> Vec<PathBuf> {
        let member = self.place.get(&slot).map(|place| &self.members[*place]);
        let name = |fd: BorrowedFd<'_>| Some(format!("socket:[{}]", fstat(fd).ok()?.st_ino).into());
        member.into_iter().flat_map(Member::fds).filter_map(name).collect()
    }

    /// Whether all sockets are still those of the group.
    pub(crate) fn is_intact(&self) -> bool {
        self.members.iter().flat_map(|member| member.v4.iter().chain(&member.v6)).all(Kept::is_intact)
    }

    pub(crate) const fn families(&self) -> (bool, bool) {
        self.families
    }

    pub(crate) const fn len(&self) -> usize {
        self.members.len()
    }

    /// Slots and their sockets, in the order of the group.
    pub(crate) fn in_order(&self) -> Vec<(u8, &Member)> {
        let mut list: Vec<_> = self.place.iter().map(|(slot, place)| (*place, *slot)).collect();
        list.sort_unstable();
        list.into_iter().map(|(place, slot)| (slot, &self.members[place])).collect()
    }

    /// The sockets of a slot. They are made if it has none.
    ///
    /// # Errors
    /// The system has no more descriptors, or a family is gone.
    pub(crate) fn sockets(&mut self, slot: u8) -> Result<&Member, OpenError> {
        let place = match self.place.get(&slot) {
            Some(place) => {
                self.members[*place].renew()?;
                *place
            }
            None => {
                let sockets = GroupSockets::bind(&config(self.families.0, self.families.1, Sharing::Group))?;
                if (sockets.v4.is_some(), sockets.v6.is_some()) != self.families {
                    return Err(OpenError::NoFamily);
                }
                self.add(slot, sockets)
            }
        };
        Ok(&self.members[place])
    }

    /// Sets where a slot's process records its connections. Returns the records of an earlier process.
    pub(crate) fn put_records(&mut self, slot: u8, records: Option<Records>) -> Option<Records> {
        let place = *self.place.get(&slot)?;
        core::mem::replace(&mut self.members[place].records, records)
    }

    /// Sets the inbox of a slot's process. That of an earlier process is closed: it may have been killed, and then others would go on
    /// writing there what is for the next process.
    pub(crate) fn put_inbox(&mut self, slot: u8, inbox: Option<InboxFiles>) {
        if let Some(place) = self.place.get(&slot)
            && let Some(earlier) = core::mem::replace(&mut self.members[*place].inbox, inbox)
        {
            earlier.close();
        }
    }

    /// The inbox of a slot's process.
    pub(crate) fn inbox(&self, slot: u8) -> Option<&InboxFiles> {
        self.members[*self.place.get(&slot)?].inbox.as_ref()
    }

    fn table(&self, family: Family) -> SlotTable {
        let number = |place: &usize| self.moved.get(&(family, *place)).copied().unwrap_or(*place as u16);
        SlotTable::new(self.place.iter().map(|(slot, place)| (*slot, number(place))))
            .with_services(&self.direct)
    }

    /// From now on requests for these service IDs go to these slots at once.
    ///
    /// # Errors
    /// As [`Self::steer`].
    pub(crate) fn steer_requests(&mut self, direct: Vec<(u64, u8)>) -> io::Result<()> {
        let before = core::mem::replace(&mut self.direct, direct);
        let steered = self.steer();
        if steered.is_err() {
            // The old program stays: requests go by the service, and new processes can still be steered to.
            self.direct = before;
            let _ = self.steer();
        }
        steered
    }

    /// Attaches the steering program in place of what is attached now.
    ///
    /// # Errors
    /// The system has no such option (some sandboxes), or a filter lock forbids it.
    pub(crate) fn steer(&self) -> io::Result<()> {
        let Some(Member { v4, v6, .. }) = self.members.first() else { return Ok(()) };
        for (family, socket) in [(Family::V4, v4), (Family::V6, v6)] {
            if let Some(socket) = socket {
                attach_reuseport_program(socket.as_fd(), &self.table(family).program())?;
            }
        }
        Ok(())
    }

    /// Whether the program finds a slot's member by this number.
    pub(crate) fn is_at(&self, family: Family, slot: u8, number: u16) -> bool {
        self.place.contains_key(&slot) && self.table(family).member(slot) == number
    }

    /// A probe has shown that `slot`'s member is number `number` of a family.
    pub(crate) fn learn(&mut self, family: Family, slot: u8, number: u16) {
        if let Some(place) = self.place.get(&slot) {
            self.moved.insert((family, *place), number);
        }
    }

    /// Empties a slot's sockets and has them leave all multicast groups. Returns the number of datagrams thrown away.
    pub(crate) fn drain(&self, slot: u8) -> u64 {
        let sockets = self.place.get(&slot).map(|place| &self.members[*place]);
        sockets
            .into_iter()
            .inspect(|member| {
                leave_all(member.v4.as_ref().map(AsFd::as_fd), member.v6.as_ref().map(AsFd::as_fd))
            })
            .flat_map(Member::fds)
            .map(discard)
            .sum()
    }

    /// Sends probes to the number that a slot's sockets should have, see [`Self::probe`].
    pub(crate) fn probe_slot(&self, slot: u8, nonce: u64) {
        self.send_probes(|family| self.table(family).member(slot), nonce);
    }

    /// Sends probes to the members with this number. Whoever reads their sockets gets them. None arrive where the loopback interface is
    /// down.
    pub(crate) fn probe(&self, number: u16, nonce: u64) {
        self.send_probes(|_| number, nonce);
    }

    fn send_probes(&self, number: impl Fn(Family) -> u16, nonce: u64) {
        let mut packet = [0; STEERING_PROBE_LEN];
        packet[0] = STEERING_PROBE;
        packet[4..].copy_from_slice(&nonce.to_be_bytes());
        let homes: [(bool, IpAddr); 2] =
            [(self.families.0, Ipv4Addr::LOCALHOST.into()), (self.families.1, Ipv6Addr::LOCALHOST.into())];
        for (_, home) in homes.into_iter().filter(|(wanted, _)| *wanted) {
            packet[2..4].copy_from_slice(&number(Family::of(home)).to_be_bytes());
            for _ in 0..PROBES {
                // Each has a socket of its own, and so another source port.
                if let Ok(socket) = UdpSocket::bind(SocketAddr::new(home, 0)) {
                    let _ = socket.send_to(&packet, (home, ROCE_PORT));
                }
            }
        }
    }

    /// Probes of one round to one member.
    pub(crate) const fn probes(&self) -> usize {
        PROBES * (self.families.0 as usize + self.families.1 as usize)
    }
}

/// Number and nonce of a probe.
pub(crate) fn parse_probe(packet: &[u8]) -> Option<(u16, u64)> {
    let packet: &[u8; STEERING_PROBE_LEN] = packet.try_into().ok()?;
    (packet[0] == STEERING_PROBE).then(|| {
        let [.., a, b, c, d, e, f, g, h] = *packet;
        (u16::from_be_bytes([packet[2], packet[3]]), u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    })
}

/// How members are opened: bound to all addresses. Each client sets the buffer sizes of its own member as its environment says.
fn config(v4: bool, v6: bool, sharing: Sharing) -> UdpConfig {
    UdpConfig {
        v4: v4.then_some(Ipv4Addr::UNSPECIFIED),
        v6: v6.then_some(Ipv6Addr::UNSPECIFIED),
        recv_buffer: BufferSize::Default,
        send_buffer: BufferSize::Default,
        pool: 0,
        sharing,
        slots: None,
        ..UdpConfig::default()
    }
}

/// How a client uses its member, as its environment says.
///
/// # Errors
/// [`ConfigError`].
pub(crate) fn member_config() -> Result<UdpConfig, ConfigError> {
    UdpConfig { slots: None, sharing: Sharing::Group, ..UdpConfig::default() }.with_environment()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_that_nobody_reads_is_closed() {
        let mut group = Group::empty((false, false));
        group.add(5, GroupSockets { v4: None, v6: None });
        let inbox = InboxFiles::new().unwrap();
        let writers = inbox.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        let writers = InboxFiles::adopt(writers).unwrap();
        group.put_inbox(5, Some(inbox));
        assert!(!writers.is_closed());
        group.put_inbox(5, None);
        assert!(writers.is_closed());
    }
}
