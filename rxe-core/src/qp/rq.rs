//! Receive queues: those of queue pairs, and shared ones.

use super::{
    common::{Ctx, QpCommon},
    sges::Elements,
};
use crate::{
    memory::Asker,
    work::{CqId, PdId, RecvWr, SrqId, XrcdId},
};
use alloc::collections::VecDeque;
use slab::Slab;
use thiserror::Error;

/// Why a work request was not queued. Nothing was changed.
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
    /// A shared receive queue's limit is above its size (EINVAL).
    #[error("limit {0}; the queue has room for {1} requests")]
    Limit(u32, u32),
    /// No such queue (EINVAL).
    #[error("no such queue")]
    NoSuchQueue,
    /// The queue belongs to the process that this one was forked from (EIO). Only the core's callers return this, because the
    /// core knows no processes.
    #[error("it belongs to the process that this one was forked from")]
    Forked,
}

/// A receive request in a queue or in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecvWqe {
    pub wr_id: u64,
    pub sges: Elements,
}

/// A queue of receive requests.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    pub queue: VecDeque<RecvWqe>,
    pub max_wr: u32,
    pub max_sge: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    /// The protection domain of the regions that its receives may name. The domain of the queue pair does not count.
    pub pd: PdId,
    pub queue: RecvQueue,
    /// Armed limit (IBV_SRQ_LIMIT); 0 is none.
    pub limit: u32,
    /// Set for an XRC shared receive queue.
    pub xrc: Option<XrcSrq>,
}

/// The XRC part of a shared receive queue (IBTA vol. 1, A14).
#[derive(Clone, Copy, Debug)]
pub(crate) struct XrcSrq {
    /// XRC targets of this domain may use it.
    pub domain: XrcdId,
    /// The completion queue of its receives.
    pub cq: CqId,
    /// Its number in the packets of peers.
    pub number: u32,
}

/// The shared receive queue that a request to an XRC target names. Its domain and completion queue are used in place of the queue
/// pair's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub srq: SrqId,
    pub pd: PdId,
    pub cq: CqId,
}

impl XrcSrq {
    /// The number of queue `id` for peers: 24 bits, never 0. `None` if there is none.
    pub(crate) fn number(slot: u8, id: SrqId) -> Option<u32> {
        let low = u16::try_from(id.0.checked_add(1)?).ok()?;
        Some(u32::from(slot) << 16 | u32::from(low))
    }

    /// The queue with this `number`, if it is of this domain.
    pub(crate) fn find(srqs: &Slab<Srq>, domain: XrcdId, number: u32) -> Option<Named> {
        let id = (number & 0xffff).checked_sub(1)?;
        let srq = srqs.get(id as usize)?;
        let xrc = srq.xrc.filter(|xrc| xrc.domain == domain && xrc.number == number)?;
        Some(Named { srq: SrqId(id), pd: srq.pd, cq: xrc.cq })
    }
}

impl RecvQueue {
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        Self { queue: VecDeque::new(), max_wr, max_sge }
    }

    /// Queues a request; its elements are copied.
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.queue.len() >= self.max_wr as usize {
            return Err(PostError::Full(self.max_wr));
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::Elements(wr.sges.len(), self.max_sge));
        }
        self.queue.push_back(RecvWqe { wr_id: wr.wr_id, sges: Elements::from_slice(wr.sges) });
        Ok(())
    }
}

/// On whose behalf the memory of a receive is accessed. A shared queue has a protection domain of its own (IBTA vol. 1,
/// 10.2.9).
pub(crate) fn receive_asker(qp: &QpCommon, ctx: &Ctx<'_>) -> Asker {
    let shared = qp.config.srq.and_then(|id| ctx.srqs.get(id.0 as usize));
    shared.map_or_else(|| qp.asker(), |srq| Asker { pd: srq.pd, qpn: qp.qpn })
}

#[cfg(test)]
mod tests;
