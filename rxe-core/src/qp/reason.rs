//! Why a queue pair failed, in words for people. The codes on the wire and in completions say much less, so a [`Reason`] is
//! stored when a request is refused or fails.

use super::common::SendWqe;
use crate::{
    memory::AccessError,
    num::Key,
    violation::Violation,
    wire::{Class, Extensions, Packet, Syndrome},
    work::{Remote, SendOp, WcOpcode, WcStatus},
};
use core::fmt::{self, Display, Formatter};

/// What a request was, and what was wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason {
    /// What was asked for.
    pub op: WcOpcode,
    /// Address and R_Key at the responder. `None` for SENDs, and if a packet in the middle of a message is refused.
    pub place: Option<(u64, Key)>,
    /// Bytes of the message if that is known, else of the packet.
    pub len: u64,
    /// What was wrong.
    pub cause: Cause,
}

/// What was wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It came from the peer, and broke one of our rules.
    Refused(Violation),
    /// The peer answered with this syndrome. The status is that of the completion.
    Answered(WcStatus, Syndrome),
    /// Our own memory did not allow it.
    Memory(AccessError),
    /// It ended with this status.
    Ended(WcStatus),
}

/// Why a queue pair last refused a request, and why one last failed, since it was last reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reasons {
    /// The last request of the peer that was refused.
    pub refused: Option<Reason>,
    /// The last own request that failed. Requests that were flushed behind it do not count.
    pub failed: Option<Reason>,
}

impl Reason {
    /// The reason for a refused request of the peer.
    pub(crate) fn of_packet(packet: &Packet<'_>, violation: Violation) -> Self {
        let (extensions, ext) = (packet.info.extensions, &packet.ext);
        let (place, len) = if extensions.contains(Extensions::RETH) {
            (Some((ext.reth.addr, ext.reth.rkey)), u64::from(ext.reth.len))
        } else if extensions.contains(Extensions::ATOMIC_ETH) {
            (Some((ext.atomic.addr, ext.atomic.rkey)), 8)
        } else {
            (None, packet.payload.len() as u64)
        };
        let op = match packet.info.class {
            Class::Write => WcOpcode::Write,
            Class::ReadRequest => WcOpcode::Read,
            Class::CompareSwap => WcOpcode::CompareSwap,
            Class::FetchAdd => WcOpcode::FetchAdd,
            Class::Flush => WcOpcode::Flush,
            Class::AtomicWrite => WcOpcode::AtomicWrite,
            _ => WcOpcode::Send,
        };
        Self { op, place, len, cause: Cause::Refused(violation) }
    }

    /// The reason for an own request that failed.
    pub(crate) fn of_request(wqe: &SendWqe, cause: Cause) -> Self {
        let at = |remote: Remote| Some((remote.addr, remote.rkey));
        let (place, len) = match wqe.op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) | SendOp::Read(remote) => {
                (at(remote), wqe.len)
            }
            SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. }
            | SendOp::AtomicWrite { remote, .. } => (at(remote), 8),
            SendOp::Flush { remote, len, .. } => (at(remote), len),
            _ => (None, wqe.len),
        };
        Self { op: wqe.wc_opcode(), place, len: len.into(), cause }
    }
}

impl Display for Reason {
    /// `RDMA WRITE to 0x7f1200000040, 4096 bytes, key 0x00001234: remote access: 4096 bytes at 0x7f1200000040 are not inside
    /// the region`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (name, way) = match self.op {
            WcOpcode::Write => ("RDMA WRITE", "to"),
            WcOpcode::Read => ("RDMA READ", "from"),
            WcOpcode::CompareSwap => ("compare and swap", "at"),
            WcOpcode::FetchAdd => ("fetch and add", "at"),
            WcOpcode::Flush => ("FLUSH", "of"),
            WcOpcode::AtomicWrite => ("ATOMIC WRITE", "to"),
            WcOpcode::BindWindow => ("bind window", "at"),
            WcOpcode::LocalInvalidate => ("local invalidate", "of"),
            _ => ("SEND", "to"),
        };
        f.write_str(name)?;
        if let Some((addr, _)) = self.place {
            write!(f, " {way} {addr:#x}")?;
        }
        write!(f, ", {} bytes", self.len)?;
        if let Some((_, key)) = self.place {
            write!(f, ", key {:#010x}", key.0)?;
        }
        write!(f, ": {}", self.cause)
    }
}

impl Display for Cause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(violation) => violation.fmt(f),
            Self::Answered(status, syndrome) => {
                write!(f, "{} (syndrome {:#04x})", words(*status), syndrome.bits())
            }
            Self::Memory(error) => write!(f, "the request's own memory: {error}"),
            Self::Ended(status) => f.write_str(words(*status)),
        }
    }
}

/// What a status means to the program that posted the request.
const fn words(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "done",
        WcStatus::LocalLength => "it is longer than allowed",
        WcStatus::LocalQpOperation => {
            "this queue pair does not allow it (READs and atomics need max_rd_atomic)"
        }
        WcStatus::LocalProtection | WcStatus::LocalAccess => "a local key, range or right does not allow it",
        WcStatus::WorkRequestFlushed => "flushed",
        WcStatus::MemoryWindowBind => "the window cannot be bound or invalidated",
        WcStatus::BadResponse => "the peer's answer makes no sense",
        WcStatus::RemoteInvalidRequest => "the peer says that it is invalid",
        WcStatus::RemoteAccess => "the peer says that a key, range or right does not allow it",
        WcStatus::RemoteOperation => "the peer failed on its own account",
        WcStatus::RetryExceeded => "no answer after all retries",
        WcStatus::RnrRetryExceeded => "the peer had no receive posted, after all retries",
        WcStatus::RemoteAborted => "the peer aborted",
        WcStatus::TagMatching | WcStatus::RendezvousIncomplete | WcStatus::Fatal | WcStatus::General => {
            "it failed"
        }
    }
}
