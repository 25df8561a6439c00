//! Datagram sockets: a UDP socket, and a queue pair for each address of ours that datagrams leave by.
//!
//! The first datagrams to somebody go by UDP, with a header that names our queue pair. The peer answers with its own, and
//! from then on datagrams go between the queue pairs. What comes by UDP is sent on to our own queue pair, so that the program
//! finds everything in one place.

use crate::{
    Domain,
    error::SocketError,
    flags::Flags,
    link::Until,
    options::{Name, Value},
    proto::datagram::{Introduction, Kind, decode_source, encode_source},
    settings::Settings,
    stack::{Stack, Watched},
    stream::expect,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rxe_cm::{CmId, EventChannel, EventKind, UDP_QKEY, proto::PortSpace};
use rxe_verbs::{
    Access, AddressVector, CompChannel, Completion, Cq, Mr, Payload, Qp, QpCaps, QpInit, QpType, Qpn, RecvWr,
    SendFlags, SendOp, SendWr, UdDest, WcStatus,
};
use socket2::{SockAddr, Socket, Type};
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Bytes of a datagram with its header at most.
const SLOT: usize = 2048;
/// Bytes before a received datagram that are the network header's.
const GRH: usize = 40;
/// Destinations that are remembered; beyond, all are found anew.
const MOST_DESTINATIONS: usize = 4096;
/// Datagrams that are taken from the UDP socket in a row.
const MOST_IN_A_ROW: usize = 64;
/// Set in the number of a receive.
const RECEIVE: u64 = 1 << 63;
/// How long close waits for what is under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// A datagram socket. Its descriptor ([`AsFd`]) names it and is to be polled by [`crate::poll`] only.
#[derive(Debug)]
pub struct DatagramSocket {
    stack: Stack,
    domain: Domain,
    udp: Socket,
    /// The queue pairs' channels.
    epoll: Epoll,
    token: AtomicU64,
    nonblocking: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    ways: Vec<Way>,
    destinations: HashMap<SocketAddr, Destination>,
    peer: Option<SocketAddr>,
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    receive_timeout: Option<Duration>,
    closed: bool,
    /// Completions so far.
    turn: u64,
}

/// A queue pair for one address of ours.
#[derive(Debug)]
struct Way {
    local: IpAddr,
    /// In front of each datagram.
    source: Vec<u8>,
    qp: Arc<Qp>,
    cq: Cq,
    channel: CompChannel,
    receive: Mr,
    send: Mr,
    /// Slots of the send buffer that are free.
    free: Vec<u32>,
    slots: u32,
    armed: bool,
    most: usize,
    /// It looks after the queue pair.
    _id: CmId,
}

#[derive(Clone, Copy, Debug)]
struct Destination {
    way: usize,
    av: AddressVector,
    /// The peer's queue pair, once it has told.
    qpn: Option<Qpn>,
}

impl DatagramSocket {
    /// Makes one.
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
            settings: stack.shared().settings,
            ways: Vec::new(),
            destinations: HashMap::new(),
            peer: None,
            inbox: VecDeque::new(),
            receive_timeout: None,
            closed: false,
            turn: 0,
        };
        let socket = Arc::new(Self {
            stack: stack.clone(),
            domain,
            udp,
            epoll,
            token: AtomicU64::new(0),
            nonblocking: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        let weak: Weak<Self> = Arc::downgrade(&socket);
        let token = stack.shared().watch(socket.udp.as_fd(), Watched::Datagram(weak))?;
        socket.token.store(token, Ordering::Relaxed);
        Ok(socket)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls do not wait.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Has calls wait, or not.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Takes an address of ours (rbind).
    ///
    /// # Errors
    /// [`SocketError::System`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), SocketError> {
        let bound = self.udp.bind(&SockAddr::from(address));
        bound.map_err(|error| SocketError::system("bind a UDP socket", error))
    }

    /// Has datagrams go to one peer unless said otherwise (rconnect).
    ///
    /// # Errors
    /// [`SocketError::System`]; as [`Self::send_to`].
    pub fn connect(&self, to: SocketAddr) -> Result<(), SocketError> {
        self.name_port()?;
        let mut state = self.state();
        self.destination(&mut state, to)?;
        state.peer = Some(to);
        Ok(())
    }

    /// A datagram says from which port it is.
    fn name_port(&self) -> Result<(), SocketError> {
        if self.local_addr().port() == 0 {
            self.bind(self.domain.unspecified())?;
        }
        Ok(())
    }

    /// Our address (rgetsockname).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        let address = self.udp.local_addr().ok().and_then(|address| address.as_socket());
        address.unwrap_or_else(|| self.domain.unspecified())
    }

    /// The peer's (rgetpeername).
    ///
    /// # Errors
    /// [`SocketError::NotConnected`].
    pub fn peer_addr(&self) -> Result<SocketAddr, SocketError> {
        self.state().peer.ok_or(SocketError::NotConnected)
    }

    /// The place of a destination, made if there is none.
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
        let bound = self.local_addr().ip();
        let from = (!bound.is_unspecified() && !bound.is_loopback()).then(|| SocketAddr::new(bound, 0));
        id.resolve_addr(from, self.domain.plain(to))?;
        expect(&channel, |kind| matches!(kind, EventKind::AddrResolved))?;
        id.resolve_route()?;
        expect(&channel, |kind| matches!(kind, EventKind::RouteResolved))?;
        let (Some(path), Some(local)) = (id.path(), id.local_addr()) else {
            return Err(SocketError::NotConnected);
        };
        let way = match state.ways.iter().position(|way| way.local == local.ip()) {
            Some(way) => way,
            None => {
                let way = self.make_way(&state.settings, id, local.ip())?;
                state.ways.push(way);
                state.ways.len() - 1
            }
        };
        let made = Destination { way, av: path.av, qpn: None };
        state.destinations.insert(to, made);
        Ok(made)
    }

    fn make_way(&self, settings: &Settings, id: CmId, local: IpAddr) -> Result<Way, SocketError> {
        let context = id.context().ok_or(SocketError::NotConnected)?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let slots = |bytes: u32, most: u16| (bytes / SLOT as u32).clamp(1, most.into());
        let receives = slots(settings.receive_buffer, settings.receives);
        let sends = slots(settings.send_buffer, settings.sends);
        let cq = context.create_cq(sends + receives, Some(&channel))?;
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: settings.inline.into(),
        };
        let init = QpInit { caps, signal_all: true, ..QpInit::new(QpType::Ud, &cq) };
        let qp = id.create_qp(&pd, &init)?;
        let way = Way {
            local,
            source: encode_source(SocketAddr::new(local, self.local_addr().port())),
            receive: pd.alloc_mr(receives as usize * (SLOT + GRH), Access::LOCAL_WRITE)?,
            send: pd.alloc_mr(sends as usize * SLOT, Access::LOCAL_WRITE)?,
            free: (0..sends).collect(),
            slots: sends,
            armed: false,
            most: context.port().active_mtu.bytes() as usize,
            qp,
            cq,
            channel,
            _id: id,
        };
        (0..receives).try_for_each(|slot| way.post_receive(slot))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        let added = self.epoll.add(way.channel.as_fd(), event);
        added.map_err(|error| SocketError::system("listen to a channel", error))?;
        let mut way = way;
        // Somebody may wait for the socket already.
        way.arm();
        Ok(way)
    }

    /// Sends a datagram to the peer, or to `to` (rsend, rsendto); gives its length.
    ///
    /// # Errors
    /// [`SocketError::NoDestination`], [`SocketError::TooLong`], [`SocketError::WouldBlock`], [`SocketError::Cm`] without
    /// a way, and others.
    pub fn send_to(
        &self,
        data: &[&[u8]],
        to: Option<SocketAddr>,
        flags: Flags,
    ) -> Result<usize, SocketError> {
        self.name_port()?;
        let mut state = self.state();
        let to = to.or(state.peer).ok_or(SocketError::NoDestination)?;
        let Destination { way, av, qpn } = self.destination(&mut state, to)?;
        let len: usize = data.iter().map(|part| part.len()).sum();
        let most = state.ways[way].most.min(SLOT) - state.ways[way].source.len();
        if len > most {
            return Err(SocketError::TooLong { len, most });
        }
        let Some(qpn) = qpn else {
            let sent = self.introduce(&state.ways[way], to, Kind::Data, data);
            return sent.map(|()| len).map_err(|error| SocketError::system("send by UDP", error));
        };
        let until =
            if self.is_nonblocking() || flags.contains(Flags::DONTWAIT) { Until::Now } else { Until::Ever };
        let mut state = self.wait(state, until, |state| !state.ways[way].free.is_empty())?;
        let way = &mut state.ways[way];
        let source = way.source.clone();
        way.send(&source, data, UdDest { av, remote_qpn: qpn, remote_qkey: UDP_QKEY })?;
        Ok(len)
    }

    /// Names our queue pair to somebody, by UDP.
    fn introduce(&self, way: &Way, to: SocketAddr, kind: Kind, data: &[&[u8]]) -> io::Result<()> {
        let header = Introduction { kind, qpn: way.qp.qpn().value(), from: way.local };
        let mut bytes = header.encode();
        data.iter().for_each(|part| bytes.extend_from_slice(part));
        self.udp.send_to(&bytes, &SockAddr::from(to)).map(drop)
    }

    /// Something has come by UDP.
    pub(crate) fn take_introductions(&self) {
        let mut bytes = [0; SLOT + Introduction::MOST];
        for _ in 0..MOST_IN_A_ROW {
            let Some((count, from)) = self.receive_udp(&mut bytes) else { return };
            let Some((told, data)) = Introduction::decode(&bytes[..count]) else { continue };
            if let Err(error) = self.take_introduction(&told, data, from) {
                rxe_verbs::tell(&format!("a datagram from {from} is dropped: {error}"));
            }
        }
    }

    fn receive_udp(&self, bytes: &mut [u8]) -> Option<(usize, SocketAddr)> {
        let copy = self.udp.try_clone().ok()?;
        std::net::UdpSocket::from(copy).recv_from(bytes).ok()
    }

    fn take_introduction(
        &self,
        told: &Introduction,
        data: &[u8],
        from: SocketAddr,
    ) -> Result<(), SocketError> {
        let mut state = self.state();
        if state.closed {
            return Ok(());
        }
        let Destination { way, av, .. } = self.destination(&mut state, from)?;
        if told.kind == Kind::Data {
            let answered = self.introduce(&state.ways[way], from, Kind::Answer, &[]);
            answered.map_err(|error| SocketError::system("answer by UDP", error))?;
        }
        if let Some(known) = state.destinations.get_mut(&from) {
            known.qpn = Some(Qpn::new(told.qpn));
        }
        if told.kind == Kind::Data {
            state.progress();
            let way = &mut state.ways[way];
            let own = AddressVector { src: av.src, dst: av.src, ..av };
            let to = UdDest { av: own, remote_qpn: way.qp.qpn(), remote_qkey: UDP_QKEY };
            if !way.free.is_empty() && data.len() <= way.most.min(SLOT) - way.source.len() {
                way.send(&encode_source(from), &[data], to)?;
            }
        }
        Ok(())
    }

    /// Receives a datagram: its length and where it is from; what does not fit is lost (rrecv, rrecvfrom).
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`], [`SocketError::Interrupted`].
    pub fn receive_from(&self, out: &mut [u8], flags: Flags) -> Result<(usize, SocketAddr), SocketError> {
        let state = self.state();
        let until = match state.receive_timeout {
            _ if self.is_nonblocking() || flags.contains(Flags::DONTWAIT) => Until::Now,
            Some(time) => Until::Then(Instant::now() + time),
            None => Until::Ever,
        };
        let mut state = self.wait(state, until, |state| !state.inbox.is_empty())?;
        let Some((from, data)) = state.inbox.front() else { return Err(SocketError::WouldBlock) };
        let (from, len) = (*from, data.len().min(out.len()));
        out[..len].copy_from_slice(&data[..len]);
        if !flags.contains(Flags::PEEK) {
            state.inbox.pop_front();
        }
        Ok((len, from))
    }

    /// Waits until `test` says so.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Until,
        test: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, SocketError> {
        loop {
            state.progress();
            if test(&state) {
                return Ok(state);
            }
            if until.is_over() || state.closed {
                return Err(SocketError::WouldBlock);
            }
            let armed = state.ways.iter_mut().map(Way::arm).filter(|new| *new).count();
            if armed > 0 {
                continue;
            }
            drop(state);
            let mut fds = [libc::pollfd { fd: self.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            rxe_verbs::wait_for(&mut fds, until.left()).map_err(|_| SocketError::Interrupted)?;
            state = self.state();
            state.take_events();
        }
    }

    /// Whether there is something to receive, and room to send.
    pub(crate) fn readiness(&self) -> (bool, bool) {
        let mut state = self.state();
        state.take_events();
        state.progress();
        (!state.inbox.is_empty(), state.ways.iter().all(|way| !way.free.is_empty()))
    }

    /// A number that changes when something has arrived.
    pub(crate) fn turn(&self) -> u64 {
        self.state().turn
    }

    /// Has the descriptor become readable with the next change.
    pub(crate) fn arm(&self) {
        self.state().ways.iter_mut().for_each(|way| {
            way.arm();
        });
    }

    /// Closes it (rclose), once what is under way has left.
    pub fn close(&self) {
        let shared = self.stack.shared();
        shared.unwatch(self.udp.as_fd(), self.token.load(Ordering::Relaxed));
        let done = |state: &State| state.ways.iter().all(|way| way.free.len() == way.slots as usize);
        // What has not left by then does not.
        let waited = self.wait(self.state(), Until::Then(Instant::now() + PATIENCE), done).map(drop);
        drop(waited);
        let mut state = self.state();
        state.closed = true;
        for way in &state.ways {
            let _ = self.epoll.delete(way.channel.as_fd());
        }
        state.ways.clear();
        state.destinations.clear();
    }

    /// Sets an option.
    ///
    /// # Errors
    /// [`SocketError::Unsupported`], [`SocketError::Argument`], [`SocketError::System`].
    pub fn set_option(&self, name: Name, value: &Value) -> Result<(), SocketError> {
        let mut state = self.state();
        let system = |result: io::Result<()>| {
            result.map_err(|error| SocketError::system("set an option of a UDP socket", error))
        };
        match name {
            Name::ReuseAddress => system(self.udp.set_reuse_address(value.flag()?))?,
            Name::V6Only => system(self.udp.set_only_v6(value.flag()?))?,
            Name::ReceiveTimeout => state.receive_timeout = value.time()?,
            Name::ReceiveBuffer => state.settings.set_receive_buffer(value.number()?.saturating_mul(2)),
            Name::SendBuffer => state.settings.set_send_buffer(value.number()?.saturating_mul(2)),
            Name::SendQueue => state.settings.set_sends(value.number()?),
            Name::ReceiveQueue => state.settings.set_receives(value.number()?),
            Name::Inline => state.settings.set_inline(value.number()?),
            // Nothing to do for datagrams.
            Name::Linger | Name::SendTimeout | Name::TypeOfService | Name::KeepAlive => {}
            _ => return Err(SocketError::Unsupported(format!("option {name:?} for datagrams"))),
        }
        Ok(())
    }

    /// What an option is.
    ///
    /// # Errors
    /// [`SocketError::Unsupported`].
    pub fn option(&self, name: Name) -> Result<Value, SocketError> {
        let state = self.state();
        let number = |number: u32| Ok(Value::Number(number));
        match name {
            Name::Error | Name::Listens | Name::KeepAlive | Name::TypeOfService => number(0),
            Name::Type => number(libc::SOCK_DGRAM as u32),
            Name::Domain => number(self.domain.number() as u32),
            Name::Protocol => number(libc::IPPROTO_UDP as u32),
            Name::ReuseAddress => number(self.udp.reuse_address().unwrap_or(false).into()),
            Name::ReceiveBuffer => number(state.settings.receive_buffer),
            Name::SendBuffer => number(state.settings.send_buffer),
            Name::SendQueue => number(state.settings.sends.into()),
            Name::ReceiveQueue => number(state.settings.receives.into()),
            Name::Inline => number(state.settings.inline.into()),
            Name::ReceiveTimeout => Ok(Value::Time(state.receive_timeout)),
            _ => Err(SocketError::Unsupported(format!("option {name:?} for datagrams"))),
        }
    }
}

impl State {
    /// Takes what has completed.
    fn progress(&mut self) {
        let most = usize::from(self.settings.receives);
        let mut done = [Completion::default(); 16];
        for way in &mut self.ways {
            while let Ok(count @ 1..) = way.cq.poll(&mut done) {
                self.turn += count as u64;
                for wc in &done[..count] {
                    way.take(wc, &mut self.inbox, most);
                }
            }
        }
    }

    /// Takes the channels' events.
    fn take_events(&mut self) {
        for way in self.ways.iter_mut().filter(|way| way.armed) {
            if let Some(cq) = way.channel.try_get_event() {
                cq.ack_events(1);
                way.armed = false;
            }
        }
    }
}

impl Way {
    fn post_receive(&self, slot: u32) -> Result<(), SocketError> {
        let sge = self.receive.sge(slot as usize * (SLOT + GRH), (SLOT + GRH) as u32);
        Ok(self.qp.post_recv(&RecvWr { wr_id: RECEIVE | u64::from(slot), sges: &[sge] })?)
    }

    fn arm(&mut self) -> bool {
        let new = !core::mem::replace(&mut self.armed, true);
        if new {
            self.cq.req_notify(false);
        }
        new
    }

    fn take(&mut self, wc: &Completion, inbox: &mut VecDeque<(SocketAddr, Vec<u8>)>, most: usize) {
        let slot = wc.wr_id as u32;
        if wc.wr_id & RECEIVE == 0 {
            self.free.push(slot);
            return;
        }
        let len = (wc.byte_len as usize).saturating_sub(GRH).min(SLOT);
        if wc.status == WcStatus::Success && inbox.len() < most {
            let at = slot as usize * (SLOT + GRH) + GRH;
            let bytes = self.receive.read_vec(at, len).unwrap_or_default();
            if let Some((from, data)) = decode_source(&bytes) {
                inbox.push_back((from, data.to_vec()));
            }
        }
        // A queue pair that takes none any more has ended.
        let _ = self.post_receive(slot);
    }

    /// Sends by a slot; there is one.
    fn send(&mut self, header: &[u8], data: &[&[u8]], dest: UdDest) -> Result<(), SocketError> {
        let Some(slot) = self.free.pop() else { return Err(SocketError::WouldBlock) };
        let at = slot as usize * SLOT;
        let mut end = at;
        for part in core::iter::once(&header).chain(data) {
            // It is our own memory, and what is sent has been measured.
            let _ = self.send.write_at(end, part);
            end += part.len();
        }
        let sges = [self.send.sge(at, (end - at) as u32)];
        let payload = Payload::Sges(&sges);
        let wr = SendWr {
            wr_id: slot.into(),
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload,
            dest: Some(dest),
            xrc_srq: 0,
        };
        if let Err(error) = self.qp.post_send(&wr) {
            self.free.push(slot);
            return Err(error.into());
        }
        Ok(())
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
