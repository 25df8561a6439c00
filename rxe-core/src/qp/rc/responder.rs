//! The responder of a reliable connection (IBTA vol. 1, 9.7.5).
//!
//! A request is checked in this order: PSN, opcode sequence, the queue pair's rights, resources (a receive, a place for a READ),
//! length, key and range. Then it is executed. The order decides which NAK the peer gets.

use super::{
    super::{
        common::{Ctx, QpCommon},
        inbound::Inbound,
        sq::MAX_MESSAGE,
    },
    answers::{Answers, Kind, Pending, ReadRest},
    credits,
    replay::{Entry, Outcome, Replay, read_psns},
};
use crate::{
    memory::{AccessError, Asker},
    num::{Key, Msn, Psn},
    qp::{
        QpType,
        plan::{Draft, Half},
        reason::{Cause, Reason},
    },
    violation::Violation,
    wire::{Aeth, Bth, Class, Ext, NakCode, Packet, Syndrome, emit},
    work::{Access, Event, WcOpcode},
};
use core::cmp::Ordering;

/// FLUSHes executed and not answered at most. Kernel rxe does not count them as READs and atomics, and its window holds 129
/// packets.
const MAX_FLUSHES: usize = 256;

/// The responder. The answers come first, because queue pairs that only send requests read them, too.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Responder {
    answers: Answers,
    /// PSN of the next new request.
    pub expected: Psn,
    /// Messages completed (MSN).
    msn: Msn,
    /// A NAK asked for the expected packet. Until that packet comes, later ones get no NAK.
    asked: bool,
    /// A request was refused for good. No further request is taken.
    refused: bool,
    replay: Replay,
    pub inbound: Inbound,
    /// Set if the memory of a READ was gone when its response was due.
    failure: Option<Violation>,
    /// The response to a READ was given up in the middle, and the peer has not asked for it again.
    gave_up: bool,
}

impl Responder {
    /// Starts with the attributes of the transition to RTR.
    pub(crate) fn start(&mut self, qp: &QpCommon) {
        *self = Self { expected: qp.attrs.rq_psn, ..Self::default() };
    }

    /// Takes a request packet. An error means that the queue pair goes to the error state. If an answer is due it is queued and
    /// will still be sent. If a receive was open it was completed.
    pub(crate) fn handle(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        if self.refused {
            qp.stats.dropped_state += 1;
            return Ok(());
        }
        if !packet.info.is_request() {
            qp.stats.dropped_service += 1;
            return Ok(());
        }
        match packet.bth.psn.compare(self.expected) {
            Ordering::Equal => return self.on_expected(qp, ctx, packet),
            Ordering::Greater => self.on_gap(qp),
            Ordering::Less => self.on_duplicate(qp, ctx, packet),
        }
        Ok(())
    }

    /// An earlier packet is missing. One NAK reports it (IBTA vol. 1, 9.7.5.1.3).
    fn on_gap(&mut self, qp: &mut QpCommon) {
        qp.stats.dropped_out_of_order += 1;
        if !self.asked {
            self.asked = true;
            self.answers.ask_retry(self.expected, self.msn, Syndrome::Nak(NakCode::PsnSequence));
        }
    }

    fn on_expected(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        qp.establish(ctx);
        match self.execute(qp, ctx, packet) {
            Ok(Some(psns)) => {
                self.asked = false;
                self.expected = self.expected.plus(psns);
                self.replay.expire(self.expected);
                Ok(())
            }
            Ok(None) => {
                // The peer sends the packets behind this one again, too. So they get no PSN sequence NAK.
                self.asked = true;
                let syndrome = Syndrome::RnrNak(qp.attrs.min_rnr_timer);
                self.answers.ask_retry(self.expected, self.msn, syndrome);
                Ok(())
            }
            Err(violation) => {
                self.refused = true;
                self.inbound.fail(qp, ctx, violation);
                match violation {
                    // Fault class J: the SEND itself was right, and is acknowledged. Only our queue pair goes to the error state.
                    Violation::Invalidate(_) if packet.bth.ack_req => {
                        self.answers.acknowledge(self.expected, self.msn, true);
                    }
                    Violation::Invalidate(_) => {}
                    _ => self.answers.refuse(self.expected, self.msn, violation.into()),
                }
                Err(violation)
            }
        }
    }

    /// Executes a request in sequence. Returns how many PSNs it takes, or `None` if no receive is posted.
    fn execute(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<Option<u32>, Violation> {
        self.inbound.follows(packet.info)?;
        if packet.info.position.is_start() {
            qp.named = qp.find_named(ctx, packet)?;
        } else if qp.config.qp_type == QpType::XrcTarget && qp.named.is_none() {
            // The shared receive queue of the message was destroyed.
            return Err(Violation::XrcSrq);
        }
        let need = rights(packet)?;
        if !qp.attrs.access.contains(need) {
            return Err(Violation::NotEnabled);
        }
        match packet.info.class {
            Class::Send | Class::Write => return self.execute_message(qp, ctx, packet),
            Class::ReadRequest => return self.execute_read(qp, ctx, packet),
            Class::CompareSwap | Class::FetchAdd => self.execute_atomic(qp, ctx, packet)?,
            Class::AtomicWrite => self.execute_atomic_write(qp, ctx, packet)?,
            Class::Flush => self.execute_flush(qp, ctx, packet, need)?,
            _ => return Err(Violation::NotEnabled),
        }
        Ok(Some(1))
    }

    fn execute_message(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<Option<u32>, Violation> {
        if !self.inbound.draw(qp, ctx, packet.info) {
            return Ok(None);
        }
        self.inbound.take(qp, ctx, packet)?;
        let end = packet.info.position.is_end();
        if end {
            self.msn = self.msn.next();
        }
        if packet.bth.ack_req {
            // Inside a message a ConnectX waits for this before it goes on.
            self.answers.acknowledge(packet.bth.psn, self.msn, !end);
        }
        Ok(Some(1))
    }

    fn execute_read(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<Option<u32>, Violation> {
        self.check_resources(qp)?;
        let reth = packet.ext.reth;
        if u64::from(reth.len) > MAX_MESSAGE {
            return Err(Violation::Length);
        }
        // A READ of 0 bytes accesses no memory and needs no valid key (IBTA vol. 1, C9-88).
        if reth.len > 0 {
            ctx.memory
                .check(qp.asker(), reth.rkey, reth.addr, reth.len.into(), Access::REMOTE_READ)
                .map_err(Violation::Access)?;
        }
        let psns = read_psns(reth.len, qp.mtu());
        let stream = ReadRest::new(reth, qp.asker().pd);
        self.reply(qp, packet, psns, Outcome::Read(reth), Kind::Read(stream));
        Ok(Some(psns))
    }

    fn execute_atomic(
        &mut self,
        qp: &QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        self.check_resources(qp)?;
        let (asker, atomic, class) = (qp.asker(), packet.ext.atomic, packet.info.class);
        check_word(ctx, asker, (atomic.rkey, atomic.addr), Access::REMOTE_ATOMIC)?;
        let original = if class == Class::CompareSwap {
            ctx.memory.compare_swap(asker, atomic.rkey, atomic.addr, atomic.compare, atomic.swap_or_add)
        } else {
            ctx.memory.fetch_add(asker, atomic.rkey, atomic.addr, atomic.swap_or_add)
        };
        let original = original.map_err(Violation::Access)?;
        self.reply(qp, packet, 1, Outcome::Atomic(class, original), Kind::Atomic(original));
        Ok(())
    }

    fn execute_atomic_write(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        self.check_resources(qp)?;
        let (asker, reth) = (qp.asker(), packet.ext.reth);
        let value = <[u8; 8]>::try_from(packet.payload).map_err(|_| Violation::Length)?;
        if reth.len != 8 {
            return Err(Violation::Length);
        }
        check_word(ctx, asker, (reth.rkey, reth.addr), Access::REMOTE_WRITE)?;
        ctx.memory.atomic_write(asker, reth.rkey, reth.addr, value).map_err(Violation::Access)?;
        self.reply(qp, packet, 1, Outcome::Done(Class::AtomicWrite), Kind::Written);
        Ok(())
    }

    fn execute_flush(
        &mut self,
        qp: &QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
        need: Access,
    ) -> Result<(), Violation> {
        if self.answers.outstanding().flushes >= MAX_FLUSHES {
            return Err(Violation::TooManyReads);
        }
        let reth = packet.ext.reth;
        if u64::from(reth.len) > MAX_MESSAGE {
            return Err(Violation::Length);
        }
        let (range, whole) = ((reth.addr, u64::from(reth.len)), packet.ext.feth.selectivity == 1);
        ctx.memory.flush(qp.asker(), reth.rkey, range, whole, need).map_err(Violation::Access)?;
        self.reply(qp, packet, 1, Outcome::Done(Class::Flush), Kind::Flushed);
        Ok(())
    }

    /// Checks that one more READ or atomic is within the agreed number.
    fn check_resources(&self, qp: &QpCommon) -> Result<(), Violation> {
        if self.answers.outstanding().others < resources(qp) { Ok(()) } else { Err(Violation::TooManyReads) }
    }

    /// Remembers and answers a request whose answer is more than an acknowledgement.
    fn reply(&mut self, qp: &QpCommon, packet: &Packet<'_>, psns: u32, result: Outcome, kind: Kind) {
        let psn = packet.bth.psn;
        self.msn = self.msn.next();
        self.replay.remember(Entry { first: psn, psns, result }, resources(qp));
        self.answers.reply(Pending { psn, msn: self.msn, replay: false, kind });
    }

    /// A request that was executed before: the peer missed the answer (IBTA vol. 1, 9.7.5.1.5). A request that cannot be answered
    /// was delayed in the network, and is dropped.
    fn on_duplicate(&mut self, qp: &mut QpCommon, ctx: &Ctx<'_>, packet: &Packet<'_>) {
        qp.stats.duplicates += 1;
        let (psn, class) = (packet.bth.psn, packet.info.class);
        if matches!(class, Class::Send | Class::Write) {
            // It was executed when it was allowed. To repeat the acknowledgement takes no right and no queue.
            let upto = self.replay.acknowledgeable(psn, self.expected);
            self.answers.acknowledge_again(upto, self.msn);
            return;
        }
        let Ok(named) = qp.find_named(ctx, packet) else { return };
        if !rights(packet).is_ok_and(|need| qp.attrs.access.contains(need)) {
            return;
        }
        let kind = match class {
            Class::ReadRequest => {
                let reth = packet.ext.reth;
                let pd = named.map_or(qp.config.pd, |named| named.pd);
                self.replay.covers_read(psn, &reth, qp.mtu()).then(|| Kind::Read(ReadRest::new(reth, pd)))
            }
            Class::CompareSwap | Class::FetchAdd => self.replay.atomic(psn, class).map(Kind::Atomic),
            Class::AtomicWrite => self.replay.is_done(psn, class).then_some(Kind::Written),
            // Not all FLUSHes are remembered, but all before the expected PSN were executed.
            Class::Flush => Some(Kind::Flushed),
            _ => None,
        };
        if let Some(kind) = kind {
            self.answers.replay(Pending { psn, msn: self.msn, replay: true, kind }, qp.mtu());
        }
    }

    /// Whether there is an answer.
    pub(crate) fn has_answer(&self) -> bool {
        self.answers.front().is_some()
    }

    /// The next answer.
    pub(crate) fn plan(&self, qp: &QpCommon) -> Option<Draft> {
        let (opcode, payload) = self.answers.front()?.packet(qp.mtu());
        Some(Draft::single(Half::Responder, qp.opcode(opcode), payload as u32))
    }

    /// Whether there is no answer, or only an acknowledgement that may wait for other packets to share a batch with.
    pub(crate) fn may_wait(&self) -> bool {
        self.answers.front().is_none() || self.answers.may_wait()
    }

    /// Writes the answer of `draft` into `out`, which has the length of the packet. False if there is nothing to send, because
    /// the memory of a READ is gone. Then a NAK may be queued in its place, see [`Self::take_failure`].
    pub(crate) fn commit(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        draft: &Draft,
        out: &mut [u8],
    ) -> bool {
        let Some(&next) = self.answers.front() else { return false };
        let syndrome = match next.kind {
            Kind::Retry(syndrome) => syndrome,
            Kind::Refusal(code) => Syndrome::Nak(code),
            _ => credits::syndrome(qp, self.inbound.holds_receive()),
        };
        let mut ext = Ext { aeth: Aeth { syndrome, msn: next.msn }, ..Ext::default() };
        if let Kind::Atomic(original) = next.kind {
            ext.original = original;
        }
        let bth = Bth { pkey: qp.pkey, ..Bth::new(draft.opcode, qp.attrs.dest_qpn, next.psn) };
        let Some(place) = emit(&bth, &ext, draft.payload as usize, out) else { return false };
        if let Kind::Read(stream) = next.kind
            && draft.payload > 0
        {
            let asker = Asker { pd: stream.pd, qpn: qp.qpn };
            let read = ctx.memory.read(asker, stream.rkey, stream.addr, Access::REMOTE_READ, place);
            if let Err(error) = read {
                self.on_unreadable(qp, ctx, &next, stream, error);
                return false;
            }
            qp.stats.bytes_sent += u64::from(draft.payload);
            self.gave_up &= !next.replay;
        }
        match next.kind {
            Kind::Retry(Syndrome::RnrNak(_)) => qp.stats.rnr_naks_sent += 1,
            Kind::Retry(_) => qp.stats.psn_naks_sent += 1,
            Kind::Refusal(_) => qp.stats.refusals_sent += 1,
            _ => {}
        }
        qp.stats.packets_sent += 1;
        self.answers.advance(qp.mtu());
        true
    }

    /// The memory of a READ was checked when the request came, and is gone now that the response is due.
    fn on_unreadable(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        answer: &Pending,
        stream: ReadRest,
        error: AccessError,
    ) {
        let violation = Violation::Access(error);
        if stream.started || self.gave_up && !answer.replay {
            // Linux 6.1 takes a NAK in the middle of a READ response for success. So the response just ends. The peer asks again
            // for the rest and for all READs behind it, so those READs are not refused before that.
            self.gave_up = true;
            self.answers.pop_front();
            return;
        }
        self.gave_up = false;
        self.answers.replace_front(Kind::Refusal(violation.into()));
        let (place, len, cause) =
            (Some((stream.addr, stream.rkey)), stream.left.into(), Cause::Refused(violation));
        qp.note_refused(Reason { op: WcOpcode::Read, place, len, cause });
        if answer.replay {
            // The peer may not wait for this response any more. It gets the NAK, but the connection goes on.
            return;
        }
        self.answers.keep_front();
        self.refused = true;
        self.failure = Some(violation);
        ctx.events.push_back(Event::Async(violation.event(qp.qpn)));
    }

    /// To be called after `commit` returned false. The reason if the queue pair has to go to the error state. The NAK was queued
    /// and the event raised.
    pub(crate) const fn take_failure(&mut self) -> Option<Violation> {
        self.failure.take()
    }

    /// The queue pair is in error: completes an open receive with the flush status. What was executed is still acknowledged.
    /// READs are not answered any more. But after a refusal everything before it is still sent, and then the NAK.
    pub(crate) fn flush(&mut self, qp: &mut QpCommon, ctx: &mut Ctx<'_>) {
        self.inbound.flush(qp, ctx);
        self.answers.flush();
    }
}

/// READs and atomics that the peer may have outstanding: the agreed number, rounded up to a power of two. Kernel rxe as a
/// requester rounds max_rd_atomic like this (with 5 it sends 8), and would be refused otherwise.
fn resources(qp: &QpCommon) -> usize {
    match qp.attrs.max_dest_rd_atomic {
        0 => 0,
        agreed => usize::from(agreed).next_power_of_two(),
    }
}

/// The rights that the queue pair must grant for this request.
fn rights(packet: &Packet<'_>) -> Result<Access, Violation> {
    Ok(match packet.info.class {
        Class::Write | Class::AtomicWrite => Access::REMOTE_WRITE,
        Class::ReadRequest => Access::REMOTE_READ,
        Class::CompareSwap | Class::FetchAdd => Access::REMOTE_ATOMIC,
        Class::Flush => {
            let feth = packet.ext.feth;
            let need = match feth.placement {
                1 => Access::FLUSH_GLOBAL,
                2 => Access::FLUSH_PERSISTENT,
                3 => Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT),
                _ => return Err(Violation::NotEnabled),
            };
            if feth.selectivity > 1 {
                return Err(Violation::NotEnabled);
            }
            need
        }
        _ => Access::empty(),
    })
}

/// Checks that the 8 bytes at an address may be changed by an atomic: access and alignment.
fn check_word(ctx: &Ctx<'_>, asker: Asker, (key, addr): (Key, u64), need: Access) -> Result<(), Violation> {
    let checked = ctx.memory.check(asker, key, addr, 8, need);
    let aligned = if addr.is_multiple_of(8) { Ok(()) } else { Err(AccessError::Misaligned(addr)) };
    checked.and(aligned).map_err(Violation::Access)
}

#[cfg(test)]
mod tests;
