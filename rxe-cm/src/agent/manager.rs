//! Managers, which are the programs' handles of agents, and the list of agents.

use super::{Agent, Crossing, State, gsi::Gsi};
use crate::{error::CmError, proto::Guid, route::Policy};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use rxe_verbs::{Context, Device, PerProcess, host::HostConfig};
use std::{
    hash::RandomState,
    sync::{Arc, Mutex, PoisonError, RwLock, Weak},
    thread, time,
};

/// A manager is not started before the port's last one has given queue pair 1 back: it looks in pauses of this length, so many at most.
const PAUSE: time::Duration = time::Duration::from_millis(1);
const MOST_PAUSES: usize = 5000;

/// The agents of this process, one for each port. Agents that only finish their last messages are on the list, too, and those that have
/// retired until they are gone.
static AGENTS: PerProcess<Vec<Listed>> = PerProcess::new(Vec::new);

#[derive(Debug)]
struct Listed {
    agent: Weak<Agent>,
    /// Alive until everything else of the agent is dropped.
    life: Weak<()>,
}

/// The connection manager of a port. It makes ids. Clones are the same manager. When the last clone and all ids are dropped,
/// connections that are still established are ended on the wire.
#[derive(Clone, Debug)]
pub struct Manager(pub(crate) Arc<Handle>);

/// A handle that keeps an agent at work.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) agent: Arc<Agent>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of messages. Duplicates that were answered count as received only.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct ManagerCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            fn read(&self) -> ManagerCounters {
                ManagerCounters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl ManagerCounters {
            /// Every counter with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Sent.
    sent,
    /// Lost because queue pair 1's send queue was full.
    not_sent,
    /// Received, of whatever kind.
    received,
    /// Dropped: not from queue pair 1, or no message of the connection manager.
    malformed,
    /// For an unknown connection.
    unknown,
    /// Not expected in the state of their connection, or repeated without need.
    ignored,
    /// Requests that were refused without asking the program: no id listens, or their fields make no sense.
    refused,
    /// Requests left without an answer because the listener's backlog, or our memory for connections, was full.
    backlog_full,
    /// Messages about unknown connections left without an answer because there were too many.
    rate_limited,
}

impl Manager {
    /// The connection manager of all devices of this host (in this network namespace).
    ///
    /// # Errors
    /// [`CmError::Open`] if there is no device or the configuration is wrong. [`CmError::Gsi`] if other code of this process uses queue
    /// pair 1.
    pub fn open() -> Result<Self, CmError> {
        Self::start(&Context::open(&Device::first()?)?, true)
    }

    /// The connection manager of one device only.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn on(context: &Context) -> Result<Self, CmError> {
        Self::start(context, false)
    }

    fn start(context: &Context, system: bool) -> Result<Self, CmError> {
        let process = rxe_verbs::forks();
        let of_port = |agent: &Arc<Agent>| agent.process == process && agent.home.shares_port_with(context);
        let is_leaving = |listed: &Listed| match listed.agent.upgrade() {
            Some(agent) => of_port(&agent) && agent.retired.load(Ordering::Acquire),
            None => true,
        };
        let mut agents = AGENTS.lock();
        for _ in 0..MOST_PAUSES {
            agents.retain(|listed| listed.life.strong_count() > 0);
            if !agents.iter().any(is_leaving) {
                break;
            }
            drop(agents);
            thread::sleep(PAUSE);
            agents = AGENTS.lock();
        }
        if let Some(agent) = agents.iter().filter_map(|listed| listed.agent.upgrade()).find(of_port) {
            if agent.system != system {
                let text = "this process has a connection manager on this port already, for other devices";
                return Err(CmError::Argument(text.to_owned()));
            }
            agent.users.fetch_add(1, Ordering::AcqRel);
            return Ok(Self(Arc::new(Handle { agent })));
        }
        // The host service may be embedded in this process.
        crate::host::attend_services();
        let config = HostConfig::load().map_err(|error| CmError::Argument(error.to_string()))?;
        let random = RandomState::new();
        let agent = Arc::new(Agent {
            gsi: Gsi::open(context)?,
            home: context.clone(),
            system,
            contexts: Mutex::new(vec![context.clone()]),
            network: context.watch_network().ok(),
            policy: Policy::new(&config),
            state: Mutex::new(State::default()),
            graveyard: Mutex::default(),
            users: AtomicUsize::new(1),
            retired: AtomicBool::new(false),
            wakes_at: AtomicU64::new(0),
            own_guid: context.host_port().is_none().then(|| random_guid(&random)),
            random: (random, AtomicU64::new(1)),
            watcher: RwLock::default(),
            watched: AtomicBool::new(false),
            counters: Counters::default(),
            started: time::Instant::now(),
            process,
            life: Arc::default(),
        });
        let work = Arc::clone(&agent);
        thread::Builder::new()
            .name("rxe-cm".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || work.run())
            .map_err(|source| CmError::System { action: "start a thread", source })?;
        agents.push(Listed { agent: Arc::downgrade(&agent), life: Arc::downgrade(&agent.life) });
        Ok(Self(Arc::new(Handle { agent })))
    }

    /// The counters of messages so far.
    #[must_use]
    pub fn counters(&self) -> ManagerCounters {
        self.0.agent.counters.read()
    }

    /// Number of connections, those in TIMEWAIT included. A forked child has none.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.0.agent.act(|turn| Ok(turn.state.connections.len())).unwrap_or(0)
    }

    /// Calls `watcher`, in place of an earlier watcher, for every message that is sent or received. It is called under the agent's lock, so
    /// it must be quick and must not use the manager.
    pub fn watch(&self, watcher: impl Fn(&Crossing) + Send + Sync + 'static) {
        let agent = &self.0.agent;
        *agent.watcher.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(watcher));
        agent.watched.store(true, Ordering::Relaxed);
    }
}

/// A random EUI-64 with the bit for local administration.
fn random_guid(random: &RandomState) -> Guid {
    use std::hash::BuildHasher as _;
    let mut bytes = random.hash_one(std::process::id()).to_be_bytes();
    bytes[0] = bytes[0] & !1 | 2;
    Guid(u64::from_be_bytes(bytes))
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.agent.users.fetch_sub(1, Ordering::AcqRel) == 1 && self.agent.process == rxe_verbs::forks() {
            self.agent.gsi.interrupt();
        }
    }
}

/// Marks an agent without handles as retired. False if it has a handle again by now.
pub(super) fn retire(agent: &Agent) -> bool {
    let _agents = AGENTS.lock();
    let retires = agent.users.load(Ordering::Acquire) == 0;
    agent.retired.store(retires, Ordering::Release);
    retires
}
