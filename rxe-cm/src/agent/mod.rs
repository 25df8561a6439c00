//! The agent of a port: queue pair 1, the machines that use it, their timers, and a thread that receives messages and runs timers.
//!
//! All state is behind one lock. A thread that holds it has a [`Turn`]. Messages of the machines leave within the turn, and their events
//! go to the event channels. Lock order: list of agents, state, event channel or shard.

mod arrival;
mod connections;
mod datagrams;
mod gsi;
mod manager;
mod qp;
mod services;
mod state;
mod timers;
mod unheard;

use crate::{
    error::CmError,
    proto::{CommId, Datagram, Guid},
    route::{Policy, Way, gid_index},
};
use core::{
    fmt,
    net::IpAddr,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};
use gsi::{Gsi, Inbox};
use rxe_core::time::Instant;
use rxe_verbs::{Context, Device, NetworkWatch};

use std::{
    hash::{BuildHasher, RandomState},
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError},
    time,
};

pub(crate) use arrival::transaction;
pub(crate) use manager::Handle;
pub use manager::{Manager, ManagerCounters};
pub use qp::min_rnr_timer;
pub(crate) use qp::{Agreed, answers, asks, init};
pub(crate) use services::{Claim, Place, Taken};
pub(crate) use state::{Exchange, Id, Listening, State};

/// How long the thread sleeps at most. Nothing depends on it; it bounds the harm of a lost wake-up.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// How long an agent without handles goes on, so that its last messages are sent and answered.
const FAREWELL: Duration = Duration::from_secs(3);

/// A message of the connection manager that was sent or received, as [`Manager::watch`] shows it.
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    /// Since the manager was made.
    pub time: Duration,
    /// Which way it goes.
    pub direction: Direction,
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
    /// The message.
    pub datagram: Datagram,
}

/// Which way a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To the peer.
    Sent,
    /// From the peer.
    Received,
}

type Watcher = Arc<dyn Fn(&Crossing) + Send + Sync>;

/// One per port and process.
pub(crate) struct Agent {
    gsi: Gsi,
    /// What it was made from.
    pub(crate) home: Context,
    /// Whether it serves all devices of the host, and not only the one from which it was made.
    system: bool,
    contexts: Mutex<Vec<Context>>,
    /// Readable when the network has changed. `None` if no descriptor was left for it.
    network: Option<NetworkWatch>,
    policy: Policy,
    state: Mutex<State>,
    /// Ids whose last handle was dropped while another thread held the state.
    graveyard: Mutex<Vec<usize>>,
    /// Number of handles.
    users: AtomicUsize,
    /// Its thread has ended, or is about to.
    retired: AtomicBool,
    /// When the thread will wake up by itself, in nanoseconds.
    wakes_at: AtomicU64,
    /// Seed of the random numbers, and how many were drawn.
    random: (RandomState, AtomicU64),
    /// Where no host service makes queue pair numbers unique, each process is a channel adapter of its own.
    own_guid: Option<Guid>,
    watcher: RwLock<Option<Watcher>>,
    watched: AtomicBool,
    counters: manager::Counters,
    started: time::Instant,
    /// Generation of the process that made it ([`rxe_verbs::forks`]).
    process: u32,
    /// The last field, so that it is dropped after all others: queue pair 1 is free then.
    life: Arc<()>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("home", &self.home)
            .field("system", &self.system)
            .finish_non_exhaustive()
    }
}

/// The agent and its locked state.
pub(crate) struct Turn<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) state: &'a mut State,
    pub(crate) now: Instant,
}

impl Agent {
    /// The time.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A random number.
    pub(crate) fn random(&self) -> u64 {
        self.random.0.hash_one(self.random.1.fetch_add(1, Ordering::Relaxed))
    }

    /// A random communication ID. Its top byte names the process, where several share the port.
    fn random_comm_id(&self) -> CommId {
        let random = self.random() as u32;
        match self.home.host_port() {
            Some(port) => CommId(u32::from(port.slot()) << 24 | random >> 8),
            None => CommId(random),
        }
    }

    /// The channel adapter that has `context`'s device.
    pub(crate) fn guid(&self, context: &Context) -> Guid {
        self.own_guid.unwrap_or_else(|| Guid(u64::from_be_bytes(context.device().guid())))
    }

    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether it serves every device of the host.
    pub(crate) const fn is_system(&self) -> bool {
        self.system
    }

    /// The device that has `address`, opened.
    pub(crate) fn context_of(&self, address: IpAddr) -> Result<Context, CmError> {
        self.context_at(address, 0)
    }

    /// The same. Several interfaces may have the same link-local address. If `scope` is not 0, it is the index of the one that is meant.
    pub(crate) fn context_at(&self, address: IpAddr, scope: u32) -> Result<Context, CmError> {
        let is_any = scope == 0 || !matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let is_meant = |device: &Device| is_any || device.interface().index == scope;
        let mut contexts = lock(&self.contexts);
        let mut meant = contexts.iter().filter(|context| is_meant(context.device()));
        if let Some(context) = meant.find(|context| gid_index(context, address).is_some()) {
            return Ok(context.clone());
        }
        if !self.system {
            return Err(CmError::NotLocal(address));
        }
        let device = match is_any {
            true => Device::of_address(address).ok(),
            false => rxe_verbs::devices().unwrap_or_default().into_iter().find(is_meant),
        };
        let device = device.ok_or(CmError::NotLocal(address))?;
        let context = Context::open(&device)?;
        if gid_index(&context, address).is_none() || !context.shares_port_with(&self.home) {
            return Err(CmError::NotLocal(address));
        }
        contexts.push(context.clone());
        Ok(context)
    }

    /// Calls `work` with the locked state.
    ///
    /// # Errors
    /// [`CmError::Forked`] in a forked child of the process that made it: the thread does not run there, and the lock may be held for
    /// ever. Otherwise the error of `work`.
    pub(crate) fn act<R>(
        &self,
        work: impl FnOnce(&mut Turn<'_>) -> Result<R, CmError>,
    ) -> Result<R, CmError> {
        if self.process != rxe_verbs::forks() {
            return Err(CmError::Forked);
        }
        let mut state = lock(&self.state);
        let mut turn = Turn { agent: self, state: &mut state, now: self.now() };
        turn.bury();
        let result = work(&mut turn);
        turn.bury();
        self.release(state);
        self.bury_soon();
        result
    }

    /// Releases the lock. The thread may be about to sleep longer than until the new first deadline, and is woken then.
    fn release(&self, state: MutexGuard<'_, State>) {
        let due = state.next_deadline();
        drop(state);
        if due.is_some_and(|due| due.nanos() < self.wakes_at.load(Ordering::Acquire)) {
            self.gsi.interrupt();
        }
    }

    /// The last handle of an id was dropped.
    pub(crate) fn abandon(&self, id: usize) {
        if self.process == rxe_verbs::forks() {
            lock(&self.graveyard).push(id);
            self.bury_soon();
        }
    }

    /// Destroys ids without handles, if no other thread holds the state. A thread that holds it does this before it lets go.
    fn bury_soon(&self) {
        while !lock(&self.graveyard).is_empty() {
            let Ok(mut state) = self.state.try_lock() else { return };
            Turn { agent: self, state: &mut state, now: self.now() }.bury();
            self.release(state);
        }
    }

    /// Sends a message. If it cannot leave now it counts as lost on the way.
    pub(crate) fn send(&self, way: &Way, datagram: &Datagram) {
        self.tell_watcher(Direction::Sent, way.av.src, way.av.dst, datagram);
        let sent = self.gsi.send(way, &datagram.emit());
        let counter = if sent.is_ok() { &self.counters.sent } else { &self.counters.not_sent };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn tell_watcher(&self, direction: Direction, local: IpAddr, peer: IpAddr, datagram: &Datagram) {
        if !self.watched.load(Ordering::Relaxed) {
            return;
        }
        let watcher = self.watcher.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(watcher) = watcher {
            watcher(&Crossing { time: self.started.elapsed(), direction, local, peer, datagram: *datagram });
        }
    }

    /// The thread's loop, until the agent is not needed any more.
    fn run(self: &Arc<Self>) {
        let mut farewell = None;
        let mut inbox = self.gsi.inbox();
        loop {
            self.look(&mut inbox);
            if self.users.load(Ordering::Acquire) == 0 {
                let since = *farewell.get_or_insert_with(time::Instant::now);
                let quiet = self.act(|turn| Ok(turn.state.is_quiet())).unwrap_or(true);
                if (quiet || since.elapsed() >= FAREWELL) && manager::retire(self) {
                    return;
                }
            } else {
                farewell = None;
            }
            let longest = if farewell.is_some() { FAREWELL / 30 } else { LONGEST_SLEEP };
            self.sleep(&mut inbox, longest);
        }
    }

    /// Handles what has arrived, and runs timers that are due.
    fn look(&self, inbox: &mut Inbox<'_>) {
        loop {
            let mut arrivals = Vec::new();
            let more = inbox.receive(&mut |arrival| arrivals.push(arrival));
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(state)) => state.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    inbox.step_aside();
                    lock(&self.state)
                }
            };
            let mut turn = Turn { agent: self, state: &mut state, now: self.now() };
            turn.bury();
            if self.network.as_ref().is_some_and(NetworkWatch::take) {
                turn.follow_network();
                // It is opened again if its interface comes back.
                lock(&self.contexts).retain(|context| context.link_state().present);
            }
            for arrival in arrivals {
                turn.handle_arrival(&arrival);
            }
            turn.handle_timeouts();
            turn.bury();
            drop(state);
            self.bury_soon();
            if !more {
                return;
            }
        }
    }

    fn sleep(&self, inbox: &mut Inbox<'_>, longest: Duration) {
        // This is set under the lock, so that a thread which sets an earlier deadline later sees how long this thread will sleep.
        let state = lock(&self.state);
        let now = self.now();
        let limit = now + longest;
        let due = state.next_deadline().map_or(limit, |due| due.min(limit));
        self.wakes_at.store(due.nanos(), Ordering::Release);
        drop(state);
        // An id whose last handle was dropped meanwhile waits for us. If this sets an earlier deadline, the sleep ends at once.
        self.bury_soon();
        let left = due.since(now);
        if !left.is_zero() {
            inbox.wait(left, self.network.as_ref().map(AsFd::as_fd));
        }
        self.wakes_at.store(0, Ordering::Release);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{channel::EventChannel, proto::PortSpace};
    use rxe_verbs::net::InprocNet;

    /// Its last handle is dropped while another thread holds the state.
    #[test]
    fn whoever_holds_the_state_buries_what_is_dropped_meanwhile() {
        let context = Context::open_inproc(&InprocNet::new(), &["10.0.0.1".parse().unwrap()]).unwrap();
        let manager = Manager::on(&context).unwrap();
        let channel = EventChannel::new().unwrap();
        let agent = &manager.0.agent;
        let sleep = || agent.sleep(&mut agent.gsi.inbox(), Duration::ZERO);
        let count = || _ = manager.connections();
        for hold in [&sleep as &dyn Fn(), &count] {
            let id = manager.create_id(&channel, PortSpace::Tcp).unwrap();
            let state = lock(&agent.state);
            drop(id);
            assert_eq!((state.ids.len(), lock(&agent.graveyard).len()), (1, 1));
            drop(state);
            hold();
            assert_eq!(lock(&agent.state).ids.len(), 0);
        }
    }
}
