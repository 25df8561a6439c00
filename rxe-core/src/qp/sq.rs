//! The send queue: work requests that wait, are in flight, or are done and wait for an earlier one.
//!
//! It knows nothing of packets. The notes of a transport about a request that it has begun to send have a type of the transport.

use super::{
    QpType,
    common::{Ctx, QpCommon},
    rq::PostError,
    sges::{self, Elements},
};
use crate::{
    memory::{AccessError, Asker, Memory},
    work::{Completion, Payload, SendFlags, SendOp, SendWr, UdDest, WcOpcode, WcStatus},
};
use alloc::{collections::VecDeque, vec::Vec};

/// Longest message, bytes (2^31, IBTA vol. 1, 9.7.7.1).
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// A send request's local data.
#[derive(Debug)]
pub(crate) enum WqeData {
    Sges(Elements),
    Inline(Vec<u8>),
}

/// A send request in the queue.
#[derive(Debug)]
pub(crate) struct SendWqe<T> {
    pub wr_id: u64,
    pub op: SendOp,
    pub flags: SendFlags,
    pub data: WqeData,
    /// Payload bytes. For a READ, the bytes that it asks for.
    pub len: u32,
    /// Number of the peer's XRC shared receive queue.
    pub xrc_srq: u32,
    /// The transport's notes.
    pub sent: T,
}

impl<T> SendWqe<T> {
    /// The opcode of its completion.
    pub(crate) const fn wc_opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
            SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::Write,
            SendOp::Read(_) => WcOpcode::Read,
            SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            SendOp::Flush { .. } => WcOpcode::Flush,
            SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
            SendOp::BindWindow(_) => WcOpcode::BindWindow,
        }
    }

    /// Whether it is executed without a packet.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.op, SendOp::LocalInvalidate(_) | SendOp::BindWindow(_))
    }

    /// Executes a request that needs no packet. Does nothing for others.
    pub(crate) fn run_local(&self, memory: &dyn Memory, asker: Asker) -> Result<(), WcStatus> {
        match self.op {
            SendOp::LocalInvalidate(key) => {
                memory.invalidate(asker, key, false).map_err(|_| WcStatus::LocalQpOperation)
            }
            SendOp::BindWindow(ref bind) => {
                memory.bind_window(asker, bind).map_err(|_| WcStatus::MemoryWindowBind)
            }
            _ => Ok(()),
        }
    }

    /// Whether the peer answers it with more than an acknowledgement.
    pub(crate) const fn is_read_or_atomic(&self) -> bool {
        matches!(
            self.op,
            SendOp::Read(_)
                | SendOp::CompareSwap { .. }
                | SendOp::FetchAdd { .. }
                | SendOp::AtomicWrite { .. }
                | SendOp::Flush { .. }
        )
    }

    /// Whether the peer may have to wait for something before it can answer.
    pub(crate) const fn may_take_long(&self) -> bool {
        matches!(self.op, SendOp::Flush { .. } | SendOp::AtomicWrite { .. })
    }

    /// Whether it uses up a receive of the peer.
    pub(crate) const fn takes_receive(&self) -> bool {
        matches!(
            self.op,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::WriteImm(..)
        )
    }

    /// Payload bytes before packet `k`, counted from 0.
    pub(crate) fn offset(&self, k: u32, mtu: u32) -> u64 {
        (u64::from(k) * u64::from(mtu)).min(u64::from(self.len))
    }

    /// Copies its payload from `offset` on into a packet.
    pub(crate) fn read(
        &self,
        memory: &dyn Memory,
        asker: Asker,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        match &self.data {
            WqeData::Sges(list) => sges::gather(list, memory, asker, offset, out),
            WqeData::Inline(bytes) => {
                let at = offset as usize;
                if let Some(from) = bytes.get(at..at + out.len()) {
                    out.copy_from_slice(from);
                }
                Ok(())
            }
        }
    }

    /// Writes what the peer returned into the elements. Inline data takes nothing.
    pub(crate) fn write(
        &self,
        memory: &dyn Memory,
        asker: Asker,
        offset: u64,
        data: &[u8],
    ) -> Result<(), AccessError> {
        let WqeData::Sges(list) = &self.data else { return Ok(()) };
        sges::scatter(list, memory, asker, offset, data)
    }
}

/// A send queue.
#[derive(Debug, Default)]
pub(crate) struct SendQueue<T> {
    pub ring: VecDeque<SendWqe<T>>,
    /// The destination of each request. Datagram services only.
    pub dests: VecDeque<UdDest>,
    /// Inline buffers to be used again. There are never more than the most that were in the queue at one time.
    spare: Vec<Vec<u8>>,
}

impl<T: Default> SendQueue<T> {
    /// Copies a request into the queue. The caller has checked state and service. `limit` is the service's longest message in
    /// bytes.
    pub(crate) fn post(&mut self, qp: &QpCommon, wr: &SendWr<'_>, limit: u64) -> Result<(), PostError> {
        let caps = &qp.config.caps;
        if self.ring.len() >= caps.max_send_wr as usize {
            return Err(PostError::Full(caps.max_send_wr));
        }
        let len = match wr.payload {
            Payload::Sges(list) if list.len() > caps.max_send_sge as usize => {
                return Err(PostError::Elements(list.len(), caps.max_send_sge));
            }
            Payload::Inline(bytes) if bytes.len() > caps.max_inline as usize => {
                return Err(PostError::Inline(bytes.len(), caps.max_inline));
            }
            Payload::Sges(list) => sges::total(list),
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        let len = message_len(wr, len, limit)?;
        let data = match wr.payload {
            Payload::Sges(list) => WqeData::Sges(Elements::from_slice(list)),
            Payload::Inline(bytes) => {
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.clear();
                buffer.extend_from_slice(bytes);
                WqeData::Inline(buffer)
            }
        };
        if matches!(qp.config.qp_type, QpType::Ud | QpType::Gsi) {
            self.dests.extend(wr.dest);
        }
        self.ring.push_back(SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            data,
            len,
            xrc_srq: wr.xrc_srq,
            sent: T::default(),
        });
        Ok(())
    }

    /// Removes the latest `count` requests. Nothing of them may have been sent.
    pub(crate) fn withdraw(&mut self, count: usize) {
        for _ in 0..count {
            self.dests.pop_back();
            if let Some(SendWqe { data: WqeData::Inline(buffer), .. }) = self.ring.pop_back() {
                self.spare.push(buffer);
            }
        }
    }

    /// Removes the oldest request and completes it. Success makes a completion only if the request is signaled; an error always
    /// does.
    pub(crate) fn complete_front(&mut self, qp: &QpCommon, ctx: &mut Ctx<'_>, status: WcStatus, vendor: u32) {
        let Some(wqe) = self.ring.pop_front() else { return };
        if self.ring.is_empty() {
            // Then the next request is stored at the start of the ring again, where the memory is still cached.
            self.ring.clear();
        }
        self.dests.pop_front();
        let signaled = qp.config.signal_all || wqe.flags.contains(SendFlags::SIGNALED);
        if signaled || status != WcStatus::Success {
            let wc = Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.wc_opcode(),
                byte_len: wqe.len,
                qpn: qp.qpn,
                vendor_error: vendor,
                ..Completion::default()
            };
            qp.complete_send(ctx, wc);
        }
        if let WqeData::Inline(buffer) = wqe.data {
            self.spare.push(buffer);
        }
    }

    /// Completes all requests with the flush status.
    pub(crate) fn flush(&mut self, qp: &QpCommon, ctx: &mut Ctx<'_>) {
        while !self.ring.is_empty() {
            self.complete_front(qp, ctx, WcStatus::WorkRequestFlushed, 0);
        }
    }
}

/// Payload bytes of a request whose elements hold `len` bytes.
fn message_len(wr: &SendWr<'_>, len: u64, limit: u64) -> Result<u32, PostError> {
    let inline = matches!(wr.payload, Payload::Inline(_));
    let fixed = match wr.op {
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } if inline || len < 8 => {
            return Err(PostError::Length(len, 8));
        }
        SendOp::Read(_) if inline => return Err(PostError::Operation),
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => Some(8),
        SendOp::Flush { .. } | SendOp::LocalInvalidate(_) | SendOp::BindWindow(_) => Some(0),
        _ => None,
    };
    let len = fixed.unwrap_or(len);
    if len > limit {
        return Err(PostError::Length(len, limit));
    }
    Ok(len as u32)
}
