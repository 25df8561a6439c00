//! Finds where a frame goes: the interface by the kernel's routing table, the MAC address by its neighbour table
//! (`rtnetlink(7)`). This module sends no ARP or neighbour solicitations. Where the table has no entry, it sends a datagram to
//! the discard port, which makes the kernel look for the neighbour. All requests use sockets that were opened with the link,
//! because a sending thread may be in another network namespace.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};

use super::frame::Mac;
use crate::sys::{
    control::Control,
    kept::Kept,
    message::{Name, send},
    unix::out_of_the_way,
};

/// How long an answer of the kernel is used. Also the shortest time between two searches for a neighbour.
const FRESH: Duration = Duration::from_secs(1);
/// How often the kernel is asked for a neighbour that it is looking for: the pause at first, and the longest pause.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Most destinations that are remembered. When there are more, all are forgotten and asked for again.
const MOST: usize = 4096;
/// The discard port (RFC 863): a datagram to it does no harm.
const DISCARD: u16 = 9;

// Of linux/rtnetlink.h and linux/neighbour.h.
const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
const REQUEST: u16 = 1;
const ROUTE_DST: u16 = 1;
const ROUTE_SRC: u16 = 2;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const ROUTE_VIA: u16 = 18;
const ROUTE_LOCAL: u8 = 2;
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
/// Bytes of a message about a link, before its attributes.
const LINK_BODY: usize = 16;
const NEIGHBOUR_DST: u16 = 1;
const NEIGHBOUR_MAC: u16 = 2;
/// NUD_INCOMPLETE: the kernel is looking for the neighbour.
const INCOMPLETE: u16 = 0x01;
/// NUD_STALE: not confirmed for a while, and not used by the kernel since.
const STALE: u16 = 0x04;
/// NUD_INCOMPLETE and NUD_FAILED: the address of such an entry must not be used.
const UNUSABLE: u16 = INCOMPLETE | 0x20;
const HEADER: usize = 16;
const BODY: usize = 12;

/// The next station on the way to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) struct Hop {
    pub ifindex: u32,
    pub own: Mac,
    pub next: Mac,
    /// Most bytes of an IP packet.
    pub mtu: usize,
    /// Whether the destination is this host itself.
    pub local: bool,
    /// The kernel has not confirmed for a while that `next` still has the address.
    pub stale: bool,
}

/// Why there is no [`Hop`].
#[derive(Debug)]
pub(in crate::net) enum NoHop {
    /// The kernel is looking for the neighbour.
    Soon,
    /// The neighbour was not found, or there is no route.
    None(io::Error),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hop: Option<Hop>,
    ifindex: u32,
    asked: Instant,
    /// When the current or last search for the neighbour began.
    sought: Option<Instant>,
    /// The kernel was looking for the neighbour when it was asked.
    looking: bool,
}

impl Entry {
    /// How long the entry is valid after `asked`.
    fn pause(&self) -> Duration {
        match self.sought {
            _ if self.hop.is_some() => FRESH,
            Some(sought) if self.looking => ((self.asked - sought) / 4).clamp(LOOKS.0, LOOKS.1),
            _ => Duration::ZERO,
        }
    }
}

/// A cache of the kernel's answers.
#[derive(Debug)]
pub(in crate::net) struct Neighbours {
    netlink: Kept<OwnedFd>,
    /// By source, destination and wanted interface. The source matters on a host with several interfaces in one network.
    known: HashMap<(IpAddr, IpAddr, u32), Entry>,
    /// MAC addresses of this host's interfaces, and when the kernel was asked for them.
    own: HashMap<u32, (Option<Mac>, Instant)>,
}

impl Neighbours {
    /// An empty cache for this thread's network namespace.
    ///
    /// # Errors
    /// The system's error, for instance in a sandbox without netlink.
    pub(in crate::net) fn new() -> io::Result<Self> {
        let netlink = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkRoute,
        )?;
        Ok(Self { netlink: Kept::new(out_of_the_way(netlink)), known: HashMap::new(), own: HashMap::new() })
    }

    /// The next station on the way from `src` to `dst`, by interface `ifindex` unless that is 0. `port` is a UDP socket for the
    /// datagram that makes the kernel look for the neighbour.
    ///
    /// A search lasts until the kernel gives up. Then this returns an error. The next search begins [`FRESH`] after the start
    /// of the last one at the earliest.
    pub(in crate::net) fn hop(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        ifindex: u32,
        port: Option<BorrowedFd<'_>>,
    ) -> Result<Hop, NoHop> {
        let now = Instant::now();
        let key = (src, dst, ifindex);
        let before = self.known.get(&key).copied();
        if let Some(entry) = before.filter(|entry| now - entry.asked < entry.pause()) {
            return entry.hop.ok_or(NoHop::Soon);
        }
        let found = find(self.netlink.as_fd(), src, dst, ifindex);
        let found = found.map_err(|error| NoHop::None(self.is_down(before).unwrap_or(error)))?;
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let (sought, looking) = before.map_or((None, false), |entry| {
            // If the kernel was not asked for longer than `FRESH`, the result of the search is unknown.
            (entry.sought, entry.looking && now - entry.asked < FRESH)
        });
        let (entry, result) = match found {
            Ok(hop) => {
                if hop.stale {
                    // The kernel confirms only entries that it uses itself, and raw frames do not use them.
                    seek(port, src, dst, hop.ifindex);
                }
                let entry =
                    Entry { hop: Some(hop), ifindex: hop.ifindex, asked: now, sought: None, looking: false };
                (entry, Ok(hop))
            }
            Err(Missing { words, ifindex, looking: looks }) => {
                let begins = !looks && !looking && sought.is_none_or(|sought| now - sought >= FRESH);
                if begins {
                    seek(port, src, dst, ifindex);
                }
                let sought = if begins { Some(now) } else { sought.or(Some(now)) };
                let entry = Entry { hop: None, ifindex, asked: now, sought, looking: begins || looks };
                let why = || io::Error::new(io::ErrorKind::HostUnreachable, words);
                (entry, Err(if entry.looking { NoHop::Soon } else { NoHop::None(why()) }))
            }
        };
        self.known.insert(key, entry);
        result
    }

    /// The MAC address of an interface of this host.
    pub(super) fn own(&mut self, ifindex: u32) -> Option<Mac> {
        let now = Instant::now();
        if let Some((mac, asked)) = self.own.get(&ifindex)
            && now - *asked < FRESH
        {
            return *mac;
        }
        if self.own.len() >= MOST {
            self.own.clear();
        }
        let mac = interface(self.netlink.as_fd(), ifindex).ok().and_then(|interface| interface.mac);
        self.own.insert(ifindex, (mac, now));
        mac
    }

    /// An error that names the interface, if the interface of the entry `before` is down. The routes of such an interface are
    /// gone, so the kernel itself only says that there is no route.
    fn is_down(&self, before: Option<Entry>) -> Option<io::Error> {
        interface(self.netlink.as_fd(), before?.ifindex).ok().and_then(|interface| interface.check_up().err())
    }
}

/// Makes the kernel look for a neighbour on an interface, or confirm a stale one after a while (`delay_first_probe_time`). The
/// neighbour table shows the result.
fn seek(port: Option<BorrowedFd<'_>>, src: IpAddr, dst: IpAddr, ifindex: u32) {
    let Some(port) = port else { return };
    let mut control = Control::new();
    match src {
        IpAddr::V4(src) => control.push_source_v4(src, ifindex),
        IpAddr::V6(src) => control.push_source_v6(src, ifindex),
    }
    let _ = send(port, &Name::new(dst, DISCARD, ifindex), &control, &[]);
}

/// The route is known, but not the neighbour's MAC address.
#[derive(Debug)]
struct Missing {
    words: String,
    ifindex: u32,
    /// The kernel is looking for the neighbour.
    looking: bool,
}

/// Asks the kernel for the route, the interface and the neighbour.
fn find(netlink: BorrowedFd<'_>, src: IpAddr, dst: IpAddr, wanted: u32) -> io::Result<Result<Hop, Missing>> {
    let way = if dst.is_multicast() && wanted != 0 {
        Way::direct(wanted)
    } else {
        route(netlink, src, dst, wanted)?
    };
    let interface = interface(netlink, way.ifindex)?;
    interface.check_up()?;
    let own = interface.mac.unwrap_or_default();
    let local = way.local;
    let hop =
        |next, stale| Hop { ifindex: way.ifindex, own, next, mtu: interface.mtu as usize, local, stale };
    if let Some(group) = station_of_group(dst) {
        return Ok(Ok(hop(group, false)));
    }
    if way.local || interface.flags & libc::IFF_LOOPBACK.cast_unsigned() != 0 {
        return Ok(Ok(hop([0; 6], false)));
    }
    if interface.mac.is_none() {
        let why = format!("{} is no Ethernet interface", interface.name);
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let next = way.gateway.unwrap_or(dst);
    Ok(match neighbour(netlink, next, way.ifindex)? {
        Neighbour::At { station, stale } => Ok(hop(station, stale)),
        missing => {
            let name = &interface.name;
            let words = format!("the neighbour table has no address for {next} on {name} (ip neighbour)");
            Err(Missing { words, ifindex: way.ifindex, looking: missing == Neighbour::Sought })
        }
    })
}

/// What the kernel says of an interface.
#[derive(Debug, Default)]
struct Interface {
    name: String,
    mac: Option<Mac>,
    mtu: u32,
    flags: u32,
}

impl Interface {
    fn check_up(&self) -> io::Result<()> {
        if self.flags & libc::IFF_UP.cast_unsigned() == 0 {
            return Err(io::Error::new(io::ErrorKind::NetworkDown, format!("{} is down", self.name)));
        }
        Ok(())
    }
}

fn interface(netlink: BorrowedFd<'_>, index: u32) -> io::Result<Interface> {
    let mut body = [0; LINK_BODY];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let reply = ask(netlink, GET_LINK, &body, &[], NEW_LINK)?;
    let flags = reply.get(8..).map_or(0, word_of);
    let mut interface = Interface { flags, ..Interface::default() };
    for (kind, value) in Attributes(reply.get(LINK_BODY..).unwrap_or_default()) {
        match kind {
            LINK_ADDRESS => interface.mac = value.try_into().ok(),
            LINK_NAME => interface.name = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
            LINK_MTU => interface.mtu = word_of(value),
            _ => {}
        }
    }
    Ok(interface)
}

/// The MAC address of a multicast group (RFC 1112, 6.4; RFC 2464, 7).
pub(super) fn station_of_group(group: IpAddr) -> Option<Mac> {
    match group {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let o = v6.octets();
            Some([0x33, 0x33, o[12], o[13], o[14], o[15]])
        }
        _ => None,
    }
}

struct Way {
    ifindex: u32,
    gateway: Option<IpAddr>,
    local: bool,
}

impl Way {
    const fn direct(ifindex: u32) -> Self {
        Self { ifindex, gateway: None, local: false }
    }
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn bytes_of(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|octets| Ipv4Addr::from(octets).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

/// The first word of a value; 0 where there is none.
fn word_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn route(netlink: BorrowedFd<'_>, src: IpAddr, dst: IpAddr, wanted: u32) -> io::Result<Way> {
    let mut body = [0; BODY];
    (body[0], body[1]) = (family(dst), if dst.is_ipv4() { 32 } else { 128 });
    // The source decides where this host has addresses on two interfaces of one network.
    body[2] = body[1];
    let mut attributes = vec![(ROUTE_DST, bytes_of(dst)), (ROUTE_SRC, bytes_of(src))];
    if wanted != 0 {
        attributes.push((ROUTE_INTERFACE, wanted.to_ne_bytes().to_vec()));
    }
    let reply = ask(netlink, GET_ROUTE, &body, &attributes, NEW_ROUTE)?;
    let mut way = Way::direct(wanted);
    way.local = reply.get(7) == Some(&ROUTE_LOCAL);
    for (kind, value) in Attributes(reply.get(BODY..).unwrap_or_default()) {
        match kind {
            ROUTE_INTERFACE => way.ifindex = word_of(value),
            ROUTE_GATEWAY => way.gateway = address_of(value),
            ROUTE_VIA => way.gateway = value.get(2..).and_then(address_of),
            _ => {}
        }
    }
    Ok(way)
}

/// What the kernel's neighbour table has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Neighbour {
    At {
        station: Mac,
        /// The kernel has not confirmed the address for a while.
        stale: bool,
    },
    /// The kernel is looking for the neighbour.
    Sought,
    Unknown,
}

fn neighbour(netlink: BorrowedFd<'_>, address: IpAddr, ifindex: u32) -> io::Result<Neighbour> {
    let mut body = [0; BODY];
    body[0] = family(address);
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let reply = match ask(netlink, GET_NEIGHBOUR, &body, &[(NEIGHBOUR_DST, bytes_of(address))], NEW_NEIGHBOUR)
    {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Neighbour::Unknown),
        reply => reply?,
    };
    let state = reply.get(8..10).map_or(UNUSABLE, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    if state & UNUSABLE != 0 {
        return Ok(if state == INCOMPLETE { Neighbour::Sought } else { Neighbour::Unknown });
    }
    let mut attributes = Attributes(reply.get(BODY..).unwrap_or_default());
    let station =
        attributes.find(|(kind, _)| *kind == NEIGHBOUR_MAC).and_then(|(_, value)| value.try_into().ok());
    let stale = state & STALE != 0;
    Ok(station.map_or(Neighbour::Unknown, |station| Neighbour::At { station, stale }))
}

/// Sends one request and returns the body of the answer, which must be of kind `wanted`.
fn ask(
    netlink: BorrowedFd<'_>,
    request: u16,
    body: &[u8],
    attributes: &[(u16, Vec<u8>)],
    wanted: u16,
) -> io::Result<Vec<u8>> {
    let mut message = vec![0; HEADER];
    message.extend(body);
    for (kind, value) in attributes {
        message.extend((4 + value.len() as u16).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&request.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    socket::send(netlink.as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT)?;
    let mut reply = vec![0; 16 * 1024];
    // rtnetlink answers within the send call, so this need not wait.
    let len = recv(netlink.as_raw_fd(), &mut reply, MsgFlags::MSG_DONTWAIT)?;
    reply.truncate(len);
    let kind = reply.get(4..6).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let body = reply.get(HEADER..).unwrap_or_default();
    if kind == ERROR {
        return Err(io::Error::from_raw_os_error(-word_of(body).cast_signed()));
    }
    if kind != wanted {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("rtnetlink answered {kind}, not {wanted}"),
        ));
    }
    Ok(body.to_vec())
}

/// The attributes of a message. The iterator ends at the first damaged one.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let head: &[u8; 4] = self.0.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = self.0.get(4..len)?;
        // The two highest bits are flags.
        let kind = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_stations_of_their_own() {
        assert_eq!(station_of_group([239, 129, 2, 3].into()), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(station_of_group("ff12::1:a0b:c0d".parse().unwrap()), Some([0x33, 0x33, 10, 11, 12, 13]));
        assert_eq!(station_of_group([10, 0, 0, 1].into()), None);
    }

    #[test]
    fn damaged_attributes_end_the_list() {
        let good = [8, 0, 4, 0, 7, 0, 0, 0, 5, 0, 1, 0x80, 9, 0, 0, 0];
        let list: Vec<_> = Attributes(&good).collect();
        assert_eq!(list, [(4, &[7, 0, 0, 0][..]), (1, &[9][..])]);
        for cut in 0..good.len() {
            assert!(Attributes(&good[..cut]).count() <= 2);
        }
        assert_eq!(Attributes(&[3, 0, 0, 0]).count(), 0);
        assert_eq!(Attributes(&[255, 255, 0, 0]).count(), 0);
    }

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let own = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let hop = Neighbours::new()
            .expect("netlink")
            .hop(own, own, 0, None)
            .expect("a loopback interface that is up");
        assert_eq!((hop.own, hop.next), ([0; 6], [0; 6]));
    }
}
