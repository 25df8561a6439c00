//! Tag matching: shared receive queues that sort messages by a tag in their first bytes (IBV_SRQT_TM), as MPI wants it.
//!
//! A program posts two kinds of memory: entries with a tag, each for one message whose tag matches, and plain receives for all
//! else. A message whose tag matches goes to the entry's memory without its header; one that only says where its data is
//! ("rendezvous") has the data read from there, and its sender told when that is done. ConnectX cards do this themselves, and
//! `Documentation/tag_matching.md` of rdma-core describes it.
//!
//! Here it is done where completions are handed out, so nothing of the way of other messages knows about it. Every message lands in
//! a plain receive, whose completion comes here instead of to the program. What matches is copied on from there, and the receive
//! posted again. From this follows what differs from a card: plain receives have to be as long as the longest message that is
//! not a rendezvous, there has to be one for a message that matches, too, and the limit of the queue counts those in use.
//!
//! The send queues of its queue pairs are the queue's, for READs and notices: programs cannot post to them.

mod beside;
mod header;
mod list;
mod queue;

pub(crate) use beside::Beside;
pub use beside::{TagFlags, TagInfo};
pub(crate) use queue::SEND_CAPS;
pub use queue::{MAX_RENDEZVOUS_HEADER, MAX_TAGS, TagAction, TagOp};

use crate::{cq::CqRing, regions::View};
use queue::{Hands, TagQueue};
use rxe_core::{
    endpoint::Endpoint,
    num::Qpn,
    qp::PostError,
    time::Instant,
    work::{Completion, CqId, PdId, RecvWr, SrqId},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// A completion that is on its way to a tag matching queue.
#[derive(Debug)]
struct Caught {
    queue: CqId,
    wc: Completion,
    solicited: bool,
}

/// The tag matching queues of a shard. Each stands for a completion queue, that of its queue pairs for the core.
#[derive(Debug, Default)]
pub(crate) struct TagQueues {
    queues: HashMap<CqId, TagQueue>,
    /// Emptied before the shard's lock is given back.
    caught: VecDeque<Caught>,
}

impl TagQueues {
    /// A new queue, which the core knows as `srq`, and completions for which it knows as `name`.
    pub(crate) fn add(&mut self, name: CqId, (srq, pd): (SrqId, PdId), ring: &Arc<CqRing>, max_tags: u32) {
        self.queues.insert(name, TagQueue::new(srq, pd, ring, max_tags));
    }

    /// A queue is gone.
    pub(crate) fn remove(&mut self, name: CqId) {
        self.queues.remove(&name);
        self.caught.retain(|caught| caught.queue != name);
    }

    /// Posts a receive for what nothing matches.
    pub(crate) fn post_recv(
        &mut self,
        name: CqId,
        endpoint: &mut Endpoint,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        self.queues.get_mut(&name).ok_or(PostError::NoSuchQueue)?.post_recv(endpoint, wr)
    }

    /// Receives that are posted or in use.
    pub(crate) fn posted(&self, name: CqId) -> usize {
        self.queues.get(&name).map_or(0, TagQueue::posted)
    }

    /// Does an operation on a matching list; gives the handle of an entry that was added.
    pub(crate) fn act(&mut self, name: CqId, op: &TagOp<'_>) -> Result<Option<u32>, PostError> {
        self.queues.get_mut(&name).ok_or(PostError::NoSuchQueue)?.act(op)
    }

    /// Takes a completion for later.
    pub(crate) fn catch(&mut self, queue: CqId, wc: Completion, solicited: bool) {
        self.caught.push_back(Caught { queue, wc, solicited });
    }

    /// Does with the next one what there is to do: `None` if there is none, else the queue whose channel is to be told of an
    /// event, if one is.
    pub(crate) fn handle_next(
        &mut self,
        endpoint: &mut Endpoint,
        memory: View<'_>,
        now: Instant,
    ) -> Option<Option<&Arc<CqRing>>> {
        let Caught { queue, wc, solicited } = self.caught.pop_front()?;
        let Some(queue) = self.queues.get_mut(&queue) else { return Some(None) };
        let is_event = queue.handle(&mut Hands { endpoint, memory, now }, wc, solicited);
        Some(is_event.then(|| queue.ring()))
    }

    /// A queue pair was reset or destroyed, after it was in the state ERROR: what it held is free, and the program hears no more
    /// of it.
    pub(crate) fn forget_qp(&mut self, name: CqId, qpn: Qpn) {
        let Some(queue) = self.queues.get_mut(&name) else { return };
        self.caught.retain(|caught| {
            let is_its = caught.wc.qpn == qpn;
            if is_its {
                queue.forget(&caught.wc);
            }
            !is_its
        });
        queue.forget_qp(qpn);
        queue.ring().forget(qpn);
    }
}
