//! Stream sockets: establishing and ending connections. `transfer.rs` sends and receives data.

mod iomap;
mod listen;
mod options;
mod transfer;

pub use iomap::IoMapping;

use crate::{
    Domain,
    error::SocketError,
    flags::Flags,
    link::{Link, Parts, Until},
    lock,
    proto::{Hello, How, Phase},
    ready::Ready,
    settings::Settings,
    stack::Stack,
    turn::Turn,
    waiters::{Waiter, Waiters},
};
use listen::Listening;
use options::Options;
use rxe_cm::{CmEvent, CmId, ConnParams, EventChannel, EventKind, proto::PortSpace};
use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// If no data under way has arrived for this long, the peer counts as gone: it has room for the data.
const STALL: Duration = Duration::from_secs(30);
/// How long close sleeps after a signal.
const PAUSE: Duration = Duration::from_millis(1);

/// A stream socket. Its descriptor ([`AsFd`]) identifies it, and must only be polled by [`crate::poll()`].
#[derive(Debug)]
pub struct StreamSocket {
    stack: Stack,
    domain: Domain,
    /// The number of its id, by which the thread finds it.
    number: usize,
    ready: Ready,
    /// Threads that poll it while it has no link.
    waiters: Waiters,
    state: Mutex<State>,
    /// Set once the connection was established.
    link: OnceLock<Link>,
    nonblocking: AtomicBool,
    options: Mutex<Options>,
    /// Of the thread that sends, and of the thread that receives.
    sending: Turn,
    receiving: Turn,
    maps: Mutex<iomap::Maps>,
}

#[derive(Debug)]
struct State {
    /// `None` once it is closed.
    id: Option<CmId>,
    phase: Stage,
    settings: Settings,
    /// Why the connection could not be established, or has failed, until the program asks for it (SO_ERROR).
    error: Option<i32>,
    keep_alive: Option<KeepAlive>,
}

#[derive(Debug)]
enum Stage {
    New,
    Listening(Listening),
    Connecting(Box<Parts>),
    /// The peer has been answered. The listener has to learn when the connection is established.
    Accepting(Weak<StreamSocket>),
    Connected,
    Failed,
}

impl Stage {
    const fn doing(&self) -> &'static str {
        match self {
            Self::New => "has no connection",
            Self::Listening(_) => "listens",
            Self::Connecting(_) | Self::Accepting(_) => "is being connected",
            Self::Connected => "is connected",
            Self::Failed => "could not be connected",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct KeepAlive {
    period: Duration,
    next: Instant,
}

impl StreamSocket {
    /// Creates a socket.
    ///
    /// # Errors
    /// [`SocketError::System`], [`SocketError::Cm`].
    pub fn new(stack: &Stack, domain: Domain) -> Result<Arc<Self>, SocketError> {
        let shared = stack.shared();
        let id = shared.manager.create_id(&shared.channel, PortSpace::Tcp)?;
        Self::of(stack, domain, id, Stage::New, shared.settings)
    }

    fn of(
        stack: &Stack,
        domain: Domain,
        id: CmId,
        phase: Stage,
        settings: Settings,
    ) -> Result<Arc<Self>, SocketError> {
        let number = id.number();
        let state = State { id: Some(id), phase, settings, error: None, keep_alive: None };
        let socket = Arc::new(Self {
            stack: stack.clone(),
            domain,
            number,
            ready: Ready::new()?,
            waiters: Waiters::default(),
            state: Mutex::new(state),
            link: OnceLock::new(),
            nonblocking: AtomicBool::new(false),
            options: Mutex::default(),
            sending: Turn::default(),
            receiving: Turn::default(),
            maps: Mutex::default(),
        });
        stack.shared().enter(number, Arc::downgrade(&socket));
        Ok(socket)
    }

    /// Whether calls do not wait (O_NONBLOCK).
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sets whether calls wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Binds it to a local address (rbind).
    ///
    /// # Errors
    /// [`SocketError::Cm`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), SocketError> {
        let state = self.state();
        Ok(state.id()?.bind(self.domain.plain(address))?)
    }

    /// Connects (rconnect). A non-blocking socket is connected, or has failed, when [`crate::poll()`] reports that it is
    /// writable.
    ///
    /// # Errors
    /// [`SocketError::InProgress`] if it does not wait (any longer: SO_SNDTIMEO), and [`SocketError::Already`] from a second
    /// call; [`SocketError::NotMade`], [`SocketError::Hello`], [`SocketError::Cm`] and others if there is no connection.
    pub fn connect(&self, to: SocketAddr) -> Result<(), SocketError> {
        let until = self.until(Flags::NONE, lock(&self.options).send_timeout);
        let mut state = self.state();
        match state.phase {
            Stage::New => {}
            Stage::Connecting(_) | Stage::Accepting(_) => {
                drop(state);
                return self.wait_connected(until).map_err(|error| error.instead(SocketError::Already));
            }
            Stage::Connected => return Err(SocketError::IsConnected),
            Stage::Failed => return Err(state.take_failure()),
            Stage::Listening(_) => {
                return Err(SocketError::State { action: "connect", state: state.phase.doing() });
            }
        }
        let begun = self.begin(&mut state, self.domain.plain(to));
        drop(state);
        begun?;
        self.wait_connected(until).map_err(|error| error.instead(SocketError::InProgress))
    }

    fn begin(&self, state: &mut State, to: SocketAddr) -> Result<(), SocketError> {
        let id = state.id()?.clone();
        // Address and route are resolved here, so their events are handled by this thread.
        let channel = EventChannel::new()?;
        id.migrate(&channel)?;
        id.resolve_addr(None, to)?;
        expect(&channel, |kind| matches!(kind, EventKind::AddrResolved))?;
        id.resolve_route()?;
        expect(&channel, |kind| matches!(kind, EventKind::RouteResolved))?;
        let parts = Parts::new(&id, &state.settings)?;
        id.migrate(&self.stack.shared().channel)?;
        let hello = parts.hello().encode();
        // No READs are used.
        let params = ConnParams {
            private_data: &hello,
            responder_resources: Some(0),
            initiator_depth: Some(0),
            ..ConnParams::default()
        };
        state.phase = Stage::Connecting(Box::new(parts));
        id.connect(&params).inspect_err(|_| state.phase = Stage::Failed)?;
        Ok(())
    }

    fn wait_connected(&self, until: Until) -> Result<(), SocketError> {
        loop {
            let mut state = self.state();
            match state.phase {
                Stage::Connected => return Ok(()),
                Stage::Connecting(_) | Stage::Accepting(_) => {}
                Stage::Failed => return Err(state.take_failure()),
                Stage::New | Stage::Listening(_) => return Err(SocketError::NotConnected),
            }
            drop(state);
            self.ready.wait(until)?;
        }
    }

    /// The connection. Waits until it is established, unless the socket is non-blocking.
    fn connected(&self, until: Until) -> Result<&Link, SocketError> {
        if let Some(link) = self.link.get() {
            return Ok(link);
        }
        let mut state = self.state();
        match state.phase {
            Stage::Failed if state.error.is_some() => return Err(state.take_failure()),
            Stage::New | Stage::Listening(_) | Stage::Failed => return Err(SocketError::NotConnected),
            _ => {}
        }
        drop(state);
        self.wait_connected(until)?;
        self.link.get().ok_or(SocketError::NotConnected)
    }

    /// Handles an event of the connection manager.
    pub(crate) fn on_event(&self, event: &CmEvent) {
        let errno = match &event.kind {
            EventKind::Established(_) => return self.on_established(&event.private_data),
            EventKind::Rejected(_) => libc::ECONNREFUSED,
            EventKind::Unreachable(_) => libc::ETIMEDOUT,
            EventKind::ConnectError(error) => error.errno(),
            EventKind::Disconnected { .. } => libc::ECONNRESET,
            _ => return,
        };
        let mut state = self.state();
        let listener = match &state.phase {
            Stage::Connecting(_) => None,
            Stage::Accepting(listener) => Some(Weak::clone(listener)),
            _ => {
                // Threads that wait for the peer are woken, because their requests are flushed.
                if let Some(id) = &state.id {
                    let _ = id.disconnect();
                }
                return;
            }
        };
        rxe_verbs::tell(&event.kind.words());
        (state.phase, state.error) = (Stage::Failed, Some(errno));
        drop(state);
        self.changed();
        if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
            listener.forget(self.number);
        }
    }

    fn on_established(&self, hello: &[u8]) {
        let mut state = self.state();
        match core::mem::replace(&mut state.phase, Stage::Failed) {
            Stage::Connecting(parts) => match Hello::decode(hello) {
                Ok(hello) => {
                    // It is set only once, because only a socket that is being connected gets here.
                    let _ = self.link.set(Link::new(*parts, hello));
                    state.phase = Stage::Connected;
                }
                Err(error) => {
                    rxe_verbs::tell(&error);
                    state.error = Some(SocketError::from(error).errno());
                    if let Some(id) = &state.id {
                        let _ = id.disconnect();
                    }
                }
            },
            Stage::Accepting(listener) => {
                state.phase = Stage::Connected;
                if let Some(listener) = listener.upgrade() {
                    listener.on_accepted(self.number);
                }
            }
            other => state.phase = other,
        }
        drop(state);
        if let Some(link) = self.link.get() {
            // Sends the address of the second half of the buffer at once.
            link.progress(&mut link.stream());
        }
        self.changed();
    }

    /// Wakes the threads that wait for a connection or for its end.
    fn changed(&self) {
        self.ready.raise();
        self.waiters.wake(None);
    }

    /// The local address, or the unspecified one if there is none (rgetsockname).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        let address = self.state().id.as_ref().and_then(CmId::local_addr);
        address.map_or_else(|| self.domain.unspecified(), |address| self.domain.told(address))
    }

    /// The peer's address (rgetpeername).
    ///
    /// # Errors
    /// [`SocketError::NotConnected`].
    pub fn peer_addr(&self) -> Result<SocketAddr, SocketError> {
        let state = self.state();
        // An id knows whom it asks before there is an answer. Programs find out so whether there is a connection.
        let id = state.id.as_ref().filter(|_| matches!(state.phase, Stage::Connected));
        let address = id.and_then(CmId::peer_addr);
        address.map(|address| self.domain.told(address)).ok_or(SocketError::NotConnected)
    }

    /// Ends one direction or both (rshutdown). Waits until the peer has all data that was sent, or is gone.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`], [`SocketError::Interrupted`].
    pub fn shut_down(&self, how: How) -> Result<(), SocketError> {
        let listens = matches!(self.state().phase, Stage::Listening(_));
        if listens {
            // As with TCP: it accepts no more, and threads in accept return.
            if how != How::Write {
                self.close();
            }
            return Ok(());
        }
        let link = self.connected(Until::Now).map_err(|_| SocketError::NotConnected)?;
        link.shut_down(how);
        if how != How::Read {
            self.drain(link, STALL, true)?;
        }
        if link.stream().phase() != Phase::Open
            && let Some(id) = &self.state().id
        {
            // Waiting threads are woken by the flushed requests.
            let _ = id.disconnect();
        }
        Ok(())
    }

    /// Waits until all data has arrived, the connection has ended, or no data has moved for `patience`. Signals end it only if
    /// `by_signals`.
    fn drain(&self, link: &Link, patience: Duration, by_signals: bool) -> Result<(), SocketError> {
        let mut left = u32::MAX;
        let mut end = Instant::now() + patience;
        loop {
            let done = |stream: &crate::proto::Stream| stream.is_all_sent() || stream.phase() != Phase::Open;
            match link.wait(Until::Then(end), done) {
                Ok(_) => return Ok(()),
                Err(SocketError::WouldBlock) => {
                    let now = link.stream().backlog();
                    if now >= left {
                        return Ok(());
                    }
                    left = now;
                    end = Instant::now() + patience;
                }
                // The waits of a cancelled thread return at once, so this loop would spin.
                Err(SocketError::Interrupted) if !by_signals => std::thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes it (rclose). An open connection is ended. The call waits until the peer has all data, as long as data moves
    /// (SO_LINGER may set another time).
    pub fn close(&self) {
        if let Some(link) = self.link.get() {
            let linger = lock(&self.options).linger;
            let open = link.stream().phase() == Phase::Open;
            match linger {
                _ if !open => {}
                Some(Duration::ZERO) => link.stream().fail(crate::proto::Failure::Reset),
                linger => {
                    link.shut_down(How::Both);
                    // A signal does not interrupt this, because the call cannot be repeated.
                    let _ = self.drain(link, linger.unwrap_or(STALL), false);
                }
            }
        }
        let (id, phase) = {
            let mut state = self.state();
            state.keep_alive = None;
            (state.id.take(), core::mem::replace(&mut state.phase, Stage::Failed))
        };
        if let Stage::Listening(listening) = phase {
            listening.end(self.stack.shared());
        }
        if let Some(id) = id {
            self.stack.shared().leave(self.number);
            if self.link.get().is_some() {
                let _ = id.disconnect();
            }
            id.destroy();
        }
        self.changed();
    }

    /// The connection, if it was established.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Whether there is no connection.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.state().phase, Stage::Failed)
    }

    /// A count that changes when something has arrived.
    pub(crate) fn turn(&self) -> u64 {
        match self.link.get() {
            Some(link) => link.stream().turn(),
            None => self.arrived(),
        }
    }

    /// Returns a descriptor that becomes readable at the next change, or -1 if there is no link: then changes only wake `waiter`.
    /// One of them is that a connection is established. From then on the socket has a descriptor.
    pub(crate) fn arm(&self, waiter: &Waiter) -> RawFd {
        if self.link.get().is_none() {
            self.waiters.enter(waiter);
        }
        // A link that is set from here on wakes the waiter.
        let Some(link) = self.link.get() else { return -1 };
        link.arm(waiter);
        link.event_fd()
    }

    /// A thread no longer waits after [`Self::arm`].
    pub(crate) fn stop_waiting(&self, waiter: &Waiter) {
        self.waiters.leave(waiter);
        if let Some(link) = self.link.get() {
            link.waiters.leave(waiter);
        }
    }

    /// The descriptor of [`Self::arm`] has become readable.
    pub(crate) fn take_event(&self, waiter: &Waiter) {
        if let Some(link) = self.link.get() {
            link.take_event(waiter);
        }
    }

    /// Ends the connection at once. The program at the other end only learns that it has ended.
    fn abort(&self) {
        if let Some(link) = self.link.get() {
            link.stream().fail(crate::proto::Failure::Reset);
        }
        self.close();
    }

    /// Sends a keep-alive if it is due. Returns the time until the next.
    pub(crate) fn keep_alive(&self, now: Instant) -> Option<Duration> {
        let mut state = self.state();
        let keep = state.keep_alive.as_mut()?;
        let link = self.link.get()?;
        let due = keep.next <= now;
        if due {
            keep.next = now + keep.period;
        }
        let left = keep.next.saturating_duration_since(now);
        drop(state);
        if due {
            link.keep_alive();
        }
        (link.stream().phase() == Phase::Open).then_some(left)
    }
}

impl State {
    fn id(&self) -> Result<&CmId, SocketError> {
        self.id.as_ref().ok_or(SocketError::NotConnected)
    }

    fn take_failure(&mut self) -> SocketError {
        let errno = self.error.take().unwrap_or(libc::ECONNABORTED);
        SocketError::NotMade { words: std::io::Error::from_raw_os_error(errno).to_string(), errno }
    }
}

/// Takes the expected event, which has arrived already.
pub(crate) fn expect(channel: &EventChannel, hoped: impl Fn(&EventKind) -> bool) -> Result<(), SocketError> {
    let event = channel.get_event(None)?;
    if hoped(&event.kind) {
        return Ok(());
    }
    let errno = match event.status() {
        status if status < 0 => -status,
        _ => libc::EHOSTUNREACH,
    };
    Err(SocketError::NotMade { words: event.kind.words(), errno })
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}
