//! Why a call of the connection manager failed, with the number that C programs get for it (rdma_cma.h's functions).

use crate::proto::{TooLong, machine::WrongState};
use rxe_verbs::{CreateError, ModifyQpError, OpenError};
use std::{io, net::SocketAddr};

/// Why a call failed. Nothing was changed unless the text says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The call is not possible in the id's state (EINVAL).
    #[error("{action}: not possible for an id that {state}")]
    State {
        /// The call.
        action: &'static str,
        /// The id's state.
        state: &'static str,
    },
    /// The id's device was removed ([`EventKind::DeviceRemoval`](crate::EventKind::DeviceRemoval)). The id can only be destroyed (EIO).
    #[error("{0}: the network interface below the id's device has gone; destroy the id")]
    Removed(&'static str),
    /// The call is not possible in the connection's state (EINVAL).
    #[error(transparent)]
    Machine(#[from] WrongState),
    /// An argument is out of range (EINVAL).
    #[error("{0}")]
    Argument(String),
    /// More private data than there is room for (EINVAL).
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// The port is in use (EADDRINUSE).
    #[error("port {port} of {space} is in use on this host; `rxe service status` shows by whom", port = .address.port())]
    InUse {
        /// The address.
        address: SocketAddr,
        /// The port space.
        space: &'static str,
    },
    /// The port is in use on another address, and at least one of the two addresses is "any" or a loopback address, which stand for
    /// all addresses (EADDRNOTAVAIL).
    #[error(
        "port {port} of {space} is in use on this host, by all addresses or wanted for all; `rxe service status` shows by whom",
        port = .address.port()
    )]
    Overlap {
        /// The address.
        address: SocketAddr,
        /// The port space.
        space: &'static str,
    },
    /// No port is left (EADDRNOTAVAIL).
    #[error("no free port was found")]
    NoPort,
    /// The address is not one of this host or of this manager's device (EADDRNOTAVAIL).
    #[error("{0} is not an address of this host (in this network namespace)")]
    NotLocal(std::net::IpAddr),
    /// The two addresses are of different families (EINVAL).
    #[error("{from} and {to} are of different IP versions")]
    Family {
        /// Ours.
        from: std::net::IpAddr,
        /// The peer's.
        to: std::net::IpAddr,
    },
    /// There is no way to the peer (ENETUNREACH and others).
    #[error("no way to {peer}: {source}")]
    NoRoute {
        /// The peer's address.
        peer: std::net::IpAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The host's policy or its partitions have no path for this (EINVAL, as in rdma_cm if a subnet manager refuses).
    #[error("the host's policy has no such path: {0}")]
    NoPath(#[from] rxe_fabric::NoPath),
    /// The id has no queue pair, and the parameters name none (EINVAL).
    #[error("the id has no queue pair: make one with create_qp, or name one in the parameters")]
    NoQueuePair,
    /// The protection domain or completion queue belongs to another device (EINVAL).
    #[error("the protection domain belongs to device {have}, the id to {want}")]
    Device {
        /// The device of the domain or queue.
        have: String,
        /// The id's device.
        want: String,
    },
    /// The queue pair could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The queue pair could not change its state.
    #[error(transparent)]
    Modify(#[from] ModifyQpError),
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Queue pair 1 is in use (EBUSY).
    #[error("queue pair 1 of this port is in use by other code of this process: {0}")]
    Gsi(CreateError),
    /// All communication IDs are in use (ENOMEM).
    #[error("no more connections can be made")]
    Exhausted,
    /// A signal ended the wait (EINTR).
    #[error("interrupted by a signal")]
    Interrupted,
    /// The time is over, or there is no event and the call does not wait (EAGAIN, ETIMEDOUT).
    #[error("no event")]
    Empty,
    /// The id belongs to the parent of this process (EIO).
    #[error("it belongs to the process that this one was forked from")]
    Forked,
    /// A synchronous call ended with another event than that of success. The error number is that of the event.
    #[error("{what}")]
    Failed {
        /// The event as text.
        what: String,
        /// Its number in C.
        errno: i32,
    },
    /// The system refused a resource.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl CmError {
    /// The number of this error in C.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::State { .. }
            | Self::Machine(_)
            | Self::Argument(_)
            | Self::PrivateData(_)
            | Self::Family { .. }
            | Self::NoPath(_)
            | Self::NoQueuePair
            | Self::Device { .. } => libc::EINVAL,
            Self::InUse { .. } => libc::EADDRINUSE,
            Self::Overlap { .. } | Self::NoPort | Self::NotLocal(_) => libc::EADDRNOTAVAIL,
            Self::NoRoute { source, .. } | Self::System { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Create(error) => error.errno(),
            Self::Modify(error) => error.errno(),
            Self::Open(error) => error.errno(),
            Self::Gsi(_) => libc::EBUSY,
            Self::Exhausted => libc::ENOMEM,
            Self::Interrupted => libc::EINTR,
            Self::Empty => libc::EAGAIN,
            Self::Removed(_) | Self::Forked => libc::EIO,
            Self::Failed { errno, .. } => *errno,
        }
    }
}
