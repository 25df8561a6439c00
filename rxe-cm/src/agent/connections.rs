//! Connections: carries out what their machines want to send and to report, and updates their ids.

use super::{
    Exchange, Turn,
    arrival::PATIENCE,
    state::{Key, Side},
};
use crate::{
    event::{ConnTerms, EventKind, Offer},
    proto::{
        CommId, PrivateData, RejectReason,
        machine::{Accepted, Connection, Ending, Event, Rejection, State as MachineState},
    },
    route::Way,
};
use rxe_verbs::host::records;

/// Most connections, those in TIMEWAIT included. This bounds what a flood of requests can cost.
pub(super) const MOST_CONNECTIONS: usize = 1 << 17;
/// Most refused connections among them. (Linux forgets a request at once when it refuses it.)
const MOST_REFUSED: usize = 1 << 13;

impl Turn<'_> {
    /// A communication ID that no connection has.
    pub(crate) fn claim_comm_id(&mut self) -> Option<CommId> {
        // So few are in use that one of these tries finds a free one.
        (0..1000).map(|_| self.agent.random_comm_id()).find(|comm_id| {
            comm_id.0 != 0
                && !self.state.lookups.contains_key(comm_id)
                && self.state.directory.claim(*comm_id).is_ok()
        })
    }

    /// Adds a new connection.
    pub(crate) fn adopt(&mut self, machine: Connection, way: Way, owner: usize) -> CommId {
        let comm_id = machine.local().comm_id;
        if let Some(peer) = machine.peer() {
            self.state.directory.bind(comm_id, *peer);
        }
        let side = Side {
            machine,
            way,
            owner: Some(owner),
            request: None,
            stood: false,
            refused: false,
            end_told: false,
            timer: None,
            record: None,
        };
        self.state.connections.insert(comm_id, side);
        if let Some(id) = self.state.ids.get_mut(owner) {
            id.exchange = Exchange::Connection(comm_id);
        }
        comm_id
    }

    /// The connection of an id.
    pub(crate) fn side_of(&mut self, id: usize) -> Option<(CommId, &mut Side)> {
        let Exchange::Connection(comm_id) = self.state.ids.get(id)?.exchange else { return None };
        Some((comm_id, self.state.connections.get_mut(&comm_id)?))
    }

    pub(super) fn handle_connection_timeout(&mut self, comm_id: CommId) {
        let now = self.now;
        if let Some(side) = self.state.connections.get_mut(&comm_id) {
            side.timer = None;
            side.machine.handle_timeout(now);
        }
        self.settle(comm_id);
    }

    /// Does what the machine wants. To be called after every call of the machine.
    pub(crate) fn settle(&mut self, comm_id: CommId) {
        loop {
            let Some(side) = self.state.connections.get_mut(&comm_id) else { return };
            while let Some(datagram) = side.machine.poll_transmit() {
                self.agent.send(&side.way, &datagram);
            }
            match side.machine.poll_event() {
                Some(event) => self.handle_event(comm_id, event),
                None => {
                    let refused = side.machine.state() == MachineState::Refused;
                    let over = refused || side.machine.state() == MachineState::TimeWait;
                    if over {
                        // The peer may use its queue pair for another connection.
                        self.state.directory.enter_time_wait(comm_id);
                    }
                    let due = side.machine.poll_timeout();
                    self.state.timers.set(Key::Connection(comm_id), &mut side.timer, due);
                    if over {
                        self.unrecord(comm_id);
                    }
                    if refused {
                        self.note_refused(comm_id);
                    }
                    return;
                }
            }
        }
    }

    /// Keeps a refused connection, so that its REJ can be repeated. If there are too many, the oldest of them is forgotten.
    fn note_refused(&mut self, comm_id: CommId) {
        let Some(side) = self.state.connections.get_mut(&comm_id) else { return };
        if core::mem::replace(&mut side.refused, true) {
            return;
        }
        let refused = &mut self.state.refused;
        refused.push_back(comm_id);
        if refused.len() > MOST_REFUSED
            && let Some(oldest) = refused.pop_front()
            && let Some(side) = self.state.connections.get_mut(&oldest)
        {
            side.machine.forget_refusal();
            self.settle(oldest);
        }
    }

    fn handle_event(&mut self, comm_id: CommId, event: Event) {
        match event {
            Event::Accepted(accepted) => self.on_accepted(comm_id, &accepted),
            Event::Established { private_data, .. } => self.on_established(comm_id, &private_data.0),
            Event::Rejected(rejection) => self.on_rejected(comm_id, &rejection),
            Event::Unreachable => {
                let by = self.state.connections.get(&comm_id).map(|side| side.way.av.gid_type);
                self.tell(comm_id, EventKind::Unreachable(by.unwrap_or_default()), &[]);
            }
            Event::DisconnectRequested(private_data) => {
                // If the RTU was lost, this shows that the peer took the connection for established.
                if let Some(side) = self.state.connections.get_mut(&comm_id) {
                    side.stood = true;
                }
                // It stays on record until the program has answered. If the program dies before that, the host service tells the peer.
                self.tell_end(comm_id, false, &private_data.0);
                if self.owner(comm_id).is_none() {
                    self.abandon(comm_id);
                }
            }
            Event::Disconnected(ending) => {
                self.unrecord(comm_id);
                self.tell_end(comm_id, ending == Ending::TimedOut, &[]);
            }
            Event::Closed => self.on_closed(comm_id),
            // The caller that takes the request reports it. An MRA needs no report.
            Event::Requested(_) | Event::Delayed { .. } => {}
        }
    }

    /// The peer accepts. If the agent moves the queue pair through its states, the connection is established now.
    fn on_accepted(&mut self, comm_id: CommId, accepted: &Accepted) {
        let Some(side) = self.state.connections.get_mut(&comm_id) else { return };
        if let Some(peer) = side.machine.peer() {
            self.state.directory.bind(comm_id, *peer);
        }
        let owner = side.owner;
        let Some((owner, id)) = owner.and_then(|owner| Some((owner, self.state.ids.get_mut(owner)?))) else {
            self.abandon(comm_id);
            return;
        };
        let Some(agreed) = &mut id.agreed else { return };
        agreed.accepted(&accepted.terms, accepted.target_ack_delay);
        let terms = ConnTerms::accepted(accepted);
        let Some(qp) = id.qp.clone() else {
            // The program may fetch the event late, and the peer would give up. The machine is in a state that allows this.
            let _ = side.machine.defer_mra(PATIENCE, PrivateData::default());
            let kind = EventKind::ConnectResponse(terms);
            self.emit(owner, kind, &accepted.private_data.0);
            return;
        };
        let result = Self::connect_qp(&qp, agreed);
        let now = self.now;
        let Some(side) = self.state.connections.get_mut(&comm_id) else { return };
        match result {
            Ok(()) => {
                // The machine is in a state that allows this.
                let _ = side.machine.confirm(PrivateData::default());
                side.stood = true;
                self.record(comm_id);
                let kind = EventKind::Established(Offer::Connection(terms));
                self.emit(owner, kind, &accepted.private_data.0);
            }
            Err(error) => {
                let _ = side.machine.reject(now, Rejection::because(RejectReason::CONSUMER_DEFINED));
                self.emit(owner, EventKind::ConnectError(error), &[]);
            }
        }
    }

    /// The active side is ready, too (RTU).
    fn on_established(&mut self, comm_id: CommId, private_data: &[u8]) {
        let Some(side) = self.state.connections.get_mut(&comm_id) else { return };
        side.stood = true;
        let terms = side.request.as_deref().map(ConnTerms::requested);
        self.record(comm_id);
        if let Some(terms) = terms {
            self.tell(comm_id, EventKind::Established(Offer::Connection(terms)), private_data);
        }
    }

    fn on_rejected(&mut self, comm_id: CommId, rejection: &Rejection) {
        let stood = self.state.connections.get(&comm_id).is_some_and(|side| side.stood);
        if stood {
            self.unrecord(comm_id);
            self.tell_end(comm_id, false, &rejection.private_data.0);
        } else {
            self.tell(comm_id, EventKind::Rejected(rejection.reason), &rejection.private_data.0);
        }
    }

    fn on_closed(&mut self, comm_id: CommId) {
        self.unrecord(comm_id);
        self.state.directory.release(comm_id);
        let Some(mut side) = self.state.connections.remove(&comm_id) else { return };
        self.state.timers.set(Key::Connection(comm_id), &mut side.timer, None);
        let Some(owner) = side.owner else { return };
        if let Some(id) = self.state.ids.get_mut(owner) {
            id.exchange = Exchange::None;
        }
        if side.stood && side.end_told {
            self.emit(owner, EventKind::TimewaitExit, &[]);
        }
    }

    /// Gives a connection up, because its id is destroyed.
    pub(super) fn abandon(&mut self, comm_id: CommId) {
        let now = self.now;
        if let Some(side) = self.state.connections.get_mut(&comm_id) {
            side.machine.abandon(now);
        }
    }

    /// The peer has forgotten a connection. The program is told as if the peer had refused it, unless it is established: then it is ended.
    pub(super) fn forget_stale(&mut self, comm_id: CommId) {
        let stood = self.state.connections.get(&comm_id).is_some_and(|side| side.stood);
        self.abandon(comm_id);
        if !stood {
            self.tell(comm_id, EventKind::Rejected(RejectReason::STALE_CONNECTION), &[]);
        }
        self.settle(comm_id);
    }

    fn owner(&self, comm_id: CommId) -> Option<usize> {
        self.state.connections.get(&comm_id)?.owner
    }

    fn tell(&mut self, comm_id: CommId, kind: EventKind, private_data: &[u8]) {
        if let Some(owner) = self.owner(comm_id) {
            self.emit(owner, kind, private_data);
        }
    }

    /// Reports the end to the program, once.
    fn tell_end(&mut self, comm_id: CommId, unanswered: bool, private_data: &[u8]) {
        let Some(side) = self.state.connections.get_mut(&comm_id) else { return };
        if !core::mem::replace(&mut side.end_told, true) {
            self.tell(comm_id, EventKind::Disconnected { unanswered }, private_data);
        }
    }

    /// Records an established connection where the host service finds it if this process dies.
    pub(crate) fn record(&mut self, comm_id: CommId) {
        let Some(port) = self.agent.home.host_port() else { return };
        let Some(side) = self.state.connections.get_mut(&comm_id) else { return };
        let (Some(peer), Some(local_qpn)) = (side.machine.peer(), side.machine.local_qpn()) else { return };
        let index = self.state.records.vacant_key();
        if side.machine.state() != MachineState::Established
            || side.record.is_some()
            || index >= records::CAPACITY
        {
            return;
        }
        self.state.records.insert(());
        side.record = Some(index);
        let (Way { av, pkey }, local) = (side.way, side.machine.local());
        port.records().set(
            index,
            &records::Connection {
                local_comm_id: local.comm_id.0,
                remote_comm_id: peer.comm_id.0,
                local_qpn: local_qpn.value(),
                remote_qpn: peer.qpn.value(),
                transaction: local.transaction,
                local: av.src,
                remote: av.dst,
                ifindex: av.ifindex,
                pkey: pkey.0,
                tos: av.traffic_class,
            },
        );
    }

    fn unrecord(&mut self, comm_id: CommId) {
        let Some(side) = self.state.connections.get_mut(&comm_id) else { return };
        let Some(index) = side.record.take() else { return };
        self.state.records.try_remove(index);
        if let Some(port) = self.agent.home.host_port() {
            port.records().clear(index);
        }
    }
}
