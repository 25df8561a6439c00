//! The link of ordinary UDP sockets.
//!
//! For each address family, one socket is bound to port 4791 and receives. A small pool of sockets on other ports sends. No
//! socket is ever connected: the kernel gives packets of a connected socket IP identifications that the sender cannot know, and
//! a connected socket leaves the reuseport group.
//!
//! Read next: `open` (making the sockets), `send`, `receive`.

pub(crate) mod holder;
mod open;
mod options;
mod priority;
mod receive;
mod send;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{InterfaceIndexOrAddress, Socket};

use self::{open::Sender, priority::Priorities};
use super::error::{OpenError, SendError};
use super::{
    Capabilities, Features, Ident, Link, Path, ROCE_PORT, ROCE_V2, RecvBatch, SlotTable, Transmit, UdpConfig,
    check_batch,
};
use crate::sys::{
    kept::Kept,
    socket::{attach_reuseport_program, detach_filter, receive_drops},
};

pub use self::open::GroupSockets;
pub(super) use self::options::doing;

/// Most segments the kernel cuts a datagram into (UDP_MAX_SEGMENTS),
const GSO_SEGMENTS: u16 = 128;
/// and before Linux 6.9 (in older kernels that are still mended, before May 2024).
const OLD_SEGMENTS: u16 = 64;
/// Most datagrams sent by one `sendmmsg`.
const MMSG_SEGMENTS: u16 = 32;
/// Largest UDP payload over IPv6 without a jumbo header; IPv4's is 20 bytes larger.
const LARGEST_DATAGRAM: usize = 65_535 - 40 - 8;

/// A link of UDP sockets bound to port 4791.
#[derive(Debug)]
pub struct UdpLink {
    v4: Option<Family>,
    v6: Option<Family>,
    senders: Vec<Sender>,
    capabilities: Capabilities,
    features: Features,
    /// Most segments the system cuts a batch into, where it does.
    segments: u16,
    turn: receive::Turn,
    priorities: Priorities,
}

/// One address family's half of a link.
#[derive(Debug)]
struct Family {
    socket: Kept<Socket>,
    bound: IpAddr,
    /// What the socket had dropped before. Sockets of the host service's group have had other owners.
    dropped: u32,
    /// The TOS that is set as an option of the socket, see [`Priorities`].
    marked: u8,
    gso: bool,
    /// Destinations whose route cannot segment, by address and interface.
    refusing: Vec<(IpAddr, u32)>,
}

impl UdpLink {
    /// Opens the link that `config` describes: binds port 4791, finds out what the system can do, attaches the slot table.
    ///
    /// # Errors
    /// [`OpenError`]; its text tells the user what to do.
    pub fn open(config: &UdpConfig) -> Result<Self, OpenError> {
        Self::from_sockets(GroupSockets::bind(config)?, config)
    }

    /// Whether the descriptors still are the link's sockets. The application may have closed them.
    pub(crate) fn is_intact(&self) -> bool {
        self.families().all(|family| family.socket.is_intact())
    }

    /// Makes a link of sockets that are bound already, for instance sockets from the process that owns the group. They may have had
    /// other owners, such as a raw link, whose filter drops what arrives as frames.
    ///
    /// # Errors
    /// [`OpenError`] if the sending sockets cannot be made.
    pub fn from_sockets(sockets: GroupSockets, config: &UdpConfig) -> Result<Self, OpenError> {
        let features = config.features;
        let mut gro = true;
        let mut family = |fd: Option<OwnedFd>, bound: IpAddr| {
            fd.map(|fd| {
                let socket = Socket::from(fd);
                detach_filter(socket.as_fd());
                options::set_receive_buffer(&socket, config.recv_buffer);
                options::set_send_buffer(&socket, config.send_buffer);
                gro &= options::try_gro(&socket, features);
                let gso = options::try_gso(&socket, features);
                let dropped = receive_drops(socket.as_fd()).unwrap_or(0);
                Family { socket: Kept::new(socket), bound, dropped, marked: 0, gso, refusing: Vec::new() }
            })
        };
        let v4 = family(sockets.v4, config.v4.unwrap_or(Ipv4Addr::UNSPECIFIED).into());
        let v6 = family(sockets.v6, config.v6.unwrap_or(Ipv6Addr::UNSPECIFIED).into());
        let senders = open::senders(config, v4.is_some(), v6.is_some())?;
        let granted = |f: &Family| f.socket.recv_buffer_size().unwrap_or(0);
        let capabilities = Capabilities {
            encapsulations: ROCE_V2,
            ipv4: v4.is_some(),
            ipv6: v6.is_some(),
            gso: false,
            gro,
            max_segments: 1,
            max_batch_bytes: LARGEST_DATAGRAM,
            ident: Ident::Zero,
            source_ports: if senders.is_empty() {
                vec![ROCE_PORT]
            } else {
                senders.iter().map(|sender| sender.port).collect()
            },
            recv_buffer: v4.iter().chain(&v6).map(granted).min().unwrap_or(0),
            steering: false,
        };
        let mut link = Self {
            v4,
            v6,
            senders,
            capabilities,
            features,
            segments: GSO_SEGMENTS,
            turn: receive::Turn::default(),
            priorities: Priorities::find(features.priority),
        };
        link.describe_sending();
        if let Some(slots) = &config.slots {
            link.capabilities.steering = features.steering && link.steer(slots).is_ok();
        }
        Ok(link)
    }

    /// Gives the group the program for `slots`, replacing an earlier one.
    ///
    /// # Errors
    /// `Unsupported` if steering is switched off, else the system's error (some sandboxes lack the option).
    pub fn steer(&mut self, slots: &SlotTable) -> io::Result<()> {
        if !self.features.steering {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let program = slots.program();
        for family in self.families() {
            attach_reuseport_program(family.socket.as_fd(), &program)?;
        }
        self.capabilities.steering = true;
        Ok(())
    }

    /// The port-4791 sockets, for passing them to another process.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.families().map(|family| family.socket.as_fd())
    }

    /// The port-4791 socket of the address's family.
    pub(super) fn socket_for(&self, address: IpAddr) -> Option<BorrowedFd<'_>> {
        let family = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        family.as_ref().map(|family| family.socket.as_fd())
    }

    /// Whether the socket of a family receives packets to joined groups. A socket that is bound to one address does not.
    pub(super) fn hears_groups(&self, ipv4: bool) -> bool {
        let family = if ipv4 { &self.v4 } else { &self.v6 };
        family.as_ref().is_some_and(|family| family.bound.is_unspecified())
    }

    fn families(&self) -> impl Iterator<Item = &Family> {
        self.v4.iter().chain(&self.v6)
    }

    /// Updates the capabilities that depend on how the link can send now.
    fn describe_sending(&mut self) {
        let gso = self.families().all(|family| family.gso);
        let path = self.path_with(gso);
        self.capabilities.gso = gso;
        self.capabilities.max_segments = path.max_segments;
        self.capabilities.ident = path.ident;
    }

    fn path_with(&self, gso: bool) -> Path {
        match (gso, self.features.mmsg) {
            (true, _) => Path { max_segments: self.segments, ident: Ident::Sequential },
            (false, true) => Path { max_segments: MMSG_SEGMENTS, ident: Ident::Zero },
            (false, false) => Path { max_segments: 1, ident: Ident::Zero },
        }
    }
}

/// Sets the buffer sizes that `config` asks for.
pub(super) fn set_buffers(fd: BorrowedFd<'_>, config: &UdpConfig) {
    let socket = socket2::SockRef::from(&fd);
    options::set_receive_buffer(&socket, config.recv_buffer);
    options::set_send_buffer(&socket, config.send_buffer);
}

/// The receive buffer of a socket, in the system's accounting; 0 if the system does not tell.
pub(super) fn receive_buffer(fd: BorrowedFd<'_>) -> usize {
    socket2::SockRef::from(&fd).recv_buffer_size().unwrap_or(0)
}

impl Link for UdpLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        let family = if dst.is_ipv4() { &self.v4 } else { &self.v6 };
        self.path_with(family.as_ref().is_some_and(|family| family.segments(dst, ifindex)))
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        let path = self.path(batch.dst, batch.ifindex);
        let segments = check_batch(batch, bytes, path, (LARGEST_DATAGRAM, ROCE_V2))?;
        self.send_batch(batch, bytes, segments)
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        into.clear();
        self.receive(into)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets().collect()
    }

    fn drops(&self) -> u64 {
        let of = |family: &Family| {
            receive_drops(family.socket.as_fd()).map_or(0, |all| all.wrapping_sub(family.dropped))
        };
        self.families().map(|family| u64::from(of(family))).sum()
    }

    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        match (group, &self.v4, &self.v6) {
            (IpAddr::V4(group), Some(family), _) => {
                family.socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(ifindex))
            }
            (IpAddr::V6(group), _, Some(family)) => family.socket.join_multicast_v6(&group, ifindex),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        match (group, &self.v4, &self.v6) {
            (IpAddr::V4(group), Some(family), _) => {
                family.socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(ifindex))
            }
            (IpAddr::V6(group), _, Some(family)) => family.socket.leave_multicast_v6(&group, ifindex),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
