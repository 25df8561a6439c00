//! The receiving half of an unreliable connection (IBTA vol. 1, 9.8.2). A message that is not complete is dropped, and the peer
//! is not told.

use super::{
    common::{Ctx, QpCommon},
    inbound::Inbound,
};
use crate::{
    num::Psn,
    violation::Violation,
    wire::{Class, Packet},
    work::Access,
};

/// The receiver.
#[derive(Debug, Default)]
pub(crate) struct UcReceiver {
    /// PSN of the next packet, if none is lost.
    pub expected: Psn,
    /// Whether the rest of a message is skipped, because the message was given up and counted.
    skipping: bool,
    inbound: Inbound,
}

impl UcReceiver {
    /// Starts with the attributes of the transition to RTR.
    pub(crate) fn start(&mut self, qp: &QpCommon) {
        *self = Self { expected: qp.attrs.rq_psn, ..Self::default() };
    }

    /// Takes a packet. An error means that the queue pair goes to the error state; the receive in use was completed. Any other
    /// fault drops the message and is counted. Then its receive is used for the next message.
    pub(crate) fn handle(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        let (info, psn) = (packet.info, packet.bth.psn);
        qp.establish(ctx);
        let gap = psn != self.expected;
        self.expected = psn.next();
        if info.position.is_start() {
            self.skipping = false;
            if self.inbound.abandon() {
                qp.stats.dropped_out_of_order += 1;
            }
        } else if gap {
            self.inbound.abandon();
            self.skipping = true;
            qp.stats.dropped_out_of_order += 1;
        }
        if self.skipping {
            return Ok(());
        }
        self.take(qp, ctx, packet)
    }

    fn take(&mut self, qp: &mut QpCommon, ctx: &mut Ctx<'_>, packet: &Packet<'_>) -> Result<(), Violation> {
        let info = packet.info;
        let is_denied = info.class == Class::Write && !qp.attrs.access.contains(Access::REMOTE_WRITE);
        let dropped = if is_denied || self.inbound.follows(info).is_err() {
            &mut qp.stats.dropped_refused
        } else if !self.inbound.draw(qp, ctx, info) {
            &mut qp.stats.dropped_no_receive
        } else {
            match self.inbound.take(qp, ctx, packet) {
                Ok(()) => return Ok(()),
                // Our own receive is at fault: too short, or its memory. The application must be told (IBTA vol. 1, 9.8.2.2.6).
                Err(violation @ (Violation::ReceiveTooShort | Violation::ReceiveAccess(_))) => {
                    self.inbound.fail(qp, ctx, violation);
                    return Err(violation);
                }
                Err(_) => &mut qp.stats.dropped_refused,
            }
        };
        *dropped += 1;
        self.inbound.abandon();
        self.skipping = !info.position.is_end();
        Ok(())
    }

    /// The queue pair is in error: completes an open receive with the flush status.
    pub(crate) fn flush(&mut self, qp: &mut QpCommon, ctx: &mut Ctx<'_>) {
        self.inbound.flush(qp, ctx);
        self.skipping = false;
    }
}

#[cfg(test)]
mod tests;
