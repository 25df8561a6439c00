//! Shared receive queues (ibv_srq).

use crate::{
    cq::Cq,
    engine::{Shard, Stack, State},
    error::{CreateError, PostListError},
    events::AsyncEvent,
    limits,
    pd::Pd,
    tags::TagOp,
    xrcd::Xrcd,
};
use rxe_core::{
    endpoint::Acks,
    qp::PostError,
    work::{self, CqId, RecvWr, SrqId},
};
use std::sync::Arc;

/// A shared receive queue. Clones are the same queue. The queue lives as long as one of them, or a queue pair that uses it.
#[derive(Clone, Debug)]
pub struct Srq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: SrqId,
    shard: Arc<Shard>,
    max_sge: u32,
    pd: Pd,
    rest: Rest,
}

/// The kind of a queue that is to be made.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Basic,
    /// A queue of an XRC domain. Its receives complete on `cq`.
    Xrc {
        xrcd: Xrcd,
        cq: Cq,
    },
    /// A tag matching queue. Its messages complete on `cq`.
    Tags {
        cq: Cq,
        max_tags: u32,
    },
}

/// The parts of a queue that only its kind has.
#[derive(Debug)]
enum Rest {
    Basic,
    /// Its completion queue, and the number by which peers name it. It keeps its domain alive.
    Xrc {
        cq: Cq,
        number: u32,
        _xrcd: Xrcd,
    },
    /// Its completion queue, and the name of a completion queue under which the core completes the work of its queue pairs.
    Tags {
        cq: Cq,
        name: CqId,
    },
}

impl Kind {
    /// Whether all its objects belong to this stack.
    fn belongs_to(&self, stack: &Arc<Stack>) -> bool {
        match self {
            Self::Basic => true,
            Self::Xrc { xrcd, cq } => xrcd.belongs_to(stack) && cq.belongs_to(stack),
            Self::Tags { cq, .. } => cq.belongs_to(stack),
        }
    }
}

impl Srq {
    pub(crate) fn new(pd: &Pd, kind: &Kind, max_wr: u32, max_sge: u32) -> Result<Self, CreateError> {
        limits::check("SRQ requests", max_wr.into(), 1, limits::MAX_QP_WR.into())?;
        limits::check("SRQ elements", max_sge.into(), 0, limits::MAX_SGE.into())?;
        let context = &pd.context().0;
        if !kind.belongs_to(&context.stack) {
            return Err(CreateError::Stranger("XRC domain or completion queue"));
        }
        let shard = Arc::clone(context.stack.shard());
        let (id, rest) = shard.act(Acks::Wait, |state, _| {
            let (id, rest) = enter(state, pd, kind, max_wr, max_sge)?;
            state.srq_owners.insert(id, Arc::clone(&context.events));
            Ok::<_, CreateError>((id, rest))
        })??;
        Ok(Self(Arc::new(Inner { id, shard, max_sge, pd: pd.clone(), rest })))
    }

    /// If it matches tags: the name under which the core completes the work of its queue pairs.
    pub(crate) fn tags(&self) -> Option<CqId> {
        match self.0.rest {
            Rest::Tags { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The number by which peers name it, if it is an XRC queue (ibv_get_srq_num).
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        match self.0.rest {
            Rest::Xrc { number, .. } => Some(number),
            _ => None,
        }
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

    /// Most elements of a request.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.0.max_sge
    }

    /// Whether queue pairs or other handles still hold it. ibv_destroy_srq fails with EBUSY then.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Changes the number of requests that it can hold, or arms the limit event (ibv_modify_srq). The event comes once, when
    /// fewer than `limit` requests are left.
    ///
    /// # Errors
    /// [`PostError`]: more requests are posted than the new size takes, or the limit is larger than the queue.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), PostError> {
        self.0.shard.act(Acks::Wait, |state, _| {
            if let (Some(max_wr), Some(tags), Some(name)) = (max_wr, &state.tags, self.tags())
                && tags.posted(name) > max_wr as usize
            {
                return Err(PostError::Full(max_wr));
            }
            state.endpoint.modify_srq(self.0.id, max_wr, limit)
        })?
    }

    /// How many requests it can hold, and the limit (ibv_query_srq). The limit is 0 if none is armed, or its event has been raised.
    #[must_use]
    pub fn query(&self) -> (u32, u32) {
        self.0.shard.look(|state| state.endpoint.query_srq(self.0.id)).ok().flatten().unwrap_or_default()
    }

    /// Posts a receive (ibv_post_srq_recv).
    ///
    /// # Errors
    /// [`PostError`].
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.0.shard.look(|state| self.post_one(state, wr))?
    }

    fn post_one(&self, state: &mut State, wr: &RecvWr<'_>) -> Result<(), PostError> {
        match self.tags() {
            None => state.endpoint.post_srq_recv(self.0.id, wr),
            Some(name) => {
                let tags = state.tags.as_mut().ok_or(PostError::NoSuchQueue)?;
                tags.post_recv(name, &mut state.endpoint, wr)
            }
        }
    }

    /// Does an operation on the matching list of a tag matching queue (ibv_post_srq_ops). Returns the handle of an added entry.
    ///
    /// # Errors
    /// [`PostError::Operation`] for queues of other kinds. [`PostError::Full`] if the list is full. [`PostError::Elements`] if an
    /// entry has too many elements.
    pub fn post_tag_op(&self, op: &TagOp<'_>) -> Result<Option<u32>, PostError> {
        let name = self.tags().ok_or(PostError::Operation)?;
        self.0
            .shard
            .act(Acks::Wait, |state, _| state.tags.as_mut().ok_or(PostError::NoSuchQueue)?.act(name, op))?
    }

    /// Posts several receives, up to the first that fails.
    ///
    /// # Errors
    /// Which receive failed, and why. Those before it were posted.
    pub fn post_recv_list(&self, list: &[RecvWr<'_>]) -> Result<(), PostListError> {
        self.0.shard.look(|state| {
            list.iter().enumerate().try_for_each(|(index, wr)| {
                self.post_one(state, wr).map_err(|reason| PostListError { index, reason })
            })
        })?
    }
}

/// Makes a queue in the core, and registers its completion queue with the shard.
fn enter(
    state: &mut State,
    pd: &Pd,
    kind: &Kind,
    max_wr: u32,
    max_sge: u32,
) -> Result<(SrqId, Rest), CreateError> {
    match kind {
        Kind::Basic => Ok((state.endpoint.create_srq(pd.id(), max_wr, max_sge)?, Rest::Basic)),
        Kind::Xrc { xrcd, cq } => {
            let (id, number) =
                state.endpoint.create_xrc_srq(pd.id(), (xrcd.id(), cq.id()), max_wr, max_sge)?;
            state.use_queue(cq.ring());
            Ok((id, Rest::Xrc { cq: cq.clone(), number, _xrcd: xrcd.clone() }))
        }
        Kind::Tags { cq, max_tags } => {
            let stack = &pd.context().0.stack;
            let name = CqId(stack.cqs.take().ok_or(CreateError::Exhausted("completion queues"))?);
            let made = state.endpoint.create_srq(pd.id(), max_wr, max_sge);
            let id = made.inspect_err(|_| stack.cqs.give_back(name.0))?;
            state.use_queue(cq.ring());
            state.tags.get_or_insert_default().add(name, (id, pd.id()), cq.ring(), *max_tags);
            Ok((id, Rest::Tags { cq: cq.clone(), name }))
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Fails in a forked child: the queue belongs to the parent.
        let _ = self.shard.act(Acks::Wait, |state, _| {
            // Queue pairs that use it hold a handle, so it is not busy.
            let _ = state.endpoint.destroy_srq(self.id);
            state.sort_events();
            state.srq_owners.remove(&self.id);
            let limit = AsyncEvent::Queue(work::AsyncEvent::SrqLimitReached(self.id));
            self.pd.context().0.events.forget(|event| *event == limit);
            match &self.rest {
                Rest::Basic => {}
                Rest::Xrc { cq, .. } => state.leave_queue(cq.id()),
                Rest::Tags { cq, name } => {
                    if let Some(tags) = &mut state.tags {
                        tags.remove(*name);
                    }
                    state.leave_queue(cq.id());
                    self.pd.context().0.stack.cqs.give_back(name.0);
                }
            }
        });
    }
}
