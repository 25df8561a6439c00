//! The options of the link's sockets. Correct packets depend on some of them: if the system lacks one, opening the link fails.
//! The others are abilities that the link uses if the system has them.

use core::net::IpAddr;
use std::io;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, Socket, Type};

use crate::net::config::{BufferSize, Features};
use crate::net::error::OpenError;
use crate::sys::{socket::set_option, unix::out_of_the_way};

/// Largest buffer that is asked for, bytes.
const LARGEST_BUFFER: usize = 16 << 20;
/// `IPV6_AUTOFLOWLABEL` of linux/in6.h.
const IPV6_AUTOFLOWLABEL: libc::c_int = 70;

/// Turns an error into an [`OpenError`] that names the action which failed.
pub(in crate::net) fn doing(action: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::System { action, source }
}

fn needed(result: io::Result<()>, option: &'static str) -> Result<(), OpenError> {
    result.map_err(|source| OpenError::Unsupported { option, source })
}

/// An unbound UDP socket whose packets have DF, ID 0 and flow label 0. `None` if the system lacks the family.
pub(super) fn create(address: IpAddr) -> Result<Option<Socket>, OpenError> {
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = match Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP)) {
        Ok(socket) => Socket::from(out_of_the_way(socket.into())),
        Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => return Ok(None),
        Err(e) => return Err(doing("make a UDP socket")(e)),
    };
    let fd = socket.as_fd();
    if address.is_ipv4() {
        // IP_PMTUDISC_PROBE sets DF like IP_PMTUDISC_DO. But with PROBE, a forged ICMP message cannot make the kernel refuse
        // packets.
        let probe = libc::IP_PMTUDISC_PROBE;
        needed(set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe), "IP_PMTUDISC_PROBE")?;
    } else {
        needed(socket.set_only_v6(true), "IPV6_V6ONLY")?;
        let probe = libc::IPV6_PMTUDISC_PROBE;
        needed(set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe), "IPV6_PMTUDISC_PROBE")?;
        // The ICRC masks the flow label, so packets are correct even if a kernel without this option sends another label than
        // 0.
        let _ = set_option(fd, libc::IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0);
    }
    Ok(Some(socket))
}

/// Sets the receive options of a port-4791 socket that will be bound to `address`: control messages with the headers' fields,
/// and acceptance of packets without a UDP checksum.
pub(super) fn prepare_receive(socket: &Socket, address: IpAddr) -> Result<(), OpenError> {
    let fd = socket.as_fd();
    if address.is_ipv4() {
        // A socket bound to one address receives only packets to that address, and none to groups.
        if address.is_unspecified() {
            needed(set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1), "IP_PKTINFO")?;
        }
        // A UD receiver's GRH and the congestion marks come from these. Without them those fields are 0.
        let _ = socket.set_recv_tos_v4(true);
        let _ = set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, 1);
        let _ = socket.set_multicast_all_v4(false);
    } else {
        needed(set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1), "IPV6_RECVPKTINFO")?;
        // Every other RoCEv2 implementation sends UDP checksum 0, over IPv6 too.
        needed(set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1), "UDP_NO_CHECK6_RX")?;
        let _ = socket.set_recv_tclass_v6(true);
        let _ = socket.set_recv_hoplimit_v6(true);
        let _ = socket.set_multicast_all_v6(false);
    }
    Ok(())
}

/// Whether the socket can send batches (UDP_SEGMENT).
pub(super) fn try_gso(socket: &Socket, features: Features) -> bool {
    features.gso && set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Whether the socket merges arrivals from now on (UDP_GRO).
pub(super) fn try_gro(socket: &Socket, features: Features) -> bool {
    features.gro && set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Asks for a receive buffer. The granted size can be read back.
pub(super) fn set_receive_buffer(socket: &Socket, size: BufferSize) {
    match size {
        BufferSize::Default => {}
        BufferSize::Bytes(bytes) => _ = socket.set_recv_buffer_size(bytes),
        BufferSize::Largest => {
            // The system caps the size at its maximum, which may be smaller than the socket's present buffer.
            let had = socket.recv_buffer_size().unwrap_or(0);
            let _ = socket.set_recv_buffer_size(LARGEST_BUFFER);
            if socket.recv_buffer_size().unwrap_or(0) < had {
                let _ = socket.set_recv_buffer_size(had);
            }
        }
    }
}

/// Asks for a send buffer.
pub(super) fn set_send_buffer(socket: &Socket, size: BufferSize) {
    match size {
        BufferSize::Default => {}
        BufferSize::Bytes(bytes) => _ = socket.set_send_buffer_size(bytes),
        BufferSize::Largest => _ = socket.set_send_buffer_size(LARGEST_BUFFER),
    }
}
