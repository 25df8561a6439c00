//! The requester of a reliable connection: cuts work requests into packets and sends them again if necessary (IBTA vol. 1,
//! 9.7.2-9.7.3). `completer` handles the answers.
//!
//! The PSNs `una..next` are unanswered. `cur`, the cursor, is the PSN to be sent next; it is before `next` while packets are sent
//! again. The front request of the queue contains `una`, and the request at `cur_wqe` contains `cur`.

use super::{completer::Failure, credits::Credits, retry::Retry};
use crate::{
    num::Psn,
    qp::{
        QpState,
        common::{QpCommon, Scene, SendQueue, SendWqe, Sent},
        flow::PACKET_COST,
        plan::{Draft, Grant, Half, Need, Plan, Wanted},
    },
    time::Instant,
    wire::{self, Bth, Opcode},
    work::{SendFlags, SendOp, WcStatus},
};
use alloc::collections::VecDeque;

/// Response packets that a part of a READ asks for: a first and a last one.
const READ_PART: u32 = 2;
/// Response packets of the longest READ that is asked for in parts. READs are asked for in parts only if the peer allows so many
/// outstanding requests.
const MOST_READ: u32 = 16;

/// A READ request or atomic that was sent and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    pub first: Psn,
    pub last: Psn,
    /// Bytes of READ response to come, as they count in the budget.
    pub bytes: u32,
    /// Whether its own answer is needed. If not, a later acknowledgement implies it.
    pub needs_data: bool,
}

/// A requester.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(super) una: Psn,
    pub(super) cur: Psn,
    /// The PSN that the next new packet gets.
    pub next: Psn,
    pub(super) cur_wqe: usize,
    /// Requests at the front of the queue that have PSNs.
    pub(super) started: usize,
    pub(super) outstanding: VecDeque<Outstanding>,
    /// Last PSNs of the READ requests as they were first sent. A responder recognizes a READ that is sent again only within the
    /// range that it had then.
    pub(super) read_ends: VecDeque<Psn>,
    pub retry: Retry,
    /// The receives that the peer has promised (end-to-end credits).
    pub(super) credits: Credits,
    /// Why the request at `cur_wqe` cannot be sent. It fails when all requests before it are done.
    pub(super) broken: Option<Failure>,
}

impl Requester {
    /// Starts at the transition to RTS.
    pub(crate) fn start(&mut self, qp: &QpCommon) {
        let psn = qp.attrs.sq_psn;
        let mut retry = core::mem::take(&mut self.retry);
        retry.start(&qp.attrs);
        *self = Self { una: psn, cur: psn, next: psn, retry, ..Self::default() };
    }

    /// Whether no request was begun and not completed.
    pub(crate) const fn is_drained(&self) -> bool {
        self.started == 0
    }

    /// Whether sent packets are unanswered.
    pub(crate) const fn has_outstanding(&self) -> bool {
        self.una.value() != self.next.value()
    }

    /// Whether every request was sent, and none is to be sent again.
    pub(crate) fn has_sent_all(&self, sq: &SendQueue) -> bool {
        self.cur_wqe >= sq.ring.len()
    }

    /// The next step. `parts`: whether WRITEs and READs may be sent as several messages.
    pub(crate) fn plan(&self, qp: &QpCommon, sq: &SendQueue, parts: bool) -> Plan {
        if self.retry.is_waiting() || self.broken.is_some() {
            return Plan::Nothing;
        }
        let Some(wqe) = sq.ring.get(self.cur_wqe) else { return Plan::Nothing };
        let fresh = self.cur_wqe >= self.started;
        if fresh {
            if qp.state() == QpState::Sqd
                || (wqe.flags.contains(SendFlags::FENCE) && !self.outstanding.is_empty())
            {
                return Plan::Nothing;
            }
            if matches!(wqe.op, SendOp::LocalInvalidate(_)) && self.has_outstanding() {
                return Plan::Nothing;
            }
            // If nothing is under way one message is always sent, because otherwise no answer would report further receives.
            if wqe.takes_receive() && self.has_outstanding() && !self.credits.allows() {
                return Plan::Nothing;
            }
        }
        if wqe.is_local() {
            return Plan::Local;
        }
        let offset = if fresh { 0 } else { wqe.offset(self.cur.since(wqe.sent.first_psn), qp.mtu()) };
        let part = if fresh { parts && self.leaves_in_parts(qp, sq, wqe) } else { wqe.sent.in_parts };
        let mut plan = if wqe.is_read_or_atomic() {
            self.plan_read_or_atomic(qp, wqe, offset, part)
        } else {
            Plan::Send(Self::plan_message(qp, wqe, offset, part))
        };
        if let Plan::Send(draft) = &mut plan {
            draft.opcode = qp.opcode(draft.opcode);
        }
        plan
    }

    /// Whether a request that is about to start is sent in parts, each of which is a message of its own. Then packets have one
    /// length, and can share a batch.
    ///
    /// Each packet of such a WRITE is a "WRITE only" with its own address, because the first packet of a message is longer than
    /// the others. Such a READ asks for two packets at a time, because first and last responses are longer than those between
    /// them. A long READ is not split: it fills batches by itself, and would use up the requests that the peer allows. A request
    /// that has no other one before or behind it is not split either. Nor is a WRITE with immediate, because its receiver is told
    /// the length.
    fn leaves_in_parts(&self, qp: &QpCommon, sq: &SendQueue, wqe: &SendWqe) -> bool {
        let mtu = qp.mtu();
        let fits = match wqe.op {
            SendOp::Write(_) => wqe.len > mtu,
            SendOp::Read(_) => {
                wqe.len > READ_PART * mtu
                    && wqe.len <= MOST_READ * mtu
                    && u32::from(qp.attrs.max_rd_atomic) >= MOST_READ
            }
            _ => false,
        };
        fits && (self.has_outstanding() || sq.ring.len() > self.cur_wqe + 1)
    }

    /// The next packet of a SEND or WRITE. It begins `offset` bytes into the data.
    fn plan_message(qp: &QpCommon, wqe: &SendWqe, offset: u64, part: bool) -> Draft {
        let (mtu, draft) = (qp.mtu(), wqe.message(offset, qp.mtu(), part));
        let need = Need::Room { cost: draft.payload + PACKET_COST, next: mtu + PACKET_COST, ends: draft.end };
        Draft { need, ..draft }
    }

    fn plan_read_or_atomic(&self, qp: &QpCommon, wqe: &SendWqe, offset: u64, part: bool) -> Plan {
        let limit = usize::from(qp.attrs.max_rd_atomic);
        if limit == 0 {
            return Plan::Fail(WcStatus::LocalQpOperation);
        }
        if self.outstanding.len() >= limit {
            return Plan::Nothing;
        }
        let (opcode, payload) = match wqe.op {
            SendOp::CompareSwap { .. } => (Opcode::RC_COMPARE_SWAP, 0),
            SendOp::FetchAdd { .. } => (Opcode::RC_FETCH_ADD, 0),
            SendOp::AtomicWrite { .. } => (Opcode::RC_ATOMIC_WRITE, 8),
            SendOp::Flush { .. } => (Opcode::RC_FLUSH, 0),
            _ => (Opcode::RC_READ_REQUEST, 0),
        };
        let draft = Draft::single(Half::Requester, opcode, payload);
        if opcode != Opcode::RC_READ_REQUEST {
            return Plan::Send(draft);
        }
        let need = self.wanted(qp.mtu(), u64::from(wqe.len) - offset, part);
        Plan::Send(Draft { offset, part, need, ..draft })
    }

    /// What a READ with `left` bytes to be asked for needs. A READ that is sent again ends where it ended at first, because the
    /// responder may know the first copy or not. It is sent in one piece: Linux 6.1 takes the start of a repeated READ as the start of
    /// what may be repeated from then on, and does not answer if a piece before that has to be repeated.
    fn wanted(&self, mtu: u32, left: u64, part: bool) -> Need {
        let packets = |count: u32| left.min(u64::from(count) * u64::from(mtu)) as u32;
        if self.cur != self.next
            && let Some(end) = self.read_ends.iter().find(|end| !end.is_before(self.cur))
        {
            let bytes = packets(end.since(self.cur) + 1);
            return Need::Responses(Wanted { least: bytes, most: bytes, packet: mtu, again: true });
        }
        let most = if part { packets(READ_PART) } else { left as u32 };
        Need::Responses(Wanted { least: packets(1), most, packet: mtu, again: false })
    }

    /// Writes the packet of `draft`, for which admission gave `grant`, into `out`, which has the length of the packet. False if
    /// there is no packet, because the request's memory cannot be read.
    pub(crate) fn commit(
        &mut self,
        scene: &mut Scene<'_, '_>,
        draft: &Draft,
        grant: Grant,
        out: &mut [u8],
    ) -> bool {
        let Scene { qp, sq, holding, ctx } = scene;
        let Some(wqe) = sq.ring.get_mut(self.cur_wqe) else { return false };
        let mtu = qp.mtu();
        let fresh = self.cur_wqe >= self.started;
        if fresh {
            let psns = wqe.len.div_ceil(mtu).max(1);
            wqe.sent = Sent { first_psn: self.next, psns, in_parts: draft.part };
        }
        let is_read = matches!(wqe.op, SendOp::Read(_));
        let psns = grant.bytes.div_ceil(mtu).max(1);
        let end = if is_read { draft.offset + u64::from(grant.bytes) >= wqe.len.into() } else { draft.end };
        let bth = Bth {
            pkey: qp.pkey,
            ack_req: end || grant.ask,
            solicited: end && wqe.is_solicited(),
            ..Bth::new(draft.opcode, qp.attrs.dest_qpn, self.cur)
        };
        let ext = wqe.extensions(draft, grant.bytes);
        let Some(slot) = wire::emit(&bth, &ext, draft.payload as usize, out) else { return false };
        if let SendOp::AtomicWrite { value, .. } = wqe.op {
            slot.copy_from_slice(&value);
        } else if draft.payload > 0
            && let Err(error) = wqe.read(ctx.memory, qp.asker(), draft.offset, slot)
        {
            return self.break_off(error.into());
        }
        let again = self.cur != self.next;
        // Each part of a WRITE, and each READ request into which one READ is cut, is a message for the peer.
        if fresh || (is_read || draft.part) && !again {
            self.credits.start(wqe.takes_receive());
        }
        self.started += usize::from(fresh);
        if wqe.is_read_or_atomic() {
            let last = self.cur.plus(psns - 1);
            let needs_data = !wqe.may_take_long();
            self.outstanding.push_back(Outstanding { first: self.cur, last, bytes: grant.bytes, needs_data });
            if grant.bytes > 0 {
                if !again {
                    self.read_ends.push_back(last);
                }
                holding.asked(ctx.reads, ctx.now, grant.bytes);
                ctx.reads.list(qp.qpn, holding);
            }
        }
        self.count(scene, &bth, draft);
        self.advance(psns, end);
        true
    }

    /// Counts a packet that is sent.
    fn count(&mut self, scene: &mut Scene<'_, '_>, bth: &Bth, draft: &Draft) {
        let Scene { qp, holding, ctx, .. } = scene;
        let (again, cost) = (self.cur != self.next, draft.need.cost());
        if cost > 0 {
            holding.sent(ctx.window, bth.psn, cost, bth.ack_req);
        }
        self.retry.on_sent(ctx.now, &qp.attrs);
        if bth.ack_req && !again {
            self.retry.on_asked(ctx.now, bth.psn);
        }
        qp.stats.packets_sent += 1;
        qp.stats.bytes_sent += u64::from(draft.payload);
        qp.stats.retransmitted += u64::from(again);
    }

    /// The packet at the cursor was sent.
    fn advance(&mut self, psns: u32, end: bool) {
        let before = self.cur;
        self.cur = before.plus(psns);
        // `next` moves only if the cursor passes it. A READ that is sent again may be cut at other places than before.
        if self.next.since(before) < psns {
            self.next = self.cur;
        }
        self.cur_wqe += usize::from(end);
    }

    /// The request at the cursor cannot be sent. Returns false, because there is no packet.
    pub(crate) const fn break_off(&mut self, failure: Failure) -> bool {
        self.broken = Some(failure);
        false
    }

    /// Executes the local request at the cursor. Returns false, because there is no packet.
    pub(crate) fn run_local(&mut self, scene: &mut Scene<'_, '_>) -> bool {
        let Scene { qp, sq, ctx, .. } = scene;
        let Some(wqe) = sq.ring.get_mut(self.cur_wqe) else { return false };
        if self.cur_wqe < self.started {
            // It was executed when the cursor first passed it.
            self.cur_wqe += 1;
            return false;
        }
        if let Err(status) = wqe.run_local(ctx.memory, qp.asker()) {
            return self.break_off(status.into());
        }
        wqe.sent.first_psn = self.next;
        self.started += 1;
        self.cur_wqe += 1;
        false
    }

    /// Moves the cursor back to `una`, so that everything unanswered is sent again. `lost`: the present time if the first copy of
    /// the packet at `una` is known to be lost. Then an answer to it belongs to the second copy.
    pub(super) fn go_back(&mut self, scene: &mut Scene<'_, '_>, lost: Option<Instant>) {
        let Scene { holding, ctx, .. } = scene;
        holding.given_up(ctx.window, ctx.reads);
        self.outstanding.clear();
        self.cur = self.una;
        self.cur_wqe = 0;
        self.retry.on_again(lost.map(|now| (self.una, now)));
        // A request that could not be read is tried again when its turn comes.
        self.broken = None;
    }

    /// Forgets everything in flight: the queue pair leaves the connected states.
    pub(crate) fn stop(&mut self, scene: &mut Scene<'_, '_>) {
        self.go_back(scene, None);
        *self = Self { una: self.next, cur: self.next, next: self.next, ..Self::default() };
    }

    /// READ responses to come do not count in the budget any more. So nothing is returned to it when they come.
    pub(crate) fn lapse(&mut self) {
        self.outstanding.iter_mut().for_each(|read| read.bytes = 0);
    }

    /// Bytes of READ responses to come, as they count in the budget.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn responses(&self) -> u64 {
        self.outstanding.iter().map(|read| u64::from(read.bytes)).sum()
    }
}
