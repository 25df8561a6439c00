//! Datagram sockets: a UDP socket, and a queue pair for each local address from which datagrams are sent.
//!
//! The first datagrams to a destination are sent by UDP, with a header that names our queue pair. The peer answers with its
//! own, and from then on datagrams are sent between the queue pairs, until the peer was silent for a while. Datagrams that
//! arrive by UDP are forwarded to our own queue pair, so that all are received in the same way.

mod options;
mod peers;
mod way;

use crate::{
    Domain,
    error::SocketError,
    flags::Flags,
    link::Until,
    lock,
    proto::datagram::{Introduction, Kind, encode_source},
    settings::Settings,
    stack::{Stack, Watched},
    stream::expect,
    waiters::{Entered, Waiter, Waiters},
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use peers::{Destination, Peer};
use rxe_cm::{CmId, EventChannel, EventKind, UDP_QKEY, proto::PortSpace};
use rxe_verbs::{AddressVector, Qpn, UdDest};
use socket2::{SockAddr, SockRef, Socket, Type};
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use way::{Received, SLOT, Way};

/// Most destinations that are remembered. If there are more, all are forgotten and resolved anew.
const MOST_DESTINATIONS: usize = 4096;
/// Most datagrams that are read from the UDP socket in a row.
const MOST_IN_A_ROW: usize = 64;
/// How long close waits for datagrams under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// A datagram socket. Its descriptor ([`AsFd`]) identifies it, and must only be polled by [`crate::poll()`].
#[derive(Debug)]
pub struct DatagramSocket {
    stack: Stack,
    domain: Domain,
    udp: UdpSocket,
    /// The queue pairs' channels.
    epoll: Epoll,
    token: AtomicU64,
    nonblocking: AtomicBool,
    state: Mutex<State>,
    /// Waiting threads.
    waiters: Waiters,
}

#[derive(Debug)]
struct State {
    domain: Domain,
    /// Whether it has a port.
    is_named: bool,
    settings: Settings,
    ways: Vec<Way>,
    destinations: HashMap<SocketAddr, Destination>,
    peer: Option<Peer>,
    inbox: VecDeque<Received>,
    receive_timeout: Option<Duration>,
    send_timeout: Option<Duration>,
    closed: bool,
    /// Completions so far.
    turn: u64,
}

impl DatagramSocket {
    /// Creates a socket.
    ///
    /// # Errors
    /// [`SocketError::System`].
    pub fn new(stack: &Stack, domain: Domain) -> Result<Arc<Self>, SocketError> {
        let made = Socket::new(domain.number().into(), Type::DGRAM, None);
        let udp = made.map_err(|error| SocketError::system("make a UDP socket", error))?;
        udp.set_nonblocking(true).map_err(|error| SocketError::system("set up a UDP socket", error))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let epoll = epoll.map_err(|error| SocketError::system("make an epoll instance", error))?;
        let state = State {
            domain,
            is_named: false,
            settings: stack.shared().settings,
            ways: Vec::new(),
            destinations: HashMap::new(),
            peer: None,
            inbox: VecDeque::new(),
            receive_timeout: None,
            send_timeout: None,
            closed: false,
            turn: 0,
        };
        let socket = Arc::new(Self {
            stack: stack.clone(),
            domain,
            udp: udp.into(),
            epoll,
            token: AtomicU64::new(0),
            nonblocking: AtomicBool::new(false),
            state: Mutex::new(state),
            waiters: Waiters::default(),
        });
        let weak: Weak<Self> = Arc::downgrade(&socket);
        let token = stack.shared().watch(socket.udp.as_fd(), Watched::Datagram(weak))?;
        socket.token.store(token, Ordering::Relaxed);
        Ok(socket)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether calls do not wait.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sets whether calls wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Binds it to a local address (rbind).
    ///
    /// # Errors
    /// [`SocketError::System`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), SocketError> {
        self.name(&mut self.state(), address)
    }

    fn name(&self, state: &mut State, address: SocketAddr) -> Result<(), SocketError> {
        let bound = SockRef::from(&self.udp).bind(&SockAddr::from(address));
        bound.map_err(|error| SocketError::system("bind a UDP socket", error))?;
        state.is_named = true;
        Ok(())
    }

    /// Sets the peer to which datagrams are sent by default, and from which alone they are received (rconnect).
    ///
    /// # Errors
    /// [`SocketError::System`]; as [`Self::send_to`].
    pub fn connect(&self, to: SocketAddr) -> Result<(), SocketError> {
        let mut state = self.state();
        self.name_port(&mut state)?;
        let also = self.destination(&mut state, to)?.av.dst;
        state.peer = Some(Peer { address: to, also });
        Ok(())
    }

    /// Gets a port, because datagrams contain their source port.
    fn name_port(&self, state: &mut State) -> Result<(), SocketError> {
        if state.is_named { Ok(()) } else { self.name(state, self.domain.unspecified()) }
    }

    /// The local address (rgetsockname).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.udp.local_addr().unwrap_or_else(|_| self.domain.unspecified())
    }

    /// The peer's address (rgetpeername).
    ///
    /// # Errors
    /// [`SocketError::NotConnected`].
    pub fn peer_addr(&self) -> Result<SocketAddr, SocketError> {
        self.state().peer.map(|peer| peer.address).ok_or(SocketError::NotConnected)
    }

    /// The entry of a destination. It is created if there is none.
    fn destination(&self, state: &mut State, to: SocketAddr) -> Result<Destination, SocketError> {
        if let Some(known) = state.destinations.get(&to) {
            return Ok(*known);
        }
        if state.destinations.len() >= MOST_DESTINATIONS {
            state.destinations.clear();
        }
        let manager = &self.stack.shared().manager;
        let channel = EventChannel::new()?;
        let id = manager.create_id(&channel, PortSpace::Udp)?;
        let bound = self.domain.plain(self.local_addr()).ip();
        let from = (!bound.is_unspecified() && !bound.is_loopback()).then(|| SocketAddr::new(bound, 0));
        id.resolve_addr(from, self.domain.plain(to))?;
        expect(&channel, |kind| matches!(kind, EventKind::AddrResolved))?;
        id.resolve_route()?;
        expect(&channel, |kind| matches!(kind, EventKind::RouteResolved))?;
        let (Some(path), Some(local)) = (id.path(), id.local_addr()) else {
            return Err(SocketError::NotConnected);
        };
        let way = match state.ways.iter().position(|way| way.local() == local.ip()) {
            Some(way) => way,
            None => {
                let way = self.make_way(&state.settings, id, local.ip())?;
                state.ways.push(way);
                state.ways.len() - 1
            }
        };
        let made = Destination { way, av: path.av, heard: None };
        state.destinations.insert(to, made);
        Ok(made)
    }

    fn make_way(&self, settings: &Settings, id: CmId, local: IpAddr) -> Result<Way, SocketError> {
        let mut way = Way::new(settings, id, SocketAddr::new(local, self.local_addr().port()))?;
        let added = self.epoll.add(way.channel(), EpollEvent::new(EpollFlags::EPOLLIN, 0));
        added.map_err(|error| SocketError::system("listen to a channel", error))?;
        // A thread may wait for the socket already.
        way.arm();
        Ok(way)
    }

    /// Sends a datagram to the peer, or to `to` (rsend, rsendto). Returns its length.
    ///
    /// # Errors
    /// [`SocketError::NoDestination`], [`SocketError::TooLong`], [`SocketError::WouldBlock`], [`SocketError::Cm`] if there is
    /// no route, and others.
    pub fn send_to(
        &self,
        data: &[&[u8]],
        to: Option<SocketAddr>,
        flags: Flags,
    ) -> Result<usize, SocketError> {
        let mut state = self.state();
        let until = match state.send_timeout {
            _ if self.is_nonblocking() || flags.contains(Flags::DONTWAIT) => Until::Now,
            time => Until::within(time),
        };
        loop {
            self.name_port(&mut state)?;
            let to = to.or_else(|| state.peer.map(|peer| peer.address)).ok_or(SocketError::NoDestination)?;
            let destination = self.destination(&mut state, to)?;
            let Destination { way, av, .. } = destination;
            let len = state.ways[way].measure(data)?;
            if let Some(qpn) = destination.qpn() {
                let mut state = self.wait(state, until, |state| state.ways[way].has_room())?;
                let dest = UdDest { av, remote_qpn: qpn, remote_qkey: UDP_QKEY, pkey: None };
                return state.ways[way].send_own(data, dest).map(|()| len);
            }
            match self.introduce(&state.ways[way], to, Kind::Data, data) {
                Ok(()) => return Ok(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => drop(state),
                Err(error) => return Err(SocketError::system("send by UDP", error)),
            }
            self.wait_for_udp(until)?;
            state = self.state();
        }
    }

    /// Waits until the UDP socket has room.
    fn wait_for_udp(&self, until: Until) -> Result<(), SocketError> {
        let entered = Entered::new(&self.waiters);
        if self.state().closed {
            return Err(SocketError::NoSocket(self.as_fd().as_raw_fd()));
        }
        if until.is_over() {
            return Err(SocketError::WouldBlock);
        }
        let own = libc::pollfd { fd: self.udp.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        let nap = entered.waiter.nap(until.left());
        let woken = rxe_verbs::wait_for(&mut [own, entered.waiter.pollfd()], nap);
        woken.map(drop).map_err(|_| SocketError::Interrupted)
    }

    /// Sends the number of our queue pair to a destination, by UDP.
    fn introduce(&self, way: &Way, to: SocketAddr, kind: Kind, data: &[&[u8]]) -> io::Result<()> {
        let header = Introduction { kind, qpn: way.qpn().value(), from: way.local() };
        let mut bytes = header.encode();
        data.iter().for_each(|part| bytes.extend_from_slice(part));
        self.udp.send_to(&bytes, to).map(drop)
    }

    /// Handles datagrams that have arrived by UDP.
    pub(crate) fn take_introductions(&self) {
        let mut bytes = [0; SLOT + Introduction::MOST];
        for _ in 0..MOST_IN_A_ROW {
            let Ok((count, from)) = self.udp.recv_from(&mut bytes) else { return };
            let Some((told, data)) = Introduction::decode(&bytes[..count]) else { continue };
            if let Err(error) = self.take_introduction(&told, data, from) {
                rxe_verbs::tell(&format!("a datagram from {from} is dropped: {error}"));
            }
        }
    }

    fn take_introduction(
        &self,
        told: &Introduction,
        data: &[u8],
        from: SocketAddr,
    ) -> Result<(), SocketError> {
        let mut state = self.state();
        if state.closed || state.is_stranger(self.domain.plain(from)) {
            return Ok(());
        }
        let Destination { way, av, .. } = self.destination(&mut state, from)?;
        if told.kind == Kind::Data {
            let answered = self.introduce(&state.ways[way], from, Kind::Answer, &[]);
            answered.map_err(|error| SocketError::system("answer by UDP", error))?;
        }
        if let Some(known) = state.destinations.get_mut(&from) {
            known.heard = Some((Qpn::new(told.qpn), Instant::now()));
        }
        if told.kind == Kind::Data {
            state.progress();
            let way = &mut state.ways[way];
            let own = AddressVector { src: av.src, dst: av.src, ..av };
            let to = UdDest { av: own, remote_qpn: way.qpn(), remote_qkey: UDP_QKEY, pkey: None };
            // If there is no room the datagram is lost, which is allowed.
            if way.has_room() {
                way.send(&encode_source(self.domain.plain(from)), &[data], to)?;
            }
        }
        Ok(())
    }

    /// Receives a datagram (rrecv, rrecvfrom). Returns how much of it fitted, and its source. The rest is lost.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`], [`SocketError::Interrupted`].
    pub fn receive_from(&self, out: &mut [u8], flags: Flags) -> Result<(usize, SocketAddr), SocketError> {
        let room = out.len();
        self.receive_parts(&mut [out], flags).map(|(len, from)| (len.min(room), from))
    }

    /// The same into several buffers, one after the other (rrecvmsg, rreadv). Returns the length of the datagram, which may
    /// be longer than these.
    ///
    /// # Errors
    /// As [`Self::receive_from`].
    pub fn receive_parts(
        &self,
        out: &mut [&mut [u8]],
        flags: Flags,
    ) -> Result<(usize, SocketAddr), SocketError> {
        let state = self.state();
        let until = match state.receive_timeout {
            _ if self.is_nonblocking() || flags.contains(Flags::DONTWAIT) => Until::Now,
            time => Until::within(time),
        };
        let mut state = self.wait(state, until, |state| !state.inbox.is_empty())?;
        let Some(first) = state.inbox.front() else { return Err(SocketError::WouldBlock) };
        let (data, from) = (first.data(), first.from);
        let mut rest = data;
        for part in out {
            let (now, later) = rest.split_at(rest.len().min(part.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        let len = data.len();
        if !flags.contains(Flags::PEEK) {
            state.inbox.pop_front();
        }
        Ok((len, self.domain.told(from)))
    }

    /// Waits until `test` returns true.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Until,
        test: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, SocketError> {
        let mut entered = None;
        loop {
            if state.closed {
                return Err(SocketError::NoSocket(self.as_fd().as_raw_fd()));
            }
            state.progress();
            if test(&state) {
                return Ok(state);
            }
            if until.is_over() {
                return Err(SocketError::WouldBlock);
            }
            let entered = match &entered {
                Some(entered) => entered,
                None => entered.insert(Entered::new(&self.waiters)),
            };
            let armed = state.ways.iter_mut().map(Way::arm).filter(|new| *new).count();
            if armed > 0 {
                continue;
            }
            drop(state);
            let own = libc::pollfd { fd: self.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let mut fds = [own, entered.waiter.pollfd()];
            let nap = entered.waiter.nap(until.left());
            rxe_verbs::wait_for(&mut fds, nap).map_err(|_| SocketError::Interrupted)?;
            entered.waiter.clear();
            state = self.state();
            self.take_events(&mut state, Some(&entered.waiter));
        }
    }

    /// Takes the channels' events, and wakes the other waiting threads.
    fn take_events(&self, state: &mut State, waiter: Option<&Waiter>) {
        if state.take_events() {
            self.waiters.wake(waiter);
        }
    }

    /// Whether there is a datagram to receive, and whether there is room to send.
    pub(crate) fn readiness(&self) -> (bool, bool) {
        let mut state = self.state();
        self.take_events(&mut state, None);
        state.progress();
        (!state.inbox.is_empty(), state.ways.iter().all(Way::has_room))
    }

    /// A count that changes when something has arrived.
    pub(crate) fn turn(&self) -> u64 {
        self.state().turn
    }

    /// Makes the descriptor become readable at the next change.
    pub(crate) fn arm(&self, waiter: &Waiter) {
        self.waiters.enter(waiter);
        self.state().ways.iter_mut().for_each(|way| {
            way.arm();
        });
    }

    /// A thread no longer waits after [`Self::arm`].
    pub(crate) fn stop_waiting(&self, waiter: &Waiter) {
        self.waiters.leave(waiter);
    }

    /// Closes it (rclose), after datagrams under way have left.
    pub fn close(&self) {
        let shared = self.stack.shared();
        shared.unwatch(self.udp.as_fd(), self.token.load(Ordering::Relaxed));
        let done = |state: &State| state.ways.iter().all(Way::is_idle);
        // Datagrams that have not left by then are dropped.
        let waited = self.wait(self.state(), Until::Then(Instant::now() + PATIENCE), done).map(drop);
        drop(waited);
        let mut state = self.state();
        for way in &state.ways {
            let _ = self.epoll.delete(way.channel());
        }
        state.closed = true;
        state.ways.clear();
        state.destinations.clear();
        self.waiters.wake(None);
    }
}

impl State {
    /// Handles completions.
    fn progress(&mut self) {
        let (most, before) = (usize::from(self.settings.receives), self.inbox.len());
        for way in &mut self.ways {
            self.turn += way.progress(&mut self.inbox, most);
        }
        if self.inbox.len() > before {
            self.hear(before);
        }
    }

    /// Takes the channels' events. Returns whether there was one.
    fn take_events(&mut self) -> bool {
        self.ways.iter_mut().map(Way::take_event).fold(false, |any, taken| any | taken)
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
