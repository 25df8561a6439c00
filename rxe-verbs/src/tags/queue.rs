//! A tag matching queue: handles the messages that its queue pairs receive.
//!
//! A completion of the core comes in by `handle`. A message that matches no entry completes its plain receive. An eager message is
//! copied to its entry. A rendezvous starts a `Transfer`: a READ of the data, and behind it a notice to the sender.

use super::{
    beside::{TagFlags, TagInfo},
    header::{BOTH, Header, Kind, Rendezvous, TMH, finished},
    list::{Entry, List},
};
use crate::{cq::CqRing, limits, regions::View};
use rxe_core::{
    endpoint::Endpoint,
    memory::{AccessError, Asker},
    num::Qpn,
    qp::{PostError, QpCaps, QpChange, QpState, gather, scatter},
    time::Instant,
    work::{
        Completion, Payload, PdId, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SrqId, WcExtra, WcOpcode,
        WcStatus,
    },
};
use slab::Slab;
use smallvec::SmallVec;
use std::{collections::VecDeque, sync::Arc};

/// Most bytes of a rendezvous request: the headers, and what the sending program adds for the case that nothing matches.
pub const MAX_RENDEZVOUS_HEADER: u32 = 64;
/// Most entries of a matching list.
pub const MAX_TAGS: u32 = 1 << 12;

/// Capacities of the queue pairs' send queues. Each rendezvous takes two requests, the READ and the notice.
pub(crate) const SEND_CAPS: QpCaps = QpCaps {
    max_send_wr: 128,
    max_recv_wr: 0,
    max_send_sge: limits::MAX_SGE,
    max_recv_sge: 0,
    max_inline: BOTH as u32,
};

/// Bit of `wr_id` that marks our own send requests. Receives do not have it. Bit 0 then marks the notice, and the bits between are the
/// transfer's place.
const OURS: u64 = 1 << 63;
/// Bytes that are copied in one step.
const CHUNK: usize = 1 << 16;

/// Info of the second completion of a rendezvous. The tag is in the first one, as with cards.
const OVER: TagInfo = TagInfo { tag: 0, app_ctx: 0, flags: TagFlags::DATA_VALID, extra: WcExtra::None };

/// What an operation does (enum ibv_ops_wr_opcode).
#[derive(Clone, Copy, Debug)]
pub enum TagAction<'a> {
    /// Adds an entry to the matching list. If [`TagFlags::SYNC_NEEDED`] comes back, the entry matches nothing until the program
    /// has said that it has handled all unexpected messages.
    Add {
        /// Returned in the completions of the message that matches.
        recv_wr_id: u64,
        /// Where its data goes.
        sges: &'a [Sge],
        /// A message matches if `message_tag & mask` is this.
        tag: u64,
        /// Bits of the tag that count.
        mask: u64,
    },
    /// Removes an entry by its handle. The completion is an error ([`WcStatus::TagMatching`]) if a message has taken it.
    Remove(u32),
    /// Does nothing to the list. Programs use it to say how many messages they have handled ([`TagOp::handled`]).
    Sync,
}

/// An operation on the matching list (struct ibv_ops_wr).
#[derive(Clone, Copy, Debug)]
pub struct TagOp<'a> {
    /// Returned in the operation's completion.
    pub wr_id: u64,
    /// What it does.
    pub action: TagAction<'a>,
    /// Make a completion also when it succeeds.
    pub signaled: bool,
    /// How many unexpected messages the program has handled since the queue was made, if it says so.
    pub handled: Option<u32>,
}

/// A plain receive that the program has posted.
#[derive(Debug)]
struct Receive {
    wr_id: u64,
    sges: SmallVec<[Sge; 4]>,
}

/// A rendezvous whose data is being read from the sender.
#[derive(Debug)]
struct Transfer {
    qpn: Qpn,
    wr_id: u64,
    to: Vec<Sge>,
    from: Remote,
    len: u32,
    /// The message that tells the sender that all data has been read.
    notice: [u8; BOTH],
}

/// One queue, under its shard's lock.
#[derive(Debug)]
pub(super) struct TagQueue {
    srq: SrqId,
    pd: PdId,
    /// The completion queue of the program.
    ring: Arc<CqRing>,
    list: List,
    /// Plain receives in the core's queue or in use. Their place here is their `wr_id` in the core.
    receives: Slab<Receive>,
    transfers: Slab<Transfer>,
    /// Places of transfers whose send queue had no room for their two requests.
    waiting: VecDeque<usize>,
    buffer: Vec<u8>,
}

/// The parts of the shard that a queue uses in one call.
pub(super) struct Hands<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) memory: View<'a>,
    pub(super) now: Instant,
}

impl TagQueue {
    pub(super) fn new(srq: SrqId, pd: PdId, ring: &Arc<CqRing>, max_tags: u32) -> Self {
        Self {
            srq,
            pd,
            ring: Arc::clone(ring),
            list: List::new(max_tags),
            receives: Slab::new(),
            transfers: Slab::new(),
            waiting: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    pub(super) const fn ring(&self) -> &Arc<CqRing> {
        &self.ring
    }

    /// Number of plain receives that the program has posted, and that have not completed towards it.
    pub(super) fn posted(&self) -> usize {
        self.receives.len()
    }

    /// Posts a plain receive.
    pub(super) fn post_recv(&mut self, endpoint: &mut Endpoint, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let (most, _) = endpoint.query_srq(self.srq).ok_or(PostError::NoSuchQueue)?;
        // Receives in use count, too: when their message has matched, they are posted again.
        if self.receives.len() >= most as usize {
            return Err(PostError::Full(most));
        }
        self.give(endpoint, Receive { wr_id: wr.wr_id, sges: SmallVec::from_slice(wr.sges) })
    }

    fn give(&mut self, endpoint: &mut Endpoint, receive: Receive) -> Result<(), PostError> {
        let place = self.receives.vacant_entry();
        let posted =
            endpoint.post_srq_recv(self.srq, &RecvWr { wr_id: place.key() as u64, sges: &receive.sges });
        posted.inspect(|()| {
            place.insert(receive);
        })
    }

    /// Does an operation. Returns the handle of an added entry.
    pub(super) fn act(&mut self, op: &TagOp<'_>) -> Result<Option<u32>, PostError> {
        if let TagAction::Add { sges, .. } = op.action
            && sges.len() > limits::MAX_SGE as usize
        {
            return Err(PostError::Elements(sges.len(), limits::MAX_SGE));
        }
        if let Some(handled) = op.handled {
            self.list.confirm(handled);
        }
        let mut wc = Completion { wr_id: op.wr_id, ..Completion::default() };
        let mut handle = None;
        match op.action {
            TagAction::Add { recv_wr_id, sges, tag, mask } => {
                let entry = Entry { wr_id: recv_wr_id, sges: sges.to_vec(), tag, mask };
                handle = Some(self.list.add(entry)?);
                wc.opcode = WcOpcode::TagAdd;
            }
            TagAction::Remove(handle) => {
                wc.opcode = WcOpcode::TagRemove;
                if !self.list.remove(handle) {
                    wc.status = WcStatus::TagMatching;
                }
            }
            TagAction::Sync => wc.opcode = WcOpcode::TagSync,
        }
        if op.signaled || wc.status != WcStatus::Success {
            let needed = if self.list.is_in_step() { TagFlags::empty() } else { TagFlags::SYNC_NEEDED };
            if self.tell(wc, TagInfo { flags: needed, ..TagInfo::default() }, false) {
                self.ring.announce();
            }
        }
        Ok(handle)
    }

    /// Puts a completion into the program's queue. Returns whether the channel needs an event ([`CqRing::announce`]).
    fn tell(&self, mut wc: Completion, info: TagInfo, solicited: bool) -> bool {
        if info == (TagInfo { extra: info.extra, ..TagInfo::default() }) {
            wc.extra = info.extra;
        } else {
            wc.extra = self.ring.keep_beside(info);
        }
        self.ring.put(wc, solicited || wc.status != WcStatus::Success)
    }

    /// Handles a completion of a queue pair. Returns whether the channel needs an event.
    pub(super) fn handle(&mut self, hands: &mut Hands<'_>, wc: Completion, solicited: bool) -> bool {
        if wc.wr_id & OURS != 0 {
            return self.on_sent(hands, &wc);
        }
        let Some(receive) = self.receives.try_remove(wc.wr_id as usize) else { return false };
        if wc.status != WcStatus::Success || wc.opcode != WcOpcode::Recv {
            return self.tell(
                Completion { wr_id: receive.wr_id, ..wc },
                TagInfo { extra: wc.extra, ..TagInfo::default() },
                solicited,
            );
        }
        self.on_message(hands, receive, &wc, solicited)
    }

    /// Drops a completion of a queue pair that is gone or was reset, and frees its receive.
    pub(super) fn forget(&mut self, wc: &Completion) {
        if wc.wr_id & OURS == 0 {
            self.receives.try_remove(wc.wr_id as usize);
        }
    }

    /// Drops the transfers of a queue pair that is gone or was reset.
    pub(super) fn forget_qp(&mut self, qpn: Qpn) {
        self.transfers.retain(|_, transfer| transfer.qpn != qpn);
        self.waiting.retain(|place| self.transfers.contains(*place));
    }

    fn on_message(
        &mut self,
        hands: &mut Hands<'_>,
        receive: Receive,
        wc: &Completion,
        solicited: bool,
    ) -> bool {
        let asker = Asker { pd: self.pd, qpn: wc.qpn };
        let mut bytes = [0; BOTH];
        let there = (wc.byte_len as usize).min(BOTH);
        if let Err(error) = gather(&receive.sges, &hands.memory, asker, 0, &mut bytes[..there]) {
            return self.fail(hands, receive.wr_id, wc.qpn, status_of(error));
        }
        let header = Header::parse(&bytes[..there]);
        let matched = header.and_then(|header| self.find(header, &bytes[..there], wc.byte_len));
        let Some((entry, request)) = matched else {
            let opcode = match header.map(|header| header.kind) {
                Some(Kind::NoTag | Kind::Finished) => WcOpcode::NoTag,
                _ => {
                    self.list.miss();
                    WcOpcode::TagRecv
                }
            };
            let told = Completion { wr_id: receive.wr_id, opcode, grh: false, ..*wc };
            return self.tell(told, TagInfo { extra: wc.extra, ..TagInfo::default() }, solicited);
        };
        let header = header.map_or((0, 0), |header| (header.tag, header.app_ctx));
        let info = TagInfo { tag: header.0, app_ctx: header.1, flags: TagFlags::MATCH, extra: wc.extra };
        let told = match request {
            None => self.on_eager(hands, &receive, entry, wc, (info, solicited)),
            Some(request) => self.on_rendezvous(hands, entry, (request, bytes), wc.qpn, (info, solicited)),
        };
        // The receive was not used up, so it is posted again. Cannot fail: nothing was posted since it was taken.
        let _ = self.give(hands.endpoint, receive);
        told
    }

    /// Takes the entry that a message matches, and says where the data is if it is a rendezvous.
    fn find(&mut self, header: Header, bytes: &[u8], len: u32) -> Option<(Entry, Option<Rendezvous>)> {
        let request = match header.kind {
            Kind::Eager => None,
            Kind::Rendezvous if len <= MAX_RENDEZVOUS_HEADER => Some(Rendezvous::parse(bytes)?),
            _ => return None,
        };
        Some((self.list.take(header.tag)?, request))
    }

    /// Handles an eager message: copies the data behind the header to the entry's memory.
    fn on_eager(
        &mut self,
        hands: &mut Hands<'_>,
        receive: &Receive,
        entry: Entry,
        wc: &Completion,
        (info, solicited): (TagInfo, bool),
    ) -> bool {
        let len = wc.byte_len as usize - TMH;
        if len as u64 > room(&entry.sges) {
            return self.fail(hands, entry.wr_id, wc.qpn, WcStatus::LocalLength);
        }
        let asker = Asker { pd: self.pd, qpn: wc.qpn };
        if let Err(error) = self.copy(&hands.memory, asker, (&receive.sges, &entry.sges), len) {
            return self.fail(hands, entry.wr_id, wc.qpn, status_of(error));
        }
        let told = Completion {
            wr_id: entry.wr_id,
            opcode: WcOpcode::TagRecv,
            byte_len: len as u32,
            grh: false,
            ..*wc
        };
        self.tell(told, TagInfo { flags: info.flags | TagFlags::DATA_VALID, ..info }, solicited)
    }

    fn copy(
        &mut self,
        memory: &View<'_>,
        asker: Asker,
        (from, to): (&[Sge], &[Sge]),
        len: usize,
    ) -> Result<(), AccessError> {
        self.buffer.resize(len.min(CHUNK), 0);
        let mut done = 0;
        while done < len {
            let part = &mut self.buffer[..(len - done).min(CHUNK)];
            gather(from, memory, asker, (TMH + done) as u64, part)?;
            scatter(to, memory, asker, done as u64, part)?;
            done += part.len();
        }
        Ok(())
    }

    /// Handles a rendezvous: completes the match, and starts to read the data from the sender.
    fn on_rendezvous(
        &mut self,
        hands: &mut Hands<'_>,
        entry: Entry,
        (request, bytes): (Rendezvous, [u8; BOTH]),
        qpn: Qpn,
        (info, solicited): (TagInfo, bool),
    ) -> bool {
        let mut wc = Completion {
            wr_id: entry.wr_id,
            opcode: WcOpcode::TagRecv,
            byte_len: request.len,
            qpn,
            solicited,
            ..Completion::default()
        };
        if u64::from(request.len) > room(&entry.sges) {
            // The entry's memory is too small. The program has to handle the message, and finds the headers in that memory.
            let shown = &bytes[..room(&entry.sges).min(BOTH as u64) as usize];
            let shown = scatter(&entry.sges, &hands.memory, Asker { pd: self.pd, qpn }, 0, shown);
            wc.status = shown.map_or_else(status_of, |()| WcStatus::RendezvousIncomplete);
            return self.tell(wc, info, solicited);
        }
        let told = self.tell(wc, info, solicited);
        let place = self.transfers.insert(Transfer {
            qpn,
            wr_id: entry.wr_id,
            to: cut(entry.sges, request.len),
            from: request.from,
            len: request.len,
            notice: finished(bytes),
        });
        self.start(hands, place) | told
    }

    /// Posts a transfer's READ, and behind it the notice. The fence makes the notice wait for the READ's data.
    fn start(&mut self, hands: &mut Hands<'_>, place: usize) -> bool {
        let Some(transfer) = self.transfers.get(place) else { return false };
        let name = OURS | (place as u64) << 1;
        let read = SendWr::new(name, SendOp::Read(transfer.from), &transfer.to);
        let notice = SendWr {
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
            payload: Payload::Inline(&transfer.notice),
            ..SendWr::new(name | 1, SendOp::Send, &[])
        };
        match hands.endpoint.post_send_all(hands.now, transfer.qpn, &[read, notice]) {
            Ok(()) => false,
            Err((_, PostError::Full(_))) => {
                self.waiting.push_back(place);
                false
            }
            // The queue pair cannot send (it is still in RTR), or the length is too large for a READ.
            Err(_) => {
                let transfer = self.transfers.remove(place);
                self.tell(ended(&transfer, WcStatus::LocalQpOperation, 0), OVER, true)
            }
        }
    }

    /// Handles the completion of one of our own requests.
    fn on_sent(&mut self, hands: &mut Hands<'_>, wc: &Completion) -> bool {
        let place = (wc.wr_id & !OURS) as usize >> 1;
        let is_notice = wc.wr_id & 1 != 0;
        let mut told = false;
        if is_notice {
            self.transfers.try_remove(place);
        } else if let Some(transfer) = self.transfers.get(place) {
            told = self.tell(ended(transfer, wc.status, wc.vendor_error), OVER, true);
        }
        if is_notice {
            for place in core::mem::take(&mut self.waiting) {
                told |= self.start(hands, place);
            }
        }
        told
    }

    /// Completes a receive or an entry with an error, and brings the queue pair to ERROR, as for a message that does not fit its
    /// receive.
    fn fail(&self, hands: &mut Hands<'_>, wr_id: u64, qpn: Qpn, status: WcStatus) -> bool {
        let wc = Completion { wr_id, status, opcode: WcOpcode::TagRecv, qpn, ..Completion::default() };
        let told = self.tell(wc, TagInfo::default(), true);
        let error = QpChange { state: Some(QpState::Error), ..QpChange::default() };
        // Cannot fail: every state leads to ERROR.
        let _ = hands.endpoint.modify_qp(hands.now, qpn, &error, &hands.memory);
        told
    }
}

/// The second completion of a rendezvous: its data has come, or failed.
fn ended(transfer: &Transfer, status: WcStatus, vendor_error: u32) -> Completion {
    Completion {
        wr_id: transfer.wr_id,
        status,
        opcode: WcOpcode::TagRecv,
        byte_len: transfer.len,
        qpn: transfer.qpn,
        vendor_error,
        ..Completion::default()
    }
}

/// Bytes that the elements have room for.
fn room(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// The first `len` bytes of a list of elements.
fn cut(mut sges: Vec<Sge>, mut len: u32) -> Vec<Sge> {
    for sge in &mut sges {
        sge.len = sge.len.min(len);
        len -= sge.len;
    }
    sges.retain(|sge| sge.len > 0);
    sges
}

/// The completion status for an entry's or receive's memory that cannot be used.
const fn status_of(error: AccessError) -> WcStatus {
    match error {
        AccessError::Fault(_) => WcStatus::LocalAccess,
        _ => WcStatus::LocalProtection,
    }
}
