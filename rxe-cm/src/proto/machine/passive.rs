//! The passive side: receives REQ, sends REP, waits for RTU (IBTA vol. 1, 12.9.6).

use super::{
    connection::{Connection, Local, Peer, Role, State, WrongState},
    event::{Event, Ignored, Proof, Rejection, Request, in_answer},
};
use crate::proto::{Concerns, Datagram, Message, PrivateData, RejectReason, Rep, Req, Rtu};
use rxe_core::time::Instant;

impl Connection {
    /// A REQ has arrived that belongs to no connection yet. The first event is [`Event::Requested`].
    ///
    /// # Errors
    /// [`Ignored::Message`] if it is no REQ.
    pub fn requested(local: Local, datagram: &Datagram) -> Result<Self, Ignored> {
        let Message::Req(req) = &datagram.message else { return Err(Ignored::Message) };
        let mut this = Self::new(Role::Passive, State::ReqReceived, local, datagram.transaction, req);
        this.peer = Some(Peer { comm_id: req.local_comm_id, ca_guid: req.local_ca_guid, qpn: req.local_qpn });
        this.emit(Event::Requested(Request::new(req, datagram.modifier)));
        Ok(this)
    }

    /// Accepts. `rep`'s communication IDs and channel adapter are filled in here; `modifier` holds the options of enhanced
    /// connection establishment, 0 for none. The queue pair has to be ready to receive before this call.
    ///
    /// # Errors
    /// [`WrongState`] if there is no REQ to accept.
    pub fn accept(&mut self, now: Instant, rep: &Rep, modifier: u32) -> Result<(), WrongState> {
        if self.state != State::ReqReceived {
            return Err(WrongState(self.state));
        }
        let rep = Rep {
            local_comm_id: self.local.comm_id,
            remote_comm_id: self.remote_comm_id(),
            local_ca_guid: self.local.ca_guid,
            ..*rep
        };
        self.local_qpn = Some(rep.qpn());
        self.answer = None;
        self.state = State::RepSent;
        self.send_repeatedly(now, Datagram { modifier, ..self.datagram(self.transaction, rep) });
        Ok(())
    }

    /// A packet has arrived on the queue pair, so the connection is established even if the RTU is late or lost. Does nothing in states
    /// other than `RepSent`.
    pub fn handle_data(&mut self) {
        if self.state == State::RepSent {
            self.establish(Proof::Data, PrivateData::default());
        }
    }

    fn establish(&mut self, proof: Proof, private_data: PrivateData<224>) {
        self.stop_repeating();
        self.state = State::Established;
        self.emit(Event::Established { proof, private_data });
    }

    /// Handles a repetition of the REQ: our answer to it was lost.
    pub(super) fn on_req(&mut self, datagram: &Datagram, req: &Req) -> Result<(), Ignored> {
        let from = Peer { comm_id: req.local_comm_id, ca_guid: req.local_ca_guid, qpn: req.local_qpn };
        if self.role != Role::Passive {
            return Err(Ignored::Message);
        }
        if self.peer != Some(from) {
            return Err(Ignored::CommId);
        }
        match (self.state, self.repeated) {
            (State::ReqReceived | State::Refused, _) => self.answer_again(),
            (State::RepSent, Some(rep)) => {
                self.send(rep);
                Ok(())
            }
            (State::TimeWait, _) => {
                let why = Rejection {
                    message: Concerns::Req,
                    ..Rejection::because(RejectReason::STALE_CONNECTION)
                };
                self.send(in_answer(datagram, why.rej(self.local.comm_id, from.comm_id)));
                Ok(())
            }
            // A late copy of a REQ that has been answered.
            _ => Err(Ignored::Duplicate),
        }
    }

    pub(super) fn on_rtu(&mut self, rtu: &Rtu) -> Result<(), Ignored> {
        if self.role != Role::Passive {
            return Err(Ignored::Message);
        }
        self.check_ids(rtu.local_comm_id, rtu.remote_comm_id)?;
        match self.state {
            State::RepSent => {
                self.establish(Proof::Rtu, rtu.private_data);
                Ok(())
            }
            State::Established => Err(Ignored::Duplicate),
            // The peer takes the connection for established.
            State::Refused => self.answer_again(),
            _ => Err(Ignored::State),
        }
    }
}
