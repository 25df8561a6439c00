//! Receive queues: a queue pair's own and shared ones, and placing a message into a receive request.

use super::common::{Ctx, QpCommon};
use crate::{
    memory::{AccessError, Asker, Memory},
    work::{Access, PdId, RecvWr, Sge},
};
use alloc::collections::VecDeque;
use smallvec::SmallVec;
use thiserror::Error;

/// Why a work request was not queued; nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PostError {
    /// The queue is full (ENOMEM).
    #[error("the queue is full ({0} requests)")]
    Full(u32),
    /// Too many elements (EINVAL).
    #[error("{0} elements; the queue allows {1}")]
    Elements(usize, u32),
    /// Too many inline bytes (EINVAL).
    #[error("{0} inline bytes; the queue pair allows {1}")]
    Inline(usize, u32),
    /// The message is too long (EINVAL).
    #[error("{0} bytes; the limit is {1}")]
    Length(u64, u64),
    /// The queue pair's state does not take requests of this kind (EINVAL).
    #[error("not in state {0:?}")]
    State(super::QpState),
    /// The service does not have this operation, or the request lacks its destination (EINVAL).
    #[error("operation not possible on this queue pair")]
    Operation,
    /// No such queue (EINVAL).
    #[error("no such queue")]
    NoSuchQueue,
}

/// A receive request in a queue or in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecvWqe {
    pub wr_id: u64,
    pub sges: SmallVec<[Sge; 2]>,
}

/// A queue of receive requests.
#[derive(Debug, Default)]
pub(crate) struct RecvQueue {
    pub queue: VecDeque<RecvWqe>,
    pub max_wr: u32,
    pub max_sge: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    /// Whose regions its receives may name, whatever the domain of the queue pair that draws them.
    pub pd: PdId,
    pub queue: RecvQueue,
    /// Armed limit; 0 is none.
    pub limit: u32,
}

impl RecvQueue {
    /// Queues a request; its elements are copied.
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.queue.len() >= self.max_wr as usize {
            return Err(PostError::Full(self.max_wr));
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::Elements(wr.sges.len(), self.max_sge));
        }
        self.queue.push_back(RecvWqe { wr_id: wr.wr_id, sges: SmallVec::from_slice(wr.sges) });
        Ok(())
    }
}

impl RecvWqe {
    /// Bytes it can take.
    pub(crate) fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.len)).sum()
    }

    /// Places `data` at `offset` bytes into the request's elements, in their order. What lies beyond their end is a
    /// range error, after the part that fits was placed: callers compare with [`Self::capacity`] first.
    pub(crate) fn place(
        &self,
        memory: &dyn Memory,
        asker: Asker,
        offset: u64,
        data: &[u8],
    ) -> Result<(), AccessError> {
        let (mut skip, mut rest) = (offset, data);
        for sge in &self.sges {
            if rest.is_empty() {
                break;
            }
            let Some(room) = u64::from(sge.len).checked_sub(skip) else {
                skip -= u64::from(sge.len);
                continue;
            };
            let part = usize::try_from(room).map_or(rest.len(), |room| room.min(rest.len()));
            let (now, later) = rest.split_at(part);
            if !now.is_empty() {
                memory.write(asker, sge.lkey, sge.addr.wrapping_add(skip), Access::LOCAL_WRITE, now)?;
            }
            (skip, rest) = (0, later);
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(AccessError::Range { addr: offset, len: data.len() as u64 })
        }
    }
}

/// On whose behalf a receive's memory is touched: a shared queue has a protection domain of its own (IBTA vol. 1,
/// 10.2.9).
pub(crate) fn receive_asker(qp: &QpCommon, ctx: &Ctx<'_>) -> Asker {
    let shared = qp.config.srq.and_then(|id| ctx.srqs.get(id.0 as usize));
    Asker { pd: shared.map_or(qp.config.pd, |srq| srq.pd), qpn: qp.qpn }
}

#[cfg(test)]
mod tests;
