//! Managers: what programs hold of an agent, and the list of agents.

use super::{Agent, Crossing, State, gsi::Gsi, lock};
use crate::{error::CmError, proto::Guid, route::Policy};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use rxe_verbs::{Context, Device, PerProcess, host::HostConfig};
use std::{
    hash::RandomState,
    sync::{Arc, Mutex, PoisonError, RwLock, Weak},
    thread, time,
};

/// Agents of this process, one a port. Also those that only finish their last messages.
static AGENTS: PerProcess<Vec<Weak<Agent>>> = PerProcess::new(Vec::new);

/// The connection manager of a port: makes ids. Clones are the same manager. When the last one is dropped and its ids
/// are, connections that still stand are ended on the wire.
#[derive(Clone, Debug)]
pub struct Manager(pub(crate) Arc<Handle>);

/// What keeps an agent at work.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) agent: Arc<Agent>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What became of messages. Duplicates that were answered count as received only.
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
    /// Received, whatever they were.
    received,
    /// Not from queue pair 1, or no message of the connection manager.
    malformed,
    /// For no connection of ours.
    unknown,
    /// Not expected in the state of their connection, or repeated without need.
    ignored,
    /// Requests that we refused without asking anybody: nobody listens, or they make no sense.
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
    /// [`CmError::Open`] if there is no device or the configuration is wrong, [`CmError::Gsi`] if other code of this
    /// process has queue pair 1.
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
        let mut agents = AGENTS.lock();
        let process = rxe_verbs::forks();
        agents.retain(|agent| agent.strong_count() > 0);
        let of_port = |agent: &Arc<Agent>| agent.process == process && agent.home.shares_port_with(context);
        if let Some(agent) = agents.iter().filter_map(Weak::upgrade).find(of_port) {
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
            wakes_at: AtomicU64::new(0),
            own_guid: context.host_port().is_none().then(|| random_guid(&random)),
            random: (random, AtomicU64::new(1)),
            watcher: RwLock::default(),
            watched: AtomicBool::new(false),
            counters: Counters::default(),
            started: time::Instant::now(),
            process,
        });
        let work = Arc::clone(&agent);
        thread::Builder::new()
            .name("rxe-cm".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || work.run())
            .map_err(|source| CmError::System { action: "start a thread", source })?;
        agents.push(Arc::downgrade(&agent));
        Ok(Self(Arc::new(Handle { agent })))
    }

    /// What became of messages so far.
    #[must_use]
    pub fn counters(&self) -> ManagerCounters {
        self.0.agent.counters.read()
    }

    /// Connections that are not over, TIMEWAIT included.
    #[must_use]
    pub fn connections(&self) -> usize {
        lock(&self.0.agent.state).connections.len()
    }

    /// Shows every message that crosses, as it is sent or received, to `watcher`, instead of to the last watcher. It is
    /// called in the middle of things: it must be quick, and must not use the manager.
    pub fn watch(&self, watcher: impl Fn(&Crossing) + Send + Sync + 'static) {
        let agent = &self.0.agent;
        *agent.watcher.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(watcher));
        agent.watched.store(true, Ordering::Relaxed);
    }
}

/// An EUI-64 that nobody else has, with the local bit.
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

/// Ends an agent that nobody has; false if somebody has come meanwhile.
pub(super) fn retire(agent: &Arc<Agent>) -> bool {
    let mut agents = AGENTS.lock();
    if agent.users.load(Ordering::Acquire) != 0 {
        return false;
    }
    agents.retain(|other| !core::ptr::eq(other.as_ptr(), Arc::as_ptr(agent)));
    true
}
