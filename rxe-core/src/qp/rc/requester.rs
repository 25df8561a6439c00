//! The asking half of a reliable connection: cuts work requests into packets and sends them again when asked to
//! (IBTA vol. 1, 9.7.2-9.7.3). What comes back is handled in `completer`.
//!
//! PSNs `una..next` are unanswered; `cur` is the next to be sent and lies behind `next` while packets are sent again.
//! The request at the front of the queue holds `una`, the one at `cur_wqe` holds `cur`.

use super::{credits::Limit, retry::Retry};
use crate::{
    memory::AccessError,
    num::Psn,
    qp::{
        QpState,
        common::{Ctx, QpCommon},
        flow::{Flow, PACKET_COST},
        sq::{SendQueue, SendWqe},
    },
    time::Instant,
    wire::{self, AtomicEth, Bth, Ext, Feth, Opcode, Position, Reth},
    work::{SendFlags, SendOp, WcStatus},
};
use alloc::collections::VecDeque;

/// Packets that a part of a READ asks for: a first and a last one.
const READ_PART: u32 = 2;
/// Packets of the longest READ that is asked for in parts; also the requests that a peer must allow for it.
const MOST_READ: u32 = 16;

/// A READ request or atomic that was sent and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    pub first: Psn,
    pub last: Psn,
    /// Bytes of READ response to come, for the budget.
    pub bytes: u32,
    /// Whether only its own answer will do: a later acknowledgement implies the others.
    pub needs_data: bool,
}

/// A requester.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub(super) una: Psn,
    pub(super) cur: Psn,
    pub(super) next: Psn,
    pub(super) cur_wqe: usize,
    /// Requests at the front of the queue that have PSNs.
    pub(super) started: usize,
    pub(super) outstanding: VecDeque<Outstanding>,
    /// Last PSNs of the READ requests as they were first sent: a responder knows a READ that is sent again only inside
    /// the range it had then.
    pub(super) read_ends: VecDeque<Psn>,
    pub(super) in_flight: u32,
    /// Bytes sent since an acknowledgement was last asked for.
    unasked: u32,
    pub(super) retry: Retry,
    /// Receives that the peer promised.
    pub(super) limit: Limit,
    /// The request at `cur_wqe` cannot be sent; told when all before it are done.
    pub(super) broken: Option<WcStatus>,
    /// Whether SQ_DRAINED was told since SQD was entered.
    drained: bool,
    /// Whether FLUSHes leave with kernel rxe's ICRC: that one when a FLUSH with the other got no answer, and back.
    pub(super) rxe_flush: bool,
}

/// What the requester would send next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nothing until something happens.
    Nothing,
    /// A packet of this length, BTH to ICRC.
    Packet(usize),
    /// Something that needs no packet: call `emit` with an empty buffer.
    Local,
    /// Room in the destination's window.
    AwaitsWindow,
    /// Room in the budget of READ responses.
    AwaitsReadBudget,
}

/// The next packet in full.
#[derive(Clone, Copy, Debug)]
struct Plan {
    opcode: Opcode,
    offset: u64,
    payload: u32,
    /// PSNs it takes: more than one for a READ request.
    psns: u32,
    end: bool,
    /// A message of its own, of a WRITE or READ that is more.
    part: bool,
}

impl Plan {
    const fn single(opcode: Opcode, payload: u32) -> Self {
        Self { opcode, offset: 0, payload, psns: 1, end: true, part: false }
    }
}

enum Step {
    Nothing,
    Local,
    Broken,
    Window,
    Budget,
    Send(Plan),
}

impl Requester {
    /// Starts anew at the transition to RTS.
    pub(crate) fn start(&mut self, qp: &QpCommon) {
        *self = Self { una: qp.attrs.sq_psn, cur: qp.attrs.sq_psn, next: qp.attrs.sq_psn, ..Self::default() };
        self.retry.start(&qp.attrs);
    }

    /// The PSN that the next new packet gets.
    pub(crate) const fn next_psn(&self) -> Psn {
        self.next
    }

    /// When to call `handle_timeout`.
    pub(crate) const fn next_deadline(&self) -> Option<Instant> {
        self.retry.next_deadline()
    }

    /// Whether no message is begun and not ended.
    pub(crate) const fn is_drained(&self) -> bool {
        self.started == 0
    }

    /// Entering SQD: the drained event is due once.
    pub(crate) const fn begin_drain(&mut self) {
        self.drained = false;
    }

    /// Whether the drained event is due now; true once.
    pub(crate) const fn take_drained(&mut self) -> bool {
        if self.drained || !self.is_drained() {
            return false;
        }
        self.drained = true;
        true
    }

    /// Whether a FLUSH is to leave with kernel rxe's ICRC.
    pub(crate) const fn flushes_like_rxe(&self) -> bool {
        self.rxe_flush
    }

    /// Whether packets were sent that are not answered.
    pub(crate) const fn has_outstanding(&self) -> bool {
        self.una.value() != self.next.value()
    }

    /// Whether every request has left and none is to leave again.
    pub(crate) fn has_sent_all(&self, sq: &SendQueue) -> bool {
        self.cur_wqe >= sq.ring.len()
    }

    /// Looks at what comes next, without doing it.
    pub(crate) fn peek(&self, qp: &QpCommon, sq: &SendQueue, flow: &Flow<'_>) -> Next {
        match self.step(qp, sq, flow) {
            Step::Nothing => Next::Nothing,
            Step::Local | Step::Broken => Next::Local,
            Step::Window => Next::AwaitsWindow,
            Step::Budget => Next::AwaitsReadBudget,
            Step::Send(plan) => Next::Packet(wire::wire_len(plan.opcode, plan.payload as usize)),
        }
    }

    fn step(&self, qp: &QpCommon, sq: &SendQueue, flow: &Flow<'_>) -> Step {
        if self.retry.is_waiting() || self.broken.is_some() {
            return Step::Nothing;
        }
        let Some(wqe) = sq.ring.get(self.cur_wqe) else { return Step::Nothing };
        if self.cur_wqe >= self.started {
            if qp.state() == QpState::Sqd
                || (wqe.flags.contains(SendFlags::FENCE) && !self.outstanding.is_empty())
            {
                return Step::Nothing;
            }
            if wqe.is_local() {
                let waits = matches!(wqe.op, SendOp::LocalInvalidate(_)) && self.has_outstanding();
                return if waits { Step::Nothing } else { Step::Local };
            }
            // With nothing on its way one message always leaves: no answer would come to tell of more receives.
            if wqe.takes_receive() && self.has_outstanding() && !self.limit.allows() {
                return Step::Nothing;
            }
        } else if wqe.is_local() {
            return Step::Local;
        }
        let k = if self.cur_wqe < self.started { self.cur.since(wqe.first_psn) } else { 0 };
        let step = if wqe.is_read_or_atomic() {
            self.step_read_or_atomic(qp, sq, wqe, k, flow)
        } else {
            self.step_message(qp, sq, wqe, k, flow)
        };
        match step {
            Step::Send(plan) => Step::Send(Plan { opcode: qp.opcode(plan.opcode), ..plan }),
            other => other,
        }
    }

    /// Whether a request that is about to start leaves in parts, which are messages of their own: packets of one length fill
    /// batches. Each packet of a WRITE then is a "WRITE only" with its address, because a first packet is longer than those
    /// behind it. A READ is asked for by two packets at a time, because first and last responses are longer than those
    /// between them; not a long one, which fills batches by itself and would use up the requests that the peer allows.
    /// Only in a row of requests; and not with an immediate, whose receiver is told the length.
    fn parts(&self, qp: &QpCommon, sq: &SendQueue, wqe: &SendWqe, flow: &Flow<'_>) -> bool {
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
        fits && flow.parts && (self.has_outstanding() || sq.ring.len() > self.cur_wqe + 1)
    }

    fn step_message(&self, qp: &QpCommon, sq: &SendQueue, wqe: &SendWqe, k: u32, flow: &Flow<'_>) -> Step {
        let mtu = qp.mtu();
        let offset = wqe.offset(k, mtu);
        let left = u64::from(wqe.len) - offset;
        let payload = left.min(u64::from(mtu)) as u32;
        let end = left <= u64::from(mtu);
        let part = if self.cur_wqe < self.started { wqe.in_parts } else { self.parts(qp, sq, wqe, flow) };
        let position = Position::new(k == 0 || part, end || part);
        // Whoever has not asked yet goes on until it does: a last packet with an immediate may be longer than the others,
        // and begin a batch that nobody expected.
        let begins = !flow.place.first || self.unasked > 0 || flow.window.begins();
        if !begins || !flow.window.admits(payload + PACKET_COST) {
            return Step::Window;
        }
        let opcode = match wqe.op {
            SendOp::SendImm(_) => Opcode::send(position, true, false),
            SendOp::SendInvalidate(_) => Opcode::send(position, false, true),
            SendOp::Write(_) => Opcode::write(position, false),
            SendOp::WriteImm(..) => Opcode::write(position, true),
            _ => Opcode::send(position, false, false),
        };
        Step::Send(Plan { opcode, offset, payload, psns: 1, end, part })
    }

    fn step_read_or_atomic(
        &self,
        qp: &QpCommon,
        sq: &SendQueue,
        wqe: &SendWqe,
        k: u32,
        flow: &Flow<'_>,
    ) -> Step {
        let limit = usize::from(qp.attrs.max_rd_atomic);
        if limit == 0 {
            return Step::Broken;
        }
        if self.outstanding.len() >= limit {
            return Step::Nothing;
        }
        Step::Send(match wqe.op {
            SendOp::CompareSwap { .. } => Plan::single(Opcode::RC_COMPARE_SWAP, 0),
            SendOp::FetchAdd { .. } => Plan::single(Opcode::RC_FETCH_ADD, 0),
            SendOp::AtomicWrite { .. } => Plan::single(Opcode::RC_ATOMIC_WRITE, 8),
            SendOp::Flush { .. } => Plan::single(Opcode::RC_FLUSH, 0),
            _ => {
                let mtu = qp.mtu();
                let offset = wqe.offset(k, mtu);
                let left = u64::from(wqe.len) - offset;
                let part =
                    if self.cur_wqe < self.started { wqe.in_parts } else { self.parts(qp, sq, wqe, flow) };
                let most = if part { READ_PART } else { u32::MAX };
                let Some(psns) = self.read_psns(left, mtu, most, flow) else { return Step::Budget };
                let end = offset + u64::from(psns) * u64::from(mtu) >= u64::from(wqe.len);
                Plan { opcode: Opcode::RC_READ_REQUEST, offset, payload: 0, psns, end, part }
            }
        })
    }

    /// PSNs of the next READ request when `left` bytes are to be asked for, `most` packets at a time; `None` while the budget
    /// has no room. A READ that is sent again ends where it ended at first, because the responder may know it or not.
    fn read_psns(&self, left: u64, mtu: u32, most: u32, flow: &Flow<'_>) -> Option<u32> {
        let all = (left.div_ceil(u64::from(mtu)) as u32).max(1);
        if self.cur != self.next
            && let Some(end) = self.read_ends.iter().find(|end| !end.is_before(self.cur))
        {
            let psns = all.min(end.since(self.cur) + 1);
            let bytes = left.min(u64::from(psns) * u64::from(mtu));
            return flow.reads.admits_again(bytes as u32).then_some(psns);
        }
        let available = flow.reads.available(mtu);
        if u64::from(available) >= left {
            return Some(all.min(most));
        }
        (available >= mtu).then_some((available / mtu).min(most))
    }

    /// Does what `peek` announced: writes the packet into `out`, which has the length announced. False if no packet came
    /// of it: local work was done, or the request's memory is gone.
    pub(crate) fn emit(
        &mut self,
        qp: &mut QpCommon,
        sq: &mut SendQueue,
        ctx: &mut Ctx<'_>,
        flow: &mut Flow<'_>,
        out: &mut [u8],
    ) -> bool {
        let plan = match self.step(qp, sq, flow) {
            Step::Send(plan) => plan,
            Step::Local => {
                self.run_local(qp, sq, ctx);
                return false;
            }
            Step::Broken => {
                self.broken = Some(WcStatus::LocalQpOperation);
                return false;
            }
            _ => return false,
        };
        let fresh = self.cur_wqe >= self.started;
        let Some(wqe) = sq.ring.get_mut(self.cur_wqe) else { return false };
        if fresh {
            wqe.first_psn = self.next;
            wqe.in_parts = plan.part;
            wqe.psns = if wqe.is_read_or_atomic() && !matches!(wqe.op, SendOp::Read(_)) {
                1
            } else {
                wqe.len.div_ceil(qp.mtu()).max(1)
            };
        }
        let cost = if wqe.is_read_or_atomic() { 0 } else { plan.payload + PACKET_COST };
        let mut bth = Bth::new(plan.opcode, qp.attrs.dest_qpn, self.cur);
        bth.pkey = qp.pkey;
        bth.ack_req = plan.end || matches!(wqe.op, SendOp::Read(_)) || Self::asks(cost, qp.mtu(), flow);
        bth.solicited = plan.end && is_solicited(wqe);
        let ext = extensions(wqe, &plan, qp.mtu());
        let Some(slot) = wire::emit(&bth, &ext, plan.payload as usize, out) else { return false };
        let filled: Result<(), AccessError> = match wqe.op {
            SendOp::AtomicWrite { value, .. } => {
                slot.copy_from_slice(&value);
                Ok(())
            }
            _ if plan.payload == 0 => Ok(()),
            _ => wqe.read(ctx.memory, qp.asker(), plan.offset, slot),
        };
        if filled.is_err() {
            self.broken = Some(WcStatus::LocalProtection);
            return false;
        }
        let again = self.cur != self.next;
        let needs_data = !matches!(wqe.op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. });
        let is_read = wqe.is_read_or_atomic();
        let bytes = match wqe.op {
            SendOp::Read(_) => ext.reth.len,
            _ => 0,
        };
        let done = plan.end;
        // Each READ request is a message to the peer, also where one READ is cut into several; and each part of a WRITE.
        if fresh || (is_read || plan.part) && !again {
            self.limit.start(wqe.takes_receive());
        }
        if fresh {
            self.started += 1;
        }
        if is_read {
            let last = self.cur.plus(plan.psns - 1);
            self.outstanding.push_back(Outstanding { first: self.cur, last, bytes, needs_data });
            if !again && bytes > 0 {
                self.read_ends.push_back(last);
            }
            flow.reads.asked(bytes);
        }
        self.account(qp, ctx.now, flow, cost, &bth, plan.payload, again);
        self.advance_cursor(plan.psns, done);
        true
    }

    /// Whether to ask for an acknowledgement in the middle of a message, so that the window moves on: with the last
    /// packet of a batch, because all of a batch arrives together, and before the window is closed to us.
    fn asks(cost: u32, mtu: u32, flow: &Flow<'_>) -> bool {
        let window = &flow.window;
        !window.allows(cost + mtu + PACKET_COST)
            || flow.place.last && (window.is_to_ask(cost) || !window.begins_after(cost))
    }

    #[allow(clippy::too_many_arguments, reason = "one place that counts what leaves")]
    fn account(
        &mut self,
        qp: &mut QpCommon,
        now: Instant,
        flow: &mut Flow<'_>,
        cost: u32,
        bth: &Bth,
        payload: u32,
        again: bool,
    ) {
        if bth.ack_req {
            flow.window.asked(core::mem::take(&mut self.unasked));
        } else {
            flow.window.unasked(cost);
            self.unasked = self.unasked.saturating_add(cost);
        }
        self.in_flight = self.in_flight.saturating_add(cost);
        flow.window.sent(cost);
        self.retry.on_sent(now, &qp.attrs);
        if bth.ack_req && !again {
            self.retry.on_asked(now, bth.psn);
        }
        qp.stats.packets_sent += 1;
        qp.stats.bytes_sent += u64::from(payload);
        qp.stats.retransmitted += u64::from(again);
    }

    fn advance_cursor(&mut self, psns: u32, done: bool) {
        let before = self.cur;
        self.cur = before.plus(psns);
        // `next` moves only when the cursor passes it; a READ sent again may be cut at other places than before.
        if self.next.since(before) < psns {
            self.next = self.cur;
        }
        if done {
            self.cur_wqe += 1;
        }
    }

    fn run_local(&mut self, qp: &mut QpCommon, sq: &mut SendQueue, ctx: &mut Ctx<'_>) {
        let Some(wqe) = sq.ring.get_mut(self.cur_wqe) else { return };
        if self.cur_wqe < self.started {
            // Done the first time round already.
            self.cur_wqe += 1;
            return;
        }
        let result = match wqe.op {
            SendOp::LocalInvalidate(key) => {
                ctx.memory.invalidate(qp.asker(), key, false).map_err(|_| WcStatus::LocalQpOperation)
            }
            SendOp::BindWindow(ref bind) => {
                ctx.memory.bind_window(qp.asker(), bind).map_err(|_| WcStatus::MemoryWindowBind)
            }
            _ => Ok(()),
        };
        if let Err(status) = result {
            self.broken = Some(status);
            return;
        }
        wqe.first_psn = self.next;
        wqe.psns = 0;
        self.started += 1;
        self.cur_wqe += 1;
    }

    /// Sends everything unanswered again, from `una` on. `lost`: since when it is known that the first copy was lost, so that
    /// what answers now answers the second.
    pub(super) fn go_back(&mut self, flow: &mut Flow<'_>, lost: Option<Instant>) {
        flow.window.left(self.in_flight);
        self.in_flight = 0;
        for read in self.outstanding.drain(..) {
            flow.reads.left(read.bytes);
        }
        self.cur = self.una;
        self.cur_wqe = 0;
        self.retry.on_again(lost.map(|now| (self.una, now)));
        flow.window.asked(core::mem::take(&mut self.unasked));
        // A request that could not be read is tried again when its turn comes.
        self.broken = None;
    }

    /// Forgets everything in flight: the queue pair leaves the connected states.
    pub(crate) fn stop(&mut self, flow: &mut Flow<'_>) {
        self.go_back(flow, None);
        *self = Self { una: self.next, cur: self.next, next: self.next, ..Self::default() };
    }
}

const fn is_solicited(wqe: &SendWqe) -> bool {
    wqe.flags.contains(SendFlags::SOLICITED) && wqe.takes_receive()
}

/// The extension headers of a packet; those that its opcode lacks are not written.
fn extensions(wqe: &SendWqe, plan: &Plan, mtu: u32) -> Ext {
    let mut ext = Ext { xrc_srq: wqe.xrc_srq & 0x00ff_ffff, ..Ext::default() };
    match wqe.op {
        SendOp::SendImm(imm) => ext.imm = imm,
        SendOp::SendInvalidate(key) => ext.invalidate = key,
        SendOp::Write(remote) => {
            let (addr, len) = if plan.part {
                (remote.addr.wrapping_add(plan.offset), plan.payload)
            } else {
                (remote.addr, wqe.len)
            };
            ext.reth = Reth { addr, rkey: remote.rkey, len };
        }
        SendOp::WriteImm(remote, imm) => {
            ext.reth = Reth { addr: remote.addr, rkey: remote.rkey, len: wqe.len };
            ext.imm = imm;
        }
        SendOp::Read(remote) => {
            let left = u64::from(wqe.len) - plan.offset;
            let len = left.min(u64::from(plan.psns) * u64::from(mtu)) as u32;
            ext.reth = Reth { addr: remote.addr.wrapping_add(plan.offset), rkey: remote.rkey, len };
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            ext.atomic = AtomicEth { addr: remote.addr, rkey: remote.rkey, swap_or_add: swap, compare };
        }
        SendOp::FetchAdd { remote, add } => {
            ext.atomic = AtomicEth { addr: remote.addr, rkey: remote.rkey, swap_or_add: add, compare: 0 };
        }
        SendOp::AtomicWrite { remote, .. } => {
            ext.reth = Reth { addr: remote.addr, rkey: remote.rkey, len: 8 };
        }
        SendOp::Flush { remote, len, placement, selectivity } => {
            ext.feth = Feth { placement, selectivity };
            ext.reth = Reth { addr: remote.addr, rkey: remote.rkey, len };
        }
        SendOp::Send | SendOp::LocalInvalidate(_) | SendOp::BindWindow(_) => {}
    }
    ext
}
