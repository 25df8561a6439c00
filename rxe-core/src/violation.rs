//! Rules that a peer broke, and what each means for the two sides: the NAK it gets and the status our own open receive
//! gets.

use crate::{memory::AccessError, wire::NakCode, work::WcStatus};

/// What was wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// An opcode out of sequence: a middle without a first, or a first inside an open message.
    Sequence,
    /// An operation that this queue pair does not allow.
    NotEnabled,
    /// A length that does not fit: packet against path MTU, RETH against the bytes that came.
    Length,
    /// An atomic on an address that is not a multiple of 8.
    Misaligned,
    /// More READs and atomics at once than agreed.
    TooManyReads,
    /// Remote memory: key, range or right.
    Access(AccessError),
    /// A message longer than the receive it landed in.
    ReceiveTooShort,
    /// Our own receive's memory: key, range or right.
    ReceiveAccess(AccessError),
    /// A SEND with invalidate names a key that cannot be invalidated.
    Invalidate(AccessError),
}

impl From<Violation> for NakCode {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Sequence
            | Violation::NotEnabled
            | Violation::Length
            | Violation::Misaligned
            | Violation::TooManyReads
            | Violation::ReceiveTooShort => Self::InvalidRequest,
            Violation::Access(_) | Violation::Invalidate(_) => Self::RemoteAccess,
            Violation::ReceiveAccess(_) => Self::RemoteOperational,
        }
    }
}

impl From<Violation> for WcStatus {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Sequence | Violation::NotEnabled | Violation::Length | Violation::TooManyReads => {
                Self::RemoteInvalidRequest
            }
            Violation::Misaligned | Violation::Access(_) | Violation::Invalidate(_) => Self::LocalAccess,
            Violation::ReceiveTooShort => Self::LocalLength,
            Violation::ReceiveAccess(_) => Self::LocalProtection,
        }
    }
}
