//! Why a call failed, with the number that C programs get for it.

use crate::proto::{Failure, HelloError};
use rxe_cm::CmError;
use rxe_verbs::{CreateError, Forked, PostError, RegisterError, post_errno};
use std::io;

/// Why a call failed. The numbers are those that `socket(7)` has for the same, where it has one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// It would have to wait, and must not (EAGAIN).
    #[error("nothing can be done without waiting")]
    WouldBlock,
    /// The connection is being made; the socket becomes writable when it stands or has failed (EINPROGRESS).
    #[error("the connection is being made")]
    InProgress,
    /// The same, asked for again (EALREADY).
    #[error("the connection is being made already")]
    Already,
    /// A signal arrived (EINTR).
    #[error("interrupted by a signal")]
    Interrupted,
    /// No descriptor of an rsocket (EBADF).
    #[error("{0} is no rsocket")]
    NoSocket(i32),
    /// The socket is not in a state for that (EINVAL).
    #[error("{action}: not possible for a socket that {state}")]
    State {
        /// What was asked for.
        action: &'static str,
        /// What the socket does.
        state: &'static str,
    },
    /// It has no connection (ENOTCONN).
    #[error("the socket is not connected")]
    NotConnected,
    /// It has one (EISCONN).
    #[error("the socket is connected")]
    IsConnected,
    /// No address was given, and the socket is not connected (EDESTADDRREQ).
    #[error("nobody to send to")]
    NoDestination,
    /// This side has ended its direction, or the peer the connection (ECONNRESET, as rdma-core says).
    #[error("the connection does not take data any more")]
    NoMoreWriting,
    /// An argument is out of range (EINVAL).
    #[error("{0}")]
    Argument(String),
    /// There is no such thing for rsockets (EOPNOTSUPP).
    #[error("rsockets have no {0}")]
    Unsupported(String),
    /// A datagram that is too long for the way (EMSGSIZE).
    #[error("a datagram of {len} bytes; {most} fit")]
    TooLong {
        /// What was to be sent.
        len: usize,
        /// What can be.
        most: usize,
    },
    /// No buffer of the peer's is mapped there, or all places for mapped buffers are taken (ENOMEM, EINVAL).
    #[error("no place for another mapped buffer: the peer has {0} (RDMA_IOMAPSIZE)")]
    NoIoMap(u16),
    /// The connection was cut.
    #[error(transparent)]
    Cut(#[from] Failure),
    /// The connection was not made; the number is C's.
    #[error("no connection: {words}")]
    NotMade {
        /// Why.
        words: String,
        /// Its number in C.
        errno: i32,
    },
    /// The peer is no rsocket that we understand (EPROTONOSUPPORT).
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The connection manager says no.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// A queue pair or completion queue was not made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory was not registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// It belongs to the parent of this process (EIO).
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The system refused something.
    #[error("cannot {action}: {source}")]
    System {
        /// What we were doing.
        action: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl SocketError {
    /// What the system said while we did something.
    pub(crate) fn system(action: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { action, source: source.into() }
    }

    /// The number of this error in C.
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

/// The number of a cut connection in C.
pub(crate) const fn failure_errno(failure: Failure) -> i32 {
    match failure {
        Failure::Reset => libc::ECONNRESET,
        Failure::TimedOut => libc::ETIMEDOUT,
        Failure::Protocol(_) => libc::EPROTO,
        Failure::Refused | Failure::Device => libc::EIO,
    }
}
