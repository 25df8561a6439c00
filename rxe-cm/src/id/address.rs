//! Addresses: our own, and the path to a peer.

use super::CmId;
use crate::{
    agent::{Agent, Claim, Exchange, Place, Taken, Turn},
    error::CmError,
    event::EventKind,
    proto::{PortSpace, ServiceId},
    route::{PathRecord, concrete, pkey_index, source_for},
};
use rxe_verbs::{Context, host::Listen};
use std::net::{IpAddr, SocketAddr};

/// The ports for ids that name none: those of Linux.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32_768..=60_999;
/// How many ports are tried.
const TRIES: usize = 256;

impl CmId {
    /// Takes an address and port of ours (rdma_bind_addr). Port 0 takes any; the address "any" takes all of its family, or
    /// for IPv6 all of both, as [`CmOptions`](super::CmOptions) say. A loopback address stands for all of its family, too,
    /// but is heard by this host alone, and chooses no device.
    ///
    /// # Errors
    /// [`CmError::State`] if it is bound already, [`CmError::NotLocal`], [`CmError::InUse`], [`CmError::Overlap`],
    /// [`CmError::NoPort`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), CmError> {
        let agent = &self.handle().agent;
        // This comes first, because a forked child must not wait for the list of devices.
        let (space, options, named) = self.with(|id| match id.local {
            Some(_) => Err(id.refuse("bind")),
            None => Ok((id.space, id.options, id.named.is_some())),
        })?;
        let ip = address.ip();
        let context = match ip {
            _ if ip.is_unspecified() => None,
            // Without a peer any device will do, so that of this address is used if there is one.
            _ if ip.is_loopback() => agent.context_of(ip).ok(),
            _ => Some(agent.context_at(ip, scope_of(address))?),
        };
        let place = Place::of(ip, options.family_only);
        let port = if named {
            0
        } else if address.port() != 0 {
            match self.claim(ServiceId::new(space, address.port()), place, options.reuse_addr)? {
                Ok(()) => address.port(),
                Err(Taken::Same) => return Err(CmError::InUse { address, space: name_of(space) }),
                Err(Taken::Wide) => return Err(CmError::Overlap { address, space: name_of(space) }),
            }
        } else {
            self.claim_any(space, place, options.reuse_addr)?
        };
        self.with(|id| {
            let mut local = address;
            local.set_port(port);
            id.local = Some(local);
            id.enter_device(context);
            Ok(())
        })
    }

    fn claim_any(&self, space: PortSpace, place: Place, reuse: bool) -> Result<u16, CmError> {
        let agent = &self.handle().agent;
        for _ in 0..TRIES {
            let port = random_port(agent);
            let service = ServiceId::new(space, port);
            // Who draws a port does not share another's, even if both would allow it.
            if reuse && agent.act(|turn| Ok(turn.state.has_port(service)))? {
                continue;
            }
            if self.claim(service, place, reuse)?.is_ok() {
                return Ok(port);
            }
        }
        Err(CmError::NoPort)
    }

    /// Takes a port: first in this process, then on the host.
    pub(super) fn claim(
        &self,
        service: ServiceId,
        place: Place,
        reuse: bool,
    ) -> Result<Result<(), Taken>, CmError> {
        let agent = &self.handle().agent;
        let claim = Claim { id: self.key(), place, reuse };
        if let Err(taken) = agent.act(|turn| Ok(turn.state.services.add(service, claim)))? {
            return Ok(Err(taken));
        }
        // This is not done within a turn, because the answer takes a while.
        let token = match agent.home.host_port() {
            None => None,
            Some(port) => {
                let listen = Listen { service_id: service.0, address: place.address(), reuse };
                let Some(token) = port.listen(listen) else {
                    agent.act(|turn| {
                        turn.state.services.remove(service, self.key());
                        Ok(())
                    })?;
                    // The service does not tell the address of the other listener.
                    return Ok(Err(if place.is_wide() { Taken::Wide } else { Taken::Same }));
                };
                Some(token)
            }
        };
        self.with(|id| {
            id.claim = Some((service, token));
            Ok(Ok(()))
        })
    }

    /// Finds out by which address of ours the peer is reached. If `from` is given, it has to be that one. [`EventKind::AddrResolved`] or
    /// [`EventKind::AddrError`] follows (rdma_resolve_addr).
    ///
    /// # Errors
    /// [`CmError::State`] if it knows a peer already, [`CmError::Family`]; as [`Self::bind`] for `from`.
    pub fn resolve_addr(&self, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), CmError> {
        let agent = &self.handle().agent;
        let local = self.with(|id| match (id.peer, id.exchange, &id.listening) {
            (None, Exchange::None, None) => Ok(id.local),
            _ => Err(id.refuse("resolve an address")),
        })?;
        let from = match local {
            None => from.filter(|from| !from.ip().is_unspecified() || from.port() != 0),
            bound => bound,
        };
        if let Some(from) = from.filter(|from| from.is_ipv4() != to.is_ipv4()) {
            return Err(CmError::Family { from: from.ip(), to: to.ip() });
        }
        if let (None, Some(from)) = (local, from) {
            self.bind(from)?;
        }
        let mut to = concrete(to);
        let found = find_way(agent, from, to);
        // If no device has the loopback address, the path to this host goes by the device's own address.
        if let Ok((ip, _)) = found
            && to.ip().is_loopback()
            && !ip.is_loopback()
        {
            to.set_ip(ip);
        }
        agent.act(|turn| {
            let kind = match found {
                Ok((ip, context)) => {
                    let port = self.port(turn);
                    if let Some(id) = turn.state.ids.get_mut(self.key()) {
                        let mut local = SocketAddr::new(ip, port);
                        if let (SocketAddr::V6(local), SocketAddr::V6(to)) = (&mut local, to) {
                            local.set_scope_id(to.scope_id());
                        }
                        (id.local, id.peer) = (Some(local), Some(to));
                        id.enter_device(Some(context));
                    }
                    EventKind::AddrResolved
                }
                Err(error) => EventKind::AddrError(error),
            };
            turn.emit(self.key(), kind, &[]);
            Ok(())
        })
    }

    /// The port that it has, or one that serves as its name only: nobody can connect to it. As with Linux, no other id has it. If nearly
    /// all are in use, another one may.
    fn port(&self, turn: &mut Turn<'_>) -> u16 {
        let Some(id) = turn.state.ids.get(self.key()) else { return 0 };
        if let Some(local) = id.local {
            return local.port();
        }
        let space = id.space;
        let mut drawn = core::iter::repeat_with(|| random_port(turn.agent)).take(TRIES);
        match drawn.find(|port| !turn.state.has_port(ServiceId::new(space, *port))) {
            Some(port) => {
                turn.state.sources.insert(ServiceId::new(space, port), self.key());
                port
            }
            None => random_port(turn.agent),
        }
    }

    /// Finds out the properties of the path (rdma_resolve_route). [`EventKind::RouteResolved`] follows, or
    /// [`EventKind::RouteError`] if the host's policy or its partitions have no path for this.
    ///
    /// # Errors
    /// [`CmError::State`] if the address is not resolved, or the route is known already.
    pub fn resolve_route(&self) -> Result<(), CmError> {
        let agent = &self.handle().agent;
        let (context, local, peer, service, options) =
            self.with(|id| match (&id.context, id.local, id.peer, id.exchange) {
                (Some(context), Some(local), Some(peer), Exchange::None) if id.path.is_none() => {
                    Ok((context.clone(), local, peer, id.service(peer.port()), id.options))
                }
                _ => Err(id.refuse("resolve a route")),
            })?;
        check_pkey(&context, options.pkey)?;
        let found = agent.policy().path(&context, local, peer, service, &options);
        let mut path: PathRecord = match found {
            Ok(path) => path,
            // The answer that a subnet manager would give.
            Err(error @ CmError::NoPath(_)) => {
                return agent.act(|turn| {
                    turn.emit(self.key(), EventKind::RouteError(error), &[]);
                    Ok(())
                });
            }
            Err(error) => return Err(error),
        };
        if let Some(mtu) = options.path_mtu {
            path.mtu = path.mtu.min(mtu);
        }
        if let Some(code) = options.ack_timeout {
            path.packet_lifetime = code - 1;
        }
        agent.act(|turn| {
            if let Some(id) = turn.state.ids.get_mut(self.key()) {
                id.path = Some(path);
            }
            turn.emit(self.key(), EventKind::RouteResolved, &[]);
            Ok(())
        })
    }
}

/// Properties of a path that a program knows itself. The addresses are those that were resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnPath {
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// P_Key. It has to be in the port's table.
    pub pkey: rxe_verbs::Pkey,
    /// Largest payload of a packet.
    pub mtu: rxe_verbs::Mtu,
    /// Static rate as a code of the path record.
    pub rate: u8,
    /// Longest time that a packet is under way: 4.096 us << code, 0 to 31.
    pub packet_lifetime: u8,
}

impl CmId {
    /// Sets a path of the program, instead of [`Self::resolve_route`] (rdma_set_option, RDMA_OPTION_IB_PATH).
    /// [`EventKind::RouteResolved`] follows.
    ///
    /// # Errors
    /// [`CmError::State`] if the address is not resolved, or the route is known already; [`CmError::Argument`] for a value
    /// out of range, or a P_Key that the port does not have.
    pub fn set_path(&self, own: &OwnPath) -> Result<(), CmError> {
        let agent = &self.handle().agent;
        let (context, local, peer) = self.with(|id| match (&id.context, id.local, id.peer, id.exchange) {
            (Some(context), Some(local), Some(peer), Exchange::None) if id.path.is_none() => {
                Ok((context.clone(), local, peer))
            }
            _ => Err(id.refuse("take a path")),
        })?;
        check_pkey(&context, Some(own.pkey))?;
        if own.service_level > 15 || own.flow_label > 0xf_ffff || own.packet_lifetime > 31 {
            return Err(CmError::Argument("service level, flow label or packet life is too large".into()));
        }
        let mut path = agent.policy().plain_path(&context, local, peer)?;
        path.av.service_level = own.service_level;
        path.av.traffic_class = own.traffic_class;
        path.av.flow_label = own.flow_label;
        path.av.hop_limit = own.hop_limit;
        path.mtu = own.mtu.min(path.mtu);
        path.rate = own.rate;
        path.packet_lifetime = own.packet_lifetime;
        path.pkey_index = pkey_index(&context, own.pkey);
        agent.act(|turn| {
            if let Some(id) = turn.state.ids.get_mut(self.key()) {
                id.path = Some(path);
            }
            turn.emit(self.key(), EventKind::RouteResolved, &[]);
            Ok(())
        })
    }
}

/// Checks that a P_Key that a program asks for is in the port's table.
fn check_pkey(context: &Context, wanted: Option<rxe_verbs::Pkey>) -> Result<(), CmError> {
    let missing =
        |key: &rxe_verbs::Pkey| !context.pkeys().iter().any(|own| own.partition() == key.partition());
    match wanted.filter(missing) {
        Some(key) => Err(CmError::Argument(format!("P_Key {:#06x} is not in the port's table", key.0))),
        None => Ok(()),
    }
}

/// Our address and device for a peer. A loopback address counts as none if the peer is on another host, or if no device has it.
/// Groups may be joined on it, too.
fn find_way(agent: &Agent, from: Option<SocketAddr>, to: SocketAddr) -> Result<(IpAddr, Context), CmError> {
    let ip = match from.map(|from| from.ip()).filter(|from| !from.is_unspecified()) {
        Some(from) if !from.is_loopback() => from,
        Some(from) if (to.ip().is_loopback() || to.ip().is_multicast()) && agent.context_of(from).is_ok() => {
            from
        }
        _ => source(agent, to)?,
    };
    let scope = from.map_or(0, scope_of);
    let scope = if scope == 0 { scope_of(to) } else { scope };
    Ok((ip, agent.context_at(ip, scope)?))
}

/// The index of the interface that an address names, or 0.
const fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

fn source(agent: &Agent, to: SocketAddr) -> Result<IpAddr, CmError> {
    let by_system = source_for(to);
    if agent.is_system() {
        return by_system.map_err(|source| CmError::NoRoute { peer: to.ip(), source });
    }
    // The system may not know the device.
    let own: Vec<IpAddr> = agent
        .home
        .gids()
        .iter()
        .filter_map(|(_, gid)| gid.address())
        .filter(|ip| ip.is_ipv4() == to.is_ipv4())
        .collect();
    match by_system {
        Ok(ip) if own.contains(&ip) => Ok(ip),
        _ => own.first().copied().ok_or_else(|| CmError::NotLocal(to.ip())),
    }
}

fn random_port(agent: &Agent) -> u16 {
    let (first, last) = (*EPHEMERAL.start(), *EPHEMERAL.end());
    first + (agent.random() % u64::from(last - first + 1)) as u16
}

const fn name_of(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Tcp => "RDMA_PS_TCP",
        PortSpace::Udp => "RDMA_PS_UDP",
        PortSpace::Ipoib => "RDMA_PS_IPOIB",
        PortSpace::Ib => "RDMA_PS_IB",
    }
}
