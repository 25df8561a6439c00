//! Rules that a peer's request can break, and what follows on both sides: the NAK that the peer gets, the status of our receive
//! if one was in use, else the event that our application gets.

use crate::{
    memory::AccessError,
    num::Qpn,
    wire::NakCode,
    work::{AsyncEvent, WcStatus},
};
use thiserror::Error;

/// What was wrong with a request (IBTA vol. 1, 9.9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Violation {
    /// An opcode out of sequence: a middle packet without a first, or a first packet before the last message has ended.
    #[error("opcode out of sequence")]
    Sequence,
    /// An operation that this queue pair does not allow.
    #[error("operation not enabled on this queue pair")]
    NotEnabled,
    /// A wrong length: a packet that does not match the path MTU, or a message that does not have the length in its RETH.
    #[error("length does not fit the path MTU or the message")]
    Length,
    /// More READs and atomics outstanding than agreed.
    #[error("more READs and atomics at once than agreed")]
    TooManyReads,
    /// The key, range or rights of the memory that the request names do not allow the access.
    #[error("remote access: {0}")]
    Access(AccessError),
    /// A message longer than its receive.
    #[error("message longer than the posted receive")]
    ReceiveTooShort,
    /// The key, range or rights of our receive's memory do not allow the access.
    #[error("posted receive: {0}")]
    ReceiveAccess(AccessError),
    /// A SEND with invalidate names a key that cannot be invalidated. The peer gets no NAK for it (IBTA vol. 1, 9.9.6.3).
    #[error("remote invalidate: {0}")]
    Invalidate(AccessError),
    /// A request to an XRC target names a shared receive queue that does not exist or belongs to another XRC domain.
    #[error("no such XRC shared receive queue in the domain")]
    XrcSrq,
}

impl Violation {
    /// The asynchronous event for a refused request that used no receive: local access violation or invalid request
    /// (IBTA vol. 1, 11.6.3.1).
    #[must_use]
    pub fn event(self, qpn: Qpn) -> AsyncEvent {
        match NakCode::from(self) {
            NakCode::InvalidRequest => AsyncEvent::QpRequestError(qpn),
            _ => AsyncEvent::QpAccessError(qpn),
        }
    }
}

impl From<Violation> for NakCode {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Sequence
            | Violation::NotEnabled
            | Violation::Length
            | Violation::TooManyReads
            | Violation::XrcSrq
            | Violation::ReceiveTooShort
            | Violation::Access(AccessError::Misaligned(_)) => Self::InvalidRequest,
            // The peer's request was valid, but our application has taken the memory away.
            Violation::Access(AccessError::Fault(_)) | Violation::ReceiveAccess(_) => Self::RemoteOperational,
            Violation::Access(_) | Violation::Invalidate(_) => Self::RemoteAccess,
        }
    }
}

impl From<Violation> for WcStatus {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Sequence
            | Violation::NotEnabled
            | Violation::Length
            | Violation::TooManyReads
            | Violation::Invalidate(_)
            | Violation::XrcSrq => Self::RemoteInvalidRequest,
            Violation::Access(_) => Self::LocalAccess,
            Violation::ReceiveTooShort => Self::LocalLength,
            Violation::ReceiveAccess(_) => Self::LocalProtection,
        }
    }
}
