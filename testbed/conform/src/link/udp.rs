//! A UDP socket as the link: no privilege is needed. The kernel writes the IP header of sent packets (ID 0, do not fragment)
//! and hides that of received ones. Cases that depend on these headers are left out.

use super::{Arrival, Link, LinkError, Unsent};
use crate::wire::PORT;
use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg},
};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

/// Buffer size: large enough for any RoCE packet.
const LARGEST: usize = 9216;

/// The link.
#[derive(Debug)]
pub struct UdpLink {
    socket: Socket,
    own: IpAddr,
    opened: Instant,
    buffer: Vec<u8>,
    /// TOS and TTL that the socket currently sends with.
    set: (u8, u8),
}

fn prepared(own: IpAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(SocketAddr::new(own, 0)), Type::DGRAM, Some(Protocol::UDP))?;
    if own.is_ipv4() {
        set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
        socket.set_recv_tos_v4(true)?;
    } else {
        socket.set_only_v6(true)?;
        set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
        socket.set_recv_tclass_v6(true)?;
    }
    // If this fails, the default buffer is large enough for the packets of a case, too.
    let _ = socket.set_recv_buffer_size(1 << 20);
    Ok(socket)
}

impl UdpLink {
    /// Binds a socket to the RoCE port of this address.
    ///
    /// # Errors
    /// The error of the system. The most likely one is that another socket has the port.
    pub fn open(own: IpAddr) -> Result<Self, LinkError> {
        let socket = prepared(own).map_err(|error| LinkError::new("a UDP socket", error))?;
        socket.bind(&SocketAddr::new(own, PORT).into()).map_err(|error| {
            LinkError::new(&format!("taking UDP port {PORT} of {own} (has another RoCE stack it?)"), error)
        })?;
        Ok(Self { socket, own, opened: Instant::now(), buffer: vec![0; LARGEST], set: (0, 64) })
    }

    fn set_header(&mut self, tos: u8, ttl: u8) -> io::Result<()> {
        if self.set == (tos, ttl) {
            return Ok(());
        }
        if self.own.is_ipv4() {
            self.socket.set_tos_v4(tos.into())?;
            self.socket.set_ttl_v4(ttl.into())?;
        } else {
            self.socket.set_tclass_v6(tos.into())?;
            self.socket.set_unicast_hops_v6(ttl.into())?;
        }
        self.set = (tos, ttl);
        Ok(())
    }

    /// Receives one datagram, and puts IP and UDP headers in front of it as they may have been.
    fn receive(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        let mut space = cmsg_space!(i32, i32);
        let mut slices = [IoSliceMut::new(&mut self.buffer)];
        let fd = self.socket.as_raw_fd();
        let message = recvmsg::<SockaddrStorage>(fd, &mut slices, Some(&mut space), MsgFlags::empty())?;
        let mut tos = 0;
        for cmsg in message.cmsgs()? {
            match cmsg {
                ControlMessageOwned::Ipv4Tos(value) => tos = value,
                ControlMessageOwned::Ipv6TClass(value) => tos = value as u8,
                _ => {}
            }
        }
        let Some(from) = message.address else { return Ok(None) };
        let (src, sport): (IpAddr, u16) = match (from.as_sockaddr_in(), from.as_sockaddr_in6()) {
            (Some(v4), _) => (v4.ip().into(), v4.port()),
            (_, Some(v6)) => (v6.ip().into(), v6.port()),
            _ => return Ok(None),
        };
        let bytes = message.bytes;
        Ok(Some(headed((src, sport), self.own, tos, &self.buffer[..bytes])))
    }
}

/// Puts headers in front of a datagram, as they may have been on the wire.
fn headed((src, sport): (IpAddr, u16), dst: IpAddr, tos: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16 + 8;
    let mut ip = Vec::with_capacity(payload.len() + 48);
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => v4(&mut ip, src, dst, tos, length),
        (IpAddr::V6(src), IpAddr::V6(dst)) => v6(&mut ip, src, dst, tos, length),
        _ => {}
    }
    for word in [sport, PORT, length, 0] {
        ip.extend(word.to_be_bytes());
    }
    ip.extend(payload);
    ip
}

fn v4(ip: &mut Vec<u8>, src: Ipv4Addr, dst: Ipv4Addr, tos: u8, length: u16) {
    ip.extend([0x45, tos]);
    for word in [length + 20, 0, 0x4000] {
        ip.extend(word.to_be_bytes());
    }
    ip.extend([64, 17, 0, 0]);
    ip.extend(src.octets());
    ip.extend(dst.octets());
}

fn v6(ip: &mut Vec<u8>, src: Ipv6Addr, dst: Ipv6Addr, tos: u8, length: u16) {
    ip.extend((0x6000_0000 | u32::from(tos) << 20).to_be_bytes());
    ip.extend(length.to_be_bytes());
    ip.extend([17, 64]);
    ip.extend(src.octets());
    ip.extend(dst.octets());
}

impl Link for UdpLink {
    fn own(&self) -> IpAddr {
        self.own
    }

    fn source_port(&self) -> u16 {
        PORT
    }

    fn send(&mut self, ip: &[u8]) -> Result<(), Unsent> {
        let v4 = ip.first().is_some_and(|first| first >> 4 == 4);
        let (header, tos, ttl) = if v4 {
            (20, ip[1], ip[8])
        } else {
            (40, (u16::from_be_bytes([ip[0], ip[1]]) >> 4) as u8, ip[7])
        };
        let Some(ends) = crate::wire::ends_of(ip) else {
            return Err(LinkError("a UDP socket sends nothing but UDP to the RoCE port".into()).into());
        };
        self.set_header(tos, ttl).map_err(|error| LinkError::new("TOS and TTL", error))?;
        let to = SocketAddr::new(ends.dst, PORT).into();
        match self.socket.send_to(ip.get(header + 8..).unwrap_or_default(), &to) {
            Ok(_) => Ok(()),
            // This error is the answer to an earlier datagram, from a host on which no socket has the port at the moment.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(Unsent::new(&format!("sending to {}", ends.dst), ip.len(), &error)),
        }
    }

    fn recv(&mut self, within: Duration) -> Result<Option<Arrival>, LinkError> {
        // A timeout of 0 would mean to wait for ever.
        let within = within.max(Duration::from_micros(50));
        self.socket.set_read_timeout(Some(within)).map_err(|error| LinkError::new("a timeout", error))?;
        match self.receive() {
            Ok(ip) => Ok(ip.map(|ip| Arrival { ip, header_seen: false })),
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => Ok(None),
            Err(error) => Err(LinkError::new("receiving", error)),
        }
    }

    fn now(&self) -> Duration {
        self.opened.elapsed()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn calm(&self) -> Duration {
        Duration::from_millis(15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        case::Fail,
        wire::{Ends, Packet, Roce, op},
    };

    /// The device is not gone, and the next packet reaches it.
    #[test]
    fn a_packet_that_is_too_long_for_the_interface_is_no_reason_to_end_the_run() {
        let own = IpAddr::from([127, 6, 5, 4]);
        let mut link = match UdpLink::open(own) {
            Ok(link) => link,
            Err(error) => return eprintln!("skipped: a_packet_that_is_too_long...: {error}"),
        };
        let ends = Ends { src: own, dst: own, sport: PORT, roce: Roce::V2 };
        let short = Packet::of(op::SEND_ONLY).data(vec![1; 4]).encode(&ends);
        let mut long = short.clone();
        long.resize(66_000, 0);
        let unsent = link.send(&long).unwrap_err();
        let Fail::Skip(why) = Fail::from(unsent) else { panic!("not left out") };
        assert!(why.contains("are more than the MTU of the tester's interface allows"), "{why}");
        link.send(&short).unwrap();
        assert!(link.recv(Duration::from_secs(5)).unwrap().is_some());
    }
}
