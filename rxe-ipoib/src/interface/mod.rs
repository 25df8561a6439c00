//! A running interface: one thread that reads packets from the TUN interface and sends them, and writes received packets to it.
//!
//! | file | what |
//! |---|---|
//! | `outgoing` | packets from the TUN interface to a queue pair |
//! | `incoming` | packets from a queue pair to the TUN interface; ARP and neighbour discovery are answered here |
//! | `resolution` | our own ARP and neighbour discovery packets, and groups |
//! | `connections` | connected mode: which connection goes where |
//!
//! The number of buffers is fixed, so that nothing grows. If programs send faster than the network, the queue of the TUN
//! interface becomes full, and the host's IP stack drops packets.

mod connections;
mod incoming;
mod outgoing;
mod resolution;

use crate::{
    Counters, Error,
    control::{Command, Door},
    local::Local,
    network::Network,
    pool::Pool,
    port::{Mode, Port, SENDS},
    proto::{address::LinkAddress, connected, encap, neighbours::Neighbours},
    tun::Tun,
};
use connections::Connections;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rxe_verbs::UdDest;
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::Ipv6Addr,
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Packets read from the TUN interface, or completions handled, before the other direction is served.
const TURN: usize = 64;
/// Send buffers of connected mode, of 64 KiB each.
const CONNECTED_SENDS: u32 = 256;
/// Turns in a row after which events other than packets are checked.
const LOOK_UP: u32 = 64;
/// The smallest MTU of IPv4.
const LEAST_MTU: u16 = 68;

/// The options of a new interface.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name, at most 15 characters.
    pub name: String,
    /// RDMA device or network interface; `None` for the first device.
    pub device: Option<String>,
    /// Index of the GID of the port that is in our link-layer address. `None`: the link-local address, or the first GID if
    /// there is none.
    pub gid_index: Option<u8>,
    /// Partition: a key of the port's table, with or without the membership bit; `None` for the first of the table.
    pub pkey: Option<u16>,
    /// Mode.
    pub mode: Mode,
    /// An MTU that is smaller than the largest possible one.
    pub mtu: Option<u16>,
}

/// What a work request is for. Its `wr_id` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// A send.
    Send,
    /// A receive of a datagram.
    Datagram,
    /// A receive of a message of a connection.
    Message,
}

impl Work {
    /// The `wr_id` of a work request for a slot.
    pub(crate) const fn id(self, slot: u32) -> u64 {
        (self as u64) << 32 | slot as u64
    }

    /// The inverse: from a `wr_id`.
    const fn of(id: u64) -> (Self, u32) {
        let work = match id >> 32 {
            0 => Self::Send,
            1 => Self::Datagram,
            _ => Self::Message,
        };
        (work, id as u32)
    }
}

/// A frame in a slot of the send buffers: header and IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parcel {
    slot: u32,
    /// Bytes of the IP packet.
    len: usize,
}

impl Parcel {
    /// Bytes of the frame.
    const fn frame(self) -> usize {
        encap::LEN + self.len
    }
}

/// An IPoIB interface. Dropping it ends it: the TUN interface is removed, and connections are closed.
pub struct Interface {
    tun: Tun,
    port: Port,
    /// Dropped before the port, because their queue pairs are on it.
    connections: Option<Connections>,
    buffers: Pool,
    neighbours: Neighbours<Parcel>,
    local: Local,
    network: Network,
    /// Addresses or routes have changed, or a program has joined or left a group.
    local_changed: bool,
    /// MGIDs whose packets we receive.
    groups: Vec<Ipv6Addr>,
    /// Datagrams that leave together.
    batch: Vec<(Parcel, UdDest)>,
    counters: Counters,
    door: Door,
    mode: Mode,
    mtu: u16,
    started: Instant,
}

/// A neighbour in a [`Report`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NeighbourReport {
    /// IP address.
    pub ip: std::net::IpAddr,
    /// Link-layer address, 20 bytes with colons.
    pub address: Option<String>,
    /// State, in the words of `ip neigh`.
    pub state: String,
}

/// A connection in a [`Report`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// The neighbour's link-layer address.
    pub address: String,
    /// The longest IP packet that it accepts.
    pub mtu: u32,
    /// Our queue pair.
    pub qpn: u32,
}

/// The state of an interface.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Name.
    pub name: String,
    /// RDMA device.
    pub device: String,
    /// Link-layer address, 20 bytes with colons.
    pub address: String,
    /// P_Key.
    pub pkey: u16,
    /// Mode.
    pub mode: Mode,
    /// MTU.
    pub mtu: u16,
    /// MTU of packets to groups, and to neighbours without connected mode.
    pub datagram_mtu: u16,
    /// Process.
    pub pid: u32,
    /// Neighbours.
    pub neighbours: Vec<NeighbourReport>,
    /// Connections by which we send.
    pub connections: Vec<ConnectionReport>,
    /// MGIDs whose packets we receive.
    pub groups: Vec<Ipv6Addr>,
    /// Counters.
    pub counters: Counters,
}

impl Interface {
    /// Makes an interface, down and without an address; `ip addr add` and `ip link set up` do the rest.
    ///
    /// # Errors
    /// [`Error`], in words for the user.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let mode = options.mode;
        // First, because this is most likely to fail: it needs a privilege, and the name may be in use.
        let mut tun = Tun::new(&options.name, LEAST_MTU)?;
        let door = Door::open(&options.name)?;
        let more = if mode == Mode::Connected { connections::COMPLETIONS } else { 0 };
        let port = Port::open(options, more)?;
        let most = if mode == Mode::Connected { connected::MTU } else { port.mtu };
        let mtu = options.mtu.unwrap_or(most);
        if mtu > most || mtu < LEAST_MTU {
            let device = port.context.device().name().to_owned();
            return Err(Error::Mtu { wanted: mtu, most, device });
        }
        tun.set_mtu(mtu)?;
        let connections = match mode {
            Mode::Connected => Some(Connections::open(&port)?),
            Mode::Datagram => None,
        };
        let count = if mode == Mode::Connected { CONNECTED_SENDS } else { SENDS };
        let buffers = Pool::new(&port.pd, count, encap::LEN + usize::from(mtu.max(port.mtu)))?;
        let mut interface = Self {
            tun,
            port,
            connections,
            buffers,
            neighbours: Neighbours::default(),
            local: Local::default(),
            network: Network::watch()?,
            local_changed: true,
            groups: Vec::new(),
            batch: Vec::with_capacity(TURN),
            counters: Counters::default(),
            door,
            mode,
            mtu,
            started: Instant::now(),
        };
        interface.read_local();
        Ok(interface)
    }

    /// A handle to end it from another thread or a signal handler.
    #[must_use]
    pub fn stopper(&self) -> crate::control::Stopper {
        self.door.stopper()
    }

    /// Moves packets until it is ended.
    ///
    /// # Errors
    /// [`Error::Gone`] if the TUN interface is deleted; [`Error::Poll`].
    pub fn run(mut self) -> Result<(), Error> {
        let mut turns = 0_u32;
        loop {
            let now = self.started.elapsed();
            let mut busy = self.take_outgoing(now)?;
            busy |= self.take_completions(now)?;
            busy |= self.follow_connections(now);
            self.neighbours.handle_timeout(now);
            self.resolve(now);
            self.flush();
            turns += 1;
            // Other events are checked now and then even while packets arrive without pause.
            if (!busy || turns.is_multiple_of(LOOK_UP)) && self.sleep(now, busy)? {
                return Ok(());
            }
        }
    }

    /// Waits until there is something to do, unless something is left. Returns true if the interface is to end.
    fn sleep(&mut self, now: Duration, busy: bool) -> Result<bool, Error> {
        self.port.cq.req_notify(false);
        let busy = busy || self.take_completions(now)?;
        let timeout = self.neighbours.poll_timeout().map(|due| due.saturating_sub(now));
        let timeout = match timeout {
            _ if busy || self.local_changed => PollTimeout::ZERO,
            None => PollTimeout::NONE,
            // Rounded up, so that it does not spin for the last millisecond.
            Some(left) => PollTimeout::from(u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX)),
        };
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![
            readable(self.door.as_fd()),
            readable(self.network.as_fd()),
            readable(self.port.channel.as_fd()),
        ];
        if let Some(connections) = &self.connections {
            fds.push(readable(connections.as_fd()));
        }
        // Without a free buffer no packet can be read. Completions will free some.
        if self.buffers.free() > 0 {
            fds.push(readable(self.tun.as_fd()));
        }
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(Error::System { action: "wait for packets", source: error.into() }),
        }
        let [knocked, changed] = [0, 1].map(|index| fds[index].any().unwrap_or(false));
        drop(fds);
        if changed && self.network.has_changed() || self.local_changed {
            self.read_local();
        }
        while self.port.channel.try_get_event().is_some() {}
        Ok(knocked && self.answer_door())
    }

    /// Answers requests about the interface. Returns true if one asks to end it.
    fn answer_door(&mut self) -> bool {
        while let Some(command) = self.door.next() {
            match command {
                Command::Stop => return true,
                Command::Show(reply) => {
                    // The client may have closed the connection.
                    let _ = reply.send(Box::new(self.report()));
                }
            }
        }
        false
    }

    /// Its present state.
    #[must_use]
    pub fn report(&self) -> Report {
        let now = self.started.elapsed();
        let neighbour = |one: crate::proto::neighbours::Neighbour| NeighbourReport {
            ip: one.ip,
            address: one.address.map(|address| address.to_string()),
            state: one.state.to_owned(),
        };
        let mut neighbours: Vec<_> = self.neighbours.iter(now).map(neighbour).collect();
        neighbours.sort_by_key(|one| one.ip);
        Report {
            name: self.tun.name().to_owned(),
            device: self.port.context.device().name().to_owned(),
            address: self.port.address.to_string(),
            pkey: self.port.pkey,
            mode: self.mode,
            mtu: self.mtu,
            datagram_mtu: self.port.mtu,
            pid: std::process::id(),
            neighbours,
            connections: self.connections.as_ref().map_or_else(Vec::new, Connections::report),
            groups: self.groups.clone(),
            counters: self.counters,
        }
    }

    /// Reads the host's configuration of the interface, and joins the groups that it needs.
    fn read_local(&mut self) {
        if let Ok(local) = Local::read(self.tun.name()) {
            let before = core::mem::replace(&mut self.local, local);
            let new: Vec<_> = self.local.addresses().filter(|ip| !before.has(*ip)).collect();
            new.into_iter().for_each(|ip| self.announce(ip));
        }
        self.local_changed = false;
        self.follow_groups();
    }

    /// Copies a packet of our own to a slot. `None` if no slot is free.
    fn make(&mut self, header: [u8; encap::LEN], body: &[u8]) -> Option<Parcel> {
        let slot = self.buffers.take()?;
        self.buffers.write(slot, 0, &header);
        self.buffers.write(slot, encap::LEN, body);
        Some(Parcel { slot, len: body.len() })
    }

    /// Sends a parcel to a neighbour, over a connection or as a datagram.
    fn send_to(&mut self, now: Duration, parcel: Parcel, to: LinkAddress) {
        if to.connected
            && let Some(connections) = &mut self.connections
        {
            match connections.send(now, &self.port, &self.buffers, parcel, to) {
                connections::Sent::Gone => {
                    self.counters.sent_connected += 1;
                    return;
                }
                connections::Sent::Kept => return,
                connections::Sent::Busy => {
                    self.counters.dropped_busy += 1;
                    return self.buffers.give(parcel.slot);
                }
                connections::Sent::TooBig(mtu) => return self.refuse_too_big(parcel, mtu),
                connections::Sent::ByDatagram => {}
            }
        }
        self.send_datagram(parcel, to);
    }

    /// Sends a parcel as a datagram.
    fn send_datagram(&mut self, parcel: Parcel, to: LinkAddress) {
        if parcel.len > usize::from(self.port.mtu) {
            return self.refuse_too_big(parcel, self.port.mtu);
        }
        match self.port.dest(to) {
            Some(dest) => self.post(parcel, dest),
            None => {
                self.counters.dropped_unresolved += 1;
                self.buffers.give(parcel.slot);
            }
        }
    }
}

impl core::fmt::Debug for Interface {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Interface").field("name", &self.tun.name()).finish_non_exhaustive()
    }
}

/// Whether an error only means that a descriptor has no data now.
fn is_empty(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
