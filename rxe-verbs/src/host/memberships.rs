//! Multicast groups of which a dead process's sockets are still members. The sockets are kept for other processes. The kernel tells
//! which groups this host has joined, but not by which socket, so each socket leaves all of them.

use socket2::{InterfaceIndexOrAddress, SockRef};
use std::{
    fs::read_to_string,
    net::{Ipv4Addr, Ipv6Addr},
    os::fd::BorrowedFd,
};

/// Makes the sockets leave every group. Otherwise they could still receive the only copy of a packet that others wait for.
pub(super) fn leave_all(v4: Option<BorrowedFd<'_>>, v6: Option<BorrowedFd<'_>>) {
    // Without /proc the groups are not known.
    let table = |name: &str| read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
    if let Some(v4) = &v4 {
        let socket = SockRef::from(v4);
        for (ifindex, group) in parse_igmp(&table("igmp")) {
            // Most of these fail, because the group was joined by another socket.
            let _ = socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(ifindex));
        }
    }
    if let Some(v6) = &v6 {
        let socket = SockRef::from(v6);
        for (ifindex, group) in parse_igmp6(&table("igmp6")) {
            let _ = socket.leave_multicast_v6(&group, ifindex);
        }
    }
}

/// Interfaces and groups of /proc/net/igmp: a line for the interface, then one for each group, as a hexadecimal number in the
/// byte order of the machine.
fn parse_igmp(text: &str) -> Vec<(u32, Ipv4Addr)> {
    let (mut ifindex, mut found) = (0, Vec::new());
    for line in text.lines().skip(1) {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !line.starts_with(char::is_whitespace) {
            ifindex = first.parse().unwrap_or(0);
        } else if let Ok(group) = u32::from_str_radix(first, 16) {
            found.push((ifindex, Ipv4Addr::from(group.to_ne_bytes())));
        }
    }
    found
}

/// The same of /proc/net/igmp6: interface, its name, the group.
fn parse_igmp6(text: &str) -> Vec<(u32, Ipv6Addr)> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let ifindex = words.next()?.parse().ok()?;
        Some((ifindex, Ipv6Addr::from(u128::from_str_radix(words.nth(1)?, 16).ok()?)))
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::UdpSocket,
        os::fd::{AsFd, OwnedFd},
    };

    #[test]
    fn the_kernels_tables_are_read() {
        let igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
                    12\ttap0      :     2      V3\n\t\t\t\t030201EF     1 0:00000000\t\t0\n";
        let group = |text: &str| text.parse().unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(parse_igmp(igmp), [(1, group("224.0.0.1")), (12, group("239.1.2.3"))]);
        }
        let igmp6 = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n";
        assert_eq!(parse_igmp6(igmp6), [(1, "ff02::1".parse().unwrap())]);
        assert_eq!((parse_igmp("").len(), parse_igmp6("?\n2 x y").len()), (0, 0));
    }

    #[test]
    fn a_socket_that_changes_hands_is_no_member_any_more() {
        let bind = |address: &str| UdpSocket::bind(address).ok().map(Into::into);
        let sockets: [Option<OwnedFd>; 2] = [bind("0.0.0.0:0"), bind("[::]:0")];
        let (v4, v6) = (SockRef::from(sockets[0].as_ref().unwrap()), sockets[1].as_ref().map(SockRef::from));
        // The loopback interface.
        let (group, group6) = (Ipv4Addr::new(239, 77, 1, 2), "ff05::77:1:2".parse().unwrap());
        let join = || {
            v4.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(1))?;
            v6.as_ref().map_or(Ok(()), |v6| v6.join_multicast_v6(&group6, 1))
        };
        join().unwrap();
        assert_eq!(join().unwrap_err().kind(), std::io::ErrorKind::AddrInUse, "a member already");
        leave_all(sockets[0].as_ref().map(AsFd::as_fd), sockets[1].as_ref().map(AsFd::as_fd));
        join().unwrap();
    }
}
