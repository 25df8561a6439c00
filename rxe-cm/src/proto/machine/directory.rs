//! All connections together: which of them a message is for, and whether a new one makes an older one with the same peer stale.

use super::{
    connection::Peer,
    event::{Rejection, in_answer},
};
use crate::proto::{CommId, Concerns, Datagram, Drep, Guid, Message, PrivateData, Rej, RejectReason};
use rxe_core::num::Qpn;
use std::collections::BTreeMap;
use thiserror::Error;

/// The communication ID is in use by a connection (TIMEWAIT included).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("communication ID {0} is in use")]
pub struct InUse(pub CommId);

/// What to do with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// It is for the connection with this local ID.
    To(CommId),
    /// A REQ that belongs to no connection yet: a listener may take it, or [`Directory::refuse`] answers it.
    New,
    /// A REQ or REP names a queue pair that an existing connection has, so the peer has forgotten that connection. Send `answer` (REJ
    /// "stale connection"), and abandon connection `old`.
    Stale {
        /// Local ID of the forgotten connection.
        old: CommId,
        /// The REJ.
        answer: Datagram,
    },
    /// A DREQ for a connection that does not exist (any more), as the peer wants it to be. Send this DREP.
    Answer(Datagram),
    /// A service ID resolution: not about a connection.
    Sidr,
    /// It is for no connection here. The caller drops it and counts the drop.
    Unknown,
}

/// The communication IDs in use, and the communication IDs and queue pairs of their peers, which are unique for each channel adapter.
#[derive(Debug, Default)]
pub struct Directory {
    locals: BTreeMap<CommId, Option<Peer>>,
    by_comm_id: BTreeMap<(Guid, CommId), CommId>,
    by_qpn: BTreeMap<(Guid, Qpn), CommId>,
}

impl Directory {
    /// Takes a local communication ID for a new connection.
    ///
    /// # Errors
    /// [`InUse`] until it is released.
    pub fn claim(&mut self, local: CommId) -> Result<(), InUse> {
        if self.locals.contains_key(&local) {
            return Err(InUse(local));
        }
        self.locals.insert(local, None);
        Ok(())
    }

    /// The peer of a connection has become known, by REQ or REP. Only the first call counts.
    pub fn bind(&mut self, local: CommId, peer: Peer) {
        let Some(slot @ None) = self.locals.get_mut(&local) else { return };
        *slot = Some(peer);
        self.by_comm_id.entry((peer.ca_guid, peer.comm_id)).or_insert(local);
        self.by_qpn.entry((peer.ca_guid, peer.qpn)).or_insert(local);
    }

    /// The connection has ended or was refused, and waits for its time to pass. The peer may use its queue pair for another one.
    pub fn enter_time_wait(&mut self, local: CommId) {
        if let Some(Some(peer)) = self.locals.get(&local) {
            remove_if(&mut self.by_qpn, (peer.ca_guid, peer.qpn), local);
        }
    }

    /// The connection is over ([`Event::Closed`](super::Event::Closed)): its local ID may be used again.
    pub fn release(&mut self, local: CommId) {
        self.enter_time_wait(local);
        if let Some(Some(peer)) = self.locals.remove(&local) {
            remove_if(&mut self.by_comm_id, (peer.ca_guid, peer.comm_id), local);
        }
    }

    /// Number of communication IDs in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.locals.len()
    }

    /// Whether no communication ID is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locals.is_empty()
    }

    /// What to do with a message.
    #[must_use]
    pub fn route(&self, datagram: &Datagram) -> Route {
        match &datagram.message {
            Message::Req(req) => {
                if let Some(&local) = self.by_comm_id.get(&(req.local_ca_guid, req.local_comm_id)) {
                    return Route::To(local);
                }
                match self.by_qpn.get(&(req.local_ca_guid, req.local_qpn)) {
                    Some(&old) => Route::Stale { old, answer: stale(datagram, Concerns::Req, CommId(0)) },
                    None => Route::New,
                }
            }
            Message::Rep(rep) => {
                let local = rep.remote_comm_id;
                let known = self.by_comm_id.get(&(rep.local_ca_guid, rep.local_comm_id));
                if !self.locals.contains_key(&local) || known.is_some_and(|&known| known != local) {
                    return Route::Unknown;
                }
                match self.by_qpn.get(&(rep.local_ca_guid, rep.qpn())) {
                    Some(&old) if old != local => {
                        Route::Stale { old, answer: stale(datagram, Concerns::Rep, local) }
                    }
                    _ => Route::To(local),
                }
            }
            Message::Rej(rej) => self.by_guid(rej).unwrap_or_else(|| self.to(rej.remote_comm_id)),
            Message::Rtu(rtu) => self.to(rtu.remote_comm_id),
            Message::Mra(mra) => self.to(mra.remote_comm_id),
            Message::Drep(drep) => self.to(drep.remote_comm_id),
            Message::Lap(lap) => self.to(lap.remote_comm_id),
            Message::Apr(apr) => self.to(apr.remote_comm_id),
            Message::Dreq(dreq) => match self.to(dreq.remote_comm_id) {
                Route::To(local) if self.is_peer(local, dreq.local_comm_id) => Route::To(local),
                _ => {
                    let (local_comm_id, remote_comm_id) = (dreq.remote_comm_id, dreq.local_comm_id);
                    let private_data = PrivateData::default();
                    Route::Answer(in_answer(datagram, Drep { local_comm_id, remote_comm_id, private_data }))
                }
            },
            Message::SidrReq(_) | Message::SidrRep(_) => Route::Sidr,
        }
    }

    /// The REJ for a REQ that no listener accepts, such as [`RejectReason::INVALID_SERVICE_ID`]; `None` if `datagram` is no REQ.
    #[must_use]
    pub fn refuse(datagram: &Datagram, why: Rejection) -> Option<Datagram> {
        let Message::Req(req) = &datagram.message else { return None };
        let why = Rejection { message: Concerns::Req, ..why };
        Some(in_answer(datagram, why.rej(CommId(0), req.local_comm_id)))
    }

    fn to(&self, local: CommId) -> Route {
        if self.locals.contains_key(&local) { Route::To(local) } else { Route::Unknown }
    }

    /// Finds the connection of a peer that has given up. It may not know our ID, so it names its channel adapter.
    fn by_guid(&self, rej: &Rej) -> Option<Route> {
        let guid = rej.info().first_chunk().filter(|_| rej.reason == RejectReason::TIMEOUT)?;
        let guid = Guid(u64::from_be_bytes(*guid));
        self.by_comm_id.get(&(guid, rej.local_comm_id)).map(|&local| Route::To(local))
    }

    fn is_peer(&self, local: CommId, comm_id: CommId) -> bool {
        let peer = self.locals.get(&local).copied().flatten();
        peer.is_none_or(|peer| peer.comm_id == comm_id)
    }
}

fn stale(datagram: &Datagram, message: Concerns, local: CommId) -> Datagram {
    let remote = match &datagram.message {
        Message::Req(req) => req.local_comm_id,
        Message::Rep(rep) => rep.local_comm_id,
        _ => CommId(0),
    };
    let why = Rejection { message, ..Rejection::because(RejectReason::STALE_CONNECTION) };
    in_answer(datagram, why.rej(local, remote))
}

/// Removes an entry that another connection may have taken over.
fn remove_if<K: Ord>(map: &mut BTreeMap<K, CommId>, key: K, owner: CommId) {
    if map.get(&key) == Some(&owner) {
        map.remove(&key);
    }
}
