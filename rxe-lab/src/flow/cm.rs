//! Conversations of the connection manager: both sides, the requested service, and the result.

use rxe_cm::proto::{CommId, Datagram, Message};
use rxe_core::num::Qpn;
use serde::Serialize;
use std::{collections::HashMap, net::IpAddr};

/// Most messages of a conversation that are kept.
const MOST_MESSAGES: usize = 64;
/// Most conversations.
const MOST: usize = 1 << 16;

/// A message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Said {
    /// Its time, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The message's name.
    pub name: &'static str,
    /// Whether the active side has sent it.
    pub by_asker: bool,
    /// Whether it is a repetition.
    pub repeated: bool,
}

/// A conversation.
#[derive(Clone, Debug, Serialize)]
pub struct Conversation {
    /// Address of the active side.
    pub asker: IpAddr,
    /// Address of the passive side.
    pub asked: IpAddr,
    /// The requested service.
    pub service: String,
    /// The active side's queue pair; 0 if unknown.
    pub asker_qp: u32,
    /// The passive side's queue pair.
    pub asked_qp: u32,
    /// The path MTU that was asked for, bytes.
    pub mtu: Option<u32>,
    /// The messages.
    pub messages: Vec<Said>,
    /// Number of repeated messages.
    pub repeated: u64,
    /// The result, as far as the capture shows it.
    pub outcome: String,
    #[serde(skip)]
    ids: [CommId; 2],
    #[serde(skip)]
    seen: Vec<(u16, u64, bool)>,
}

#[derive(Debug, Default)]
pub(super) struct Conversations {
    pub(super) list: Vec<Conversation>,
    /// By the addresses of both sides and the ID of the active side.
    by_asker: HashMap<(IpAddr, IpAddr, CommId), usize>,
    by_asked: HashMap<(IpAddr, IpAddr, CommId), usize>,
}

/// What a message reveals about queue pairs: addresses and numbers of both ends, and the path MTU in bytes.
pub(super) type Ends = ([(IpAddr, Qpn); 2], Option<u32>);

impl Conversations {
    /// Handles a message. Returns the queue pairs of its conversation if they have become known.
    pub(super) fn take(&mut self, src: IpAddr, dst: IpAddr, datagram: &Datagram, time: u64) -> Option<Ends> {
        let (local, remote, asks) = ids(&datagram.message);
        let found = match asks {
            Some(true) => self.by_asker.get(&(src, dst, local)).copied(),
            Some(false) => self.by_asker.get(&(dst, src, remote)).copied(),
            None => self.find(src, dst, local, remote),
        };
        let at = match found {
            // The active side may use its ID again for another connection.
            Some(at) if asks != Some(true) || !self.is_over(at) || self.list[at].has(datagram, true) => at,
            _ if self.list.len() == MOST => return None,
            _ => self.begin(src, dst, local, remote, asks != Some(false)),
        };
        let conversation = &mut self.list[at];
        let by_asker = asks.unwrap_or_else(|| conversation.ids[0] == local && (src == conversation.asker));
        conversation.say(datagram, time, by_asker);
        if !by_asker && local != CommId(0) && conversation.ids[1] != local {
            let before = std::mem::replace(&mut conversation.ids[1], local);
            // Only one ID is stored for each conversation, even if its messages have different ones. So their number is
            // bounded.
            if self.by_asked.get(&(src, dst, before)) == Some(&at) {
                self.by_asked.remove(&(src, dst, before));
            }
            self.by_asked.insert((src, dst, local), at);
        }
        conversation.learn(datagram)
    }

    fn find(&self, src: IpAddr, dst: IpAddr, local: CommId, remote: CommId) -> Option<usize> {
        let asker = self.by_asker.get(&(src, dst, local));
        let asker = asker.filter(|at| {
            self.list[**at].ids[1] == remote || remote == CommId(0) || self.list[**at].ids[1] == CommId(0)
        });
        let found = asker.or_else(|| self.by_asker.get(&(dst, src, remote)));
        found
            .or_else(|| self.by_asked.get(&(src, dst, local)))
            .or_else(|| self.by_asked.get(&(dst, src, remote)))
            .copied()
    }

    fn is_over(&self, at: usize) -> bool {
        self.list[at].messages.iter().any(|said| matches!(said.name, "DREP" | "REJ"))
    }

    fn begin(&mut self, src: IpAddr, dst: IpAddr, local: CommId, remote: CommId, is_asker: bool) -> usize {
        let (asker, asked, ids) =
            if is_asker { (src, dst, [local, remote]) } else { (dst, src, [remote, local]) };
        let at = self.list.len();
        self.by_asker.insert((asker, asked, ids[0]), at);
        self.list.push(Conversation::new(asker, asked, ids));
        at
    }
}

/// The sender's ID, the receiver's ID, and whether the active side has sent the message, if this follows from its kind.
fn ids(message: &Message) -> (CommId, CommId, Option<bool>) {
    match message {
        Message::Req(req) => (req.local_comm_id, CommId(0), Some(true)),
        Message::Rep(rep) => (rep.local_comm_id, rep.remote_comm_id, Some(false)),
        Message::Rtu(rtu) => (rtu.local_comm_id, rtu.remote_comm_id, Some(true)),
        Message::Mra(mra) => (mra.local_comm_id, mra.remote_comm_id, None),
        Message::Rej(rej) => (rej.local_comm_id, rej.remote_comm_id, None),
        Message::Dreq(dreq) => (dreq.local_comm_id, dreq.remote_comm_id, None),
        Message::Drep(drep) => (drep.local_comm_id, drep.remote_comm_id, None),
        Message::Lap(lap) => (lap.local_comm_id, lap.remote_comm_id, None),
        Message::Apr(apr) => (apr.local_comm_id, apr.remote_comm_id, None),
        Message::SidrReq(req) => (req.request_id, CommId(0), Some(true)),
        Message::SidrRep(rep) => (CommId(0), rep.request_id, Some(false)),
    }
}

impl Conversation {
    pub(super) fn new(asker: IpAddr, asked: IpAddr, ids: [CommId; 2]) -> Self {
        Self {
            asker,
            asked,
            service: "not in the capture".to_owned(),
            asker_qp: 0,
            asked_qp: 0,
            mtu: None,
            messages: Vec::new(),
            repeated: 0,
            outcome: "not answered".to_owned(),
            ids,
            seen: Vec::new(),
        }
    }

    /// Whether this message was seen before.
    fn has(&self, datagram: &Datagram, by_asker: bool) -> bool {
        self.seen.contains(&(datagram.message.attribute(), datagram.transaction, by_asker))
    }

    fn say(&mut self, datagram: &Datagram, time: u64, by_asker: bool) {
        let repeated = self.has(datagram, by_asker);
        if repeated {
            self.repeated += 1;
        } else if self.seen.len() < MOST_MESSAGES {
            self.seen.push((datagram.message.attribute(), datagram.transaction, by_asker));
        }
        if self.messages.len() < MOST_MESSAGES {
            self.messages.push(Said { time_ns: time, name: datagram.message.name(), by_asker, repeated });
        }
    }

    fn learn(&mut self, datagram: &Datagram) -> Option<Ends> {
        match &datagram.message {
            Message::Req(req) => {
                self.service = crate::packet::port(req.service_id);
                self.asker_qp = req.local_qpn.value();
                self.mtu = Some(req.path_mtu).filter(|code| (1..=5).contains(code)).map(|code| 128 << code);
            }
            Message::Rep(rep) => {
                self.asked_qp = rep.qpn().value();
                self.outcome = "accepted".to_owned();
                let ends = [(self.asker, Qpn::new(self.asker_qp)), (self.asked, rep.qpn())];
                return Some((ends, self.mtu)).filter(|_| self.asker_qp != 0);
            }
            Message::Rtu(_) => self.outcome = "established".to_owned(),
            Message::Rej(rej) => self.outcome = format!("refused: {}", rej.reason),
            Message::Dreq(_) => self.outcome = "asked to end".to_owned(),
            Message::Drep(_) => self.outcome = "established and ended".to_owned(),
            Message::SidrReq(req) => self.service = crate::packet::port(req.service_id),
            Message::SidrRep(rep) => {
                self.asked_qp = rep.qpn.value();
                self.outcome = format!("answered: {}", rep.status);
            }
            Message::Mra(_) | Message::Lap(_) | Message::Apr(_) => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_cm::proto::{Drep, PrivateData, Rej, Req};

    /// A side that uses a new ID in every message is still one conversation.
    #[test]
    fn a_number_in_every_message_is_not_kept() {
        let [asker, asked] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let mut conversations = Conversations::default();
        let said = |local, remote| Datagram {
            transaction: 1,
            modifier: 0,
            message: Message::Drep(Drep {
                local_comm_id: CommId(local),
                remote_comm_id: CommId(remote),
                private_data: PrivateData::default(),
            }),
        };
        conversations.take(asker, asked, &said(7, 0), 0);
        for number in 1..1000 {
            conversations.take(asked, asker, &said(number, 7), 0);
        }
        assert_eq!((conversations.list.len(), conversations.by_asker.len()), (1, 1));
        assert_eq!(conversations.by_asked.len(), 1, "the last one");
    }

    /// A request that is sent again after it was refused is no new one. Another one with the same ID is.
    #[test]
    fn a_request_that_is_sent_again_after_its_refusal() {
        let [asker, asked] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let mut conversations = Conversations::default();
        let id = CommId(7);
        for (transaction, lists) in [(1, 1), (1, 1), (2, 2)] {
            let said = |message| Datagram { transaction, modifier: 0, message };
            let request = said(Message::Req(Req { local_comm_id: id, ..Req::default() }));
            conversations.take(asker, asked, &request, 0);
            let refusal = said(Message::Rej(Rej { remote_comm_id: id, ..Rej::default() }));
            conversations.take(asked, asker, &refusal, 0);
            assert_eq!(conversations.list.len(), lists);
        }
        assert_eq!((conversations.list[0].repeated, conversations.list[1].repeated), (2, 0));
    }
}
