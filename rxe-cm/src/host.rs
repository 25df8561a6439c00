//! What the host service leaves to the connection manager: requests for which no process listens, and connections of
//! processes that died.

use crate::proto::{
    CommId, Datagram, Guid, Message, PrivateData, RejectReason, SidrRep, SidrStatus,
    machine::{Connection, Directory, Local, Peer, Rejection, Route, State},
};
use rxe_core::{num::Qpn, time::Instant};
use rxe_verbs::host::{self, Attendant, Letter, MAD_LEN, records};
use std::collections::VecDeque;

/// How long a peer may take to answer a DREQ before it is repeated: 4.096 us << 17 = 0.5 s.
const PATIENCE: u8 = 17;
/// How often the DREQ is repeated. The answer is steered to the dead process's socket, so we do not see it. A second DREQ
/// does no harm.
const REPETITIONS: u8 = 3;
/// Most connections of dead processes whose peers are being told.
const MOST_MOURNED: usize = 1 << 18;

/// Makes the host services that this process runs, or embeds, refuse requests for which no process listens (REJ "invalid
/// service ID", SIDR_REP "not supported"), and end the connections of processes that died (DREQ). A [`Manager`] calls this
/// for its process. Programs that only run the service have to call it.
///
/// [`Manager`]: crate::Manager
pub fn attend_services() {
    host::set_attendant(|| Box::<Undertaker>::default());
}

/// Connections of dead processes, the next one due first.
#[derive(Debug, Default)]
struct Undertaker {
    mourned: VecDeque<Mourned>,
}

#[derive(Debug)]
struct Mourned {
    machine: Connection,
    about: records::Connection,
    due: Instant,
}

impl Attendant for Undertaker {
    fn unheard(&mut self, mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
        let datagram = Datagram::parse(mad).ok()?;
        let answer = match &datagram.message {
            Message::Req(_) => {
                Directory::refuse(&datagram, Rejection::because(RejectReason::INVALID_SERVICE_ID))?
            }
            Message::SidrReq(req) => {
                let rep = SidrRep {
                    request_id: req.request_id,
                    service_id: req.service_id,
                    status: SidrStatus::UNSUPPORTED,
                    ..SidrRep::default()
                };
                Datagram { transaction: datagram.transaction, modifier: 0, message: rep.into() }
            }
            // The process that had the connection does not know it any more.
            Message::Dreq(_) => match Directory::default().route(&datagram) {
                Route::Answer(answer) => answer,
                _ => return None,
            },
            _ => return None,
        };
        Some(answer.emit())
    }

    fn died(&mut self, now: Instant, about: &records::Connection) {
        if self.mourned.len() >= MOST_MOURNED {
            return;
        }
        let local = Local {
            comm_id: CommId(about.local_comm_id),
            ca_guid: Guid(0),
            transaction: about.transaction,
            packet_lifetime: 0,
        };
        let remote_qpn = Qpn::new(about.remote_qpn);
        let peer = Peer { comm_id: CommId(about.remote_comm_id), ca_guid: Guid(0), qpn: remote_qpn };
        let mut machine =
            Connection::inherited(local, peer, Qpn::new(about.local_qpn), PATIENCE, REPETITIONS);
        // This cannot fail, because the connection was made as an established one.
        let _ = machine.disconnect(now, PrivateData::default());
        self.mourned.push_front(Mourned { machine, about: *about, due: now });
    }

    fn letters(&mut self, now: Instant, most: usize, out: &mut Vec<Letter>) {
        for _ in 0..most {
            if self.poll_timeout().is_none_or(|due| due > now) {
                return;
            }
            let Some(mut next) = self.mourned.pop_front() else { return };
            next.machine.handle_timeout(now);
            while let Some(datagram) = next.machine.poll_transmit() {
                let records::Connection { local, remote, ifindex, pkey, tos, .. } = next.about;
                out.push(Letter { local, remote, ifindex, pkey, tos, mad: datagram.emit() });
            }
            if let (State::DreqSent, Some(due)) = (next.machine.state(), next.machine.poll_timeout()) {
                // All wait equally long, so the following ones are due later.
                self.mourned.push_back(Mourned { due, ..next });
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.mourned.front().map(|next| next.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Dreq, Req, ServiceId};
    use core::time::Duration;

    fn connection(number: u32) -> records::Connection {
        records::Connection {
            local_comm_id: number,
            remote_comm_id: 100 + number,
            local_qpn: 0x03_0001,
            remote_qpn: 17,
            transaction: 5,
            local: [10, 0, 0, 1].into(),
            remote: [10, 0, 0, 2].into(),
            ifindex: 0,
            pkey: 0xffff,
            tos: 0,
        }
    }

    #[test]
    fn the_peers_of_the_dead_are_told_and_told_again() {
        let mut undertaker = Undertaker::default();
        let mut now = Instant::from_nanos(1_000_000_000);
        (1..=3).for_each(|number| undertaker.died(now, &connection(number)));
        let mut told = Vec::new();
        while let Some(due) = undertaker.poll_timeout() {
            assert!(due <= now + Duration::from_secs(1));
            now = now.max(due);
            let before = told.len();
            undertaker.letters(now, 2, &mut told);
            assert!(told.len() - before <= 2);
        }
        assert_eq!(told.len(), 3 * (1 + usize::from(REPETITIONS)));
        for letter in &told {
            let Message::Dreq(dreq) = Datagram::parse(&letter.mad).unwrap().message else {
                panic!("{letter:?}")
            };
            assert_eq!(dreq.remote_comm_id.0, 100 + dreq.local_comm_id.0);
            assert_eq!((dreq.remote_qpn, letter.remote), (Qpn::new(17), connection(1).remote));
        }
    }

    #[test]
    fn requests_that_nobody_waits_for_are_refused_and_ends_agreed_to() {
        let mut undertaker = Undertaker::default();
        let service_id = ServiceId(0x106_0007);
        let req = Req { local_comm_id: CommId(9), service_id, ..Req::default() };
        let datagram = |message| Datagram { transaction: 3, modifier: 0, message };
        let answer = undertaker.unheard(&datagram(req.into()).emit()).unwrap();
        let Message::Rej(rej) = Datagram::parse(&answer).unwrap().message else { panic!() };
        assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::INVALID_SERVICE_ID, CommId(9)));
        let req = crate::proto::SidrReq { request_id: CommId(8), service_id, ..Default::default() };
        let answer = undertaker.unheard(&datagram(req.into()).emit()).unwrap();
        let Message::SidrRep(rep) = Datagram::parse(&answer).unwrap().message else { panic!() };
        assert_eq!((rep.status, rep.request_id), (SidrStatus::UNSUPPORTED, CommId(8)));
        assert!(undertaker.unheard(&answer).is_none());
        let dreq = Dreq { local_comm_id: CommId(7), remote_comm_id: CommId(0x7600_0001), ..Dreq::default() };
        let answer = undertaker.unheard(&datagram(dreq.into()).emit()).unwrap();
        let Message::Drep(drep) = Datagram::parse(&answer).unwrap().message else { panic!() };
        assert_eq!((drep.remote_comm_id, drep.local_comm_id), (CommId(7), CommId(0x7600_0001)));
        assert!(undertaker.unheard(&[0; MAD_LEN]).is_none());
    }
}
