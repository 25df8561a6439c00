//! What all sockets of a process share: the connection manager, and a thread that works without calls of the program. The
//! thread accepts connection requests for listeners (a peer's connect does not wait for accept), notices the end of
//! connections, answers datagrams that ask for a queue pair, and sends keep-alives.

use crate::{
    datagram::DatagramSocket, error::SocketError, lock, ready::Ready, settings::Settings,
    stream::StreamSocket,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rxe_cm::{EventChannel, Manager};
use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Creates sockets. Clones are the same stack. The thread ends with the last clone and the last socket.
#[derive(Clone, Debug)]
pub struct Stack(Arc<Handle>);

#[derive(Debug)]
struct Handle(Arc<Shared>);

/// What the thread and the sockets share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) manager: Manager,
    /// The channel for events of all ids except listeners.
    pub(crate) channel: EventChannel,
    pub(crate) settings: Settings,
    wake: Ready,
    epoll: Epoll,
    streams: Mutex<HashMap<usize, Weak<StreamSocket>>>,
    watched: Mutex<HashMap<u64, Watched>>,
    next: AtomicU64,
    stopped: AtomicBool,
}

/// Other descriptors to which the thread listens.
#[derive(Clone, Debug)]
pub(crate) enum Watched {
    Listener(Weak<StreamSocket>),
    Datagram(Weak<DatagramSocket>),
}

const WAKE: u64 = 0;
const CHANNEL: u64 = 1;
const FIRST: u64 = 2;

impl Stack {
    /// A stack for the devices of a connection manager, with the sizes that the administrator has set ([`Settings::load`]).
    ///
    /// # Errors
    /// [`SocketError::System`], [`SocketError::Cm`].
    pub fn new(manager: Manager) -> Result<Self, SocketError> {
        Self::with(manager, Settings::load())
    }

    /// The same with other sizes.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(manager: Manager, settings: Settings) -> Result<Self, SocketError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let epoll = epoll.map_err(|error| SocketError::system("make an epoll instance", error))?;
        let shared = Arc::new(Shared {
            manager,
            channel: EventChannel::new()?,
            settings,
            wake: Ready::new()?,
            epoll,
            streams: Mutex::default(),
            watched: Mutex::default(),
            next: AtomicU64::new(FIRST),
            stopped: AtomicBool::new(false),
        });
        shared.listen_to(shared.wake.as_fd(), WAKE)?;
        shared.listen_to(shared.channel.as_fd(), CHANNEL)?;
        let work = Arc::clone(&shared);
        thread::Builder::new()
            .name("rxe-rsocket".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || work.run())
            .map_err(|error| SocketError::system("start a thread", error))?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.wake.raise();
    }
}

impl Shared {
    fn listen_to(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), SocketError> {
        let added = self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token));
        added.map_err(|error| SocketError::system("listen to a descriptor", error))
    }

    /// Delivers the events of an id to a socket from now on.
    pub(crate) fn enter(&self, number: usize, socket: Weak<StreamSocket>) {
        lock(&self.streams).insert(number, socket);
    }

    /// Ends that.
    pub(crate) fn leave(&self, number: usize) {
        lock(&self.streams).remove(&number);
    }

    /// Listens to a descriptor for a socket. The returned name identifies it.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, watched: Watched) -> Result<u64, SocketError> {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.watched).insert(token, watched);
        self.listen_to(fd, token).inspect_err(|_| drop(lock(&self.watched).remove(&token)))?;
        Ok(token)
    }

    /// Pauses that.
    pub(crate) fn pause(&self, fd: BorrowedFd<'_>) {
        let _ = self.epoll.delete(fd);
    }

    /// Resumes it.
    pub(crate) fn resume(&self, fd: BorrowedFd<'_>, token: u64) {
        let _ = self.listen_to(fd, token);
    }

    /// Ends that.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>, token: u64) {
        self.pause(fd);
        lock(&self.watched).remove(&token);
    }

    /// Makes the thread read its deadlines again.
    pub(crate) fn wake(&self) {
        self.wake.raise();
    }

    /// The main loop of the thread.
    fn run(&self) {
        rxe_verbs::block_signals();
        let mut events = [EpollEvent::empty(); 32];
        while !self.stopped.load(Ordering::Acquire) {
            let timeout = self.keep_alive().map_or(EpollTimeout::NONE, |left| {
                // Rounded up, so that the deadline has passed after the wait.
                EpollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(EpollTimeout::MAX)
            });
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => continue,
                // The program has closed the descriptor, so no events can arrive any more.
                Err(_) => return,
            };
            for event in &events[..count] {
                match event.data() {
                    WAKE => self.wake.clear(),
                    CHANNEL => self.take_events(),
                    token => self.serve(token),
                }
            }
        }
    }

    fn take_events(&self) {
        while let Some(event) = self.channel.try_get_event() {
            let socket = lock(&self.streams).get(&event.id.number()).and_then(Weak::upgrade);
            if let Some(socket) = socket {
                socket.on_event(&event);
            }
        }
    }

    fn serve(&self, token: u64) {
        let watched = lock(&self.watched).get(&token).cloned();
        match watched {
            Some(Watched::Listener(socket)) => {
                if let Some(socket) = socket.upgrade() {
                    socket.take_requests();
                }
            }
            Some(Watched::Datagram(socket)) => {
                if let Some(socket) = socket.upgrade() {
                    socket.take_introductions();
                }
            }
            None => {}
        }
    }

    /// Sends keep-alives that are due. Returns the time until the next.
    fn keep_alive(&self) -> Option<Duration> {
        let sockets: Vec<_> = lock(&self.streams).values().filter_map(Weak::upgrade).collect();
        let now = Instant::now();
        sockets.iter().filter_map(|socket| socket.keep_alive(now)).min()
    }
}
