//! The host's configuration of the interface: addresses, routes and groups. It is read when it may have changed, because a TUN
//! interface does not report changes.

use crate::proto::group;
use nix::ifaddrs::getifaddrs;
use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Most groups that are joined.
const MOST_GROUPS: usize = 256;
/// The tables of this thread's network namespace, which may differ from that of other threads.
const TABLES: &str = "/proc/thread-self/net";

/// A network that is reached through the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Route {
    network: IpAddr,
    prefix: u8,
    /// The gateway; unspecified if the network is on the link.
    gateway: IpAddr,
}

/// The interface's configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Local {
    /// Addresses with the lengths of their networks' prefixes.
    addresses: Vec<(IpAddr, u8)>,
    /// Longest prefix first.
    routes: Vec<Route>,
    /// Groups that the host and its programs have joined.
    pub(crate) groups: Vec<IpAddr>,
}

impl Local {
    /// Reads the configuration.
    pub(crate) fn read(name: &str) -> io::Result<Self> {
        let mut out = Self::default();
        for entry in getifaddrs()?.filter(|entry| entry.interface_name == name) {
            let ip = |address: Option<nix::sys::socket::SockaddrStorage>| {
                let address = address?;
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
            };
            if let (Some(address), Some(mask)) = (ip(entry.address), ip(entry.netmask)) {
                out.addresses.push((address, prefix_of(mask)));
            }
        }
        let table = |file: &str| fs::read_to_string(format!("{TABLES}/{file}")).unwrap_or_default();
        out.routes = table("route").lines().filter_map(|line| route_v4(line, name)).collect();
        out.routes.extend(table("ipv6_route").lines().filter_map(|line| route_v6(line, name)));
        out.routes.sort_by_key(|route| core::cmp::Reverse(route.prefix));
        out.groups = groups_v4(&table("igmp"), name);
        out.groups.extend(table("igmp6").lines().filter_map(|line| group_v6(line, name)));
        out.groups.truncate(MOST_GROUPS);
        Ok(out)
    }

    /// The host's own addresses on this interface.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|(own, _)| *own)
    }

    /// Whether an address is the host's own on this interface.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == ip)
    }

    /// The groups to which neighbours send solicitations for our IPv6 addresses.
    pub(crate) fn solicited_nodes(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.addresses.iter().filter_map(|(own, _)| match own {
            IpAddr::V6(own) => Some(group::solicited_node(*own)),
            IpAddr::V4(_) => None,
        })
    }

    /// Our source address for asking for a neighbour: one in its network, or at least of its IP version.
    pub(crate) fn source_for(&self, ip: IpAddr) -> Option<IpAddr> {
        let of_version = || self.addresses.iter().filter(|(own, _)| own.is_ipv4() == ip.is_ipv4());
        let near = of_version().find(|(own, prefix)| is_in(ip, *own, *prefix));
        near.or_else(|| of_version().next()).map(|(own, _)| *own)
    }

    /// Whether an address is the broadcast address of one of our networks.
    pub(crate) fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        let all_ones =
            |own: Ipv4Addr, prefix: u8| u32::from(own) | u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
        self.addresses.iter().any(|(own, prefix)| match own {
            IpAddr::V4(own) => *prefix < 31 && all_ones(*own, *prefix) == u32::from(ip),
            IpAddr::V6(_) => false,
        })
    }

    /// The neighbour to which packets for `ip` are sent: the address itself, or a gateway.
    pub(crate) fn next_hop(&self, ip: IpAddr) -> IpAddr {
        let route = self.routes.iter().find(|route| is_in(ip, route.network, route.prefix));
        route.map(|route| route.gateway).filter(|gateway| !gateway.is_unspecified()).unwrap_or(ip)
    }
}

/// Whether an address is in a network.
fn is_in(ip: IpAddr, network: IpAddr, prefix: u8) -> bool {
    match (ip, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (u32::from(a) ^ u32::from(b)).checked_shr(32_u32.saturating_sub(prefix.into())).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (u128::from(a) ^ u128::from(b)).checked_shr(128_u32.saturating_sub(prefix.into())).unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

fn prefix_of(mask: IpAddr) -> u8 {
    match mask {
        IpAddr::V4(mask) => u32::from(mask).leading_ones() as u8,
        IpAddr::V6(mask) => u128::from(mask).leading_ones() as u8,
    }
}

/// An IPv4 address as the kernel prints it: its bytes in network order, read as a number of this machine.
fn hex_v4(text: &str) -> Option<Ipv4Addr> {
    u32::from_str_radix(text, 16).ok().map(|number| Ipv4Addr::from(number.to_ne_bytes()))
}

fn hex_v6(text: &str) -> Option<Ipv6Addr> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from))?
}

/// A line of /proc/net/route: interface, destination, gateway, flags, references, uses, metric, mask.
fn route_v4(line: &str, name: &str) -> Option<Route> {
    let mut words = line.split_whitespace();
    if words.next()? != name {
        return None;
    }
    let (network, gateway) = (hex_v4(words.next()?)?, hex_v4(words.next()?)?);
    let mask = hex_v4(words.nth(4)?)?;
    Some(Route { network: network.into(), prefix: prefix_of(mask.into()), gateway: gateway.into() })
}

/// A line of /proc/net/ipv6_route: destination, its prefix, source, its prefix, gateway, metric, references, uses, flags,
/// interface.
fn route_v6(line: &str, name: &str) -> Option<Route> {
    let words: Vec<_> = line.split_whitespace().collect();
    let &[network, prefix, _, _, gateway, .., interface] = &words[..] else { return None };
    let prefix = u8::from_str_radix(prefix, 16).ok()?;
    let (network, gateway) = (hex_v6(network)?, hex_v6(gateway)?);
    (interface == name && !network.is_multicast()).then(|| Route {
        network: network.into(),
        prefix,
        gateway: gateway.into(),
    })
}

/// /proc/net/igmp: a line for each interface, then its groups, indented.
fn groups_v4(table: &str, name: &str) -> Vec<IpAddr> {
    let mut ours = false;
    let mut out = Vec::new();
    for line in table.lines() {
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            ours = line.split_whitespace().nth(1).map(|word| word.trim_end_matches(':')) == Some(name);
        } else if ours && line.starts_with('\t') {
            out.extend(line.split_whitespace().next().and_then(hex_v4).map(IpAddr::V4));
        }
    }
    out
}

/// A line of /proc/net/igmp6: number and name of the interface, group.
fn group_v6(line: &str, name: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace().skip(1);
    (words.next()? == name).then(|| words.next().and_then(hex_v6).map(IpAddr::V6))?
}

#[cfg(test)]
mod tests;
