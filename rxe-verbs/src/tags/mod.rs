//! Tag matching: shared receive queues that sort messages by a tag in their first bytes (IBV_SRQT_TM), as MPI needs it.
//!
//! A program posts two kinds of memory. An entry of the matching list has a tag, and takes one message whose tag matches. A plain
//! receive takes any other message. Data of a matching message goes to the entry's memory, without the header. A message may
//! also only say where its data is ("rendezvous"). Then the queue reads the data from the sender, and notifies the sender when
//! that is done. ConnectX cards do this in hardware; `Documentation/tag_matching.md` of rdma-core describes it.
//!
//! Here matching happens where completions are handed out, so the path of other messages knows nothing of it. Every message first
//! lands in a plain receive, whose completion comes to this module instead of to the program. The data of a matching message is
//! copied from there to the entry, and the receive is posted again. So three things differ from a card:
//!
//! * Plain receives must be as long as the longest message that is not a rendezvous.
//! * A message that matches needs a plain receive, too.
//! * Receives that are in use count towards the limit of the queue.
//!
//! The queue owns the send queues of its queue pairs, for READs and notices. Programs cannot post to them.
//!
//! `header` has the formats, `list` the matching list, `queue` one queue, and `beside` what completions say about tags.

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

/// A completion that a tag matching queue has still to handle.
#[derive(Debug)]
struct Caught {
    queue: CqId,
    wc: Completion,
    solicited: bool,
}

/// The tag matching queues of a shard. For the core the name of each is that of a completion queue, on which the work of its queue
/// pairs completes.
#[derive(Debug, Default)]
pub(crate) struct TagQueues {
    queues: HashMap<CqId, TagQueue>,
    /// Completions to be handled. It is empty again before the shard's lock is released.
    caught: VecDeque<Caught>,
}

impl TagQueues {
    /// Adds a queue. For the core its receives are those of `srq`, and its queue pairs complete on `name`.
    pub(crate) fn add(&mut self, name: CqId, (srq, pd): (SrqId, PdId), ring: &Arc<CqRing>, max_tags: u32) {
        self.queues.insert(name, TagQueue::new(srq, pd, ring, max_tags));
    }

    /// Removes a queue, and the completions that it has not handled.
    pub(crate) fn remove(&mut self, name: CqId) {
        self.queues.remove(&name);
        self.caught.retain(|caught| caught.queue != name);
    }

    /// Posts a plain receive.
    pub(crate) fn post_recv(
        &mut self,
        name: CqId,
        endpoint: &mut Endpoint,
        wr: &RecvWr<'_>,
    ) -> Result<(), PostError> {
        self.queues.get_mut(&name).ok_or(PostError::NoSuchQueue)?.post_recv(endpoint, wr)
    }

    /// Number of plain receives that are posted or in use.
    pub(crate) fn posted(&self, name: CqId) -> usize {
        self.queues.get(&name).map_or(0, TagQueue::posted)
    }

    /// Does an operation on a matching list. Returns the handle of an added entry.
    pub(crate) fn act(&mut self, name: CqId, op: &TagOp<'_>) -> Result<Option<u32>, PostError> {
        self.queues.get_mut(&name).ok_or(PostError::NoSuchQueue)?.act(op)
    }

    /// Keeps a completion for [`Self::handle_next`].
    pub(crate) fn catch(&mut self, queue: CqId, wc: Completion, solicited: bool) {
        self.caught.push_back(Caught { queue, wc, solicited });
    }

    /// Handles the next completion that was kept. `None` if there is none. `Some(Some(ring))` if the completion queue `ring` owes
    /// its channel an event for it.
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

    /// Drops what the queue has for a queue pair that goes to RESET or ends: its receives become free, and its completions are
    /// dropped. The queue pair must have been brought to ERROR before.
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
