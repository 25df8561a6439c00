//! Makes the sockets of a link: those of port 4791, and the pool of sending sockets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use socket2::{SockAddr, Socket};

use super::holder;
use super::options::{self, doing};
use crate::net::ROCE_PORT;
use crate::net::config::{BufferSize, Sharing, UdpConfig};
use crate::net::error::OpenError;
use crate::sys::{kept::Kept, socket::drop_arrivals};

/// First port of the range that RoCEv2 senders use.
const POOL_FIRST: u16 = 0xc000;
/// Number of ports in that range.
const POOL_RANGE: u16 = 0x4000;
/// How often binding the port is tried, and the pause between two tries: 90 ms in all.
const BIND_TRIES: u32 = 10;
const BIND_PAUSE: Duration = Duration::from_millis(10);
/// Ports tried for each pool entry.
const POOL_TRIES: u64 = 16;

/// The port-4791 sockets of one shard, bound and set up. One process may pass them to another.
#[derive(Debug)]
pub struct GroupSockets {
    /// The IPv4 socket.
    pub v4: Option<OwnedFd>,
    /// The IPv6 socket.
    pub v6: Option<OwnedFd>,
}

impl GroupSockets {
    /// Makes and binds the sockets that `config` asks for.
    ///
    /// # Errors
    /// [`OpenError`], for instance [`OpenError::PortHeld`] if another program has the port.
    pub fn bind(config: &UdpConfig) -> Result<Self, OpenError> {
        let v4 = config.v4.map_or(Ok(None), |address| bind(address.into(), config))?;
        let v6 = config.v6.map_or(Ok(None), |address| match bind(address.into(), config) {
            // The caller named no IPv6 address. A system with incomplete IPv6 is used with IPv4 alone.
            Err(OpenError::Unsupported { .. } | OpenError::NotLocal { .. })
                if address.is_unspecified() && v4.is_some() =>
            {
                Ok(None)
            }
            result => result,
        })?;
        if v4.is_none() && v6.is_none() {
            return Err(OpenError::NoFamily);
        }
        Ok(Self { v4: v4.map(Into::into), v6: v6.map(Into::into) })
    }
}

fn socket_address(address: IpAddr, port: u16, scope: u32) -> SockAddr {
    match address {
        IpAddr::V4(address) => SocketAddr::V4(SocketAddrV4::new(address, port)),
        IpAddr::V6(address) => SocketAddr::V6(SocketAddrV6::new(address, port, 0, scope)),
    }
    .into()
}

fn bind(address: IpAddr, config: &UdpConfig) -> Result<Option<Socket>, OpenError> {
    let Some(socket) = options::create(address)? else { return Ok(None) };
    let name = socket_address(address, ROCE_PORT, config.v6_scope);
    if config.sharing == Sharing::Exclusive {
        // Sockets of one user with SO_REUSEPORT share a port silently, which would mix the packets of two processes. The system
        // refuses a socket without SO_REUSEPORT if any other socket has the port.
        let Some(probe) = options::create(address)? else { return Ok(None) };
        bind_patiently(&probe, &name).map_err(|e| bind_error(address, e))?;
    }
    if config.sharing != Sharing::Sole {
        socket.set_reuse_port(true).map_err(doing("share UDP port 4791 (SO_REUSEPORT)"))?;
    }
    options::prepare_receive(&socket, address)?;
    options::set_receive_buffer(&socket, config.recv_buffer);
    options::set_send_buffer(&socket, config.send_buffer);
    bind_patiently(&socket, &name).map_err(|e| bind_error(address, e))?;
    Ok(Some(socket))
}

/// Binds a socket, and tries again for a while if the port is taken. A child that another thread starts holds copies of sockets
/// that this process has closed, from `fork` to `exec`.
fn bind_patiently(socket: &Socket, name: &SockAddr) -> io::Result<()> {
    let mut tries = BIND_TRIES;
    loop {
        match socket.bind(name) {
            Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) && tries > 1 => {
                tries -= 1;
                thread::sleep(BIND_PAUSE);
            }
            result => return result,
        }
    }
}

fn bind_error(address: IpAddr, error: io::Error) -> OpenError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::PortHeld { address, holder: holder::find(address.is_ipv4()) },
        Some(libc::EADDRNOTAVAIL) => OpenError::NotLocal { address },
        // A link-local address without its interface.
        Some(libc::EINVAL) if address.is_ipv6() => OpenError::NotLocal { address },
        _ => OpenError::System { action: "bind UDP port 4791", source: error },
    }
}

/// One source port of the pool, with a socket for each family.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) port: u16,
    pub(super) v4: Option<Kept<Socket>>,
    pub(super) v6: Option<Kept<Socket>>,
    /// The TOS that is set as an option of `v4` and of `v6`, see `Priorities`.
    pub(super) marked: [u8; 2],
}

/// Makes the sending sockets. They are unconnected, and drop all arrivals. If ports are scarce, there are fewer than asked for,
/// or none.
pub(super) fn senders(config: &UdpConfig, v4: bool, v6: bool) -> Result<Vec<Sender>, OpenError> {
    let v4 = v4.then(|| config.v4.unwrap_or(Ipv4Addr::UNSPECIFIED));
    let v6 = v6.then(|| config.v6.unwrap_or(Ipv6Addr::UNSPECIFIED));
    let random = RandomState::new();
    let mut senders: Vec<Sender> = Vec::with_capacity(config.pool);
    let mut tries = 0;
    while senders.len() < config.pool && tries < POOL_TRIES * config.pool as u64 {
        tries += 1;
        let port = POOL_FIRST + (random.hash_one(tries) % u64::from(POOL_RANGE)) as u16;
        if senders.iter().any(|sender| sender.port == port) {
            continue;
        }
        let (Some(v4), Some(v6)) = (
            sender_socket(v4.map(Into::into), port, config)?,
            sender_socket(v6.map(Into::into), port, config)?,
        ) else {
            continue;
        };
        senders.push(Sender { port, v4, v6, marked: [0; 2] });
    }
    Ok(senders)
}

/// A socket on `port`. The outer `None` means that the port is taken, the inner `None` that the family is not wanted or the
/// system lacks it.
fn sender_socket(
    address: Option<IpAddr>,
    port: u16,
    config: &UdpConfig,
) -> Result<Option<Option<Kept<Socket>>>, OpenError> {
    let Some(address) = address else { return Ok(Some(None)) };
    let Some(socket) = options::create(address)? else { return Ok(Some(None)) };
    // Peers send nothing to these ports. Packets that come all the same must not fill a buffer.
    if drop_arrivals(socket.as_fd()).is_err() {
        options::set_receive_buffer(&socket, BufferSize::Bytes(0));
    }
    options::set_send_buffer(&socket, config.send_buffer);
    match socket.bind(&socket_address(address, port, config.v6_scope)) {
        Ok(()) => Ok(Some(Some(Kept::new(socket)))),
        Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => Ok(None),
        Err(source) => Err(OpenError::System { action: "bind a UDP port to send from", source }),
    }
}
