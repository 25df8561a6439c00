//! Which way to a peer: our address, the device that has it, and the properties of the path (what a subnet manager
//! would tell as a path record, IBTA vol. 1, 15.2.5.16).

use crate::{error::CmError, proto::ServiceId};
use rxe_verbs::{
    AddressVector, Context, Gid, Mtu,
    host::{HostConfig, ServiceLevel},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

/// Longest time a packet is on its way, 4.096 us << 16 = 268 ms: what Linux 6.12 takes on Ethernet.
const PACKET_LIFETIME: u8 = 16;
/// What Linux puts into REQ and REP for software devices: 4.096 us << 15 = 134 ms.
pub(crate) const ACK_DELAY: u8 = 15;
/// Any port in a private use range would do: where the packets go does not depend on it.
const PROBE_PORT: u16 = 4791;

/// The way to a peer, and what is agreed to hold on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathRecord {
    /// Addresses, interface, traffic class, hop limit, flow label and service level.
    pub av: AddressVector,
    /// Largest payload of a packet.
    pub mtu: Mtu,
    /// Longest time a packet is on its way: 4.096 us << code, 0 to 31.
    pub packet_lifetime: u8,
    /// Static rate as a code of the path record; 0 for the port's.
    pub rate: u8,
    /// Index into the partition table.
    pub pkey_index: u16,
}

/// What decides about paths beside addresses: the host's rules for services. The one place to ask; a richer policy would
/// replace it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    rules: Vec<ServiceLevel>,
}

impl Policy {
    pub(crate) fn new(config: &HostConfig) -> Self {
        Self { rules: config.service_level.clone() }
    }

    /// Service level and traffic class of a service; the first rule that fits counts.
    fn level(&self, service: ServiceId) -> Option<(u8, u8)> {
        let fits = |rule: &&ServiceLevel| (rule.first..=rule.last).contains(&service.0);
        self.rules.iter().find(fits).map(|rule| (rule.sl, rule.traffic_class))
    }

    /// The path from `local` to `peer` for a service. `tos` is the program's own wish.
    pub(crate) fn path(
        &self,
        context: &Context,
        local: SocketAddr,
        peer: SocketAddr,
        service: ServiceId,
        tos: Option<u8>,
    ) -> Result<PathRecord, CmError> {
        let index = gid_index(context, local.ip()).ok_or_else(|| CmError::NotLocal(local.ip()))?;
        let av = context
            .address_vector(index, Gid::from(peer.ip()))
            .map_err(|error| CmError::Argument(error.to_string()))?;
        let (service_level, rule) = self.level(service).unwrap_or((0, 0));
        let av = AddressVector {
            traffic_class: tos.unwrap_or(rule),
            service_level,
            flow_label: flow_label(local, peer),
            hop_limit: HOP_LIMIT,
            ..av
        };
        let mtu = context.port().active_mtu;
        Ok(PathRecord { av, mtu, packet_lifetime: PACKET_LIFETIME, rate: 0, pkey_index: 0 })
    }
}

/// The usual hop limit: packets may cross routers.
const HOP_LIMIT: u8 = 64;

/// As Linux makes one of the ports (rdma_calc_flow_label); an IPv6 program's own comes first.
fn flow_label(local: SocketAddr, peer: SocketAddr) -> u32 {
    let own = match peer {
        SocketAddr::V6(v6) => v6.flowinfo() & 0xf_ffff,
        SocketAddr::V4(_) => 0,
    };
    let of_ports = u32::from(local.port()) * 31 + u32::from(peer.port());
    if own != 0 { own } else { of_ports & 0xf_ffff }
}

/// Where an address stands in the GID table.
pub(crate) fn gid_index(context: &Context, address: IpAddr) -> Option<u8> {
    let wanted = Gid::from(address);
    context.gids().iter().find(|(_, gid)| *gid == wanted).map(|(index, _)| index)
}

/// The address of ours that packets to `peer` leave from, by the system's routing table.
pub(crate) fn source_for(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    let mut to = peer;
    to.set_port(PROBE_PORT);
    // Sends nothing.
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// The loopback address, if `address` is "any": that is where rdma_cm goes then.
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
        let rule = |first, last, sl| ServiceLevel { first, last, sl, traffic_class: sl << 5 };
        let policy = Policy { rules: vec![rule(10, 20, 1), rule(15, 30, 2)] };
        assert_eq!(policy.level(ServiceId(15)), Some((1, 32)));
        assert_eq!(policy.level(ServiceId(30)), Some((2, 64)));
        assert_eq!(policy.level(ServiceId(31)), None);
    }
}
