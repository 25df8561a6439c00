//! Queues of receive buffers for frames: the one of a raw queue pair, or the receive work queues (ibv_wq) that a raw queue pair
//! spreads its frames over.

use crate::{
    cq::Cq,
    error::{CreateError, Forked},
    limits,
    pd::Pd,
    sys::lock,
};
use rxe_core::{
    memory::{Asker, Memory},
    num::Qpn,
    qp::PostError,
    work::{Access, Completion, RecvWr, Sge, WcOpcode, WcStatus},
};
use std::{collections::VecDeque, sync::Mutex};

/// The state of a queue (ibv_wq_state, with the same numbers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RawQueueState {
    /// The queue accepts buffers, but drops frames.
    Reset = 0,
    /// The queue accepts buffers and frames.
    Ready = 1,
    /// Buffers are flushed at once.
    Error = 2,
}

/// A queue of receive buffers for frames (ibv_wq).
#[derive(Debug)]
pub struct RawQueue {
    pd: Pd,
    cq: Cq,
    max_wr: u32,
    max_sge: u32,
    work: Mutex<Work>,
}

#[derive(Debug)]
struct Work {
    state: RawQueueState,
    receives: VecDeque<(u64, Vec<Sge>)>,
}

impl RawQueue {
    /// Makes a queue for `max_wr` buffers of up to `max_sge` elements. Completions go to `cq` (ibv_create_wq).
    ///
    /// # Errors
    /// [`CreateError`]: a size is out of range, or the completion queue is of another port.
    pub fn new(pd: &Pd, cq: &Cq, max_wr: u32, max_sge: u32) -> Result<Self, CreateError> {
        limits::check("receive work requests", max_wr.into(), 0, limits::MAX_QP_WR.into())?;
        limits::check("receive elements", max_sge.into(), 0, limits::MAX_SGE.into())?;
        if !cq.belongs_to(&pd.context().0.stack) {
            return Err(CreateError::Stranger("completion queue"));
        }
        let work = Mutex::new(Work { state: RawQueueState::Reset, receives: VecDeque::new() });
        Ok(Self { pd: pd.clone(), cq: cq.clone(), max_wr, max_sge, work })
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> RawQueueState {
        lock(&self.work).state
    }

    /// Changes the state (ibv_modify_wq). Waiting buffers are flushed in Error, and forgotten in Reset. `qpn` is for the
    /// completions.
    pub fn set_state(&self, state: RawQueueState, qpn: Qpn) {
        let mut work = lock(&self.work);
        work.state = state;
        if state == RawQueueState::Ready {
            return;
        }
        let waiting = core::mem::take(&mut work.receives);
        drop(work);
        if state == RawQueueState::Error {
            waiting.into_iter().for_each(|(wr_id, _)| {
                self.complete(wr_id, WcStatus::WorkRequestFlushed, 0, qpn);
            });
        }
    }

    /// Queues a buffer (ibv_post_wq_recv).
    ///
    /// # Errors
    /// [`PostError`].
    pub fn post_recv(&self, wr: &RecvWr<'_>, qpn: Qpn) -> Result<(), PostError> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::Elements(wr.sges.len(), self.max_sge));
        }
        let mut work = lock(&self.work);
        if work.state == RawQueueState::Error {
            drop(work);
            self.complete(wr.wr_id, WcStatus::WorkRequestFlushed, 0, qpn);
            return Ok(());
        }
        if work.receives.len() >= self.max_wr as usize {
            return Err(PostError::Full(self.max_wr));
        }
        work.receives.push_back((wr.wr_id, wr.sges.to_vec()));
        Ok(())
    }

    /// Receives a frame into the next buffer. As with an adapter, the frame is lost if there is no buffer.
    pub(super) fn take(&self, frame: &[u8], qpn: Qpn) {
        let mut work = lock(&self.work);
        if work.state != RawQueueState::Ready {
            return;
        }
        let Some((wr_id, sges)) = work.receives.pop_front() else { return };
        drop(work);
        let status = self.scatter(frame, &sges, qpn);
        self.complete(wr_id, status, frame.len() as u32, qpn);
    }

    fn scatter(&self, frame: &[u8], sges: &[Sge], qpn: Qpn) -> WcStatus {
        let asker = Asker { pd: self.pd.id(), qpn };
        let shard = self.pd.context().0.stack.shard();
        let mut rest = frame;
        for sge in sges {
            let (part, behind) = rest.split_at(rest.len().min(sge.len as usize));
            rest = behind;
            let written: Result<_, Forked> = shard
                .with_memory(|memory| memory.write(asker, sge.lkey, sge.addr, Access::LOCAL_WRITE, part));
            if !matches!(written, Ok(Ok(()))) {
                return WcStatus::LocalProtection;
            }
        }
        if rest.is_empty() { WcStatus::Success } else { WcStatus::LocalLength }
    }

    fn complete(&self, wr_id: u64, status: WcStatus, byte_len: u32, qpn: Qpn) {
        let done =
            Completion { wr_id, status, byte_len, opcode: WcOpcode::Recv, qpn, ..Completion::default() };
        self.cq.ring().push(done, false);
    }
}
