//! The active side: sends REQ, receives REP, confirms by RTU (IBTA vol. 1, 12.9.5).

use super::{
    connection::{Connection, Local, Peer, Role, State, WrongState},
    event::{Accepted, Event, Ignored},
    retry::timeout,
};
use crate::proto::{Datagram, Message, PrivateData, Rep, Req, Rtu};
use rxe_core::time::Instant;

impl Connection {
    /// Asks for a connection. `req`'s communication ID and channel adapter are taken from `local`; `modifier` holds the options of
    /// enhanced connection establishment, 0 for none. REQ's starting PSN is the one the peer is to send with: our rq_psn.
    #[must_use]
    pub fn connect(now: Instant, local: Local, req: &Req, modifier: u32) -> Self {
        let req = Req { local_comm_id: local.comm_id, local_ca_guid: local.ca_guid, ..*req };
        let mut this = Self::new(Role::Active, State::ReqSent, local, local.transaction, &req);
        this.local_qpn = Some(req.local_qpn);
        this.send_repeatedly(now, Datagram { modifier, ..this.datagram(local.transaction, req) });
        this
    }

    /// Confirms the REP by RTU: the connection is established. The queue pair has to be ready to send before this call.
    ///
    /// # Errors
    /// [`WrongState`] if there is no REP to confirm.
    pub fn confirm(&mut self, private_data: PrivateData<224>) -> Result<(), WrongState> {
        if self.state != State::RepReceived {
            return Err(WrongState(self.state));
        }
        let (local_comm_id, remote_comm_id) = (self.local.comm_id, self.remote_comm_id());
        self.state = State::Established;
        let rtu = Rtu { local_comm_id, remote_comm_id, private_data };
        self.send_as_answer(self.datagram(self.transaction, rtu));
        Ok(())
    }

    pub(super) fn on_rep(&mut self, datagram: &Datagram, rep: &Rep) -> Result<(), Ignored> {
        if self.role != Role::Active {
            return Err(Ignored::Message);
        }
        self.check_ids(rep.local_comm_id, rep.remote_comm_id)?;
        match self.state {
            State::ReqSent => {
                self.peer =
                    Some(Peer { comm_id: rep.local_comm_id, ca_guid: rep.local_ca_guid, qpn: rep.qpn() });
                self.time_wait = timeout(self.local.packet_lifetime) * 2 + timeout(rep.target_ack_delay);
                self.stop_repeating();
                self.state = State::RepReceived;
                self.emit(Event::Accepted(Accepted::new(rep, datagram.modifier)));
                Ok(())
            }
            // Before the REP is confirmed it is answered by MRA, if there is one. Afterwards a repetition means that the RTU was lost.
            State::RepReceived | State::Established => self.answer_again(),
            State::Refused => {
                // When we gave up on the REQ, the REJ could not name the peer's ID.
                if let Some(Datagram { message: Message::Rej(rej), .. }) = &mut self.answer {
                    rej.remote_comm_id = rep.local_comm_id;
                }
                self.answer_again()
            }
            _ => Err(Ignored::State),
        }
    }
}
