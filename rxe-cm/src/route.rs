//! The path to a peer: our address, the device that has it, and the properties of the path (those of a subnet manager's
//! path record, IBTA vol. 1, 15.2.5.16).

use crate::{error::CmError, id::CmOptions, proto::ServiceId};
use rxe_fabric::PathQuery;
use rxe_verbs::{
    AddressVector, Context, Gid, GidType, Mtu, Pkey,
    host::{HostConfig, HostFabric},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, RwLock},
};

/// Longest time that a packet is under way, 4.096 us << 16 = 268 ms, as in Linux 6.12 on Ethernet.
const PACKET_LIFETIME: u8 = 16;
/// What Linux puts into REQ and REP for software devices: 4.096 us << 15 = 134 ms.
pub(crate) const ACK_DELAY: u8 = 15;
/// A port of the private range. The route of packets does not depend on it, so any would do.
const PROBE_PORT: u16 = 4791;

/// The path to a peer, and its agreed properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathRecord {
    /// Addresses, interface, traffic class, hop limit, flow label and service level.
    pub av: AddressVector,
    /// Largest payload of a packet.
    pub mtu: Mtu,
    /// Longest time that a packet is under way: 4.096 us << code, 0 to 31.
    pub packet_lifetime: u8,
    /// Static rate as a code of the path record. 0 for that of the port.
    pub rate: u8,
    /// Index into the partition table.
    pub pkey_index: u16,
}

/// How messages reach a peer's queue pair 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) av: AddressVector,
    /// Our key in the connection's partition. Hosts may have no other partition in common.
    pub(crate) pkey: Pkey,
}

impl PathRecord {
    /// How messages of the connection manager take this path.
    pub(crate) fn way(&self, context: &Context) -> Way {
        Way { av: self.av, pkey: pkey_at(context, self.pkey_index) }
    }
}

/// What decides about paths beside addresses: the host's rules for services, and the files of OpenSM that the configuration names.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// It is read again when a file has changed, because programs may run for months.
    now: RwLock<Arc<Decisions>>,
}

#[derive(Debug, Default)]
struct Decisions {
    config: HostConfig,
    fabric: Arc<HostFabric>,
}

impl Decisions {
    fn new(config: &HostConfig) -> Self {
        Self { config: config.clone(), fabric: config.host_fabric() }
    }

    /// Service level and traffic class of a service. The first rule that matches counts.
    fn level(&self, service: ServiceId) -> Option<(u8, u8)> {
        self.config.rule_for(service.0).map(|rule| (rule.sl, rule.traffic_class))
    }
}

impl Policy {
    pub(crate) fn new(config: &HostConfig) -> Self {
        Self { now: RwLock::new(Arc::new(Decisions::new(config))) }
    }

    /// The present configuration. If files have errors, or are being written, the last one stays. `rxe doctor` and `rxe path` report errors.
    fn decisions(&self) -> Arc<Decisions> {
        let read = self.now.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Arc::clone(&read);
        drop(read);
        if !now.fabric.is_configured() || !now.fabric.has_changed() {
            return now;
        }
        let Ok(config) = HostConfig::load() else { return now };
        let fresh = Arc::new(Decisions::new(&config));
        *self.now.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::clone(&fresh);
        fresh
    }

    /// The path from `local` to `peer` without rules of the host, except for the version of RoCE by which the interface connects.
    pub(crate) fn plain_path(
        &self,
        context: &Context,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<PathRecord, CmError> {
        gid_index(context, local.ip()).ok_or_else(|| CmError::NotLocal(local.ip()))?;
        let netdev = context.device().netdev();
        let kind = self.decisions().config.gid_type(netdev);
        let index = typed_gid_index(context, local.ip(), kind).ok_or_else(|| {
            let why = "the link carries RoCE v2 alone (RXE_LINK=raw carries both)";
            CmError::Argument(format!(
                "rdma_cm is to connect by {kind} on {netdev} (RXE_CONFIG, [[port]]), and {why}"
            ))
        })?;
        let av = context
            .address_vector(index, Gid::from(peer.ip()))
            .map_err(|error| CmError::Argument(error.to_string()))?;
        let av = AddressVector { flow_label: flow_label(local, peer), hop_limit: HOP_LIMIT, ..av };
        let mtu = context.port().active_mtu;
        Ok(PathRecord { av, mtu, packet_lifetime: PACKET_LIFETIME, rate: 0, pkey_index: 0 })
    }

    /// The path from `local` to `peer` for a service. The program may ask for a traffic class and a P_Key.
    pub(crate) fn path(
        &self,
        context: &Context,
        local: SocketAddr,
        peer: SocketAddr,
        service: ServiceId,
        options: &CmOptions,
    ) -> Result<PathRecord, CmError> {
        let CmOptions { tos, pkey, .. } = *options;
        let mut path = self.plain_path(context, local, peer)?;
        let decisions = self.decisions();
        if let Some(key) = pkey {
            path.pkey_index = pkey_index(context, key);
        }
        if decisions.fabric.is_configured() {
            decide(&decisions.fabric, &mut path, context, (local, peer), service, (tos, pkey))?;
        }
        if let Some((level, class)) = decisions.level(service) {
            (path.av.service_level, path.av.traffic_class) = (level, class);
        }
        path.av.traffic_class = tos.unwrap_or(path.av.traffic_class);
        Ok(path)
    }
}

/// Puts the decisions of OpenSM's files into a path. The question is the one that Linux asks: service ID, P_Key, and for IPv4 the program's
/// TOS as QoS class.
fn decide(
    fabric: &HostFabric,
    path: &mut PathRecord,
    context: &Context,
    (local, peer): (SocketAddr, SocketAddr),
    service: ServiceId,
    (tos, pkey): (Option<u8>, Option<Pkey>),
) -> Result<(), CmError> {
    let own = Some(context.device().guid());
    let from = fabric.port(local.ip(), own);
    let to = fabric.port(peer.ip(), own.filter(|_| gid_index(context, peer.ip()).is_some()));
    let query = PathQuery {
        from: &from,
        to: &to,
        service_id: Some(service.0),
        qos_class: peer.is_ipv4().then(|| u16::from(tos.unwrap_or(0))),
        pkey: pkey.map(|key| key.0),
        sl: None,
        mtu: path.mtu.code(),
        rate: 0,
    };
    let found = fabric.path(&query, &context.pkeys())?;
    (path.av.service_level, path.av.traffic_class) = (found.sl, found.traffic_class);
    path.mtu = Mtu::from_code(found.mtu).unwrap_or(path.mtu);
    path.rate = found.rate;
    // The field has five bits in the messages of the connection manager.
    path.packet_lifetime = found.packet_life.map_or(path.packet_lifetime, |life| life.min(31));
    path.pkey_index = pkey_index(context, Pkey(found.pkey));
    Ok(())
}

/// The index of the partition in the table. 0 if it is not there: that is the key that all have.
pub(crate) fn pkey_index(context: &Context, key: Pkey) -> u16 {
    let place = context.pkeys().iter().position(|own| own.partition() == key.partition());
    place.and_then(|place| u16::try_from(place).ok()).unwrap_or(0)
}

/// The P_Key at an index of the table. The default one if the table has become shorter.
pub(crate) fn pkey_at(context: &Context, index: u16) -> Pkey {
    context.pkeys().get(usize::from(index)).copied().unwrap_or_default()
}

/// Whether the port may talk to a holder of this P_Key.
pub(crate) fn is_member(context: &Context, key: Pkey) -> bool {
    context.pkeys().iter().any(|own| own.matches(key))
}

/// The usual hop limit: packets may cross routers.
const HOP_LIMIT: u8 = 64;

/// The flow label that Linux computes from the ports (rdma_calc_flow_label), unless an IPv6 program has set one.
fn flow_label(local: SocketAddr, peer: SocketAddr) -> u32 {
    let own = match peer {
        SocketAddr::V6(v6) => v6.flowinfo() & 0xf_ffff,
        SocketAddr::V4(_) => 0,
    };
    let of_ports = u32::from(local.port()) * 31 + u32::from(peer.port());
    if own != 0 { own } else { of_ports & 0xf_ffff }
}

/// The index of an address in the GID table as a GID of this type.
pub(crate) fn typed_gid_index(context: &Context, address: IpAddr, kind: GidType) -> Option<u8> {
    context.gids().find(Gid::from(address), kind)
}

/// The index of an address in the GID table.
pub(crate) fn gid_index(context: &Context, address: IpAddr) -> Option<u8> {
    let wanted = Gid::from(address);
    context.gids().iter().find(|(_, gid)| *gid == wanted).map(|(index, _)| index)
}

/// Our address from which packets to `peer` leave, by the system's routing table.
pub(crate) fn source_for(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    let mut to = peer;
    to.set_port(PROBE_PORT);
    // This sends nothing.
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// The loopback address if `address` is "any", as rdma_cm does it.
pub(crate) fn concrete(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let loopback: IpAddr =
            if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_labels_as_linux_makes_them() {
        let v4 = |port| SocketAddr::from(([10, 0, 0, 1], port));
        assert_eq!(flow_label(v4(40_000), v4(7174)), (40_000 * 31 + 7174) & 0xf_ffff);
        let own = std::net::SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 0x0010_1234, 0);
        assert_eq!(flow_label(own.into(), own.into()), 0x0_1234);
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        use rxe_verbs::host::ServiceLevel;
        let rule = |first, last, sl| ServiceLevel { first, last, sl, traffic_class: sl << 5 };
        let service_level = vec![rule(10, 20, 1), rule(15, 30, 2)];
        let mut config = HostConfig::default();
        config.service_level = service_level;
        let policy = Decisions::new(&config);
        assert_eq!(policy.level(ServiceId(15)), Some((1, 32)));
        assert_eq!(policy.level(ServiceId(30)), Some((2, 64)));
        assert_eq!(policy.level(ServiceId(31)), None);
    }
}
