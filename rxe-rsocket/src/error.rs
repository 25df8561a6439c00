//! Errors of calls, with their error numbers in C.

use crate::proto::{Failure, HelloError};
use rxe_cm::CmError;
use rxe_verbs::{CreateError, Forked, PostError, RegisterError, post_errno};
use std::io;

/// Why a call failed. The error numbers are those of `socket(7)`, if it has one for the case.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The call would have to wait, but must not (EAGAIN).
    #[error("nothing can be done without waiting")]
    WouldBlock,
    /// The connection is being established. The socket becomes writable when it is established or has failed (EINPROGRESS).
    #[error("the connection is being made")]
    InProgress,
    /// The same for a second call (EALREADY).
    #[error("the connection is being made already")]
    Already,
    /// A signal arrived (EINTR).
    #[error("interrupted by a signal")]
    Interrupted,
    /// The descriptor is not one of an rsocket (EBADF).
    #[error("{0} is no rsocket")]
    NoSocket(i32),
    /// The call is not possible in the socket's state (EINVAL).
    #[error("{action}: not possible for a socket that {state}")]
    State {
        /// The call.
        action: &'static str,
        /// The state of the socket.
        state: &'static str,
    },
    /// The socket is not connected (ENOTCONN).
    #[error("the socket is not connected")]
    NotConnected,
    /// The socket is connected (EISCONN).
    #[error("the socket is connected")]
    IsConnected,
    /// No address was given, and the socket is not connected (EDESTADDRREQ).
    #[error("nobody to send to")]
    NoDestination,
    /// This side has ended its direction, or the peer has ended the connection (ECONNRESET, as in rdma-core).
    #[error("the connection does not take data any more")]
    NoMoreWriting,
    /// An argument is out of range (EINVAL).
    #[error("{0}")]
    Argument(String),
    /// rsockets do not support this (EOPNOTSUPP).
    #[error("rsockets have no {0}")]
    Unsupported(String),
    /// The datagram is too long for the path (EMSGSIZE).
    #[error("a datagram of {len} bytes; {most} fit")]
    TooLong {
        /// Its length.
        len: usize,
        /// The longest possible length.
        most: usize,
    },
    /// The peer has no buffer mapped there, or all places for mapped buffers are in use (ENOMEM, EINVAL).
    #[error("no place for another mapped buffer: the peer has {0} (RDMA_IOMAPSIZE)")]
    NoIoMap(u16),
    /// The connection has failed.
    #[error(transparent)]
    Cut(#[from] Failure),
    /// The connection could not be established.
    #[error("no connection: {words}")]
    NotMade {
        /// The reason.
        words: String,
        /// The error number in C.
        errno: i32,
    },
    /// The peer is not an rsocket, or of another version (EPROTONOSUPPORT).
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// An error of the connection manager.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// A queue pair or completion queue could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A request could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The socket belongs to the parent of this process (EIO).
    #[error(transparent)]
    Forked(#[from] Forked),
    /// An error of the system.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl SocketError {
    /// Makes an error of the system from the action that failed.
    pub(crate) fn system(action: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { action, source: source.into() }
    }

    /// This error, or `other` if the call would have had to wait.
    pub(crate) fn instead(self, other: Self) -> Self {
        if matches!(self, Self::WouldBlock) { other } else { self }
    }

    /// The error number in C.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::WouldBlock => libc::EAGAIN,
            Self::InProgress => libc::EINPROGRESS,
            Self::Already => libc::EALREADY,
            Self::Interrupted => libc::EINTR,
            Self::NoSocket(_) => libc::EBADF,
            Self::State { .. } | Self::Argument(_) => libc::EINVAL,
            Self::NotConnected => libc::ENOTCONN,
            Self::IsConnected => libc::EISCONN,
            Self::NoDestination => libc::EDESTADDRREQ,
            Self::NoMoreWriting => libc::ECONNRESET,
            Self::Unsupported(_) => libc::EOPNOTSUPP,
            Self::TooLong { .. } => libc::EMSGSIZE,
            Self::NoIoMap(_) => libc::ENOMEM,
            Self::Cut(failure) => failure_errno(*failure),
            Self::NotMade { errno, .. } => *errno,
            Self::Hello(_) => libc::EPROTONOSUPPORT,
            Self::Cm(error) => error.errno(),
            Self::Create(error) => error.errno(),
            Self::Register(error) => error.errno(),
            Self::Post(error) => post_errno(error),
            Self::Forked(error) => error.errno(),
            Self::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// The error number of a failed connection in C.
pub(crate) const fn failure_errno(failure: Failure) -> i32 {
    match failure {
        Failure::Reset => libc::ECONNRESET,
        Failure::TimedOut => libc::ETIMEDOUT,
        Failure::Protocol(_) => libc::EPROTO,
        Failure::Refused | Failure::Device => libc::EIO,
    }
}
