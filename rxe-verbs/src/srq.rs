//! Shared receive queues (ibv_srq).

use crate::{
    cq::Cq,
    engine::Shard,
    error::{CreateError, PostListError},
    events::AsyncEvent,
    limits,
    pd::Pd,
    xrcd::Xrcd,
};
use rxe_core::{
    endpoint::Acks,
    qp::PostError,
    work::{self, RecvWr, SrqId},
};
use std::sync::Arc;

/// A shared receive queue. Clones are the same queue; it lives as long as one of them or a queue pair that uses it.
#[derive(Clone, Debug)]
pub struct Srq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: SrqId,
    shard: Arc<Shard>,
    max_sge: u32,
    pd: Pd,
    xrc: Option<(XrcParts, u32)>,
}

/// What makes a shared receive queue an XRC one.
#[derive(Clone, Debug)]
pub(crate) struct XrcParts {
    pub(crate) xrcd: Xrcd,
    pub(crate) cq: Cq,
}

impl Srq {
    pub(crate) fn new(
        pd: &Pd,
        xrc: Option<XrcParts>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Self, CreateError> {
        limits::check("SRQ requests", max_wr.into(), 1, limits::MAX_QP_WR.into())?;
        limits::check("SRQ elements", max_sge.into(), 0, limits::MAX_SGE.into())?;
        let context = &pd.context().0;
        if xrc
            .as_ref()
            .is_some_and(|xrc| !xrc.xrcd.belongs_to(&context.stack) || !xrc.cq.belongs_to(&context.stack))
        {
            return Err(CreateError::Stranger("XRC domain or completion queue"));
        }
        let shard = Arc::clone(context.stack.shard());
        let (id, number) = shard.act(Acks::Wait, |state, _| {
            let made = match &xrc {
                Some(XrcParts { xrcd, cq }) => {
                    let made =
                        state.endpoint.create_xrc_srq(pd.id(), (xrcd.id(), cq.id()), max_wr, max_sge)?;
                    state.use_queue(cq.ring());
                    made
                }
                None => (state.endpoint.create_srq(pd.id(), max_wr, max_sge)?, 0),
            };
            state.srq_owners.insert(made.0, Arc::clone(&context.events));
            Ok::<_, CreateError>(made)
        })??;
        let xrc = xrc.map(|parts| (parts, number));
        Ok(Self(Arc::new(Inner { id, shard, max_sge, pd: pd.clone(), xrc })))
    }

    /// What peers call it, if it is an XRC one (ibv_get_srq_num).
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.0.xrc.as_ref().map(|(_, number)| *number)
    }

    /// Its name in asynchronous events.
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Elements of a request at most.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.0.max_sge
    }

    /// Whether queue pairs or other handles still hold it: ibv_destroy_srq would say EBUSY.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Changes the number of requests it can hold, or arms the limit event: it comes once, when fewer than `limit`
    /// requests are left (ibv_modify_srq).
    ///
    /// # Errors
    /// [`PostError`]: more requests wait than are to fit, or the limit is larger than the queue.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), PostError> {
        self.0.shard.act(Acks::Wait, |state, _| state.endpoint.modify_srq(self.0.id, max_wr, limit))?
    }

    /// How many requests it holds at most, and the limit: 0 where none is armed, or its event was raised (ibv_query_srq).
    #[must_use]
    pub fn query(&self) -> (u32, u32) {
        self.0.shard.look(|state| state.endpoint.query_srq(self.0.id)).ok().flatten().unwrap_or_default()
    }

    /// Posts a receive (ibv_post_srq_recv).
    ///
    /// # Errors
    /// [`PostError`].
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.0.shard.look(|state| state.endpoint.post_srq_recv(self.0.id, wr))?
    }

    /// Posts several receives, up to the first that fails.
    ///
    /// # Errors
    /// Which failed, and why.
    pub fn post_recv_list(&self, list: &[RecvWr<'_>]) -> Result<(), PostListError> {
        self.0.shard.look(|state| {
            list.iter().enumerate().try_for_each(|(index, wr)| {
                let posted = state.endpoint.post_srq_recv(self.0.id, wr);
                posted.map_err(|reason| PostListError { index, reason })
            })
        })?
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child's parent has it.
        let _ = self.shard.act(Acks::Wait, |state, _| {
            // Queue pairs that use it hold a handle, so it is not busy.
            let _ = state.endpoint.destroy_srq(self.id);
            state.hand_out();
            state.srq_owners.remove(&self.id);
            let limit = AsyncEvent::Queue(work::AsyncEvent::SrqLimitReached(self.id));
            self.pd.context().0.events.forget(|event| *event == limit);
            if let Some((xrc, _)) = &self.xrc {
                state.leave_queue(xrc.cq.id());
            }
        });
    }
}
