//! Packet sockets (`packet(7)`), which send and receive whole Ethernet frames.
//!
//! With PACKET_VNET_HDR each frame has a `virtio_net_hdr` in front. In an outgoing frame it tells the kernel how to cut a large frame
//! into packets. In an incoming frame it says into which packets the frame would be cut.

use super::socket::{Instruction, attach_filter, set_option, set_value};
use core::ffi::c_int;
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv, send},
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// From linux/if_packet.h; the C library's headers lack some of them.
const PACKET_VNET_HDR: c_int = 15;
const PACKET_IGNORE_OUTGOING: c_int = 23;

/// Every Ethertype (linux/if_ether.h).
pub(crate) const ALL_TYPES: u16 = libc::ETH_P_ALL as u16;

/// Bytes of a `virtio_net_hdr` (linux/virtio_net.h).
pub(crate) const VNET_LEN: usize = 10;
const VNET_NEEDS_CSUM: u8 = 1;
const VNET_GSO_NONE: u8 = 0;
const VNET_GSO_UDP_L4: u8 = 5;
/// Flag of `gso_type`: congestion marks are kept.
const VNET_GSO_ECN: u8 = 0x80;
/// Where the checksum stands in a UDP header.
const UDP_CHECKSUM: u16 = 6;

/// The destination of a frame, as the kernel classifies it (`sll_pkttype`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PacketType {
    /// This host.
    Host,
    /// A multicast group, or broadcast.
    Group,
    /// Another station, or a VLAN for which this host has no interface.
    Other,
    /// It was sent by this host.
    Outgoing,
}

impl PacketType {
    pub(crate) const fn of(number: u8) -> Self {
        match number {
            0 => Self::Host,
            1 | 2 => Self::Group,
            4 => Self::Outgoing,
            _ => Self::Other,
        }
    }
}

/// Which frames a packet socket gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    /// Frames of this Ethertype; [`ALL_TYPES`] for all.
    pub(crate) ethertype: u16,
    /// Frames of this interface; 0 for all.
    pub(crate) ifindex: u32,
    /// Frames that this program accepts. It sees a frame from its Ethernet header on. An empty program accepts all.
    pub(crate) filter: &'a [Instruction],
}

/// A packet socket.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
    /// Frames have a header of [`VNET_LEN`] bytes in front.
    pub(crate) vnet: bool,
    /// The socket does not get frames that this host sends. Before Linux 4.20 it does; such frames have [`PacketType::Outgoing`].
    pub(crate) incoming_only: bool,
}

impl PacketSocket {
    /// Opens a packet socket. With `vnet` frames have a `virtio_net_hdr`, if the kernel supports it.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW in the network namespace's user namespace.
    pub(crate) fn open(scope: Scope<'_>, vnet: bool) -> io::Result<Self> {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // With protocol 0 nothing arrives before the filter is attached and the socket is bound.
        // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: see above.
        let fd = super::unix::out_of_the_way(unsafe { OwnedFd::from_raw_fd(fd) });
        if !scope.filter.is_empty() {
            attach_filter(fd.as_fd(), scope.filter)?;
        }
        let incoming_only = set_option(fd.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1).is_ok();
        let vnet = vnet && set_option(fd.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, 1).is_ok();
        bind(&fd, scope.ethertype, scope.ifindex)?;
        Ok(Self { fd, ifindex: scope.ifindex, vnet, incoming_only })
    }

    /// Makes the interface accept frames to any address (promiscuous mode), as long as the socket lives.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn hear_all(&self) -> io::Result<()> {
        let wish = libc::packet_mreq {
            mr_ifindex: self.ifindex.cast_signed(),
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_value(self.fd.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &wish)
    }

    /// Makes an interface accept frames to a group's address, or stop that if not `is_member`.
    ///
    /// # Errors
    /// The system's error: no such interface, or no such membership.
    pub(crate) fn set_member(&self, ifindex: u32, group: [u8; 6], is_member: bool) -> io::Result<()> {
        let [a, b, c, d, e, f] = group;
        let wish = libc::packet_mreq {
            mr_ifindex: ifindex.cast_signed(),
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: 6,
            mr_address: [a, b, c, d, e, f, 0, 0],
        };
        let option = if is_member { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
        set_value(self.fd.as_fd(), libc::SOL_PACKET, option, &wish)
    }

    /// Receives the next frame, without waiting. A frame that is longer than `out` is cut off.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub(crate) fn receive(&self, out: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.fd.as_raw_fd(), out, MsgFlags::MSG_DONTWAIT)?)
    }

    /// Sends a frame by the socket's interface. Waits while the socket's buffer is full, also if handlers of signals run meanwhile.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        loop {
            match send(self.fd.as_raw_fd(), frame, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                sent => return Ok(sent.map(drop)?),
            }
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The address of an interface, to send by it or to bind to it. Index 0 means all interfaces.
pub(crate) fn link_name(ethertype: u16, ifindex: u32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: ifindex.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    }
}

fn bind(fd: &OwnedFd, ethertype: u16, ifindex: u32) -> io::Result<()> {
    let name = link_name(ethertype, ifindex);
    // SAFETY: pointer and length describe `name`, which lives through the call; the kernel only reads it.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const name).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The `virtio_net_hdr` of an outgoing frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vnet {
    /// Bytes at the start of the frame that the kernel keeps in one piece, if the frame is larger than a page. The rest lies in
    /// pages.
    pub(crate) heads: u16,
    /// Offset of the UDP header in the frame, if the kernel or the card is to complete the checksum. The checksum field has the sum
    /// of the pseudo header then.
    pub(crate) unsummed: Option<u16>,
    /// The kernel cuts the UDP payload after every so many bytes. 0: the frame is one packet. Needs `unsummed`.
    pub(crate) segment: u16,
}

impl Vnet {
    /// The header's bytes.
    pub(crate) fn emit(self) -> [u8; VNET_LEN] {
        let mut header = [0; VNET_LEN];
        header[2..4].copy_from_slice(&self.heads.to_ne_bytes());
        if let Some(udp) = self.unsummed {
            header[0] = VNET_NEEDS_CSUM;
            header[6..8].copy_from_slice(&udp.to_ne_bytes());
            header[8..10].copy_from_slice(&UDP_CHECKSUM.to_ne_bytes());
        }
        if self.segment > 0 {
            header[1] = VNET_GSO_UDP_L4;
            header[4..6].copy_from_slice(&self.segment.to_ne_bytes());
        }
        header
    }
}

/// The `virtio_net_hdr` of an incoming frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VnetSeen {
    /// Bytes of each packet's UDP payload; 0 if the frame is one packet.
    pub(crate) segment: usize,
    /// The checksum is not complete yet, because the sender is on this host.
    pub(crate) unsummed: bool,
}

impl VnetSeen {
    /// Reads a header. `None` if its frame would be cut in another way than as UDP datagrams (UDP_L4).
    pub(crate) fn parse(header: &[u8; VNET_LEN]) -> Option<Self> {
        let unsummed = header[0] & VNET_NEEDS_CSUM != 0;
        let segment = match header[1] & !VNET_GSO_ECN {
            VNET_GSO_NONE => 0,
            VNET_GSO_UDP_L4 => usize::from(u16::from_ne_bytes([header[4], header[5]])),
            _ => return None,
        };
        Some(Self { segment, unsummed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process::{is_asleep, this_thread};
    use core::time::Duration;
    use nix::sys::{
        pthread::{pthread_kill, pthread_self},
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
        socket::{AddressFamily, SockFlag, SockType, socketpair},
    };
    use std::{sync::mpsc, thread};

    extern "C" fn handle(_: c_int) {}

    /// A program's handler without SA_RESTART, as those of timers often are.
    #[test]
    fn a_signal_does_not_lose_a_frame() {
        let action = SigAction::new(SigHandler::Handler(handle), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing.
        unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
        // It waits as a packet socket does whose interface is slow.
        let (fd, other) =
            socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let mut waiting = 0;
        while send(fd.as_raw_fd(), &[1; 100], MsgFlags::MSG_DONTWAIT).is_ok() {
            waiting += 1;
        }
        let socket = PacketSocket { fd, ifindex: 0, vnet: false, incoming_only: true };
        let (tell, who) = mpsc::channel();
        thread::scope(|scope| {
            let sender = scope.spawn(move || {
                tell.send((pthread_self(), this_thread())).unwrap();
                socket.send(&[2; 100])
            });
            let (thread, tid) = who.recv().unwrap();
            for _ in 0..10 {
                while !is_asleep(tid) && !sender.is_finished() {
                    thread::yield_now();
                }
                let _ = pthread_kill(thread, Signal::SIGURG);
                thread::sleep(Duration::from_millis(2));
            }
            let mut frame = [0; 100];
            let mut take = || recv(other.as_raw_fd(), &mut frame, MsgFlags::empty()).map(|_| frame[0]);
            assert_eq!((0..waiting).map(|_| take().unwrap()).max(), Some(1));
            assert!(sender.join().unwrap().is_ok());
            assert_eq!(take(), Ok(2));
        });
    }
}
