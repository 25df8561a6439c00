//! One side of one connection: what the active and the passive side have in common.

use super::{
    event::{Event, Ignored, Rejection, in_answer},
    retry::{Retry, timeout},
};
use crate::proto::{
    Apr, CommId, Concerns, Datagram, Guid, Lap, Message, Mra, PrivateData, Rej, RejectReason, Req,
};
use core::time::Duration;
use rxe_core::{num::Qpn, time::Instant};
use std::collections::VecDeque;
use thiserror::Error;

/// Longest time that a connection waits in one state, or is kept after its end, because of times that the peer names in its messages. They
/// go up to 2.4 hours each; kernels' add up to 70 s.
pub(super) const LONGEST_END: Duration = Duration::from_secs(120);

/// The state of a connection. The table of states is in the [module's text](super).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Active side: the REQ has been sent.
    ReqSent,
    /// Active side: the REP has arrived, and the user has to confirm it.
    RepReceived,
    /// Passive side: the REQ has arrived, and the user has to accept or reject it.
    ReqReceived,
    /// Passive side: the REP has been sent.
    RepSent,
    /// The connection is established.
    Established,
    /// Our DREQ has been sent.
    DreqSent,
    /// The peer's DREQ has arrived, and the user has to confirm it.
    DreqReceived,
    /// The connection has ended. Packets of it may still be under way.
    TimeWait,
    /// We have sent a REJ, and send it again whenever the peer repeats its message.
    Refused,
    /// The end. The communication ID may be used again.
    Closed,
}

/// The command is not possible in the connection's state (EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("not possible in state {0:?}")]
pub struct WrongState(pub State);

/// What a connection needs to know about its own end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// Our communication ID for the connection. The caller guarantees that no other connection uses it, TIMEWAIT included.
    pub comm_id: CommId,
    /// Our channel adapter.
    pub ca_guid: Guid,
    /// Transaction ID of the requests that we make.
    pub transaction: u64,
    /// Longest time that a packet is under way, 4.096 us << code, 0 to 31. Kernels take 16 or 18 on Ethernet.
    pub packet_lifetime: u8,
}

/// Which side of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The side that sent the REQ.
    Active,
    /// The side that received it.
    Passive,
}

/// What is known about the other end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer {
    /// Its communication ID for the connection.
    pub comm_id: CommId,
    /// Its channel adapter.
    pub ca_guid: Guid,
    /// Its queue pair.
    pub qpn: Qpn,
}

/// One side of one connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) state: State,
    pub(super) local: Local,
    pub(super) local_qpn: Option<Qpn>,
    pub(super) peer: Option<Peer>,
    /// Transaction of the REQ.
    pub(super) transaction: u64,
    /// How long we wait for the peer's answer: its time, and the way there and back.
    pub(super) interval: Duration,
    /// How long the peer waits for our answer before it repeats its message.
    pub(super) peer_interval: Duration,
    pub(super) max_retries: u8,
    /// How much longer the peer waits after an MRA of ours.
    patience: Duration,
    pub(super) time_wait: Duration,
    pub(super) retry: Retry,
    /// The peer has sent an MRA since our last message.
    delayed: bool,
    /// What is repeated until it is answered: REQ, REP or DREQ.
    pub(super) repeated: Option<Datagram>,
    /// What answers a repetition by the peer in this state: MRA, RTU, DREP or REJ.
    pub(super) answer: Option<Datagram>,
    outbox: VecDeque<Datagram>,
    events: VecDeque<Event>,
}

impl Connection {
    pub(super) fn new(role: Role, state: State, local: Local, transaction: u64, req: &Req) -> Self {
        let round_trip = timeout(local.packet_lifetime) * 2;
        let to_passive = timeout(req.remote_cm_response_timeout) + round_trip;
        let to_active = timeout(req.local_cm_response_timeout) + round_trip;
        let (interval, peer_interval) = match role {
            Role::Active => (to_passive, to_active),
            Role::Passive => (to_active, to_passive),
        };
        Self {
            role,
            state,
            local,
            local_qpn: None,
            peer: None,
            transaction,
            interval,
            peer_interval,
            max_retries: req.max_cm_retries,
            patience: Duration::ZERO,
            // The REQ's ACK timeout is two packet lifetimes and the active side's ACK delay.
            time_wait: timeout(req.primary.ack_timeout),
            retry: Retry::default(),
            delayed: false,
            repeated: None,
            answer: None,
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// A connection that was established when its process died, so that another process can end it. `patience` is how long the peer
    /// may take to answer the DREQ, as a code. The DREQ is repeated up to `max_retries` times.
    #[must_use]
    pub fn inherited(local: Local, peer: Peer, local_qpn: Qpn, patience: u8, max_retries: u8) -> Self {
        let req = Req {
            remote_cm_response_timeout: patience,
            local_cm_response_timeout: patience,
            max_cm_retries: max_retries,
            ..Req::default()
        };
        let mut this = Self::new(Role::Active, State::Established, local, local.transaction, &req);
        (this.peer, this.local_qpn) = (Some(peer), Some(local_qpn));
        this
    }

    /// Its state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Which side this is.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Our end.
    #[must_use]
    pub const fn local(&self) -> &Local {
        &self.local
    }

    /// The other end. The passive side knows it from the start, the active side from the REP on.
    #[must_use]
    pub const fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Our queue pair. The active side knows it from the start, the passive side from `accept` on.
    #[must_use]
    pub const fn local_qpn(&self) -> Option<Qpn> {
        self.local_qpn
    }

    /// Handles a message for this connection.
    ///
    /// # Errors
    /// [`Ignored`] if it changed nothing: a drop to be counted.
    pub fn handle(&mut self, now: Instant, datagram: &Datagram) -> Result<(), Ignored> {
        match &datagram.message {
            Message::Req(req) => self.on_req(datagram, req),
            Message::Rep(rep) => self.on_rep(datagram, rep),
            Message::Rtu(rtu) => self.on_rtu(rtu),
            Message::Mra(mra) => self.on_mra(now, mra),
            Message::Rej(rej) => self.on_rej(now, rej),
            Message::Dreq(dreq) => self.on_dreq(now, datagram, dreq),
            Message::Drep(drep) => self.on_drep(now, drep),
            Message::Lap(lap) => self.on_lap(datagram, lap),
            Message::Apr(_) | Message::SidrReq(_) | Message::SidrRep(_) => Err(Ignored::Message),
        }
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.retry.is_due(now) {
            return;
        }
        match self.state {
            State::ReqSent | State::RepSent | State::DreqSent => {
                self.delayed = false;
                match self.repeated {
                    Some(datagram) if self.retry.again(now, self.interval) => self.send(datagram),
                    _ => self.on_no_answer(now),
                }
            }
            State::TimeWait | State::Refused => self.close(),
            _ => self.retry.stop(),
        }
    }

    /// The next message to send to the peer.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.retry.due()
    }

    /// Asks the peer to wait longer (MRA): the user's answer to the REQ or REP will take up to 4.096 us << `service_timeout` (0 to 31).
    /// If the peer repeats its message, the MRA is sent again.
    ///
    /// # Errors
    /// [`WrongState`] if the peer waits for no answer.
    pub fn send_mra(
        &mut self,
        service_timeout: u8,
        private_data: PrivateData<222>,
    ) -> Result<(), WrongState> {
        self.defer_mra(service_timeout, private_data)?;
        if let Some(mra) = self.answer {
            self.send(mra);
        }
        Ok(())
    }

    /// As [`send_mra`](Self::send_mra), but sends the MRA only when the peer repeats its message. Kernels do this.
    ///
    /// # Errors
    /// [`WrongState`] if the peer waits for no answer.
    pub fn defer_mra(
        &mut self,
        service_timeout: u8,
        private_data: PrivateData<222>,
    ) -> Result<(), WrongState> {
        let message = match self.state {
            State::ReqReceived => Concerns::Req,
            State::RepReceived => Concerns::Rep,
            other => return Err(WrongState(other)),
        };
        let mra = Mra {
            local_comm_id: self.local.comm_id,
            remote_comm_id: self.remote_comm_id(),
            message,
            service_timeout: service_timeout & 31,
            private_data,
        };
        self.answer = Some(self.datagram(self.transaction, mra));
        Ok(())
    }

    /// Refuses the REQ (passive side) or the REP (active side), or takes our own REP back. The field `message` of `why` is filled in
    /// here.
    ///
    /// # Errors
    /// [`WrongState`] if there is nothing to refuse.
    pub fn reject(&mut self, now: Instant, why: Rejection) -> Result<(), WrongState> {
        let message = match self.state {
            State::ReqReceived => Concerns::Req,
            State::RepReceived => Concerns::Rep,
            State::RepSent => Concerns::Other,
            other => return Err(WrongState(other)),
        };
        self.refuse(now, Rejection { message, ..why });
        Ok(())
    }

    /// Gives up in any state, as if a kernel's ID were destroyed. Sends REJ "timeout" for a REQ without answer, REJ "consumer
    /// reject" in the middle of the handshake, DREQ for an established connection, DREP for one that the peer has ended.
    pub fn abandon(&mut self, now: Instant) {
        match self.state {
            State::ReqSent => self.refuse_for_timeout(now, Concerns::Other),
            State::ReqReceived | State::RepReceived | State::RepSent => {
                let result = self.reject(now, Rejection::because(RejectReason::CONSUMER_DEFINED));
                debug_assert!(result.is_ok());
            }
            State::Established => self.start_dreq(now, PrivateData::default()),
            State::DreqReceived => self.grant(now, PrivateData::default()),
            State::DreqSent | State::TimeWait | State::Refused | State::Closed => {}
        }
    }

    /// Sends REJ, and is ready to send it again.
    pub(super) fn refuse(&mut self, now: Instant, why: Rejection) {
        let rej = why.rej(self.local.comm_id, self.remote_comm_id());
        self.repeated = None;
        self.outbox.clear();
        self.state = State::Refused;
        // If the connection were forgotten earlier, a late repetition of the REQ would look like a new request.
        let repetitions = self.peer_interval * (u32::from(self.max_retries) + 1);
        self.retry.start(now, repetitions.min(LONGEST_END) + self.patience, 0);
        self.send_as_answer(self.datagram(self.transaction, rej));
    }

    /// Forgets a connection that was refused before its time has passed, to save memory.
    pub fn forget_refusal(&mut self) {
        if self.state == State::Refused {
            self.close();
        }
    }

    /// A REJ "timeout" names our channel adapter. By that and by our communication ID the peer finds the connection
    /// (Linux' cm_acquire_rejected_id).
    pub(super) fn refuse_for_timeout(&mut self, now: Instant, message: Concerns) {
        let mut info = PrivateData::default();
        info.0[..8].copy_from_slice(&self.local.ca_guid.0.to_be_bytes());
        let why = Rejection { message, info, info_len: 8, ..Rejection::because(RejectReason::TIMEOUT) };
        self.refuse(now, why);
    }

    fn on_no_answer(&mut self, now: Instant) {
        if self.state == State::DreqSent {
            self.on_dreq_unanswered(now);
        } else {
            self.emit(Event::Unreachable);
            self.refuse_for_timeout(now, Concerns::Other);
        }
    }

    fn on_mra(&mut self, now: Instant, mra: &Mra) -> Result<(), Ignored> {
        self.check_ids(mra.local_comm_id, mra.remote_comm_id)?;
        match (self.state, mra.message) {
            // One MRA for each message of ours counts. Otherwise a peer could delay the end for ever.
            (State::ReqSent, Concerns::Req) | (State::RepSent, Concerns::Rep) if self.delayed => {
                Err(Ignored::Duplicate)
            }
            (State::ReqSent, Concerns::Req) | (State::RepSent, Concerns::Rep) => {
                self.delayed = true;
                let wait =
                    timeout(mra.service_timeout).min(LONGEST_END) + timeout(self.local.packet_lifetime) * 2;
                self.retry.postpone(now, wait.max(self.interval));
                let Mra { service_timeout, private_data, .. } = *mra;
                self.emit(Event::Delayed { service_timeout, private_data });
                Ok(())
            }
            _ => Err(Ignored::State),
        }
    }

    fn on_rej(&mut self, now: Instant, rej: &Rej) -> Result<(), Ignored> {
        self.check_rej_ids(rej)?;
        match self.state {
            State::ReqSent | State::RepReceived | State::ReqReceived | State::RepSent => {
                self.emit(Event::Rejected(rej.into()));
                if rej.reason == RejectReason::STALE_CONNECTION {
                    self.enter_time_wait(now);
                } else {
                    self.close();
                }
            }
            State::Established => {
                self.emit(Event::Rejected(rej.into()));
                self.enter_time_wait(now);
            }
            State::DreqSent => self.on_dreq_rejected(now, rej.reason),
            // The peer has given up by itself, so our REJ need not be repeated any more.
            State::Refused => self.close(),
            State::DreqReceived | State::TimeWait | State::Closed => return Err(Ignored::State),
        }
        Ok(())
    }

    /// A REJ may come from a peer that does not know both IDs.
    fn check_rej_ids(&self, rej: &Rej) -> Result<(), Ignored> {
        let Some(peer) = self.peer else {
            return if rej.remote_comm_id == self.local.comm_id { Ok(()) } else { Err(Ignored::CommId) };
        };
        let from_peer = rej.local_comm_id == peer.comm_id;
        let by_guid = rej.reason == RejectReason::TIMEOUT
            && from_peer
            && rej.info().first_chunk() == Some(&peer.ca_guid.0.to_be_bytes());
        let by_ids = from_peer && rej.remote_comm_id == self.local.comm_id;
        if by_guid || by_ids { Ok(()) } else { Err(Ignored::CommId) }
    }

    /// Answers that alternate paths are not supported.
    fn on_lap(&mut self, datagram: &Datagram, lap: &Lap) -> Result<(), Ignored> {
        /// Status of an APR: path migration is not supported (IBTA vol. 1, 12.8.2).
        const UNSUPPORTED: u8 = 2;
        self.check_ids(lap.local_comm_id, lap.remote_comm_id)?;
        if !matches!(self.state, State::Established | State::RepSent) {
            return Err(Ignored::State);
        }
        if Some(lap.remote_qpn) != self.local_qpn {
            return Err(Ignored::Qpn);
        }
        let apr = Apr {
            local_comm_id: self.local.comm_id,
            remote_comm_id: lap.local_comm_id,
            status: UNSUPPORTED,
            ..Apr::default()
        };
        self.send(in_answer(datagram, apr));
        Ok(())
    }

    /// Whether a message with these two IDs ("local" is the sender's) belongs to this connection.
    pub(super) fn check_ids(&self, local: CommId, remote: CommId) -> Result<(), Ignored> {
        let known = self.peer.is_none_or(|peer| peer.comm_id == local);
        if known && remote == self.local.comm_id { Ok(()) } else { Err(Ignored::CommId) }
    }

    pub(super) fn remote_comm_id(&self) -> CommId {
        self.peer.map_or(CommId(0), |peer| peer.comm_id)
    }

    pub(super) fn datagram(&self, transaction: u64, message: impl Into<Message>) -> Datagram {
        Datagram { transaction, modifier: 0, message: message.into() }
    }

    /// Queues a message. At most one of each kind waits, so that a flood of repetitions causes one answer.
    pub(super) fn send(&mut self, datagram: Datagram) {
        if let Message::Mra(mra) = &datagram.message {
            self.patience = self.patience.max(timeout(mra.service_timeout));
        }
        let attribute = datagram.message.attribute();
        match self.outbox.iter_mut().find(|waiting| waiting.message.attribute() == attribute) {
            Some(waiting) => *waiting = datagram,
            None => self.outbox.push_back(datagram),
        }
    }

    /// Answers a repetition by the peer.
    pub(super) fn answer_again(&mut self) -> Result<(), Ignored> {
        let answer = self.answer.ok_or(Ignored::Duplicate)?;
        self.send(answer);
        Ok(())
    }

    /// Sends `answer`, and keeps it for repetitions by the peer.
    pub(super) fn send_as_answer(&mut self, answer: Datagram) {
        self.answer = Some(answer);
        self.send(answer);
    }

    /// Sends `datagram`, and again until an answer stops it. How long we wait for the answer to a REQ is the user's choice.
    pub(super) fn send_repeatedly(&mut self, now: Instant, datagram: Datagram) {
        if self.state != State::ReqSent {
            self.interval = self.interval.min(LONGEST_END / (u32::from(self.max_retries) + 1));
        }
        self.repeated = Some(datagram);
        self.retry.start(now, self.interval, self.max_retries);
        self.send(datagram);
    }

    pub(super) fn stop_repeating(&mut self) {
        self.repeated = None;
        self.retry.stop();
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }
}
