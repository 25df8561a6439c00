//! A socket of either kind.

use crate::{
    datagram::DatagramSocket,
    error::SocketError,
    flags::Flags,
    options::{Name, Value},
    proto::{How, Phase},
    stack::Stack,
    stream::StreamSocket,
    waiters::Waiter,
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
};

/// The family of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// IPv4 (AF_INET).
    V4,
    /// IPv6 (AF_INET6), and IPv4 by mapped addresses.
    V6,
}

impl Domain {
    /// Its number in C.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        }
    }

    /// The family of a number in C.
    #[must_use]
    pub const fn find(number: i32) -> Option<Self> {
        match number {
            libc::AF_INET => Some(Self::V4),
            libc::AF_INET6 => Some(Self::V6),
            _ => None,
        }
    }

    /// No address and no port.
    pub(crate) const fn unspecified(self) -> SocketAddr {
        match self {
            Self::V4 => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            Self::V6 => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        }
    }

    /// An address in the form of the connection manager: IPv4 is not mapped.
    pub(crate) fn plain(self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
                SocketAddr::new(address.ip().to_canonical(), address.port())
            }
            _ => address,
        }
    }

    /// An address in the form that the program uses.
    pub(crate) fn told(self, address: SocketAddr) -> SocketAddr {
        match (self, address.ip()) {
            (Self::V6, IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }
}

/// A socket. Clones are the same socket.
#[derive(Clone, Debug)]
pub enum Socket {
    /// SOCK_STREAM.
    Stream(Arc<StreamSocket>),
    /// SOCK_DGRAM.
    Datagram(Arc<DatagramSocket>),
}

/// What a call has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes; with [`Flags::TRUNC`] all those of the datagram, even if they did not fit.
    pub count: usize,
    /// Whether it is the begin of a datagram that did not fit (MSG_TRUNC).
    pub cut: bool,
    /// The source of a datagram.
    pub from: Option<SocketAddr>,
}

/// Calls the same function of either kind.
macro_rules! either {
    ($self:ident, $socket:ident => $call:expr) => {
        match $self {
            Socket::Stream($socket) => $call,
            Socket::Datagram($socket) => $call,
        }
    };
}

impl Socket {
    /// A stream socket (SOCK_STREAM).
    ///
    /// # Errors
    /// [`SocketError::System`], [`SocketError::Cm`].
    pub fn stream(stack: &Stack, domain: Domain) -> Result<Self, SocketError> {
        StreamSocket::new(stack, domain).map(Self::Stream)
    }

    /// A datagram socket (SOCK_DGRAM).
    ///
    /// # Errors
    /// [`SocketError::System`].
    pub fn datagram(stack: &Stack, domain: Domain) -> Result<Self, SocketError> {
        DatagramSocket::new(stack, domain).map(Self::Datagram)
    }

    /// As [`StreamSocket::bind`] and [`DatagramSocket::bind`].
    ///
    /// # Errors
    /// As those.
    pub fn bind(&self, address: SocketAddr) -> Result<(), SocketError> {
        either!(self, socket => socket.bind(address))
    }

    /// As [`StreamSocket::connect`] and [`DatagramSocket::connect`].
    ///
    /// # Errors
    /// As those.
    pub fn connect(&self, to: SocketAddr) -> Result<(), SocketError> {
        either!(self, socket => socket.connect(to))
    }

    /// The stream socket.
    ///
    /// # Errors
    /// [`SocketError::Unsupported`] for datagrams.
    pub fn as_stream(&self, action: &str) -> Result<&Arc<StreamSocket>, SocketError> {
        match self {
            Self::Stream(socket) => Ok(socket),
            Self::Datagram(_) => Err(SocketError::Unsupported(format!("{action} for datagrams"))),
        }
    }

    /// Sends; a stream to its peer, a datagram to `to` or the peer (rsend, rsendto, rsendmsg).
    ///
    /// # Errors
    /// As [`StreamSocket::send_parts`] and [`DatagramSocket::send_to`]; [`SocketError::IsConnected`] for a stream with `to`.
    pub fn send(&self, data: &[&[u8]], to: Option<SocketAddr>, flags: Flags) -> Result<usize, SocketError> {
        match self {
            Self::Stream(_) if to.is_some() => Err(SocketError::IsConnected),
            Self::Stream(socket) => socket.send_parts(data, flags),
            Self::Datagram(socket) => socket.send_to(data, to, flags),
        }
    }

    /// Receives into buffers, one after the other (rrecv, rrecvfrom, rrecvmsg, rreadv).
    ///
    /// # Errors
    /// As [`StreamSocket::receive_parts`] and [`DatagramSocket::receive_parts`].
    pub fn receive(&self, out: &mut [&mut [u8]], flags: Flags) -> Result<Received, SocketError> {
        let room: usize = out.iter().map(|part| part.len()).sum();
        match self {
            Self::Stream(socket) => {
                socket.receive_parts(out, flags).map(|count| Received { count, cut: false, from: None })
            }
            Self::Datagram(socket) => socket.receive_parts(out, flags).map(|(len, from)| Received {
                count: if flags.contains(Flags::TRUNC) { len } else { len.min(room) },
                cut: len > room,
                from: Some(from),
            }),
        }
    }

    /// Ends a direction (rshutdown). This has no effect for datagrams.
    ///
    /// # Errors
    /// As [`StreamSocket::shut_down`].
    pub fn shut_down(&self, how: How) -> Result<(), SocketError> {
        match self {
            Self::Stream(socket) => socket.shut_down(how),
            Self::Datagram(_) => Ok(()),
        }
    }

    /// As [`StreamSocket::close`] and [`DatagramSocket::close`].
    pub fn close(&self) {
        either!(self, socket => socket.close());
    }

    /// The local address (rgetsockname).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        either!(self, socket => socket.local_addr())
    }

    /// The peer's address (rgetpeername).
    ///
    /// # Errors
    /// [`SocketError::NotConnected`].
    pub fn peer_addr(&self) -> Result<SocketAddr, SocketError> {
        either!(self, socket => socket.peer_addr())
    }

    /// Sets an option (rsetsockopt).
    ///
    /// # Errors
    /// As [`StreamSocket::set_option`].
    pub fn set_option(&self, name: Name, value: &Value) -> Result<(), SocketError> {
        either!(self, socket => socket.set_option(name, value))
    }

    /// The value of an option (rgetsockopt).
    ///
    /// # Errors
    /// As [`StreamSocket::option`].
    pub fn option(&self, name: Name) -> Result<Value, SocketError> {
        either!(self, socket => socket.option(name))
    }

    /// Whether calls do not wait (F_GETFL).
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        either!(self, socket => socket.is_nonblocking())
    }

    /// Sets whether calls wait (F_SETFL).
    pub fn set_nonblocking(&self, nonblocking: bool) {
        either!(self, socket => socket.set_nonblocking(nonblocking));
    }

    /// What poll would say, all of it; with the system's numbers.
    #[must_use]
    pub fn readiness(&self) -> i16 {
        match self {
            Self::Stream(socket) => socket.readiness(),
            Self::Datagram(socket) => {
                let (readable, writable) = socket.readiness();
                (if readable { libc::POLLIN | libc::POLLRDNORM } else { 0 })
                    | if writable { libc::POLLOUT | libc::POLLWRNORM } else { 0 }
            }
        }
    }

    /// A count that changes when something has arrived, for edge-triggered waiting.
    pub(crate) fn turn(&self) -> u64 {
        match self {
            Self::Stream(socket) => socket.turn(),
            Self::Datagram(socket) => socket.turn(),
        }
    }

    /// Returns a descriptor that becomes readable at the next change, or -1 if `waiter` alone tells of it. Use it for one wait only, because an established
    /// connection has another one. Before a thread sleeps on it, it must check the socket once more.
    pub(crate) fn arm(&self, waiter: &Waiter) -> RawFd {
        match self {
            Self::Stream(socket) => socket.arm(waiter),
            Self::Datagram(socket) => {
                socket.arm(waiter);
                socket.as_fd().as_raw_fd()
            }
        }
    }

    /// The thread no longer waits.
    pub(crate) fn leave(&self, waiter: &Waiter) {
        match self {
            Self::Stream(socket) => socket.stop_waiting(waiter),
            Self::Datagram(socket) => socket.stop_waiting(waiter),
        }
    }

    /// The descriptor of [`Self::arm`] has become readable.
    pub(crate) fn take_event(&self, waiter: &Waiter) {
        match self {
            Self::Stream(socket) => socket.take_event(waiter),
            // Checking the socket is enough.
            Self::Datagram(_) => {}
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, socket => socket.as_fd())
    }
}

impl StreamSocket {
    /// The events that poll would report.
    #[must_use]
    pub fn readiness(&self) -> i16 {
        const READ: i16 = libc::POLLIN | libc::POLLRDNORM;
        const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM;
        if let Some(standing) = self.has_standing() {
            return if standing { READ } else { 0 };
        }
        let Some(link) = self.link() else {
            return if self.has_failed() { READ | WRITE | libc::POLLERR | libc::POLLHUP } else { 0 };
        };
        let mut stream = link.stream();
        link.progress(&mut stream);
        let mut ready = 0;
        if stream.unread() > 0 || !stream.can_come() {
            ready |= READ;
        }
        if stream.can_send() {
            ready |= WRITE;
        }
        if !stream.can_come() {
            ready |= libc::POLLRDHUP;
        }
        ready
            | match stream.phase() {
                // If a program takes POLLHUP for the end of the data, it would lose what it has not read yet.
                Phase::Ended if stream.unread() > 0 => WRITE,
                Phase::Open => 0,
                Phase::Ended => libc::POLLHUP | WRITE,
                Phase::Failed(_) => libc::POLLHUP | libc::POLLERR | WRITE,
            }
    }
}
