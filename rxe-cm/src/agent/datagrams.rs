//! Datagram services: looking them up at a peer, and answering peers that look them up here (SIDR; IBTA vol. 1, 12.11).

use super::{
    Exchange, Turn,
    arrival::Listener,
    gsi::Arrival,
    state::{Answer, Key, Lookup},
};
use crate::{
    event::{DatagramTerms, EventKind, Offer},
    proto::{
        CommId, Datagram, Message, SidrRep, SidrReq, SidrStatus,
        machine::{SidrEvent, SidrRequester, SidrResponder, SidrTiming},
    },
    route::{Way, is_member},
};
use core::{net::IpAddr, sync::atomic::Ordering};
use rxe_verbs::QpType;

/// The timeout that is assumed of requesters. It is the timeout of kernels.
const THEIRS: SidrTiming = SidrTiming { response_timeout: 20, packet_lifetime: 16, max_retries: 15 };
/// How long we wait for an answer before we send the request again. Kernels wait longer.
pub(crate) const OURS: SidrTiming = SidrTiming { response_timeout: 17, packet_lifetime: 16, max_retries: 15 };
/// Most lookups that wait for an answer, or whose answer is kept for repeated requests.
const MOST_ANSWERS: usize = 16_384;
/// Most that are answered among them. (Linux forgets a lookup at once when it answers it.)
const MOST_ANSWERED: usize = MOST_ANSWERS / 2;

impl Turn<'_> {
    /// Looks a datagram service up at a peer.
    pub(crate) fn look_up(&mut self, owner: usize, req: SidrReq, way: Way) {
        let transaction = super::arrival::transaction(self.agent.random(), req.request_id.0);
        let machine = SidrRequester::new(self.now, req, transaction, 0, OURS);
        let lookup = Lookup { machine, way, owner: Some(owner), timer: None };
        self.state.lookups.insert(req.request_id, lookup);
        if let Some(id) = self.state.ids.get_mut(owner) {
            (id.exchange, id.had_service) = (Exchange::Lookup(req.request_id), true);
        }
        self.settle_lookup(req.request_id);
    }

    /// A number for a lookup that no other one has. It is random, because kernels confuse equal numbers of different hosts.
    pub(crate) fn new_request_id(&self) -> Option<CommId> {
        (0..1000)
            .map(|_| self.agent.random_comm_id())
            .find(|id| id.0 != 0 && !self.state.lookups.contains_key(id))
    }

    pub(super) fn forget_lookup(&mut self, request_id: CommId) {
        if let Some(mut lookup) = self.state.lookups.remove(&request_id) {
            self.state.timers.set(Key::Lookup(request_id), &mut lookup.timer, None);
        }
    }

    pub(super) fn handle_lookup_timeout(&mut self, request_id: CommId) {
        let now = self.now;
        if let Some(lookup) = self.state.lookups.get_mut(&request_id) {
            lookup.timer = None;
            lookup.machine.handle_timeout(now);
        }
        self.settle_lookup(request_id);
    }

    fn settle_lookup(&mut self, request_id: CommId) {
        loop {
            let Some(lookup) = self.state.lookups.get_mut(&request_id) else { return };
            if let Some(datagram) = lookup.machine.poll_transmit() {
                self.agent.send(&lookup.way, &datagram);
            }
            let Some(event) = lookup.machine.poll_event() else {
                let due = lookup.machine.poll_timeout();
                self.state.timers.set(Key::Lookup(request_id), &mut lookup.timer, due);
                return;
            };
            let (owner, av) = (lookup.owner, lookup.way.av);
            match event {
                SidrEvent::Resolved(resolution) => {
                    let kind = if resolution.status == SidrStatus::OK {
                        let terms = DatagramTerms { av, qpn: resolution.qpn, qkey: resolution.qkey };
                        EventKind::Established(Offer::Datagram(Some(terms)))
                    } else {
                        EventKind::NoService(resolution.status)
                    };
                    owner.inspect(|owner| self.emit(*owner, kind, &resolution.private_data.0));
                }
                SidrEvent::Unreachable => {
                    owner.inspect(|owner| self.emit(*owner, EventKind::Unreachable(av.gid_type), &[]));
                }
                SidrEvent::Closed => {
                    self.forget_lookup(request_id);
                    owner.inspect(|owner| _ = self.detach(*owner));
                }
                SidrEvent::Requested { .. } => {}
            }
        }
    }

    /// Handles a message about datagram services.
    pub(super) fn handle_sidr(&mut self, arrival: &Arrival, datagram: &Datagram) {
        match &datagram.message {
            Message::SidrReq(req) => self.handle_sidr_request(arrival, datagram, req),
            Message::SidrRep(rep) => {
                let counters = &self.agent.counters;
                match self
                    .state
                    .lookups
                    .get_mut(&rep.request_id)
                    .map(|lookup| lookup.machine.handle(datagram))
                {
                    Some(Ok(())) => self.settle_lookup(rep.request_id),
                    Some(Err(_)) => _ = counters.ignored.fetch_add(1, Ordering::Relaxed),
                    None => _ = counters.unknown.fetch_add(1, Ordering::Relaxed),
                }
            }
            _ => {}
        }
    }

    fn handle_sidr_request(&mut self, arrival: &Arrival, datagram: &Datagram, req: &SidrReq) {
        let key = (arrival.src, req.request_id);
        if self.state.answers.contains_key(&key) {
            self.tell_taken(arrival);
        }
        if let Some(answer) = self.state.answers.get_mut(&key) {
            if answer.machine.handle(datagram).is_err() {
                self.agent.counters.ignored.fetch_add(1, Ordering::Relaxed);
            }
            self.settle_answer(key.0, key.1);
            return;
        }
        match self.judge_sidr(arrival, req) {
            Ok(listener) => {
                self.tell_taken(arrival);
                self.take_sidr(arrival, datagram, req, &listener);
            }
            Err(_) if self.may_wait(req.service_id, arrival) => {}
            Err(_) if !self.is_ours_to_refuse(arrival) => {
                self.agent.counters.unknown.fetch_add(1, Ordering::Relaxed);
            }
            Err(status) => {
                self.agent.counters.refused.fetch_add(1, Ordering::Relaxed);
                let rep = SidrRep {
                    status,
                    request_id: req.request_id,
                    service_id: req.service_id,
                    ..SidrRep::default()
                };
                let answer = Datagram { transaction: datagram.transaction, modifier: 0, message: rep.into() };
                self.answer(arrival, &answer);
            }
        }
    }

    fn judge_sidr(&self, arrival: &Arrival, req: &SidrReq) -> Result<Listener, SidrStatus> {
        if !self.is_listened_to(req.service_id) {
            return Err(SidrStatus::UNSUPPORTED);
        }
        let header = req.private_data.split_header().map(|(header, _)| header);
        let listener = self.find_listener(arrival, req.service_id, header.ok());
        let takes = |listener: &Listener| {
            let qp_type = self.state.ids.get(listener.id).map(|id| id.qp_type);
            qp_type == Some(QpType::Ud) && is_member(&listener.context, req.pkey)
        };
        listener.filter(takes).ok_or(SidrStatus::REJECT)
    }

    fn take_sidr(&mut self, arrival: &Arrival, datagram: &Datagram, req: &SidrReq, listener: &Listener) {
        let place = self.place_in_backlog(listener.id);
        let full = self.state.answers.len() >= MOST_ANSWERS;
        let (Some(place), false, Some(way)) = (place, full, self.way_back(arrival)) else {
            self.agent.counters.backlog_full.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let Ok(machine) = SidrResponder::requested(datagram, THEIRS) else { return };
        let Some(child) = self.spawn_child(listener) else { return };
        let (peer, request_id) = (arrival.src, req.request_id);
        let answer = Answer { machine, way, owner: Some(child.key()), timer: None };
        self.state.answers.insert((peer, request_id), answer);
        if let Some(id) = self.state.ids.get_mut(child.key()) {
            (id.exchange, id.had_service) = (Exchange::Answer(peer, request_id), true);
        }
        self.settle_answer(peer, request_id);
        let own = req.private_data.split_header().map_or(&[][..], |(_, own)| own);
        let kind = EventKind::ConnectRequest(Offer::Datagram(None));
        self.emit_request((listener.id, child), kind, own, place);
    }

    /// Answers a lookup. Only the first answer counts. It is kept, so that it can be repeated. If there are too many, the oldest is
    /// forgotten.
    pub(crate) fn reply(&mut self, peer: IpAddr, request_id: CommId, rep: &SidrRep) {
        let now = self.now;
        let Some(answer) = self.state.answers.get_mut(&(peer, request_id)) else { return };
        let first = answer.machine.poll_timeout().is_none();
        answer.machine.reply(now, rep, 0);
        self.settle_answer(peer, request_id);
        let answered = &mut self.state.answered;
        answered.extend(first.then_some((peer, request_id)));
        if answered.len() > MOST_ANSWERED
            && let Some((peer, request_id)) = answered.pop_front()
            && let Some(oldest) = self.state.answers.get_mut(&(peer, request_id))
        {
            oldest.machine.forget_answer();
            self.settle_answer(peer, request_id);
        }
    }

    /// The id that had to answer was destroyed. If it has not answered, the lookup is refused.
    pub(super) fn orphan_answer(&mut self, peer: IpAddr, request_id: CommId) {
        if let Some(answer) = self.state.answers.get_mut(&(peer, request_id)) {
            answer.owner = None;
        }
        let no = SidrRep { status: SidrStatus::REJECT, ..SidrRep::default() };
        self.reply(peer, request_id, &no);
    }

    pub(super) fn handle_answer_timeout(&mut self, peer: IpAddr, request_id: CommId) {
        let now = self.now;
        if let Some(answer) = self.state.answers.get_mut(&(peer, request_id)) {
            answer.timer = None;
            answer.machine.handle_timeout(now);
        }
        self.settle_answer(peer, request_id);
    }

    fn settle_answer(&mut self, peer: IpAddr, request_id: CommId) {
        let key = Key::Answer(peer, request_id);
        let Some(answer) = self.state.answers.get_mut(&(peer, request_id)) else { return };
        if let Some(datagram) = answer.machine.poll_transmit() {
            self.agent.send(&answer.way, &datagram);
        }
        let mut closed = false;
        while let Some(event) = answer.machine.poll_event() {
            closed |= event == SidrEvent::Closed;
        }
        let due = answer.machine.poll_timeout().filter(|_| !closed);
        self.state.timers.set(key, &mut answer.timer, due);
        if closed {
            let owner = answer.owner;
            self.state.answers.remove(&(peer, request_id));
            owner.inspect(|owner| _ = self.detach(*owner));
        }
    }
}
