//! The host service: a process of the host, or a thread of one, that hands out slots of port 4791 and their sockets. Packets of
//! connections do not pass through it: each client sends and receives by its own sockets.
//!
//! The service itself
//! * receives for slot 0: connection requests, which it hands to the process that listens, and packets that belong to no process;
//! * notices when clients die, empties their sockets, and lets their slots rest;
//! * keeps the steering program attached to the sockets.
//!
//! If the service dies, nothing stops. Sockets and state are in the vault (`host/vault.rs`). The next client that notices starts
//! another service, which goes on from that state.

mod admission;
mod answers;
mod ask;
mod clients;
mod courier;
mod departed;
mod direct;
mod journal;
mod ledger;
mod mads;
mod packets;
mod presence;
mod reload;
mod share;
mod succession;
#[cfg(test)]
mod tests;
mod unheard;
mod whose;

use super::{
    config::HostConfig,
    group::Group,
    habits::Habits,
    listeners::Listeners,
    name::{NAME, connect_by_file, file},
    peers::Peers,
    records::Register,
    report::{Exchanged, ServiceCounters},
    slots::{Slot, Slots},
    vault::{DepositRef, Vault},
};
use crate::{
    net::{BufferSize, GroupSockets, OpenError, RecvBatch, UdpConfig, UdpLink, port_is_ours},
    sys::{
        kept::Kept,
        socket::Event,
        unix::{Channel, Listener, out_of_the_way},
    },
    trust::is_nobody_in_particular,
};
use admission::no_steering;
use ask::Asks;
use clients::Client;
use courier::Courier;
use direct::Direct;
use journal::Journal;
use ledger::Ledger;
use mads::Mads;
use nix::{
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        resource::{Resource, getrlimit, setrlimit},
    },
    unistd::geteuid,
};
use packets::Probes;
use presence::Presences;
use rxe_core::wire::IdentTracker;
use slab::Slab;
use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};
use unheard::Unheard;

/// Time between two calls of [`Service::tick`].
const TICK: Duration = Duration::from_secs(1);
/// How long a service that found the port in use waits for the programs that use it to come back.
const REUNION: Duration = Duration::from_secs(3);
/// How often to try to connect to a service that has its name but does not listen yet, with a pause before each try but the first.
/// Tries are counted instead of time: if the machine stops meanwhile, time passes for the one that tries but not for the service.
const LOOKS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(5);

/// Why a service could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// A host service is running already in this network namespace.
    #[error("a host service is running already (in this network namespace)")]
    Running,
    /// Another user's process has the service's name, and the port is in use.
    #[error(
        "the rxe host service of this network namespace belongs to {theirs}, and you are user {ours}: run as that user, use a \
         network namespace of your own, or have it ended"
    )]
    Stranger {
        /// The process that has the name, in words.
        theirs: String,
        /// This process's user.
        ours: u32,
    },
    /// The port cannot be used or shared here although it is free, mostly because of a sandbox.
    #[error("the host service cannot work here: {0}")]
    Unable(OpenError),
    /// The system refused a resource.
    #[error("cannot {action}: {source}")]
    System {
        /// What we were doing.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Where a service runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a process of its own on a terminal. The log is printed.
    Foreground,
    /// In a process of its own.
    Background,
    /// In one of its clients.
    Embedded,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Listener,
    Link,
    Client(usize),
    /// The process of this slot has died.
    Death(u8),
    /// Nothing. The anchor only proves that `epoll` is still the service's own set ([`Service::has_its_own`]).
    Anchor,
}

impl Token {
    const fn number(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Link => 1,
            Self::Client(key) => 2 | (key as u64) << 8,
            Self::Death(slot) => 3 | (slot as u64) << 8,
            Self::Anchor => 4,
        }
    }

    const fn from_number(number: u64) -> Self {
        match number & 0xff {
            0 => Self::Listener,
            1 => Self::Link,
            2 => Self::Client((number >> 8) as usize),
            3 => Self::Death((number >> 8) as u8),
            _ => Self::Anchor,
        }
    }
}

/// What a service uses once it has the port.
#[derive(Debug)]
struct Port {
    group: Group,
    vault: Vault,
    register: Register,
    /// The link of slot 0.
    link: UdpLink,
}

/// A host service.
pub struct Service {
    config: HostConfig,
    place: Place,
    /// `None` once the service is about to end.
    listener: Option<Listener>,
    /// There was no free descriptor for a new connection. The next tick tries again.
    deaf: bool,
    epoll: Epoll,
    /// An event that is in `epoll` and in no other set, see [`Self::has_its_own`].
    anchor: Event,
    port: Option<Port>,
    /// When to stop waiting for programs that use the port, if it is in use.
    reunion: Option<Instant>,
    clients: Slab<Client>,
    slots: Slots,
    /// The processes that have slots.
    presences: Presences,
    listeners: Listeners,
    /// Memory for received packets. `None` while it is in use.
    arrivals: Option<RecvBatch>,
    trackers: HashMap<IpAddr, IdentTracker>,
    /// Which slot was given the connection requests of which peer.
    askers: HashMap<packets::Asker, u8>,
    /// Requests for which no process listens yet.
    unheard: Unheard,
    /// Requests that were handed to all processes.
    answered: whose::Answered,
    probes: Probes,
    asks: Asks,
    mads: Mads,
    ledger: Ledger,
    peers: Peers,
    habits: Habits,
    counters: ServiceCounters,
    /// By slot: counters of packets exchanged since its process joined.
    exchanged: HashMap<u8, Exchanged>,
    journal: Journal,
    courier: Courier,
    direct: Direct,
    uid: u32,
    /// Since when no process needs the service.
    idle_since: Instant,
}

impl core::fmt::Debug for Service {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Service").field("clients", &self.clients.len()).finish_non_exhaustive()
    }
}

impl Service {
    /// Becomes the host service of this network namespace.
    ///
    /// # Errors
    /// [`ServiceError::Running`] if there is one. [`ServiceError::Unable`] if it cannot work in this process; one that is started outside
    /// of this process's sandbox may be able to.
    pub fn start(config: HostConfig, place: Place) -> Result<Self, ServiceError> {
        let failed = |action| move |source| ServiceError::System { action, source };
        let (listener, stranger) = listen().map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ServiceError::Running,
            _ => ServiceError::System { action: "bind the service's name", source },
        })?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| failed("wait for events")(errno.into()))?;
        let epoll = Epoll(out_of_the_way(epoll.0));
        let anchor = Event::new().map_err(failed("make an event counter"))?;
        watch(&epoll, anchor.as_fd(), Token::Anchor).map_err(failed("wait for events"))?;
        let now = Instant::now();
        // The limit of the program around an embedded service is not changed.
        if place != Place::Embedded {
            raise_file_limit();
        }
        let mut service = Self {
            config,
            place,
            listener: Some(listener),
            deaf: false,
            epoll,
            anchor,
            port: None,
            reunion: None,
            clients: Slab::new(),
            slots: Slots::default(),
            presences: Presences::default(),
            listeners: Listeners::default(),
            arrivals: Some(RecvBatch::default()),
            trackers: HashMap::new(),
            askers: HashMap::new(),
            unheard: Unheard::default(),
            answered: whose::Answered::default(),
            probes: Probes::default(),
            asks: Asks::default(),
            mads: Mads::default(),
            ledger: Ledger::default(),
            peers: Peers::default(),
            habits: Habits::default(),
            counters: ServiceCounters::default(),
            exchanged: HashMap::new(),
            journal: Journal::new(now, place),
            courier: Courier::new(),
            direct: Direct::default(),
            uid: geteuid().as_raw(),
            idle_since: now,
        };
        if let Some(listener) = &service.listener {
            watch(&service.epoll, listener.as_fd(), Token::Listener).map_err(failed("wait for events"))?;
        }
        match service.found() {
            Ok(()) => {}
            Err(OpenError::PortHeld { .. }) if stranger.is_some() && !port_is_ours() => {
                let theirs = stranger.unwrap_or_default();
                return Err(ServiceError::Stranger { theirs, ours: service.uid });
            }
            Err(error @ OpenError::PortHeld { .. }) => {
                service
                    .journal
                    .note(&format!("{error}; waiting for programs that used it with an earlier service"));
                service.reunion = Some(now + REUNION);
            }
            // This gives up the name, so that a service can be started outside of the sandbox that this process is in.
            Err(error) => return Err(ServiceError::Unable(error)),
        }
        if let Some(stranger) = stranger {
            service
                .journal
                .note(&format!("{stranger} has the service's name, without the port; found by a file"));
        }
        Ok(service)
    }

    /// Serves until no process has needed it for a while.
    pub fn run(mut self) {
        let mut events = [EpollEvent::empty(); 64];
        let mut tick = Instant::now() + TICK;
        loop {
            let left = tick.saturating_duration_since(Instant::now());
            let left = self.until_last_words().map_or(left, |soon| left.min(soon));
            let left = self.until_refusals().map_or(left, |soon| left.min(soon));
            let left = self.until_late_mads().map_or(left, |soon| left.min(soon));
            let timeout = EpollTimeout::try_from(left).unwrap_or(EpollTimeout::ZERO);
            let count = self.epoll.wait(&mut events, timeout).unwrap_or(0);
            let due = Instant::now() >= tick;
            if !self.has_its_own() || due && !self.has_everybody_s() {
                self.leave();
                return;
            }
            self.send_last_words();
            for event in &events[..count] {
                self.handle(Token::from_number(event.data()), event.events());
            }
            self.refuse_unheard();
            self.end_mads();
            if self.listener.is_none() && !self.is_needed() {
                return;
            }
            if due {
                tick = Instant::now() + TICK;
                if !self.tick() {
                    return;
                }
            }
        }
    }

    /// Whether the descriptors that each turn uses are still the service's. The program around an embedded service may have closed them
    /// (`close_range(2)`), and have opened its own under their numbers.
    fn has_its_own(&self) -> bool {
        // Two epoll sets cannot be told apart by themselves. So the anchor, which only this set has, must be found in it.
        let mut event = EpollEvent::new(EpollFlags::empty(), Token::Anchor.number());
        self.epoll.modify(&self.anchor, &mut event).is_ok()
            && self.listener.as_ref().is_none_or(Listener::is_intact)
            && self.port.as_ref().is_none_or(|port| port.link.is_intact() && port.vault.is_intact())
    }

    /// The same for the descriptors of members and clients.
    fn has_everybody_s(&self) -> bool {
        self.port.as_ref().is_none_or(|port| port.group.is_intact())
            && self.clients.iter().all(|(_, client)| client.channel.is_intact())
            && self.presences.are_intact()
    }

    /// Ends because descriptors are gone. Those that are still the service's are closed, so that clients notice and the next service
    /// finds the name free. Descriptors that now belong to the program are not touched.
    fn leave(self) {
        let Self { epoll, anchor, .. } = self;
        // Nothing depends on closing these two, and they may be the program's by now.
        core::mem::forget((epoll, anchor));
    }

    fn handle(&mut self, token: Token, flags: EpollFlags) {
        match token {
            Token::Listener => self.accept(),
            Token::Link => self.receive(),
            Token::Client(key) => self.hear(key, flags),
            // The process may have left in the same batch of events.
            Token::Death(slot) if self.presences.pidfd(slot).is_none() => {}
            Token::Death(slot) => self.bury(slot),
            Token::Anchor => {}
        }
    }

    /// Does what no event asks for. False if the service has to end.
    fn tick(&mut self) -> bool {
        let now = Instant::now();
        self.hear_again();
        self.look_after_waiting(now);
        self.close_silent(now);
        self.end_asks(now);
        self.release_unwatched(now);
        self.release_departed(now);
        self.examine();
        self.journal.tell_hidden();
        if self.is_needed() {
            self.idle_since = now;
        }
        now.duration_since(self.idle_since) < Duration::from_secs(self.config.service.idle_seconds.into())
    }

    /// Whether a process is connected or has a slot.
    fn is_needed(&self) -> bool {
        !self.clients.is_empty() || self.slots.known().any(|(_, slot)| matches!(slot, Slot::Held(_)))
    }

    /// Takes the port as its first user.
    fn found(&mut self) -> Result<(), OpenError> {
        let group = Group::found()?;
        let system = |action| move |source| OpenError::System { action, source };
        let vault = Vault::new().map_err(system("make a socket pair"))?;
        self.settle(group, vault)?.map_err(no_steering)?;
        self.store();
        Ok(())
    }

    /// Begins to work with the port. The inner result says whether packets can be steered here. Nothing is stored yet: the state that an
    /// earlier service left stays in the vault until the slots are known.
    fn settle(&mut self, mut group: Group, vault: Vault) -> Result<io::Result<()>, OpenError> {
        let own = group.sockets(0)?;
        let copy =
            |fd: &Option<Kept<OwnedFd>>| fd.as_ref().map(|fd| fd.try_clone().map(out_of_the_way)).transpose();
        let system = |action| move |source| OpenError::System { action, source };
        let clones = copy(&own.v4).and_then(|v4| Ok(GroupSockets { v4, v6: copy(&own.v6)? }));
        // The service sends from a source port of its own, as all processes do.
        let config =
            UdpConfig { pool: 1, slots: None, recv_buffer: BufferSize::Largest, ..UdpConfig::default() };
        let register = Register::new().map_err(system("share memory"))?;
        let link = UdpLink::from_sockets(clones.map_err(system("copy a socket"))?, &config)?;
        // Nothing may fail after this: duplicates in other processes keep the sockets in the epoll set.
        for fd in link.sockets() {
            watch(&self.epoll, fd, Token::Link).map_err(system("wait for packets"))?;
        }
        let steered = group.steer();
        self.port = Some(Port { group, vault, register, link });
        self.reunion = None;
        Ok(steered)
    }

    /// Puts the state into the vault for the next service.
    fn store(&mut self) {
        let Some(port) = &mut self.port else { return };
        let fresh = Slot::Fresh;
        let members: Vec<DepositRef<'_>> = port
            .group
            .in_order()
            .into_iter()
            .map(|(slot, sockets)| DepositRef {
                slot,
                state: if slot == 0 { &fresh } else { self.slots.get(slot) },
                v4: sockets.v4.as_ref().map(AsFd::as_fd),
                v6: sockets.v6.as_ref().map(AsFd::as_fd),
                pidfd: self.presences.pidfd(slot),
                records: sockets.records.as_ref().map(AsFd::as_fd),
            })
            .collect();
        let stored = port.vault.store(port.group.families(), &port.register, &members);
        if let Err(error) = stored {
            self.journal.note(&format!("the state for a successor could not be kept: {error}"));
        }
    }
}

/// Takes a name under which clients find the service. Also returns who has the usual name, if that is no service of this user.
///
/// # Errors
/// `AddrInUse`: a service of this user is there.
fn listen() -> io::Result<(Listener, Option<String>)> {
    match Listener::bind(NAME) {
        // There may be a service that did not get this name.
        Ok(listener) => match connect_by_file() {
            Ok(None) => Ok((listener, None)),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        },
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let Some(stranger) = stranger_of_name() else { return Err(error) };
            let path = file().ok_or(error)?;
            Ok((Listener::bind_at(&path)?, Some(stranger)))
        }
        Err(error) => Err(error),
    }
}

/// The process that has the usual name, in words. `None` if it is this user's, or if nothing has the name any more.
fn stranger_of_name() -> Option<String> {
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(PAUSE);
        }
        match Channel::connect(NAME).and_then(|channel| channel.peer()) {
            Ok(peer) if peer.uid == geteuid().as_raw() && !is_nobody_in_particular(peer.uid) => return None,
            Ok(peer) => return Some(format!("user {} (process {})", peer.uid, peer.pid)),
            // A service that starts has its name a moment before it listens. What never listens is no service.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return None,
        }
    }
    Some("somebody who does not answer".to_owned())
}

fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
    Ok(epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token.number()))?)
}

/// Raises the limit of open files to what an ordinary user may have. Each client takes a few descriptors, and those in the vault count,
/// too.
fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard.min(1 << 16).max(soft), hard);
    }
}
