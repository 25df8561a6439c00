//! The state of an agent: its ids, and the machines of their connections and lookups.

use super::{Agreed, Turn, services::Services, timers::Timers, unheard::Unheard};
use crate::{
    channel::Queue,
    error::CmError,
    event::{CmEvent, EventKind, Place as BacklogPlace},
    id::{CmId, CmOptions, Inner},
    proto::{
        CommId, PortSpace, ServiceId,
        machine::{Connection, Directory, Request, SidrRequester, SidrResponder, State as MachineState},
    },
    route::{PathRecord, Way},
};
use core::net::IpAddr;
use rxe_core::time::Instant;
use rxe_verbs::{Context, LinkState, Qkey, Qp, QpType};
use slab::Slab;
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Weak, atomic::AtomicUsize},
};

/// What has a deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Key {
    Connection(CommId),
    Lookup(CommId),
    Answer(IpAddr, CommId),
}

/// Everything behind the agent's lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) ids: Slab<Id>,
    pub(super) directory: Directory,
    pub(super) connections: HashMap<CommId, Side>,
    /// Connections that were refused, the oldest first. Some of them are gone.
    pub(super) refused: VecDeque<CommId>,
    pub(super) lookups: HashMap<CommId, Lookup>,
    pub(super) answers: HashMap<(IpAddr, CommId), Answer>,
    /// Lookups that were answered, the oldest first. Some of them are gone.
    pub(super) answered: VecDeque<(IpAddr, CommId)>,
    pub(crate) services: Services,
    /// Ports of clients that are not bound, and whose they are. They are names only: nobody can connect to them.
    pub(crate) sources: HashMap<ServiceId, usize>,
    pub(super) timers: Timers<Key>,
    /// Places in the record of connections that outlives the process.
    pub(super) records: Slab<()>,
    pub(super) bucket: Bucket,
    pub(super) unheard: Unheard,
}

/// The agent's part of an id.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) handle: Weak<Inner>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) space: PortSpace,
    /// The service ID, if the id is not for a port ([`CmId::name_service`]).
    pub(crate) named: Option<ServiceId>,
    pub(crate) qp_type: QpType,
    pub(crate) options: CmOptions,
    /// Set by [`Self::enter_device`].
    pub(crate) context: Option<Context>,
    /// The MAC address of its device when the program was last told of one.
    pub(super) mac: Option<[u8; 6]>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) path: Option<PathRecord>,
    /// The queue pair that the agent moves through its states.
    pub(crate) qp: Option<Arc<Qp>>,
    /// What both sides of the connection have agreed on.
    pub(crate) agreed: Option<Agreed>,
    /// Whether it has asked for a datagram service, or was made by a request for one.
    pub(crate) had_service: bool,
    pub(crate) qkey: Option<Qkey>,
    pub(crate) exchange: Exchange,
    /// Whether it was made by a request that the program has not accepted.
    pub(crate) unaccepted: bool,
    /// Its port, and the host service's token for it.
    pub(crate) claim: Option<(ServiceId, Option<u32>)>,
    pub(crate) listening: Option<Listening>,
    pub(crate) groups: Vec<IpAddr>,
}

impl Id {
    pub(crate) fn new(handle: Weak<Inner>, queue: Arc<Queue>, space: PortSpace, qp_type: QpType) -> Self {
        Self {
            handle,
            queue,
            space,
            named: None,
            qp_type,
            options: CmOptions::default(),
            context: None,
            mac: None,
            local: None,
            peer: None,
            path: None,
            qp: None,
            agreed: None,
            had_service: false,
            qkey: None,
            exchange: Exchange::None,
            unaccepted: false,
            claim: None,
            listening: None,
            groups: Vec::new(),
        }
    }

    /// The service ID of a port of this id.
    pub(crate) fn service(&self, port: u16) -> ServiceId {
        self.named.unwrap_or_else(|| ServiceId::new(self.space, port))
    }

    /// Binds the id to this device.
    pub(crate) fn enter_device(&mut self, context: Option<Context>) {
        self.mac = context.as_ref().and_then(|context| context.link_state().mac);
        self.context = context;
    }

    /// The error for a call that the id's state does not allow.
    pub(crate) fn refuse(&self, action: &'static str) -> CmError {
        match self.exchange {
            Exchange::Removed => CmError::Removed(action),
            _ => CmError::State { action, state: self.doing() },
        }
    }

    /// What the id is doing, in words for error messages.
    const fn doing(&self) -> &'static str {
        match (&self.exchange, &self.listening) {
            (_, Some(_)) => "listens",
            (Exchange::Connection(_), _) => "has a connection",
            (Exchange::Lookup(_) | Exchange::Answer(..), _) => "resolves a datagram service",
            (Exchange::Removed, _) => "has lost its device",
            (Exchange::None, _) if self.path.is_some() => "knows its route",
            (Exchange::None, _) if self.peer.is_some() => "knows its peer's address",
            (Exchange::None, _) if self.local.is_some() => "is bound",
            (Exchange::None, _) => "is new",
        }
    }
}

/// The machine of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exchange {
    None,
    Connection(CommId),
    Lookup(CommId),
    Answer(IpAddr, CommId),
    /// Its device was removed.
    Removed,
}

/// A listener's backlog.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) limit: usize,
    pub(crate) taken: Arc<AtomicUsize>,
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) machine: Connection,
    /// How messages reach the peer.
    pub(crate) way: Way,
    /// The id. `None` once it is destroyed.
    pub(crate) owner: Option<usize>,
    /// What the peer asked for (passive side).
    pub(crate) request: Option<Box<Request>>,
    /// Whether it has been established.
    pub(crate) stood: bool,
    /// Whether it is, or was, in [`State::refused`].
    pub(super) refused: bool,
    /// Whether the program was told that it has ended.
    pub(crate) end_told: bool,
    pub(super) timer: Option<Instant>,
    pub(super) record: Option<usize>,
}

/// A datagram service being looked up.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) machine: SidrRequester,
    pub(super) way: Way,
    pub(super) owner: Option<usize>,
    pub(super) timer: Option<Instant>,
}

/// An answer to a peer that looks up one of our services.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) machine: SidrResponder,
    pub(super) way: Way,
    pub(super) owner: Option<usize>,
    pub(super) timer: Option<Instant>,
}

/// How many answers to messages of unknown connections may still leave.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    spent: u64,
    since: Instant,
}

impl Bucket {
    const PER_SECOND: u64 = 1000;

    pub(super) fn take(&mut self, now: Instant) -> bool {
        if now.since(self.since).as_secs() > 0 {
            *self = Self { spent: 0, since: now };
        }
        self.spent += 1;
        self.spent <= Self::PER_SECOND
    }
}

impl State {
    /// Whether an id of this process has the port.
    pub(crate) fn has_port(&self, port: ServiceId) -> bool {
        self.sources.contains_key(&port) || self.services.of(port).next().is_some()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().into_iter().chain(self.unheard.deadline()).min()
    }

    /// Whether nothing waits for an answer. Only TIMEWAIT and answers that are kept for repeated requests may be left.
    pub(super) fn is_quiet(&self) -> bool {
        let waits = |side: &Side| {
            !matches!(
                side.machine.state(),
                MachineState::TimeWait | MachineState::Refused | MachineState::Closed
            )
        };
        !self.connections.values().any(waits)
    }
}

impl Turn<'_> {
    /// Puts an event of an id into its channel.
    pub(crate) fn emit(&mut self, id: usize, kind: EventKind, private_data: &[u8]) {
        let Some(entry) = self.state.ids.get(id) else { return };
        if entry.unaccepted && entry.queue.is_after_accept() {
            return;
        }
        let Some(handle) = entry.handle.upgrade() else { return };
        let private_data = private_data.into();
        entry.queue.push(CmEvent { id: CmId::from(handle), listener: None, kind, private_data, place: None });
    }

    /// Reports a request to a listener. `child` is the new id for it.
    pub(super) fn emit_request(
        &mut self,
        (listener, child): (usize, CmId),
        kind: EventKind,
        private_data: &[u8],
        place: BacklogPlace,
    ) {
        let Some(entry) = self.state.ids.get(listener) else { return };
        let Some(handle) = entry.handle.upgrade() else { return };
        let event = CmEvent {
            id: child,
            listener: Some(CmId::from(handle)),
            kind,
            private_data: private_data.into(),
            place: Some(place),
        };
        entry.queue.push(event);
    }

    /// Destroys ids whose last handle was dropped.
    pub(super) fn bury(&mut self) {
        loop {
            let graves = core::mem::take(&mut *super::lock(&self.agent.graveyard));
            if graves.is_empty() {
                return;
            }
            for id in graves {
                self.destroy(id);
            }
        }
    }

    /// Destroys an id (rdma_destroy_id). Its connection or lookup is given up, and its port is free.
    fn destroy(&mut self, id: usize) {
        if let Some(mut entry) = self.state.ids.try_remove(id) {
            self.strip(id, &mut entry, Exchange::None);
        }
    }

    /// Releases what an id holds: its port, its connection or lookup, its multicast groups.
    fn strip(&mut self, id: usize, entry: &mut Id, left: Exchange) {
        if let Some((service, token)) = entry.claim.take() {
            self.state.services.remove(service, id);
            if let (Some(port), Some(token)) = (self.agent.home.host_port(), token) {
                port.unlisten(token);
            }
        }
        if let Some(local) = entry.local {
            let source = ServiceId::new(entry.space, local.port());
            if self.state.sources.get(&source) == Some(&id) {
                self.state.sources.remove(&source);
            }
        }
        match core::mem::replace(&mut entry.exchange, left) {
            Exchange::None | Exchange::Removed => {}
            Exchange::Connection(comm_id) => {
                let now = self.now;
                if let Some(side) = self.state.connections.get_mut(&comm_id) {
                    side.owner = None;
                    side.machine.abandon(now);
                }
                self.settle(comm_id);
            }
            Exchange::Lookup(request_id) => self.forget_lookup(request_id),
            Exchange::Answer(peer, request_id) => self.orphan_answer(peer, request_id),
        }
        if let Some(qp) = &entry.qp {
            for group in entry.groups.drain(..) {
                // The agent attached the queue pair. The program may have detached or destroyed it since.
                let _ = qp.detach_multicast(group.into());
            }
        }
    }

    /// Reports changes of the interfaces below devices to the ids. It does as rdma_cm does (Linux, cma.c): an id on a device that is removed
    /// loses everything that it holds. Ids for all addresses are on no device.
    pub(super) fn follow_network(&mut self) {
        let mut told: Vec<(usize, LinkState)> = Vec::new();
        for (key, id) in &self.state.ids {
            let Some(context) = id.context.as_ref().filter(|_| id.exchange != Exchange::Removed) else {
                continue;
            };
            let link = context.link_state();
            if !link.present || link.mac != id.mac {
                told.push((key, link));
            }
        }
        for (key, link) in told {
            let Some(id) = self.state.ids.get_mut(key) else { continue };
            id.mac = link.mac;
            if link.present {
                self.emit(key, EventKind::AddrChange, &[]);
                continue;
            }
            id.listening = None;
            // A blank id is in its place meanwhile, so that what follows causes no events.
            let blank = Id::new(Weak::new(), Arc::clone(&id.queue), id.space, id.qp_type);
            let mut entry = core::mem::replace(id, blank);
            self.strip(key, &mut entry, Exchange::Removed);
            if let Some(id) = self.state.ids.get_mut(key) {
                *id = entry;
            }
            self.emit(key, EventKind::DeviceRemoval, &[]);
        }
    }

    /// Runs timers that are due.
    pub(super) fn handle_timeouts(&mut self) {
        self.refuse_waiting();
        while let Some(key) = self.state.timers.take_passed(self.now) {
            match key {
                Key::Connection(comm_id) => self.handle_connection_timeout(comm_id),
                Key::Lookup(request_id) => self.handle_lookup_timeout(request_id),
                Key::Answer(peer, request_id) => self.handle_answer_timeout(peer, request_id),
            }
        }
    }
}
