//! Messages that arrive: to which connection each belongs, and what becomes of requests.

use super::{
    Agreed, Direction, Exchange, Id, Turn, connections::MOST_CONNECTIONS, gsi::Arrival, services::Audience,
};
use crate::{
    event::{ConnTerms, EventKind, Offer, Place},
    id::CmId,
    proto::{
        CmaHeader, Datagram, EXTENDED_XRC, Message, PrivateData, RejectReason, Req, ServiceId, Transport,
        machine::{Connection, Directory, Local, Rejection, Request, Route},
    },
    route::{PathRecord, Way, gid_index, is_member, pkey_at, pkey_index, source_for, typed_gid_index},
};
use core::sync::atomic::Ordering;
use rxe_core::num::Psn;
use rxe_verbs::{AddressVector, Context, Gid, Mtu, QpType, Qpn, host::note_peer};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// The service timeout of our MRAs, a code for 4.096 us << 24 = 69 s: for so long the peer waits for our answer. Kernels send the same.
pub(super) const PATIENCE: u8 = 24;

/// Where a request goes.
pub(super) struct Listener {
    pub(super) id: usize,
    pub(super) context: Context,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Turn<'_> {
    /// Takes a datagram that has come.
    pub(super) fn handle_arrival(&mut self, arrival: &Arrival) {
        let counters = &self.agent.counters;
        counters.received.fetch_add(1, Ordering::Relaxed);
        let datagram = match Datagram::parse(&arrival.mad) {
            Ok(datagram) if arrival.src_qp == Qpn::GSI => datagram,
            _ => {
                counters.malformed.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        self.agent.tell_watcher(Direction::Received, arrival.dst, arrival.src, &datagram);
        self.take(arrival, &datagram);
    }

    /// Takes a request that has waited.
    pub(super) fn take_request_of(&mut self, arrival: &Arrival) {
        if let Ok(datagram) = Datagram::parse(&arrival.mad) {
            self.take(arrival, &datagram);
        }
    }

    fn take(&mut self, arrival: &Arrival, datagram: &Datagram) {
        let (now, counters) = (self.now, &self.agent.counters);
        match &datagram.message {
            Message::Req(req) => note_peer(arrival.src, req.local_ca_guid.0, Some(req.pkey.0)),
            Message::Rep(rep) => note_peer(arrival.src, rep.local_ca_guid.0, None),
            _ => {}
        }
        let route = self.state.directory.route(datagram);
        if matches!(datagram.message, Message::Req(_)) && !matches!(route, Route::New) {
            self.tell_taken(arrival);
        }
        match route {
            Route::To(comm_id) => {
                if let Some(side) = self.state.connections.get_mut(&comm_id)
                    && side.machine.handle(now, datagram).is_err()
                {
                    counters.ignored.fetch_add(1, Ordering::Relaxed);
                }
                self.settle(comm_id);
            }
            Route::New => self.handle_request(arrival, datagram),
            Route::Stale { old, answer } => {
                self.answer(arrival, &answer);
                self.forget_stale(old);
            }
            Route::Answer(answer) => self.answer(arrival, &answer),
            Route::Sidr => self.handle_sidr(arrival, datagram),
            Route::Unknown => _ = counters.unknown.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The way back.
    pub(super) fn way_back(&self, arrival: &Arrival) -> Option<Way> {
        let context = self.agent.context_of(arrival.dst).ok()?;
        let index = typed_gid_index(&context, arrival.dst, arrival.gid_type)?;
        let av = context.address_vector(index, Gid::from(arrival.src)).ok()?;
        Some(Way { av, pkey: pkey_at(&context, pkey_index(&context, arrival.pkey)) })
    }

    /// Answers a message of an unknown connection. The number of such answers is limited.
    pub(super) fn answer(&mut self, arrival: &Arrival, datagram: &Datagram) {
        if !self.state.bucket.take(self.now) {
            self.agent.counters.rate_limited.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some(way) = self.way_back(arrival) {
            self.agent.send(&way, datagram);
        }
    }

    /// A REQ of a connection that is not known yet.
    fn handle_request(&mut self, arrival: &Arrival, datagram: &Datagram) {
        let Message::Req(req) = &datagram.message else { return };
        match self.judge_request(arrival, req) {
            Ok(listener) => {
                self.tell_taken(arrival);
                self.take_request(arrival, datagram, &listener);
            }
            Err(_) if self.may_wait(req.service_id, arrival) => {}
            Err(_) if !self.is_ours_to_refuse(arrival) => {
                self.agent.counters.unknown.fetch_add(1, Ordering::Relaxed);
            }
            Err(why) => {
                self.agent.counters.refused.fetch_add(1, Ordering::Relaxed);
                if let Some(answer) = Directory::refuse(datagram, *why) {
                    self.answer(arrival, &answer);
                }
            }
        }
    }

    /// Which id a REQ is for, or why it is refused. The reasons are those of kernels (their cm.c and cma.c).
    fn judge_request(&self, arrival: &Arrival, req: &Req) -> Result<Listener, Box<Rejection>> {
        let because = |reason| Box::new(Rejection::because(reason));
        let consumer = || because(RejectReason::CONSUMER_DEFINED);
        if !self.is_listened_to(req.service_id) {
            return Err(because(RejectReason::INVALID_SERVICE_ID));
        }
        if req.primary.remote_gid != arrival.dst {
            // The REJ says which one would have been right.
            let mut why = because(RejectReason::INVALID_GID);
            why.info.0[..16].copy_from_slice(&Gid::from(arrival.dst).0);
            why.info_len = 16;
            return Err(why);
        }
        let header = req.private_data.split_header().map(|(header, _)| header);
        let found = match req.service_id.port() {
            Some(_) => self.find_listener(arrival, req.service_id, header.ok()),
            None => self.find_named(arrival, req.service_id),
        };
        let listener = found.ok_or_else(consumer)?;
        let transport = match self.state.ids.get(listener.id).map(|id| id.qp_type) {
            Some(QpType::Rc) => (Transport::Rc, req.extended_transport),
            Some(QpType::Uc) => (Transport::Uc, req.extended_transport),
            Some(QpType::XrcTarget) => (Transport::Extended, EXTENDED_XRC),
            _ => return Err(consumer()),
        };
        if (req.transport, req.extended_transport) != transport {
            return Err(because(RejectReason::INVALID_TRANSPORT));
        }
        let active = listener.context.port().active_mtu;
        if req.mtu().is_none_or(|mtu| mtu > active) {
            let mut why = because(RejectReason::INVALID_MTU);
            (why.info.0[0], why.info_len) = (active.code() << 4, 1);
            return Err(why);
        }
        if !is_member(&listener.context, req.pkey) {
            return Err(because(RejectReason::INVALID_GID));
        }
        Ok(listener)
    }

    /// Whether any id listens for the service, on whatever address.
    pub(super) fn is_listened_to(&self, service: ServiceId) -> bool {
        self.state.services.of(service).any(|id| self.listens(id))
    }

    /// Whether an address is one of this host's, or of this manager's device. All loopback addresses are, but the system names only
    /// one as the source of a way to them.
    fn is_own(&self, address: IpAddr) -> bool {
        let routed = || source_for(SocketAddr::new(address, 0)).is_ok_and(|source| source == address);
        address.to_canonical().is_loopback()
            || gid_index(&self.agent.home, address).is_some()
            || self.agent.is_system() && routed()
    }

    fn listens(&self, id: usize) -> bool {
        self.state.ids.get(id).is_some_and(|id| id.listening.is_some())
    }

    /// The id that listens for a service at the address that the IP CM header names.
    pub(super) fn find_listener(
        &self,
        arrival: &Arrival,
        service: ServiceId,
        header: Option<CmaHeader>,
    ) -> Option<Listener> {
        let CmaHeader { src_port, src, dst } = header?;
        let (_, port) = service.port()?;
        let sensible = |ip: IpAddr| !ip.is_unspecified() && !ip.is_multicast();
        if !sensible(src) || !sensible(dst) || src.is_ipv4() != dst.is_ipv4() {
            return None;
        }
        // The sender may write anything into the IP CM header. By another address of ours it would reach listeners that its network
        // cannot reach, and every address that is not ours would be looked for among all interfaces. As GIDs, an IPv4 address and its
        // form in IPv6 are equal.
        if Gid::from(dst) != Gid::from(arrival.dst) {
            return None;
        }
        // Only packets of this host may be for a loopback address. So the source address of the packet has to be of this host, too.
        let hears = |audience: &Audience| {
            *audience == Audience::Anyone || self.is_own(src) && self.is_own(arrival.src)
        };
        let mut found = self.state.services.find(service, dst).filter(|(id, _)| self.listens(*id));
        let (id, _) = found.find(|(_, audience)| hears(audience))?;
        let context = self.agent.context_of(dst).ok()?;
        let scope = if arrival.dst.is_ipv6() { context.device().interface().index } else { 0 };
        Some(Listener {
            id,
            context,
            local: with_scope(dst, port, scope),
            peer: with_scope(src, src_port, scope),
        })
    }

    /// The id that listens for a service that is no port of rdma_cm. There is no IP CM header, so the packet's addresses decide.
    fn find_named(&self, arrival: &Arrival, service: ServiceId) -> Option<Listener> {
        let hears = |audience: &Audience| *audience == Audience::Anyone || self.is_own(arrival.src);
        let mut found = self.state.services.find(service, arrival.dst).filter(|(id, _)| self.listens(*id));
        let (id, _) = found.find(|(_, audience)| hears(audience))?;
        let context = self.agent.context_of(arrival.dst).ok()?;
        let scope = context.device().interface().index;
        let (local, peer) = (with_scope(arrival.dst, 0, scope), with_scope(arrival.src, 0, scope));
        Some(Listener { id, context, local, peer })
    }

    fn take_request(&mut self, arrival: &Arrival, datagram: &Datagram, listener: &Listener) {
        let counters = &self.agent.counters;
        let place = self.place_in_backlog(listener.id);
        let full = self.state.connections.len() >= MOST_CONNECTIONS;
        let (Some(place), false, Some(way)) = (place, full, self.way_back(arrival)) else {
            counters.backlog_full.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let Some(child) = self.spawn_child(listener) else { return };
        let Some(comm_id) = self.claim_comm_id() else { return };
        let ca_guid = self.agent.guid(&listener.context);
        let transaction = transaction(self.agent.random(), comm_id.0);
        let local = Local { comm_id, ca_guid, transaction, packet_lifetime: PACKET_LIFETIME };
        let Ok(mut machine) = Connection::requested(local, datagram) else { return };
        // The machine is in a state that allows this.
        let _ = machine.defer_mra(PATIENCE, PrivateData::default());
        let Message::Req(req) = &datagram.message else { return };
        let request = Request::new(req, datagram.modifier);
        let path = path_of(&request, way.av, &listener.context);
        if let Some(id) = self.state.ids.get_mut(child.key()) {
            let psn = Psn::new(self.agent.random() as u32);
            (id.path, id.agreed) = (Some(path), Some(Agreed::requested(&path, &request, psn)));
        }
        self.adopt(machine, path.way(&listener.context), child.key());
        if let Some(side) = self.state.connections.get_mut(&comm_id) {
            side.request = Some(Box::new(request));
        }
        self.settle(comm_id);
        let kind = EventKind::ConnectRequest(Offer::Connection(ConnTerms::requested(&request)));
        let own = match request.service_id.port() {
            Some(_) => request.private_data.split_header().map_or(&[][..], |(_, own)| own),
            None => &request.private_data.0[..],
        };
        self.emit_request((listener.id, child), kind, own, place);
    }

    pub(super) fn place_in_backlog(&self, listener: usize) -> Option<Place> {
        let listening = self.state.ids.get(listener)?.listening.as_ref()?;
        Place::take(&listening.taken, listening.limit)
    }

    /// An id for a request.
    pub(super) fn spawn_child(&mut self, listener: &Listener) -> Option<CmId> {
        let parent = self.state.ids.get(listener.id)?;
        let manager = Arc::clone(CmId::from(parent.handle.upgrade()?).handle());
        let (queue, space, qp_type, options) =
            (parent.queue.clone(), parent.space, parent.qp_type, parent.options);
        let child = CmId::enter(self.state, &manager, |weak| {
            let mut id = Id {
                options,
                local: Some(listener.local),
                peer: Some(listener.peer),
                unaccepted: true,
                ..Id::new(weak, queue, space, qp_type)
            };
            id.enter_device(Some(listener.context.clone()));
            id
        });
        Some(child)
    }

    /// Takes the machine from an id. The machine goes on without the id.
    pub(crate) fn detach(&mut self, id: usize) -> Exchange {
        self.state
            .ids
            .get_mut(id)
            .map_or(Exchange::None, |id| core::mem::replace(&mut id.exchange, Exchange::None))
    }
}

/// The value that Linux uses for Ethernet.
const PACKET_LIFETIME: u8 = 16;

/// A transaction ID. As with Linux, the upper half is the sender's and the lower half names the connection.
pub(crate) const fn transaction(random: u64, comm_id: u32) -> u64 {
    random & 0xffff_ffff_0000_0000 | comm_id as u64
}

/// The path that a REQ asks for, as the passive side sees it.
fn path_of(request: &Request, way: AddressVector, context: &Context) -> PathRecord {
    let primary = &request.primary;
    let av = AddressVector {
        traffic_class: primary.traffic_class,
        flow_label: primary.flow_label,
        service_level: primary.service_level,
        hop_limit: 64,
        ..way
    };
    let mtu = Mtu::from_code(request.path_mtu).unwrap_or_else(|| context.port().active_mtu);
    let pkey_index = pkey_index(context, request.pkey);
    PathRecord { av, mtu, packet_lifetime: PACKET_LIFETIME, rate: primary.packet_rate, pkey_index }
}

fn with_scope(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            std::net::SocketAddrV6::new(v6, port, 0, scope).into()
        }
        other => SocketAddr::new(other, port),
    }
}
