//! What an agent knows: ids, and the machines of their exchanges.

use super::{Agreed, Place, Taken, Turn, services::Services, timers::Timers, unheard::Unheard};
use crate::{
    channel::Queue,
    error::CmError,
    event::{CmEvent, EventKind, Place as BacklogPlace},
    id::{CmId, CmOptions, ForeignQp, Inner},
    proto::{
        CommId, PortSpace, PrivateData, ServiceId,
        machine::{Connection, Directory, Request, SidrRequester, SidrResponder, State as MachineState},
    },
    route::PathRecord,
};
use core::net::IpAddr;
use rxe_core::time::Instant;
use rxe_verbs::{AddressVector, Context, LinkState, Qkey, Qp, QpType};
use slab::Slab;
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Weak, atomic::AtomicUsize},
};

/// Who waits for a point in time.
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
    pub(super) lookups: HashMap<CommId, Lookup>,
    pub(super) answers: HashMap<(IpAddr, CommId), Answer>,
    pub(super) services: Services,
    pub(super) timers: Timers<Key>,
    /// Places in the record that outlives the process.
    pub(super) records: Slab<()>,
    pub(super) bucket: Bucket,
    pub(super) unheard: Unheard,
}

/// An id, as the agent sees it.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) handle: Weak<Inner>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) space: PortSpace,
    /// The service that it is for, if that is no port ([`CmId::name_service`]).
    pub(crate) named: Option<ServiceId>,
    pub(crate) qp_type: QpType,
    pub(crate) options: CmOptions,
    /// Set by [`Self::enter_device`].
    pub(crate) context: Option<Context>,
    /// The MAC address that it was last told of.
    pub(super) mac: Option<[u8; 6]>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) path: Option<PathRecord>,
    /// The queue pair that it looks after.
    pub(crate) qp: Option<Arc<Qp>>,
    /// The queue pair that the program looks after.
    pub(crate) foreign: Option<ForeignQp>,
    /// What both sides have agreed on.
    pub(crate) agreed: Option<Agreed>,
    pub(crate) qkey: Option<Qkey>,
    pub(crate) exchange: Exchange,
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
            foreign: None,
            agreed: None,
            qkey: None,
            exchange: Exchange::None,
            claim: None,
            listening: None,
            groups: Vec::new(),
        }
    }

    /// The service that it means by a port.
    pub(crate) fn service(&self, port: u16) -> ServiceId {
        self.named.unwrap_or_else(|| ServiceId::new(self.space, port))
    }

    /// It is on this device from now on.
    pub(crate) fn enter_device(&mut self, context: Option<Context>) {
        self.mac = context.as_ref().and_then(|context| context.link_state().mac);
        self.context = context;
    }

    /// Why it cannot do something now.
    pub(crate) fn refuse(&self, action: &'static str) -> CmError {
        match self.exchange {
            Exchange::Removed => CmError::Removed(action),
            _ => CmError::State { action, state: self.doing() },
        }
    }

    /// What it is doing, for error messages.
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

/// Which machine an id has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exchange {
    None,
    Connection(CommId),
    Lookup(CommId),
    Answer(IpAddr, CommId),
    /// Its device has gone.
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
    pub(crate) way: AddressVector,
    /// The id; none once it is destroyed.
    pub(crate) owner: Option<usize>,
    /// What the peer asked for (passive side).
    pub(crate) request: Option<Box<Request>>,
    /// It has stood.
    pub(crate) stood: bool,
    /// The program knows that it has ended.
    pub(crate) end_told: bool,
    pub(super) timer: Option<Instant>,
    pub(super) record: Option<usize>,
}

/// A datagram service being looked up.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) machine: SidrRequester,
    pub(super) way: AddressVector,
    pub(super) owner: Option<usize>,
    pub(super) timer: Option<Instant>,
}

/// An answer to somebody who looks up one of ours.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) machine: SidrResponder,
    pub(super) way: AddressVector,
    pub(super) owner: Option<usize>,
    pub(super) timer: Option<Instant>,
}

/// How many unasked answers may still leave.
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
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().into_iter().chain(self.unheard.deadline()).min()
    }

    /// Whether nothing waits for an answer: what is left is TIMEWAIT and answers kept for repetitions.
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
    /// Tells the program something about an id.
    pub(crate) fn emit(&mut self, id: usize, kind: EventKind, private_data: &[u8]) {
        let Some(entry) = self.state.ids.get(id) else { return };
        let Some(handle) = entry.handle.upgrade() else { return };
        let private_data = private_data.into();
        entry.queue.push(CmEvent { id: CmId::from(handle), listener: None, kind, private_data, place: None });
    }

    /// Tells a listener about a request; `child` is the id for it.
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

    /// Sees to ids whose last handle is gone.
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

    /// Destroys an id (rdma_destroy_id): its exchange is given up, its port is free.
    fn destroy(&mut self, id: usize) {
        if let Some(mut entry) = self.state.ids.try_remove(id) {
            self.strip(id, &mut entry, Exchange::None);
        }
    }

    /// Takes from an id what it has outside of itself: its port, its exchange, its groups.
    fn strip(&mut self, id: usize, entry: &mut Id, left: Exchange) {
        if let Some((service, token)) = entry.claim.take() {
            self.state.services.remove(service, id);
            if let (Some(port), Some(token)) = (self.agent.home.host_port(), token) {
                port.unlisten(token);
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
                // Was attached by us; the queue pair may have gone another way since.
                let _ = qp.detach_multicast(group.into());
            }
        }
    }

    /// Tells ids what has become of the interfaces below their devices. As rdma_cm does it (Linux, cma.c): an id on a device
    /// that goes is stripped of all that it has; those on all addresses are on no device.
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
            // Out of its place meanwhile: nothing that follows from it is told.
            let blank = Id::new(Weak::new(), Arc::clone(&id.queue), id.space, id.qp_type);
            let mut entry = core::mem::replace(id, blank);
            self.strip(key, &mut entry, Exchange::Removed);
            if let Some(id) = self.state.ids.get_mut(key) {
                *id = entry;
            }
            self.emit(key, EventKind::DeviceRemoval, &[]);
        }
    }

    /// Does what is due.
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

    /// A claim of `id` to a port, in this process's list.
    pub(crate) fn claim(
        &mut self,
        id: usize,
        service: ServiceId,
        place: Place,
        reuse: bool,
    ) -> Result<(), Taken> {
        self.state.services.add(service, super::services::Claim { id, place, reuse })
    }

    /// The opposite.
    pub(crate) fn unclaim(&mut self, id: usize, service: ServiceId) {
        self.state.services.remove(service, id);
    }
}

/// Private data without a length: the whole field.
pub(super) const fn whole<const N: usize>(data: &PrivateData<N>) -> &[u8] {
    &data.0
}
