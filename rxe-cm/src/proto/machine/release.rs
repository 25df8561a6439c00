//! The end of a connection: DREQ, DREP and TIMEWAIT (IBTA vol. 1, 12.9.8).

use super::{
    connection::{Connection, LONGEST_END, State, WrongState},
    event::{Ending, Event, Ignored, in_answer},
};
use crate::proto::{Datagram, Drep, Dreq, PrivateData, RejectReason};
use rxe_core::{num::Qpn, time::Instant};

impl Connection {
    /// Ends an established connection by DREQ.
    ///
    /// # Errors
    /// [`WrongState`] if the connection is not established. Before that, `reject` or `abandon` it.
    pub fn disconnect(&mut self, now: Instant, private_data: PrivateData<220>) -> Result<(), WrongState> {
        if self.state != State::Established {
            return Err(WrongState(self.state));
        }
        self.start_dreq(now, private_data);
        Ok(())
    }

    /// Confirms the peer's DREQ by DREP.
    ///
    /// # Errors
    /// [`WrongState`] if there is no DREQ of the peer to confirm.
    pub fn confirm_disconnect(
        &mut self,
        now: Instant,
        private_data: PrivateData<224>,
    ) -> Result<(), WrongState> {
        if self.state != State::DreqReceived {
            return Err(WrongState(self.state));
        }
        self.grant(now, private_data);
        Ok(())
    }

    pub(super) fn start_dreq(&mut self, now: Instant, private_data: PrivateData<220>) {
        let dreq = Dreq {
            local_comm_id: self.local.comm_id,
            remote_comm_id: self.remote_comm_id(),
            remote_qpn: self.peer.map_or(Qpn::new(0), |peer| peer.qpn),
            private_data,
        };
        self.state = State::DreqSent;
        self.answer = None;
        self.send_repeatedly(now, self.datagram(self.local.transaction, dreq));
    }

    pub(super) fn grant(&mut self, now: Instant, private_data: PrivateData<224>) {
        let (local_comm_id, remote_comm_id) = (self.local.comm_id, self.remote_comm_id());
        // Until now `answer` held an empty DREP, with the transaction of the DREQ.
        let transaction = self.answer.map_or(self.transaction, |drep| drep.transaction);
        let drep = self.datagram(transaction, Drep { local_comm_id, remote_comm_id, private_data });
        self.enter_time_wait(now);
        self.send_as_answer(drep);
        self.emit(Event::Disconnected(Ending::Granted));
    }

    pub(super) fn on_dreq(&mut self, now: Instant, datagram: &Datagram, dreq: &Dreq) -> Result<(), Ignored> {
        self.check_ids(dreq.local_comm_id, dreq.remote_comm_id)?;
        // A connection that we refused before it had a queue pair cannot be recognized by its queue pair.
        if self.local_qpn.is_some_and(|qpn| qpn != dreq.remote_qpn) {
            return Err(Ignored::Qpn);
        }
        let drep = Drep {
            local_comm_id: self.local.comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: PrivateData::default(),
        };
        let drep = in_answer(datagram, drep);
        match self.state {
            // In `RepSent` the DREQ has overtaken the RTU, or the RTU was lost.
            State::Established | State::RepSent => {
                self.stop_repeating();
                self.state = State::DreqReceived;
                self.answer = Some(drep);
                self.emit(Event::DisconnectRequested(dreq.private_data));
            }
            State::DreqSent => {
                self.enter_time_wait(now);
                self.send_as_answer(drep);
                self.emit(Event::Disconnected(Ending::Crossed(dreq.private_data)));
            }
            // Our DREP was lost. Or we never sent one, because our own DREQ was answered.
            State::TimeWait => self.send(self.answer.unwrap_or(drep)),
            State::Refused => self.send(drep),
            State::DreqReceived => return Err(Ignored::Duplicate),
            State::ReqSent | State::RepReceived | State::ReqReceived | State::Closed => {
                return Err(Ignored::State);
            }
        }
        Ok(())
    }

    pub(super) fn on_drep(&mut self, now: Instant, drep: &Drep) -> Result<(), Ignored> {
        self.check_ids(drep.local_comm_id, drep.remote_comm_id)?;
        match self.state {
            State::DreqSent => {
                self.enter_time_wait(now);
                self.emit(Event::Disconnected(Ending::Answered(drep.private_data)));
                Ok(())
            }
            State::TimeWait => Err(Ignored::Duplicate),
            _ => Err(Ignored::State),
        }
    }

    pub(super) fn on_dreq_unanswered(&mut self, now: Instant) {
        self.enter_time_wait(now);
        self.emit(Event::Disconnected(Ending::TimedOut));
    }

    pub(super) fn on_dreq_rejected(&mut self, now: Instant, reason: RejectReason) {
        self.enter_time_wait(now);
        self.emit(Event::Disconnected(Ending::Rejected(reason)));
    }

    pub(super) fn enter_time_wait(&mut self, now: Instant) {
        self.stop_repeating();
        self.answer = None;
        self.state = State::TimeWait;
        self.retry.start(now, self.time_wait.min(LONGEST_END), 0);
    }

    pub(super) fn close(&mut self) {
        self.stop_repeating();
        self.answer = None;
        self.state = State::Closed;
        self.emit(Event::Closed);
    }
}
