//! The network interfaces of this namespace. Devices and GID tables are built from them.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrLike, SockaddrStorage,
    bind, recv, socket,
};
use socket2::{Domain, Socket, Type};

use crate::sys::{kept::Kept, socket::interface_mtu, unix::out_of_the_way};

/// One address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address. A link-local IPv6 address is valid on this interface only.
    pub ip: IpAddr,
    /// Prefix length: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub prefix: u8,
    /// It can be used as a source address. False while IPv6 duplicate address detection runs, and after it found a duplicate.
    pub usable: bool,
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its MTU in bytes, 0 if the system does not tell.
    pub mtu: u32,
    /// Its MAC address, if it has one of six bytes (the loopback's is all zeroes).
    pub mac: Option<[u8; 6]>,
    /// Its addresses in the kernel's order, IPv4 before IPv6.
    pub addresses: Vec<Address>,
    /// It is administratively up (IFF_UP).
    pub up: bool,
    /// It has a carrier (IFF_RUNNING).
    pub running: bool,
    /// It is the loopback.
    pub loopback: bool,
    /// The default route with the lowest metric uses it (IPv4's, or IPv6's if IPv4 has none).
    pub default_route: bool,
}

/// Lists the interfaces, by index.
///
/// # Errors
/// The system's error if it cannot list them.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    for entry in getifaddrs()? {
        // An address may have an old-style label (eth0:1) in place of the interface's name.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let interface =
            found.entry(name.to_owned()).or_insert_with(|| describe(name, entry.flags, socket.as_fd()));
        let Some(address) = entry.address else { continue };
        if let Some(link) = address.as_link_addr() {
            interface.index = u32::try_from(link.ifindex()).unwrap_or(0);
            // A tunnel's hardware address is an IP address, of another length.
            interface.mac = (link.halen() == 6).then(|| link.addr()).flatten();
        } else if let Some(ip) = ip_of(&address) {
            let prefix = entry.netmask.as_ref().and_then(ip_of).map_or(0, prefix_length);
            interface.addresses.push(Address { ip, prefix, usable: true });
        }
    }
    let mut list: Vec<Interface> = found.into_values().filter(|interface| interface.index != 0).collect();
    list.sort_by_key(|interface| interface.index);
    for interface in &mut list {
        interface.addresses.sort_by_key(|address| address.ip.is_ipv6());
    }
    mark_unusable(&mut list, &fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default());
    let default = default_route_v4(&fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default())
        .or_else(|| {
            default_route_v6(&fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default())
        });
    if let Some(interface) = list.iter_mut().find(|interface| Some(&interface.name) == default.as_ref()) {
        interface.default_route = true;
    }
    Ok(list)
}

fn describe(name: &str, flags: InterfaceFlags, socket: BorrowedFd<'_>) -> Interface {
    Interface {
        name: name.to_owned(),
        index: 0,
        mtu: interface_mtu(socket, name).unwrap_or(0),
        mac: None,
        addresses: Vec::new(),
        up: flags.contains(InterfaceFlags::IFF_UP),
        running: flags.contains(InterfaceFlags::IFF_RUNNING),
        loopback: flags.contains(InterfaceFlags::IFF_LOOPBACK),
        default_route: false,
    }
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    match address.family()? {
        AddressFamily::Inet => address.as_sockaddr_in().map(|a| a.ip().into()),
        AddressFamily::Inet6 => address.as_sockaddr_in6().map(|a| a.ip().into()),
        _ => None,
    }
}

fn prefix_length(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    ones as u8
}

/// Reads `/proc/net/if_inet6`: address, index, prefix, scope and flags in hexadecimal, then the name.
fn mark_unusable(list: &mut [Interface], table: &str) {
    /// `IFA_F_TENTATIVE`, `IFA_F_DADFAILED` of linux/if_addr.h.
    const UNUSABLE: u32 = 0x40 | 0x08;
    for line in table.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, index, _, _, flags, ..] = fields[..] else { continue };
        let (Ok(bits), Ok(index), Ok(flags)) = (
            u128::from_str_radix(address, 16),
            u32::from_str_radix(index, 16),
            u32::from_str_radix(flags, 16),
        ) else {
            continue;
        };
        if flags & UNUSABLE == 0 {
            continue;
        }
        let ip = IpAddr::V6(Ipv6Addr::from_bits(bits));
        for interface in list.iter_mut().filter(|interface| interface.index == index) {
            for address in interface.addresses.iter_mut().filter(|address| address.ip == ip) {
                address.usable = false;
            }
        }
    }
}

/// The interface of the best default route in `/proc/net/route`: name, destination, gateway, flags, reference count,
/// use, metric, mask.
fn default_route_v4(table: &str) -> Option<String> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, _, flags, _, _, metric, mask, ..] = fields[..] else { return None };
        let everywhere = [destination, mask].iter().all(|field| field.bytes().all(|b| b == b'0'));
        (is_usable(flags)? && everywhere).then_some(())?;
        Some((metric.parse::<u32>().ok()?, name.to_owned()))
    };
    table.lines().filter_map(route).min().map(|(_, name)| name)
}

/// The same for `/proc/net/ipv6_route`: destination, prefix, source, prefix, next hop, metric, reference count, use,
/// flags in hexadecimal, then the name.
fn default_route_v6(table: &str) -> Option<String> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, prefix, _, _, _, metric, _, _, flags, name] = fields[..] else { return None };
        // The kernel lists a null route on the loopback when there is no other.
        (is_usable(flags)? && prefix == "00" && name != "lo").then_some(())?;
        Some((u32::from_str_radix(metric, 16).ok()?, name.to_owned()))
    };
    table.lines().filter_map(route).min().map(|(_, name)| name)
}

/// Whether a route with these flags is up and leads somewhere.
fn is_usable(flags: &str) -> Option<bool> {
    let [up, reject] = [libc::RTF_UP, libc::RTF_REJECT].map(u32::from);
    Some(u32::from_str_radix(flags, 16).ok()? & (up | reject) == up)
}

/// Notices changes of interfaces, addresses and routes. If the program closes the descriptor, and a file of its own gets the number, that
/// file is not read.
#[derive(Debug)]
pub struct Watch(Kept<OwnedFd>);

impl Watch {
    /// Subscribes to the kernel's announcements (`rtnetlink(7)`).
    ///
    /// # Errors
    /// The system's error, for instance in a sandbox without netlink.
    pub fn new() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRoute,
        )?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups.cast_unsigned()))?;
        Ok(Self(Kept::new(out_of_the_way(fd))))
    }

    /// Whether the kernel announced any change since the last call. If so, list the interfaces again. This does not tell what
    /// changed, because announcements may be lost.
    pub fn changed(&self) -> bool {
        let mut changed = false;
        let mut buffer = [0; 8192];
        while self.0.is_intact() {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return changed,
                // ENOBUFS: so many announcements that some were lost.
                Ok(_) | Err(nix::Error::ENOBUFS) => changed = true,
                Err(nix::Error::EINTR) => {}
                Err(_) => return changed,
            }
        }
        changed
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn routes_are_read_from_the_tables() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            wlan0\t00000000\t0100A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth1\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            dead\t00000000\t00000000\t0000\t0\t0\t0\t00000000\t0\t0\t0\n";
        assert_eq!(default_route_v4(v4).as_deref(), Some("eth0"));
        let zero = "0".repeat(32);
        let v6 = format!(
            "{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n\
             {zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 00450003     eth2\n"
        );
        assert_eq!(default_route_v6(&v6).as_deref(), Some("eth2"));
        assert_eq!(default_route_v6(v6.lines().next().unwrap()), None);
    }

    #[test]
    fn tentative_addresses_are_not_usable() {
        let ip = IpAddr::V6("fe80::1".parse().unwrap());
        let mut list = vec![Interface {
            name: "a".into(),
            index: 0x1f,
            mtu: 1500,
            mac: None,
            addresses: vec![Address { ip, prefix: 64, usable: true }],
            up: true,
            running: true,
            loopback: false,
            default_route: false,
        }];
        mark_unusable(&mut list, "fe800000000000000000000000000001 1f 40 20 80        a\n");
        assert!(list[0].addresses[0].usable);
        mark_unusable(&mut list, "fe800000000000000000000000000001 1f 40 20 c0        a\nrubbish\n");
        assert!(!list[0].addresses[0].usable);
    }

    /// Programs close all descriptors, ours among them (`close_range(2)`), and open files of their own.
    #[test]
    fn a_program_s_socket_is_not_read() {
        let watch = Watch::new().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        // SAFETY: puts a file of "the program's" in the place of the kept one, which is what is tested.
        let stranger = unsafe { nix::unistd::dup2_raw(&theirs, watch.0.as_raw_fd()) }.unwrap();
        ours.send(b"theirs").unwrap();
        assert!(!watch.changed());
        drop(watch);
        assert_eq!(recv(stranger.as_raw_fd(), &mut [0; 8], MsgFlags::MSG_DONTWAIT), Ok(6));
    }

    #[test]
    fn the_loopback_is_found() {
        let list = interfaces().unwrap();
        let lo = list.iter().find(|interface| interface.loopback).expect("a loopback interface");
        assert_eq!((lo.name.as_str(), lo.mac), ("lo", Some([0; 6])));
        assert!(lo.mtu > 0 && lo.index > 0);
        if lo.up {
            let first = lo.addresses.first().expect("an address on a running loopback");
            assert_eq!((first.ip, first.prefix), (IpAddr::V4(Ipv4Addr::LOCALHOST), 8));
        }
    }
}
