//! Handles the packets that answer the requester: acknowledgements, NAKs, READ data, atomic results (IBTA vol. 1, 9.7.5.1.3,
//! 9.7.6-9.7.7). Answers complete requests in order. An answer implies all answers before it, except those with data. Missing
//! data counts as a loss.

use super::{requester::Requester, retry::Expired};
use crate::{
    memory::AccessError,
    num::Psn,
    qp::{
        common::{Scene, SendQueue, SendWqe},
        reason::{Cause, Reason},
    },
    time::Instant,
    wire::{Class, NakCode, Packet, Syndrome},
    work::{SendOp, WcStatus},
};

/// The failure of the front request: status and cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    status: WcStatus,
    cause: Cause,
}

impl Failure {
    /// Completes the front request with this failure.
    pub(crate) fn complete(self, scene: &mut Scene<'_, '_>) {
        if let Some(wqe) = scene.sq.ring.front() {
            scene.qp.note_failed(Reason::of_request(wqe, self.cause));
        }
        let vendor = if let Cause::Answered(_, syndrome) = self.cause { syndrome.bits().into() } else { 0 };
        scene.sq.complete_front(scene.qp, scene.ctx, self.status, vendor);
    }

    const fn answered(status: WcStatus, syndrome: Syndrome) -> Self {
        Self { status, cause: Cause::Answered(status, syndrome) }
    }
}

impl From<WcStatus> for Failure {
    fn from(status: WcStatus) -> Self {
        Self { status, cause: Cause::Ended(status) }
    }
}

impl From<AccessError> for Failure {
    /// The request's own memory does not allow it.
    fn from(error: AccessError) -> Self {
        Self { status: WcStatus::LocalProtection, cause: Cause::Memory(error) }
    }
}

impl Requester {
    /// Takes a response packet. An error means that the front request of the queue failed.
    pub(crate) fn handle(&mut self, scene: &mut Scene<'_, '_>, packet: &Packet<'_>) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        // The last acknowledgement may come again, only to report receives that were posted since.
        if packet.info.class == Class::Acknowledge
            && let Syndrome::Ack(code) = packet.ext.aeth.syndrome
            && (psn.next() == self.una || psn.since(self.una) < self.next.since(self.una))
        {
            self.credits.learn(packet.ext.aeth.msn, code);
        }
        if psn.since(self.una) >= self.next.since(self.una) {
            scene.qp.stats.responses_ignored += 1;
            return Ok(());
        }
        match packet.info.class {
            Class::Acknowledge => self.on_acknowledge(scene, packet),
            Class::ReadResponse => self.on_read_response(scene, packet),
            Class::AtomicAcknowledge => self.on_atomic_result(scene, packet),
            _ => Ok(()),
        }?;
        self.check_broken()
    }

    /// An error if a request could not be sent and is the oldest one now.
    pub(crate) fn check_broken(&self) -> Result<(), Failure> {
        match self.broken {
            Some(failure) if self.cur_wqe == 0 => Err(failure),
            _ => Ok(()),
        }
    }

    fn on_acknowledge(&mut self, scene: &mut Scene<'_, '_>, packet: &Packet<'_>) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        let syndrome = packet.ext.aeth.syndrome;
        match syndrome {
            Syndrome::RnrNak(_) => scene.qp.stats.rnr_naks_received += 1,
            Syndrome::Nak(NakCode::PsnSequence) => scene.qp.stats.psn_naks_received += 1,
            _ => {}
        }
        // A NAK says that everything before its PSN has arrived. An ACK says that its PSN has arrived, too.
        let answered = if matches!(syndrome, Syndrome::Ack(_)) { psn.next() } else { psn };
        if !self.acknowledge_before(scene, answered) {
            return self.on_missing(scene, psn);
        }
        let status = match syndrome {
            Syndrome::Ack(_) => return Ok(()),
            Syndrome::RnrNak(_) if self.retry.is_waiting() => return Ok(()),
            Syndrome::RnrNak(code) => {
                self.retry.on_rnr(scene.ctx.now, &scene.qp.attrs, code)?;
                self.go_back(scene, None);
                return Ok(());
            }
            Syndrome::Nak(NakCode::PsnSequence) => return self.on_loss(scene),
            Syndrome::Nak(NakCode::InvalidRequest | NakCode::InvalidRdRequest) => {
                WcStatus::RemoteInvalidRequest
            }
            Syndrome::Nak(NakCode::RemoteAccess) => WcStatus::RemoteAccess,
            Syndrome::Nak(_) => WcStatus::RemoteOperation,
            Syndrome::Reserved(_) => WcStatus::BadResponse,
        };
        Err(Failure::answered(status, syndrome))
    }

    fn on_read_response(&mut self, scene: &mut Scene<'_, '_>, packet: &Packet<'_>) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        scene.holding.heard(scene.ctx.reads, scene.ctx.now);
        if !self.acknowledge_before(scene, psn) {
            return self.on_gap(scene, psn);
        }
        let syndrome = packet.ext.aeth.syndrome;
        if packet.info.position.is_start() && !matches!(syndrome, Syndrome::Ack(_)) {
            return Err(Failure::answered(WcStatus::BadResponse, syndrome));
        }
        let mtu = scene.qp.mtu();
        let Some(wqe) = scene.sq.ring.front() else { return Ok(()) };
        match wqe.op {
            SendOp::Read(_) => {
                let offset = wqe.offset(psn.since(wqe.sent.first_psn), mtu);
                let expected = (u64::from(wqe.len) - offset).min(u64::from(mtu));
                if packet.payload.len() as u64 != expected {
                    return Err(WcStatus::BadResponse.into());
                }
                wqe.write(scene.ctx.memory, scene.qp.asker(), offset, packet.payload)?;
                scene.qp.stats.bytes_received += expected;
            }
            SendOp::Flush { .. } | SendOp::AtomicWrite { .. } if packet.payload.is_empty() => {}
            _ => return Err(WcStatus::BadResponse.into()),
        }
        self.acknowledge_to(scene, psn.next());
        Ok(())
    }

    fn on_atomic_result(&mut self, scene: &mut Scene<'_, '_>, packet: &Packet<'_>) -> Result<(), Failure> {
        let psn = packet.bth.psn;
        if !self.acknowledge_before(scene, psn) {
            return self.on_gap(scene, psn);
        }
        let Some(wqe) = scene.sq.ring.front() else { return Ok(()) };
        if !matches!(wqe.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
            return Err(WcStatus::BadResponse.into());
        }
        // The wire carries a number; memory holds it in the host's byte order.
        wqe.write(scene.ctx.memory, scene.qp.asker(), 0, &packet.ext.original.to_ne_bytes())?;
        self.acknowledge_to(scene, psn.next());
        Ok(())
    }

    /// Acknowledges everything before `psn`, as an answer to `psn` implies. False if data before `psn` is missing. Then only
    /// what comes before the missing data is acknowledged.
    fn acknowledge_before(&mut self, scene: &mut Scene<'_, '_>, psn: Psn) -> bool {
        let count = psn.since(self.una);
        let missing = self.outstanding.iter().find(|read| read.needs_data).and_then(|read| {
            let from = if read.first.is_before(self.una) { self.una } else { read.first };
            (from.since(self.una) < count).then_some(from)
        });
        // While requests are sent again, READs from the cursor on are not in `outstanding`. Their data is missing, too.
        let missing = missing.or_else(|| self.unsent_read_before(scene.sq, count));
        self.acknowledge_to(scene, missing.unwrap_or(psn));
        missing.is_none()
    }

    /// The first PSN within `count` of `una` that belongs to a READ or atomic that waits to be sent again.
    fn unsent_read_before(&self, sq: &SendQueue, count: u32) -> Option<Psn> {
        if self.cur.since(self.una) >= count {
            return None;
        }
        sq.ring.iter().take(self.started).skip(self.cur_wqe).find_map(|wqe| {
            let needs_data =
                matches!(wqe.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
            let from = if wqe.sent.first_psn.is_before(self.cur) { self.cur } else { wqe.sent.first_psn };
            (needs_data && from.since(self.una) < count).then_some(from)
        })
    }

    /// Advances `una` to `to` and completes the requests that end before it.
    fn acknowledge_to(&mut self, scene: &mut Scene<'_, '_>, to: Psn) {
        if to == self.una {
            return;
        }
        let (moved, sent) = (to.since(self.una), self.cur.since(self.una));
        self.una = to;
        while let Some(read) = self.outstanding.front()
            && read.last.is_before(to)
        {
            scene.holding.came(scene.ctx.reads, read.bytes);
            self.outstanding.pop_front();
        }
        while self.read_ends.front().is_some_and(|end| end.is_before(to)) {
            self.read_ends.pop_front();
        }
        self.complete_answered(scene);
        if moved >= sent {
            self.cur = self.una;
            self.cur_wqe = 0;
        }
        if moved > sent {
            // Answers to the first copies came before everything was sent again. So a request that could not be read for that is
            // not `broken` any more.
            self.broken = None;
            scene.holding.turned = true;
        }
        let Scene { holding, ctx, .. } = scene;
        holding.acknowledged(ctx.window, ctx.now, to, !self.has_outstanding());
        self.retry.on_acknowledged(scene.ctx.now, to);
        self.retry.on_progress(scene.ctx.now, &scene.qp.attrs, self.has_outstanding());
    }

    /// Completes the front requests that are answered completely. Local requests at the front were executed, and complete too.
    pub(crate) fn complete_answered(&mut self, scene: &mut Scene<'_, '_>) {
        while self.started > 0
            && scene.sq.ring.front().is_some_and(|wqe| self.una.since(wqe.sent.first_psn) >= wqe.sent.psns)
        {
            scene.sq.complete_front(scene.qp, scene.ctx, WcStatus::Success, 0);
            self.started -= 1;
            self.cur_wqe = self.cur_wqe.saturating_sub(1);
        }
    }

    /// READ data or an atomic's result is missing before the response to `psn` (an implied NAK).
    fn on_gap(&mut self, scene: &mut Scene<'_, '_>, psn: Psn) -> Result<(), Failure> {
        scene.qp.stats.implied_naks += 1;
        if self.cur != self.una && self.retry.on_gap(scene.ctx.now, psn) {
            scene.qp.stats.probes += 1;
            self.go_back(scene, Some(scene.ctx.now));
            return Ok(());
        }
        self.on_missing(scene, psn)
    }

    /// Data is missing before any kind of answer. An acknowledgement may come twice, so it never proves that a packet that was
    /// sent again is lost.
    fn on_missing(&mut self, scene: &mut Scene<'_, '_>, psn: Psn) -> Result<(), Failure> {
        if self.cur == self.una {
            // Everything is about to be sent again anyway.
            scene.qp.stats.responses_ignored += 1;
            return Ok(());
        }
        self.retry.note_beyond(psn);
        self.on_loss(scene)
    }

    fn on_loss(&mut self, scene: &mut Scene<'_, '_>) -> Result<(), Failure> {
        if self.retry.on_loss(scene.ctx.now)? {
            scene.ctx.lost(begins_with_read(scene.sq));
            self.go_back(scene, Some(scene.ctx.now));
        }
        Ok(())
    }

    /// Time passed: ends an RNR wait, or sends again because the oldest request is unanswered.
    pub(crate) fn handle_timeout(&mut self, scene: &mut Scene<'_, '_>, now: Instant) -> Result<(), Failure> {
        if self.retry.end_wait(now) {
            return Ok(());
        }
        let expired = self.retry.take_expired(now);
        if expired == Expired::Nothing {
            return Ok(());
        }
        if !self.has_outstanding() {
            self.retry.on_progress(now, &scene.qp.attrs, false);
            return Ok(());
        }
        let oldest = scene.sq.ring.front();
        if expired == Expired::Probe {
            // A FLUSH may take long at the peer, and so may an ATOMIC WRITE behind it. And if the oldest request is just about to
            // be sent again, the peer had no chance to answer.
            if oldest.is_none_or(SendWqe::may_take_long) || self.cur == self.una {
                return Ok(());
            }
            scene.qp.stats.probes += 1;
            scene.ctx.silent(begins_with_read(scene.sq));
            self.go_back(scene, None);
            return Ok(());
        }
        scene.qp.stats.timeouts += 1;
        self.retry.on_timeout()?;
        scene.ctx.lost(begins_with_read(scene.sq));
        self.go_back(scene, None);
        scene.holding.silent = true;
        Ok(())
    }

    /// If `result` is an error, completes the front request with it and returns true. Then the queue pair must go to the error
    /// state.
    pub(crate) fn ends(scene: &mut Scene<'_, '_>, result: Result<(), Failure>) -> bool {
        result.map_err(|failure| failure.complete(scene)).is_err()
    }
}

/// Whether the oldest request is a READ. Then the READ request is missing, which the window does not count, or its response.
fn begins_with_read(sq: &SendQueue) -> bool {
    sq.ring.front().is_some_and(|wqe| matches!(wqe.op, SendOp::Read(_)))
}
