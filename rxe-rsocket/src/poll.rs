//! Waiting for several sockets and other descriptors: rpoll, and repoll, whose set is kept between calls.

use crate::{
    error::SocketError,
    link::Until,
    lock,
    socket::Socket,
    waiters::{Asleep, Entered, Waiter, Waiters},
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::{
    collections::BTreeMap,
    ops::Bound,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::Duration,
};

/// Events that are always reported, even if they were not asked for.
const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Waits until one of the descriptors has a requested event, like `poll(2)` (rpoll). `find` returns the rsocket of a
/// descriptor; other descriptors are possible, too. Returns how many descriptors have events.
///
/// # Errors
/// [`SocketError::Interrupted`].
pub fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    find: impl Fn(RawFd) -> Option<Socket>,
) -> Result<usize, SocketError> {
    let sockets: Vec<Option<Socket>> = fds.iter().map(|fd| find(fd.fd)).collect();
    let until = Until::within(timeout);
    let mut inner = Vec::new();
    let found = look(fds, &sockets, &mut inner)?;
    if found > 0 || until.is_over() {
        return Ok(found);
    }
    let waiter = Waiter::new();
    let ours: Vec<Socket> = sockets.iter().flatten().cloned().collect();
    loop {
        // Changes from now on wake this thread. Earlier ones are found by checking once more.
        let (_asleep, armed) = Asleep::beside(&waiter, &ours);
        let found = look(fds, &sockets, &mut inner)?;
        if found > 0 || until.is_over() {
            return Ok(found);
        }
        let mut watched: Vec<_> = armed.into_iter().map(readable).collect();
        watched.push(waiter.pollfd());
        let others = fds.iter().zip(&sockets).filter(|(_, socket)| socket.is_none());
        watched.extend(others.map(|(fd, _)| libc::pollfd { revents: 0, ..*fd }));
        sleep(&mut watched, until, &ours, &waiter)?;
    }
}

fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Sleeps until one of the descriptors has an event. The first ones are those of the sockets.
fn sleep(
    watched: &mut [libc::pollfd],
    until: Until,
    sockets: &[Socket],
    waiter: &Waiter,
) -> Result<(), SocketError> {
    rxe_verbs::wait_for(watched, waiter.nap(until.left())).map_err(|_| SocketError::Interrupted)?;
    for (fd, socket) in watched.iter().zip(sockets) {
        if fd.revents != 0 {
            socket.take_event(waiter);
        }
    }
    Ok(())
}

/// Checks all descriptors without waiting. Returns how many have events.
fn look(
    fds: &mut [libc::pollfd],
    sockets: &[Option<Socket>],
    inner: &mut Vec<libc::pollfd>,
) -> Result<usize, SocketError> {
    for (fd, socket) in fds.iter_mut().zip(sockets) {
        fd.revents = socket.as_ref().map_or(0, |socket| socket.readiness() & (fd.events | ALWAYS));
    }
    if sockets.iter().any(Option::is_none) {
        inner.clear();
        inner.extend(
            fds.iter()
                .zip(sockets)
                .map(|(fd, socket)| libc::pollfd { fd: if socket.is_some() { -1 } else { fd.fd }, ..*fd }),
        );
        let none = Some(Duration::ZERO);
        if rxe_verbs::wait_for(inner, none).map_err(|_| SocketError::Interrupted)? > 0 {
            for (fd, other) in fds.iter_mut().zip(&*inner) {
                fd.revents |= other.revents;
            }
        }
    }
    Ok(fds.iter().filter(|fd| fd.revents != 0).count())
}

/// A set of descriptors to wait for, like `epoll(7)`. Its own descriptor ([`AsFd`]) is an epoll instance with the descriptors
/// that are not rsockets.
#[derive(Debug)]
pub struct PollSet {
    others: Epoll,
    sockets: Mutex<BTreeMap<RawFd, Member>>,
    /// The member that was reported last. The next look begins after it, so that all have their turn if few are asked for.
    last: AtomicI32,
    /// Whether there was no room for `others` last time.
    others_first: AtomicBool,
    /// Wakes waiting threads when members are added.
    waiters: Waiters,
}

#[derive(Clone, Debug)]
struct Member {
    socket: Socket,
    events: u32,
    data: u64,
    /// The events that were reported last, and the socket's count of changes at that time, for edge-triggered members
    /// (EPOLLET).
    told: Option<(i16, u64)>,
    /// It is reported once, and then not until it is modified (EPOLLONESHOT).
    off: bool,
}

impl Member {
    /// The events to be reported now, if any.
    fn report(&mut self) -> Option<i16> {
        // Events of poll and epoll have the same numbers.
        let wanted = self.events as i16 | ALWAYS;
        let ready = self.socket.readiness() & wanted;
        let now = (ready, self.socket.turn());
        let edge = self.events & EpollFlags::EPOLLET.bits() as u32 != 0;
        let last = self.told.replace(now);
        if ready == 0 || edge && last == Some(now) {
            return None;
        }
        self.off = self.events & EpollFlags::EPOLLONESHOT.bits() as u32 != 0;
        Some(ready)
    }
}

impl PollSet {
    /// Creates a set (repoll_create).
    ///
    /// # Errors
    /// [`SocketError::System`].
    pub fn new() -> Result<Self, SocketError> {
        let others = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let others = others.map_err(|error| SocketError::system("make an epoll instance", error))?;
        Ok(Self {
            others,
            sockets: Mutex::default(),
            last: AtomicI32::new(-1),
            others_first: AtomicBool::new(false),
            waiters: Waiters::default(),
        })
    }

    fn sockets(&self) -> MutexGuard<'_, BTreeMap<RawFd, Member>> {
        lock(&self.sockets)
    }

    /// Whether the set has rsockets.
    #[must_use]
    pub fn has_sockets(&self) -> bool {
        !self.sockets().is_empty()
    }

    /// Adds a socket, or changes its events. `events` are those of epoll.
    pub fn set(&self, fd: RawFd, socket: Socket, events: u32, data: u64) {
        self.sockets().insert(fd, Member { socket, events, data, told: None, off: false });
        self.waiters.wake(None);
    }

    /// Whether a socket is in the set.
    #[must_use]
    pub fn contains(&self, fd: RawFd) -> bool {
        self.sockets().contains_key(&fd)
    }

    /// Removes a socket. Returns whether it was in the set.
    pub fn remove(&self, fd: RawFd) -> bool {
        self.sockets().remove(&fd).is_some()
    }

    /// Waits for events, and returns at most `most` of them, each with the data that was given with the socket. Descriptors
    /// that are not rsockets are added by the program itself to the epoll instance ([`AsFd`]).
    ///
    /// # Errors
    /// [`SocketError::Interrupted`], [`SocketError::System`].
    pub fn wait(&self, most: usize, timeout: Option<Duration>) -> Result<Vec<(u32, u64)>, SocketError> {
        let until = Until::within(timeout);
        let found = self.look_at_all(most)?;
        if !found.is_empty() || until.is_over() {
            return Ok(found);
        }
        let entered = Entered::new(&self.waiters);
        let waiter = &entered.waiter;
        loop {
            let sockets: Vec<Socket> = self
                .sockets()
                .values()
                .filter(|member| !member.off)
                .map(|member| member.socket.clone())
                .collect();
            let (_asleep, armed) = Asleep::beside(waiter, &sockets);
            let found = self.look_at_all(most)?;
            if !found.is_empty() || until.is_over() {
                return Ok(found);
            }
            let mut watched: Vec<_> = armed.into_iter().map(readable).collect();
            watched.extend([waiter.pollfd(), readable(self.others.0.as_raw_fd())]);
            sleep(&mut watched, until, &sockets, waiter)?;
        }
    }

    fn look_at_all(&self, most: usize) -> Result<Vec<(u32, u64)>, SocketError> {
        let mut found = Vec::new();
        if self.others_first.swap(false, Ordering::Relaxed) {
            self.look_at_others(most, &mut found)?;
            self.look(most, &mut found);
        } else {
            self.look(most, &mut found);
            self.look_at_others(most, &mut found)?;
        }
        Ok(found)
    }

    fn look(&self, most: usize, found: &mut Vec<(u32, u64)>) {
        let mut sockets = self.sockets();
        let last = self.last.load(Ordering::Relaxed);
        for part in [(Bound::Excluded(last), Bound::Unbounded), (Bound::Unbounded, Bound::Included(last))] {
            for (fd, member) in sockets.range_mut(part).filter(|(_, member)| !member.off) {
                if found.len() >= most {
                    return;
                }
                if let Some(ready) = member.report() {
                    found.push((ready as u16 as u32, member.data));
                    self.last.store(*fd, Ordering::Relaxed);
                }
            }
        }
    }

    fn look_at_others(&self, most: usize, found: &mut Vec<(u32, u64)>) -> Result<(), SocketError> {
        let room = most.saturating_sub(found.len()).min(1024);
        if room == 0 {
            self.others_first.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let mut events = vec![EpollEvent::empty(); room];
        match self.others.wait(&mut events, EpollTimeout::ZERO) {
            Ok(count) => {
                found
                    .extend(events[..count].iter().map(|event| (event.events().bits() as u32, event.data())));
                Ok(())
            }
            Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(SocketError::system("wait for an epoll instance", error)),
        }
    }
}

impl AsFd for PollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.others.0.as_fd()
    }
}
