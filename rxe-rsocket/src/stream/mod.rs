//! Stream sockets: making connections and ending them. What crosses them is in `transfer.rs`.

mod iomap;
mod listen;
mod options;
mod transfer;

pub use iomap::IoMapping;

use crate::{
    Domain,
    error::SocketError,
    link::{Link, Parts, Until},
    proto::{Hello, How, Phase},
    ready::Ready,
    settings::Settings,
    stack::Stack,
    waiters::Waiter,
};
use listen::Listening;
use options::Options;
use rxe_cm::{CmEvent, CmId, ConnParams, EventChannel, EventKind, proto::PortSpace};
use std::{
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Nothing under way has arrived for so long: a peer that is there takes what it has given room for.
const STALL: Duration = Duration::from_secs(30);

/// A stream socket. Its descriptor ([`AsFd`]) names it and is to be polled by [`crate::poll()`] only.
#[derive(Debug)]
pub struct StreamSocket {
    stack: Stack,
    domain: Domain,
    /// Its id's, by which the thread knows it.
    number: usize,
    ready: Ready,
    state: Mutex<State>,
    /// Once the connection has stood.
    link: OnceLock<Link>,
    nonblocking: AtomicBool,
    options: Mutex<Options>,
    /// Held by whoever sends, or receives.
    sending: Mutex<()>,
    receiving: Mutex<()>,
    maps: Mutex<iomap::Maps>,
}

#[derive(Debug)]
struct State {
    /// None once it is closed.
    id: Option<CmId>,
    phase: Stage,
    settings: Settings,
    /// Why the connection was not made, or was cut, until somebody asks (SO_ERROR).
    error: Option<i32>,
    keep_alive: Option<KeepAlive>,
}

#[derive(Debug)]
enum Stage {
    New,
    Listening(Listening),
    Connecting(Box<Parts>),
    /// The peer has been answered; whose listener is to hear when it stands.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StreamSocket {
    /// Makes one.
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
            state: Mutex::new(state),
            link: OnceLock::new(),
            nonblocking: AtomicBool::new(false),
            options: Mutex::default(),
            sending: Mutex::default(),
            receiving: Mutex::default(),
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

    /// Has calls wait, or not.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Takes an address of ours (rbind).
    ///
    /// # Errors
    /// [`SocketError::Cm`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), SocketError> {
        let state = self.state();
        Ok(state.id()?.bind(self.domain.plain(address))?)
    }

    /// Connects (rconnect). A socket that does not wait is connected, or has failed, when [`crate::poll()`] says that it is
    /// writable.
    ///
    /// # Errors
    /// [`SocketError::InProgress`] if it does not wait; [`SocketError::NotMade`], [`SocketError::Hello`],
    /// [`SocketError::Cm`] and others if there is no connection.
    pub fn connect(&self, to: SocketAddr) -> Result<(), SocketError> {
        let mut state = self.state();
        match state.phase {
            Stage::New => {}
            Stage::Connecting(_) | Stage::Accepting(_) if self.is_nonblocking() => {
                return Err(SocketError::Already);
            }
            Stage::Connecting(_) | Stage::Accepting(_) => {
                drop(state);
                return self.wait_connected();
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
        if self.is_nonblocking() { Err(SocketError::InProgress) } else { self.wait_connected() }
    }

    fn begin(&self, state: &mut State, to: SocketAddr) -> Result<(), SocketError> {
        let id = state.id()?.clone();
        // The way is found at once; its events are for us.
        let channel = EventChannel::new()?;
        id.migrate(&channel)?;
        id.resolve_addr(None, to)?;
        expect(&channel, |kind| matches!(kind, EventKind::AddrResolved))?;
        id.resolve_route()?;
        expect(&channel, |kind| matches!(kind, EventKind::RouteResolved))?;
        let parts = Parts::new(&id, &state.settings)?;
        id.migrate(&self.stack.shared().channel)?;
        let hello = parts.hello().encode();
        // Nothing is ever read from the other's memory.
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

    fn wait_connected(&self) -> Result<(), SocketError> {
        loop {
            let mut state = self.state();
            match state.phase {
                Stage::Connected => return Ok(()),
                Stage::Connecting(_) | Stage::Accepting(_) => {}
                Stage::Failed => return Err(state.take_failure()),
                Stage::New | Stage::Listening(_) => return Err(SocketError::NotConnected),
            }
            drop(state);
            self.ready.wait()?;
        }
    }

    /// The connection, once it stands; waits for that if it may.
    fn connected(&self, until: Until) -> Result<&Link, SocketError> {
        if let Some(link) = self.link.get() {
            return Ok(link);
        }
        let mut state = self.state();
        match state.phase {
            Stage::Connecting(_) | Stage::Accepting(_) if until == Until::Now => {
                return Err(SocketError::WouldBlock);
            }
            Stage::Failed if state.error.is_some() => return Err(state.take_failure()),
            Stage::New | Stage::Listening(_) | Stage::Failed => return Err(SocketError::NotConnected),
            _ => {}
        }
        drop(state);
        self.wait_connected()?;
        self.link.get().ok_or(SocketError::NotConnected)
    }

    /// The connection manager has something to say.
    pub(crate) fn on_event(&self, event: &CmEvent) {
        let errno = match &event.kind {
            EventKind::Established(_) => return self.on_established(&event.private_data),
            EventKind::Rejected(_) => libc::ECONNREFUSED,
            EventKind::Unreachable(_) => libc::ETIMEDOUT,
            EventKind::ConnectError(error) => error.errno(),
            EventKind::Disconnected => libc::ECONNRESET,
            _ => return,
        };
        let mut state = self.state();
        let listener = match &state.phase {
            Stage::Connecting(_) => None,
            Stage::Accepting(listener) => Some(Weak::clone(listener)),
            _ => {
                // What waits for the peer is flushed, and hears of the end by that.
                if let Some(id) = &state.id {
                    let _ = id.disconnect();
                }
                return;
            }
        };
        rxe_verbs::tell(&event.kind.words());
        (state.phase, state.error) = (Stage::Failed, Some(errno));
        drop(state);
        self.ready.raise();
        if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
            listener.forget(self.number);
        }
    }

    fn on_established(&self, hello: &[u8]) {
        let mut state = self.state();
        match core::mem::replace(&mut state.phase, Stage::Failed) {
            Stage::Connecting(parts) => match Hello::decode(hello) {
                Ok(hello) => {
                    // Set once: only what is being connected comes here.
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
            // The peer is told of the second half of the buffer at once.
            link.progress(&mut link.stream());
        }
        self.ready.raise();
    }

    /// Our address; the unspecified one while there is none (rgetsockname).
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        let address = self.state().id.as_ref().and_then(CmId::local_addr);
        address.map_or_else(|| self.domain.unspecified(), |address| self.domain.told(address))
    }

    /// The peer's (rgetpeername).
    ///
    /// # Errors
    /// [`SocketError::NotConnected`].
    pub fn peer_addr(&self) -> Result<SocketAddr, SocketError> {
        let address = self.state().id.as_ref().and_then(CmId::peer_addr);
        address.map(|address| self.domain.told(address)).ok_or(SocketError::NotConnected)
    }

    /// Ends a direction, or both; waits until the peer has all that was sent, or is gone (rshutdown).
    ///
    /// # Errors
    /// [`SocketError::NotConnected`], [`SocketError::Interrupted`].
    pub fn shut_down(&self, how: How) -> Result<(), SocketError> {
        if let Stage::Listening(_) = self.state().phase {
            return Ok(());
        }
        let link = self.connected(Until::Now).map_err(|_| SocketError::NotConnected)?;
        {
            let mut stream = link.stream();
            stream.shut_down(how);
            link.progress(&mut stream);
        }
        if how != How::Read {
            self.drain(link, STALL)?;
        }
        if link.stream().phase() != Phase::Open
            && let Some(id) = &self.state().id
        {
            // Whoever waits on it is woken by what is flushed.
            let _ = id.disconnect();
        }
        Ok(())
    }

    /// Waits until all that was sent has arrived, the connection is over, or nothing has moved for `patience`.
    fn drain(&self, link: &Link, patience: Duration) -> Result<(), SocketError> {
        let mut left = u32::MAX;
        loop {
            let done = |stream: &crate::proto::Stream| stream.is_all_sent() || stream.phase() != Phase::Open;
            match link.wait(Until::Then(Instant::now() + patience), done) {
                Ok(_) => return Ok(()),
                Err(SocketError::WouldBlock) => {
                    let now = link.stream().backlog();
                    if now >= left {
                        return Ok(());
                    }
                    left = now;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes it (rclose): an open connection is ended, and the call waits until the peer has all that was sent, for as long
    /// as something moves (SO_LINGER may set another time).
    pub fn close(&self) {
        if let Some(link) = self.link.get() {
            let linger = lock(&self.options).linger;
            let open = link.stream().phase() == Phase::Open;
            match linger {
                _ if !open => {}
                Some(Duration::ZERO) => link.stream().fail(crate::proto::Failure::Reset),
                linger => {
                    let mut stream = link.stream();
                    stream.shut_down(How::Both);
                    link.progress(&mut stream);
                    drop(stream);
                    // A signal does not end it: there is no second try.
                    while let Err(SocketError::Interrupted) = self.drain(link, linger.unwrap_or(STALL)) {}
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
        // Threads that wait look up.
        self.ready.raise();
    }

    /// The connection, once it stands.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Whether the connection was not made.
    pub(crate) fn has_failed(&self) -> bool {
        // One that is new is as good as ended, as with TCP.
        matches!(self.state().phase, Stage::Failed)
    }

    /// A number that changes when something has arrived.
    pub(crate) fn turn(&self) -> u64 {
        self.link.get().map_or(0, |link| link.stream().turn())
    }

    /// Gives a descriptor that becomes readable with the next change. A connection that comes to stand after this call is such
    /// a change of the descriptor given here, and has another one from then on.
    pub(crate) fn arm(&self, waiter: &Waiter) -> RawFd {
        let Some(link) = self.link.get() else { return self.ready.as_fd().as_raw_fd() };
        link.arm(waiter);
        link.event_fd()
    }

    /// A thread has done with [`Self::arm`].
    pub(crate) fn stop_waiting(&self, waiter: &Waiter) {
        if let Some(link) = self.link.get() {
            link.waiters.leave(waiter);
        }
    }

    /// What [`Self::arm`] gave has become readable.
    pub(crate) fn take_event(&self, waiter: &Waiter) {
        if let Some(link) = self.link.get() {
            link.take_event(waiter);
        }
    }

    /// Ends it at once, without a word to the program at the other end but that.
    fn abort(&self) {
        if let Some(link) = self.link.get() {
            link.stream().fail(crate::proto::Failure::Reset);
        }
        self.close();
    }

    /// Sends a keep-alive if it is due; the time until the next.
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

/// The event that is hoped for, which is there already.
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
