//! Connected mode (RFC 4755): reliable connections to neighbours that accept them. As in Linux, each side sends by the
//! connection that it has requested itself, and receives by the peer's.

use super::{ConnectionReport, Parcel, Work};
use crate::{
    Error,
    pool::Pool,
    port::Port,
    proto::{
        address::LinkAddress,
        connected::{self, PrivateData},
        encap,
    },
};
use rxe_cm::{
    CmEvent, CmId, CmOptions, ConnParams, EventChannel, EventKind, Manager, proto::PortSpace,
    proto::ServiceId,
};
use rxe_verbs::{Pkey, Qp, QpCaps, QpChange, QpInit, QpState, QpType, RecvWr, SendOp, SendWr, Srq};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// Receive buffers for messages of all peers.
const RECEIVES: u32 = 128;
/// Messages under way to one peer: half of the buffers, which is the most that [`may_hold`] allows a single peer.
const SENDS: u32 = super::CONNECTED_SENDS / 2;
/// Completions other than those of datagrams.
pub(super) const COMPLETIONS: u32 = RECEIVES + super::CONNECTED_SENDS;
/// Most connections in each direction.
const MOST_CONNECTIONS: usize = 512;
/// Most packets that wait until a connection is established.
const MOST_WAITING: usize = 16;
/// How long a neighbour that refused a connection is not asked again.
const PAUSE: Duration = Duration::from_secs(5);
/// How long after that it is remembered.
const MEMORY: Duration = Duration::from_secs(60);
/// The longest message that we receive.
const RECEIVE_MTU: usize = encap::LEN + connected::MTU as usize;

/// The result of sending a parcel.
pub(super) enum Sent {
    /// It was sent.
    Gone,
    /// It waits for the connection.
    Kept,
    /// Too many packets are under way or waiting.
    Busy,
    /// It is longer than the longest IP packet that the peer accepts.
    TooBig(u16),
    /// There is no connection, so it has to be sent as a datagram.
    ByDatagram,
}

/// The state of a connection of ours.
#[derive(Debug)]
enum Phase {
    /// It is being established. Packets that are too long for datagrams wait.
    Asked(Vec<Parcel>),
    /// It is established. The peer accepts IP packets up to this length.
    Stands(u16),
}

/// A connection that we have requested, by which we send.
#[derive(Debug)]
struct Active {
    id: CmId,
    qp: Option<Arc<Qp>>,
    phase: Phase,
    used: Duration,
}

/// A queue pair with outstanding work requests.
#[derive(Debug)]
struct Sender {
    peer: LinkAddress,
    outstanding: u32,
    /// The queue pair of a connection that has ended. It is kept until its work requests have completed.
    ending: Option<(CmId, Arc<Qp>)>,
}

/// A connection that a peer has requested, by which we receive.
#[derive(Debug)]
struct Passive {
    id: CmId,
    peer: (Ipv6Addr, u32),
    since: u64,
}

impl Drop for Passive {
    /// Brings the queue pair to the error state before it is destroyed. If a message is half received, its buffer then comes back by a
    /// completion. Without this, peers that end in the middle of messages would use up the shared receive queue.
    fn drop(&mut self) {
        let _ = self.id.disconnect();
    }
}

/// A neighbour that is not asked for a connection, because it refused one.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Duration,
    /// It has refused twice in a row.
    again: bool,
}

/// Changes of connections that the interface has to handle.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Packets to be sent again, because their connection is now established, or has failed.
    pub(super) released: Vec<(Parcel, LinkAddress)>,
    /// Connections that have been established.
    pub(super) made: u64,
    /// Neighbours whose connections failed, or were ended by the peer.
    pub(super) failed: Vec<LinkAddress>,
    /// Number of requests of peers that were refused.
    pub(super) refused: u64,
}

/// All connections of an interface.
#[derive(Debug)]
pub(super) struct Connections {
    manager: Manager,
    channel: EventChannel,
    /// The id that listens for requests.
    _listener: CmId,
    srq: Srq,
    pub(super) arrivals: Pool,
    active: HashMap<LinkAddress, Active>,
    /// The neighbour of each of our ids.
    asked: HashMap<usize, LinkAddress>,
    senders: HashMap<u32, Sender>,
    passive: HashMap<usize, Passive>,
    paused: HashMap<LinkAddress, Pause>,
    /// Connections of peers so far.
    arrived: u64,
    failed: Vec<LinkAddress>,
}

impl Connections {
    /// Listens for connections of peers.
    pub(super) fn open(port: &Port) -> Result<Self, Error> {
        let manager = Manager::on(&port.context)?;
        let channel = EventChannel::new()?;
        let listener = manager.create_id(&channel, PortSpace::Ib)?;
        listener.name_service(ServiceId(connected::service_id(port.address.qpn)))?;
        listener.bind(socket_address(port, port.address.gid))?;
        listener.listen(0)?;
        let srq = port.pd.create_srq(RECEIVES, 1)?;
        let arrivals = Pool::new(&port.pd, RECEIVES, RECEIVE_MTU)?;
        let connections = Self {
            manager,
            channel,
            _listener: listener,
            srq,
            arrivals,
            active: HashMap::new(),
            asked: HashMap::new(),
            senders: HashMap::new(),
            passive: HashMap::new(),
            paused: HashMap::new(),
            arrived: 0,
            failed: Vec::new(),
        };
        connections.receive(0..RECEIVES);
        Ok(connections)
    }

    /// Posts receive slots.
    pub(super) fn receive(&self, slots: impl Iterator<Item = u32>) {
        let slots: Vec<_> = slots.map(|slot| (slot, [self.arrivals.sge(slot, RECEIVE_MTU)])).collect();
        let list: Vec<_> =
            slots.iter().map(|(slot, sges)| RecvWr { wr_id: Work::Message.id(*slot), sges }).collect();
        // The queue has as many places as there are slots.
        let _ = self.srq.post_recv_list(&list);
    }

    /// Connections by which we send.
    pub(super) fn report(&self) -> Vec<ConnectionReport> {
        let told = |(peer, active): (&LinkAddress, &Active)| match (&active.phase, &active.qp) {
            (Phase::Stands(mtu), Some(qp)) => Some(ConnectionReport {
                address: peer.to_string(),
                mtu: (*mtu).into(),
                qpn: qp.qpn().value(),
            }),
            _ => None,
        };
        self.active.iter().filter_map(told).collect()
    }

    /// Sends a parcel over the connection to a neighbour. Requests the connection if there is none.
    pub(super) fn send(
        &mut self,
        now: Duration,
        port: &Port,
        buffers: &Pool,
        parcel: Parcel,
        to: LinkAddress,
    ) -> Sent {
        let fits = parcel.len <= usize::from(port.mtu);
        let free = buffers.free();
        let Some(active) = self.active.get_mut(&to) else {
            if !fits && !may_hold(0, free) {
                return Sent::Busy;
            }
            return match self.paused.get(&to).copied().filter(|pause| pause.until > now) {
                // A peer that was started anew announces its new address soon. "Too big" would limit its packets for ten minutes.
                Some(pause) if !fits && !pause.again => Sent::Busy,
                None if self.ask(now, port, to, parcel, fits) && !fits => Sent::Kept,
                _ => Sent::ByDatagram,
            };
        };
        active.used = now;
        match (&mut active.phase, &active.qp) {
            (Phase::Stands(mtu), _) if parcel.len > usize::from(*mtu) => Sent::TooBig(*mtu),
            (Phase::Stands(_), Some(qp)) => {
                let sges = [buffers.sge(parcel.slot, parcel.frame())];
                let sender = self.senders.get_mut(&qp.qpn().value());
                let sender = sender.filter(|sender| may_hold(sender.outstanding as usize, free));
                let Some(sender) = sender else { return Sent::Busy };
                match qp.post_send(&SendWr::new(Work::Send.id(parcel.slot), SendOp::Send, &sges)) {
                    Ok(()) => {
                        sender.outstanding += 1;
                        Sent::Gone
                    }
                    Err(_) => Sent::Busy,
                }
            }
            // The address is resolved, so a datagram can be sent. Longer packets have to wait.
            _ if fits => Sent::ByDatagram,
            (Phase::Asked(waiting), _) if waiting.len() < MOST_WAITING && may_hold(waiting.len(), free) => {
                waiting.push(parcel);
                Sent::Kept
            }
            _ => Sent::Busy,
        }
    }

    /// Requests a connection. False if that is not possible now.
    fn ask(&mut self, now: Duration, port: &Port, to: LinkAddress, parcel: Parcel, fits: bool) -> bool {
        if self.active.len() >= MOST_CONNECTIONS {
            let idle = self.active.iter().filter(|(_, active)| matches!(active.phase, Phase::Stands(_)));
            let Some(oldest) = idle.min_by_key(|(_, active)| active.used).map(|(peer, _)| *peer) else {
                return false;
            };
            self.end(oldest);
        }
        let made = self.manager.create_id(&self.channel, PortSpace::Ib).and_then(|id| {
            id.name_service(ServiceId(connected::service_id(to.qpn)))?;
            id.set_options(CmOptions { pkey: Some(Pkey(port.pkey)), ..CmOptions::default() })?;
            let (from, peer) = (socket_address(port, port.address.gid), socket_address(port, to.gid));
            id.resolve_addr(Some(from), peer)?;
            Ok(id)
        });
        let Ok(id) = made else {
            self.pause(now, to);
            return false;
        };
        self.asked.insert(id.number(), to);
        let waiting = if fits { Vec::new() } else { vec![parcel] };
        self.active.insert(to, Active { id, qp: None, phase: Phase::Asked(waiting), used: now });
        true
    }

    fn pause(&mut self, now: Duration, peer: LinkAddress) {
        // Entries stay after their pause, so that a second refusal is recognized.
        self.paused.retain(|_, pause| pause.until + MEMORY > now);
        let again = self.paused.contains_key(&peer);
        if again || self.paused.len() < MOST_CONNECTIONS {
            self.paused.insert(peer, Pause { until: now + PAUSE, again });
        }
    }

    /// A message of ours has completed, or failed.
    pub(super) fn handle_sent(&mut self, qpn: rxe_verbs::Qpn, good: bool) {
        let Some(sender) = self.senders.get_mut(&qpn.value()) else { return };
        sender.outstanding = sender.outstanding.saturating_sub(1);
        if sender.outstanding == 0 && sender.ending.is_some() {
            self.senders.remove(&qpn.value());
        } else if !good && sender.ending.is_none() {
            self.failed.push(sender.peer);
        }
    }

    /// Handles events of the connection manager.
    pub(super) fn follow(&mut self, now: Duration, port: &Port) -> News {
        let mut news = News::default();
        // The number is bounded, so that peers that send requests without end do not stop the packets.
        for _ in 0..super::TURN {
            let Some(event) = self.channel.try_get_event() else { break };
            self.take(now, port, event, &mut news);
        }
        for peer in core::mem::take(&mut self.failed) {
            if self.active.contains_key(&peer) {
                news.failed.push(peer);
                self.give_up(peer, &mut news);
            }
        }
        news
    }

    fn take(&mut self, now: Duration, port: &Port, event: CmEvent, news: &mut News) {
        let number = event.id.number();
        if let EventKind::ConnectRequest(_) = event.kind {
            return self.answer(port, &event, news);
        }
        if let Some(&peer) = self.asked.get(&number) {
            let gone_on = match event.kind {
                EventKind::AddrResolved => event.id.resolve_route().is_ok(),
                EventKind::RouteResolved => self.connect(port, peer),
                EventKind::Established(_) => self.stand(peer, &event, news),
                EventKind::AddrChange => true,
                _ => false,
            };
            if !gone_on {
                news.failed.push(peer);
                self.pause(now, peer);
                self.give_up(peer, news);
            }
            return;
        }
        match event.kind {
            EventKind::Established(_) => news.made += u64::from(self.passive.contains_key(&number)),
            EventKind::AddrChange => {}
            _ => _ = self.passive.remove(&number),
        }
    }

    /// The route is resolved: sends the request to the peer.
    fn connect(&mut self, port: &Port, peer: LinkAddress) -> bool {
        let Some(active) = self.active.get(&peer) else { return false };
        let Ok(qp) = active.id.create_qp(&port.pd, &self.init(port)) else { return false };
        let Some(active) = self.active.get_mut(&peer) else { return false };
        let sender = Sender { peer, outstanding: 0, ending: None };
        self.senders.insert(qp.qpn().value(), sender);
        active.qp = Some(qp);
        active.id.connect(&params(&private_data(port))).is_ok()
    }

    /// The peer has accepted.
    fn stand(&mut self, peer: LinkAddress, event: &CmEvent, news: &mut News) -> bool {
        let Some(data) = PrivateData::parse(&event.private_data) else { return false };
        self.paused.remove(&peer);
        let Some(active) = self.active.get_mut(&peer) else { return false };
        let mtu = (data.receive_mtu as usize - encap::LEN).min(connected::MTU.into());
        let phase = core::mem::replace(&mut active.phase, Phase::Stands(mtu as u16));
        if let Phase::Asked(waiting) = phase {
            news.made += 1;
            news.released.extend(waiting.into_iter().map(|parcel| (parcel, peer)));
        }
        true
    }

    /// A connection of ours has failed, or has ended.
    fn give_up(&mut self, peer: LinkAddress, news: &mut News) {
        if let Some(Phase::Asked(waiting)) = self.end(peer) {
            news.released.extend(waiting.into_iter().map(|parcel| (parcel, peer)));
        }
    }

    /// Ends a connection of ours. Its queue pair is kept until its work requests have completed, because they use buffers.
    fn end(&mut self, peer: LinkAddress) -> Option<Phase> {
        let Active { id, qp, phase, .. } = self.active.remove(&peer)?;
        self.asked.remove(&id.number());
        if let Some(qp) = qp {
            // Brings the queue pair to the error state. If there is no connection, the modification below does it.
            if id.disconnect().is_err() {
                let _ = qp.modify(&QpChange { state: Some(QpState::Error), ..QpChange::default() });
            }
            let qpn = qp.qpn().value();
            match self.senders.get_mut(&qpn) {
                Some(sender) if sender.outstanding > 0 => sender.ending = Some((id, qp)),
                _ => _ = self.senders.remove(&qpn),
            }
        }
        Some(phase)
    }

    /// A peer requests a connection.
    fn answer(&mut self, port: &Port, event: &CmEvent, news: &mut News) {
        let gid = match event.id.peer_addr().map(|address| address.ip()) {
            Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped(),
            Some(IpAddr::V6(v6)) => v6,
            None => return,
        };
        let in_partition = event.id.path().is_some_and(|path| path.pkey_index == port.pkey_index);
        let Some(data) = PrivateData::parse(&event.private_data).filter(|_| in_partition) else {
            news.refused += 1;
            // Otherwise the request is refused when the event is dropped.
            let _ = event.id.reject(&[]);
            return;
        };
        // The peer has lost its earlier connection, or there are too many: the oldest one is ended.
        let peer = (gid, data.qpn);
        self.passive.retain(|_, passive| passive.peer != peer);
        if self.passive.len() >= MOST_CONNECTIONS
            && let Some(oldest) = self.passive.iter().min_by_key(|(_, one)| one.since).map(|(key, _)| *key)
        {
            self.passive.remove(&oldest);
        }
        let accepted = event
            .id
            .create_qp(&port.pd, &self.init(port))
            .and_then(|_| event.id.accept(&params(&private_data(port))));
        if accepted.is_err() {
            news.refused += 1;
            return;
        }
        self.arrived += 1;
        self.passive.insert(event.id.number(), Passive { id: event.id.clone(), peer, since: self.arrived });
    }

    fn init<'a>(&'a self, port: &'a Port) -> QpInit<'a> {
        let caps =
            QpCaps { max_send_wr: SENDS, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline: 0 };
        QpInit { caps, srq: Some(&self.srq), signal_all: true, ..QpInit::new(QpType::Rc, &port.cq) }
    }
}

/// Whether a peer that holds `held` buffers may have one more while others are free: it may hold no more than it leaves to the
/// others. So a peer that does not receive holds at most half of the buffers, the next one half of the rest, and some always
/// remain.
const fn may_hold(held: usize, free: usize) -> bool {
    held < free
}

impl AsFd for Connections {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

fn private_data(port: &Port) -> [u8; 8] {
    PrivateData { qpn: port.address.qpn, receive_mtu: RECEIVE_MTU as u32 }.emit()
}

/// No READs are used. RNR retries are unlimited, because a peer without posted receives only has to catch up.
fn params(private_data: &[u8]) -> ConnParams<'_> {
    ConnParams {
        private_data,
        responder_resources: Some(0),
        initiator_depth: Some(0),
        ..ConnParams::default()
    }
}

/// The address of a GID, with the interface if it is link-local.
fn socket_address(port: &Port, gid: Ipv6Addr) -> SocketAddr {
    match gid.to_ipv4_mapped() {
        Some(v4) => SocketAddr::new(v4.into(), 0),
        None => SocketAddrV6::new(gid, 0, 0, port.context.device().interface().index).into(),
    }
}

impl super::Interface {
    /// Handles changes of connections. Returns whether there were any.
    pub(super) fn follow_connections(&mut self, now: Duration) -> bool {
        let Some(connections) = &mut self.connections else { return false };
        let News { released, made, failed, refused } = connections.follow(now, &self.port);
        self.counters.connections += made;
        self.counters.connections_failed += failed.len() as u64;
        self.counters.connections_refused += refused;
        let busy = made + refused > 0 || !failed.is_empty();
        // The neighbour may be gone, or may be back with another queue pair.
        for peer in failed {
            self.neighbours.doubt(peer);
        }
        for (parcel, to) in released {
            self.send_to(now, parcel, to);
        }
        busy
    }
}

#[cfg(test)]
mod tests;
