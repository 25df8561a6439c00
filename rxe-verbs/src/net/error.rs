//! Why a link could not be opened or could not send.

use core::fmt;
use core::net::IpAddr;
use std::io;

use super::ROCE_PORT;

/// Why a batch, or its end, was not sent. The first `sent` packets of the batch had left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The send buffer is full. Wait a moment, then send the rest. The rest is a new batch: its packets get identifications
    /// from the start again.
    #[error("the send buffer is full ({sent} packets of the batch had left)")]
    WouldBlock {
        /// Packets that left.
        sent: usize,
    },
    /// The queue of the interface is full, or what is behind the interface drops the packet (ENOBUFS). The system does not tell which:
    /// a veth pair answers so for a packet that is larger than the MTU of the other end. Try again for a while, as after
    /// [`Self::WouldBlock`].
    #[error(
        "the interface's queue is full, or the other end does not take packets of this size (ENOBUFS): both ends need the same MTU"
    )]
    QueueFull {
        /// Packets that left.
        sent: usize,
    },
    /// A packet is larger than the MTU of the interface: the QP's path MTU is too large for this route. Sending the packet
    /// again is useless.
    #[error("a packet is larger than the interface's MTU")]
    MessageTooLong {
        /// Packets that left.
        sent: usize,
    },
    /// This route cannot segment IPv4 batches (Linux before 6.2 on an interface without checksum offload), or the system does not
    /// segment so large ones (some before Linux 6.9). From now on [`Link::path`](super::Link::path) says so. The ICRCs of the rest
    /// cover identifications that its packets cannot get any more: build the rest again, or treat it as lost.
    #[error("this route refuses segmentation offload; build the batch again")]
    SegmentationRefused {
        /// Packets that left.
        sent: usize,
    },
    /// No way to the destination: no route, a source address that this host does not have (any more), an interface that is
    /// down, or a local firewall rule. The cause may go away: retry as for a lost packet, and tell the user.
    #[error("destination unreachable: {source}")]
    Unreachable {
        /// What the system said.
        source: io::Error,
    },
    /// Any other error: a mistake of the caller ([`io::ErrorKind::InvalidInput`]) or a failure of the system.
    #[error(transparent)]
    Other(#[from] io::Error),
}

impl SendError {
    /// Packets of the batch that left before the error.
    #[must_use]
    pub const fn sent(&self) -> usize {
        match self {
            Self::WouldBlock { sent }
            | Self::QueueFull { sent }
            | Self::MessageTooLong { sent }
            | Self::SegmentationRefused { sent } => *sent,
            Self::Unreachable { .. } | Self::Other(_) => 0,
        }
    }

    /// Whether the system lacks the call (ENOSYS) or forbids it (EPERM), as sandboxes and packet filters do.
    pub(super) fn is_forbidden(&self) -> bool {
        match self {
            Self::Unreachable { source } | Self::Other(source) => {
                matches!(source.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
            }
            _ => false,
        }
    }

    /// Classifies an error of `sendmsg` on a well-formed message.
    pub(super) fn from_system(error: io::Error, sent: usize) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOMEM) => Self::WouldBlock { sent },
            Some(libc::ENOBUFS) => Self::QueueFull { sent },
            Some(libc::EMSGSIZE) => Self::MessageTooLong { sent },
            // EINVAL: an IPv6 source that is not an address of this host, or a link-local address without its interface.
            // EPERM: a packet filter refused the packet. ENODEV, ENXIO: the interface is gone.
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EADDRNOTAVAIL
                | libc::EACCES
                | libc::EPERM
                | libc::EINVAL
                | libc::ENODEV
                | libc::ENXIO,
            ) => Self::Unreachable { source: error },
            _ => Self::Other(error),
        }
    }
}

/// Who has port 4791.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The kernel's own RoCE driver, `rdma_rxe`, which takes the port when it is loaded.
    KernelRxe,
    /// A process of this user, or one whose descriptors this user may read.
    Process {
        /// Its id.
        pid: u32,
        /// Its name (`/proc/PID/comm`).
        name: String,
    },
    /// A process of another user.
    User(
        /// That user's id.
        u32,
    ),
    /// It could not be found out.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KernelRxe => f.write_str("the kernel's rdma_rxe driver; unload it (modprobe -r rdma_rxe)"),
            Self::Process { pid, name } => write!(f, "process {pid} ({name}); end it"),
            Self::User(uid) => write!(f, "a process of user {uid}; have it ended"),
            Self::Unknown => f.write_str("another program; find it with `ss -ulnp sport = 4791` and end it"),
        }
    }
}

/// Why a link could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another program has UDP port 4791.
    #[error(
        "UDP port {ROCE_PORT} of {address} is held by {holder}, or use another address or network namespace"
    )]
    PortHeld {
        /// The address we wanted to bind.
        address: IpAddr,
        /// Who has it.
        holder: Holder,
    },
    /// The address is not one of this host.
    #[error("{address} is not an address of this host (in this network namespace)")]
    NotLocal {
        /// The address we wanted to bind.
        address: IpAddr,
    },
    /// No address family is left: neither IPv4 nor IPv6 sockets can be made here.
    #[error("this system offers neither IPv4 nor IPv6 sockets")]
    NoFamily,
    /// The system lacks a socket option that correct packets depend on.
    #[error("this system's UDP sockets lack {option}, which RoCEv2 packets depend on: {source}")]
    Unsupported {
        /// The missing option.
        option: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Packet sockets need CAP_NET_RAW, which the process lacks.
    #[error(
        "the raw link needs CAP_NET_RAW: run as root, or give the program the capability \
         (setcap cap_net_raw+ep FILE); RXE_LINK=udp needs nothing ({source})"
    )]
    RawForbidden {
        /// What the system said.
        source: io::Error,
    },
    /// Anything else.
    #[error("cannot {action}: {source}")]
    System {
        /// What we were doing.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
