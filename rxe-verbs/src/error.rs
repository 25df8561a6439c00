//! Errors of the verbs: one type for each kind of operation. Each has an `errno` method, which gives the number that C programs
//! get.

use crate::{host::HostError, net};
use core::net::IpAddr;
use rxe_core::{
    endpoint::ObjectError,
    qp::{ModifyError, Mtu, PostError, QpType},
    region::RegionError,
};
use std::io;

/// The object belongs to the process from which this one was forked (EIO). It is dead here: it neither sends nor receives, and
/// dropping it changes nothing for the parent. Objects that the child opens itself work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it belongs to the process that this one was forked from")]
pub struct Forked;

impl Forked {
    /// The number of this error in C.
    #[must_use]
    pub const fn errno(self) -> i32 {
        libc::EIO
    }
}

impl From<Forked> for PostError {
    fn from(_: Forked) -> Self {
        Self::Forked
    }
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has this name.
    #[error("no device is called {0}; `rxe devices` lists them")]
    NoSuchDevice(String),
    /// The host has no address to use.
    #[error(
        "this host (or container) has no usable IP address, not even on the loopback: `ip link set lo up`"
    )]
    NoAddress,
    /// The address is not one of this host.
    #[error("{0} is not an address of this host (in this network namespace)")]
    NotLocal(IpAddr),
    /// An environment variable is not understood.
    #[error(transparent)]
    Config(#[from] net::ConfigError),
    /// The network link could not be opened.
    #[error(transparent)]
    Link(#[from] net::OpenError),
    /// The host service gave no share of the port.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The file for captured (`RXE_PCAP`) or printed (`RXE_TRACE`) packets could not be created.
    #[error("cannot write packets to {path}: {source}")]
    Capture {
        /// Its name.
        path: String,
        /// The system's error.
        source: io::Error,
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

impl OpenError {
    /// The number of this error in C.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoSuchDevice(_) | Self::NoAddress => libc::ENODEV,
            Self::NotLocal(_) => libc::EADDRNOTAVAIL,
            Self::Config(_) => libc::EINVAL,
            Self::Host(HostError::Refused(_) | HostError::Stranger { .. }) => libc::EACCES,
            Self::Host(HostError::Silent) => libc::ETIMEDOUT,
            Self::Host(HostError::Busy(_)) => libc::EAGAIN,
            Self::Host(HostError::Start(_)) => libc::EIO,
            Self::Link(net::OpenError::PortHeld { .. }) => libc::EADDRINUSE,
            Self::Link(net::OpenError::NotLocal { .. }) => libc::EADDRNOTAVAIL,
            Self::Link(net::OpenError::NoFamily) => libc::EAFNOSUPPORT,
            Self::Link(net::OpenError::RawForbidden { .. }) => libc::EPERM,
            Self::Link(
                net::OpenError::Unsupported { source, .. } | net::OpenError::System { source, .. },
            )
            | Self::Capture { source, .. }
            | Self::Host(HostError::System { source, .. })
            | Self::System { source, .. } => os_number(source),
        }
    }
}

/// Why an object was not made, changed or destroyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A size is out of range (EINVAL).
    #[error("{what}: {value} is not within {least} to {most}")]
    Limit {
        /// What it counts.
        what: &'static str,
        /// The value that was asked for.
        value: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// All objects of this kind are in use (ENOMEM).
    #[error("no more {0} can be made")]
    Exhausted(&'static str),
    /// Objects of different contexts or protection domains (EINVAL).
    #[error("{0} belongs to another context or protection domain")]
    Stranger(&'static str),
    /// No XRC domain is open with the file, and the caller did not ask to make one (EAGAIN, as from the kernel).
    #[error("no XRC domain is open with this file")]
    NoDomain,
    /// An XRC domain is open with the file, and the caller asked for a new one (EINVAL, as from the kernel).
    #[error("an XRC domain is open with this file already")]
    DomainExists,
    /// A queue pair of a kind that cannot use a tag matching queue (EINVAL).
    #[error("a tag matching queue is for queue pairs of reliable connections, not for {0:?}")]
    TagMatching(QpType),
    /// The protocol core refused.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Not a multicast group, or one to which the queue pair is not attached (EINVAL).
    #[error("{0} is no multicast group that can be joined here")]
    Group(IpAddr),
    /// The system refused a resource.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// It belongs to the parent of this process (EIO).
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl CreateError {
    /// The number of this error in C.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Limit { .. } | Self::Stranger(_) | Self::Group(_) | Self::TagMatching(_) => libc::EINVAL,
            Self::Exhausted(_) | Self::Object(ObjectError::Exhausted) => libc::ENOMEM,
            Self::Object(ObjectError::NoSuchObject | ObjectError::Xrc) | Self::DomainExists => libc::EINVAL,
            Self::NoDomain => libc::EAGAIN,
            Self::Object(ObjectError::Busy(_) | ObjectError::GsiTaken) => libc::EBUSY,
            Self::Forked(forked) => forked.errno(),
            Self::System { source, .. } => os_number(source),
        }
    }
}

/// Why memory was not registered or deregistered, or a window not made or bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The rules for regions forbid it (EINVAL).
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The bytes go beyond the end of the address space (EINVAL).
    #[error("{len} bytes at {addr:#x} go beyond the end of the address space")]
    Range {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// A region of no bytes at the start of a page (EINVAL). Kernels count the pages that a region touches. Within a page an empty
    /// region touches one page, and is allowed.
    #[error("a region of no bytes at {addr:#x}, where a page begins")]
    Empty {
        /// Where.
        addr: u64,
    },
    /// The memory is not mapped, or not writable (EFAULT).
    #[error("{len} bytes at {addr:#x} are not mapped with the rights asked for")]
    NotMapped {
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// All keys are in use (ENOMEM).
    #[error("no more memory regions or windows can be made")]
    Exhausted,
    /// No memory (ENOMEM).
    #[error("cannot get {len} bytes of memory: {source}")]
    Memory {
        /// Bytes asked for.
        len: usize,
        /// The system's error.
        source: io::Error,
    },
    /// More than the limit for locked memory, which the host's configuration enforces (ENOMEM).
    #[error(
        "{len} bytes are beyond the limit for locked memory: {held} of {limit} bytes are registered (memlock = \"enforce\" in \
         the host's configuration; raise the limit by `ulimit -l` or limits.conf, or take the line out)"
    )]
    Locked {
        /// Bytes asked for.
        len: usize,
        /// Bytes that were registered before, counted in whole pages.
        held: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Windows are bound to it (EBUSY).
    #[error("memory windows are still bound to it")]
    Bound,
    /// The protection domain belongs to another device (EINVAL).
    #[error("the protection domain belongs to another device")]
    Stranger,
    /// It belongs to the parent of this process (EIO).
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl RegisterError {
    /// The number of this error in C.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Region(_) | Self::Range { .. } | Self::Empty { .. } | Self::Stranger => libc::EINVAL,
            Self::NotMapped { .. } => libc::EFAULT,
            Self::Exhausted | Self::Memory { .. } | Self::Locked { .. } => libc::ENOMEM,
            Self::Forked(forked) => forked.errno(),
            Self::Bound => libc::EBUSY,
        }
    }
}

/// Why an access to a region failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MrError {
    /// Not inside the region (EINVAL).
    #[error("{len} bytes at offset {offset} are not inside the region of {size} bytes")]
    Range {
        /// First byte, counted from the start of the region.
        offset: usize,
        /// Bytes.
        len: usize,
        /// Bytes of the region.
        size: usize,
    },
    /// An atomic's address is not a multiple of 8 (EINVAL).
    #[error("offset {0} is not aligned to 8 bytes")]
    Misaligned(usize),
    /// The memory is not mapped, or not writable (EFAULT).
    #[error("the region's memory is gone or not writable")]
    Fault,
}

impl MrError {
    /// The number of this error in C.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Range { .. } | Self::Misaligned(_) => libc::EINVAL,
            Self::Fault => libc::EFAULT,
        }
    }
}

/// Why a queue pair was not modified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyQpError {
    /// The modify-QP table, or an attribute's range, forbids it.
    #[error(transparent)]
    Rule(#[from] ModifyError),
    /// The path MTU is larger than the port's active one.
    #[error(
        "path MTU {wanted} is larger than the port's active MTU {active}: raise the MTU of {netdev} to {needed}, or ask \
         for less"
    )]
    PathMtu {
        /// The path MTU that was asked for, in bytes.
        wanted: u32,
        /// The port's active MTU, in bytes.
        active: u32,
        /// The network device.
        netdev: String,
        /// The MTU that the network device needs for it, in bytes.
        needed: u32,
    },
    /// Source and destination of the address vector are of different families.
    #[error("{0}")]
    Address(#[from] AddressError),
    /// It belongs to the parent of this process (EIO).
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl ModifyQpError {
    /// The error for a path MTU above the active one.
    pub(crate) fn path_mtu(wanted: Mtu, active: Mtu, netdev: &str) -> Self {
        Self::PathMtu {
            wanted: wanted.bytes(),
            active: active.bytes(),
            netdev: netdev.to_owned(),
            needed: wanted.bytes() + 80,
        }
    }

    /// The number of this error in C.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Rule(ModifyError::Draining) => libc::EBUSY,
            Self::Forked(forked) => forked.errno(),
            _ => libc::EINVAL,
        }
    }
}

/// Why a GID index and a peer's address do not make an address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The GID table has no such entry, or it is empty.
    #[error("GID index {index} is not in use; the table has {entries} entries (`rxe devices -v`)")]
    Index {
        /// What was given.
        index: u8,
        /// Entries of the table.
        entries: usize,
    },
    /// The peer's GID is all zeroes: RoCE needs one in every address vector (`is_global = 1`).
    #[error(
        "the destination GID is empty: on RoCE every address vector needs the peer's GID (is_global = 1)"
    )]
    NoDestination,
    /// One address is an IPv4 address, the other an IPv6 address.
    #[error("our GID {src} and the peer's GID {dst} are of different IP versions; choose another GID index")]
    Family {
        /// Ours.
        src: IpAddr,
        /// The peer's.
        dst: IpAddr,
    },
    /// One address is link-local, the other global.
    #[error("our GID {src} is link-local and the peer's GID {dst} is not; choose another GID index")]
    Scope {
        /// Ours.
        src: IpAddr,
        /// The peer's.
        dst: IpAddr,
    },
}

impl AddressError {
    /// The number of this error in C.
    #[must_use]
    pub const fn errno(self) -> i32 {
        libc::EINVAL
    }
}

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {index}: {reason}")]
pub struct PostListError {
    /// Index of the failed request in the list (`bad_wr` of ibv_post_send). Those before it were posted, except by
    /// [`Qp::post_send_all`](crate::Qp::post_send_all).
    pub index: usize,
    /// Why.
    #[source]
    pub reason: PostError,
}

/// The number of a post error in C.
#[must_use]
pub const fn post_errno(error: &PostError) -> i32 {
    match error {
        PostError::Full(_) => libc::ENOMEM,
        PostError::Forked => libc::EIO,
        _ => libc::EINVAL,
    }
}

impl From<Forked> for PostListError {
    fn from(_: Forked) -> Self {
        Self { index: 0, reason: PostError::Forked }
    }
}

impl PostListError {
    /// The number of this error in C.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        post_errno(&self.reason)
    }
}

/// Why a completion queue could not be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// The queue was full when completions came. They are lost, and it is not known which they were.
    #[error("the completion queue was too small: {lost} completions are lost")]
    Overrun {
        /// Number of lost completions.
        lost: u64,
    },
    /// It belongs to the parent of this process (EIO).
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl PollError {
    /// The number of this error in C.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Overrun { .. } => libc::EOVERFLOW,
            Self::Forked(forked) => forked.errno(),
        }
    }
}

fn os_number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
