//! Receive queues: a queue pair's own and shared ones, and placing a message into a receive request.

use crate::{
    memory::{AccessError, Asker, Memory},
    work::{RecvWr, Sge, SrqId},
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
    pub id: SrqId,
    pub queue: RecvQueue,
    /// Armed limit; 0 is none.
    pub limit: u32,
}

impl RecvQueue {
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let _ = wr;
        todo!()
    }
}

impl RecvWqe {
    /// Bytes it can take.
    pub(crate) fn capacity(&self) -> u64 {
        todo!()
    }

    /// Places `data` at `offset` bytes into the request's elements.
    pub(crate) fn place(
        &self,
        memory: &dyn Memory,
        asker: Asker,
        offset: u64,
        data: &[u8],
    ) -> Result<(), AccessError> {
        let _ = (memory, asker, offset, data);
        todo!()
    }
}
