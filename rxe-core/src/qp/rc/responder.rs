//! The answering half of a reliable connection (IBTA vol. 1, 9.7.5).

use super::super::common::{Ctx, QpCommon};
use crate::{violation::Violation, wire::Packet};

/// The responder.
#[derive(Debug, Default)]
pub(crate) struct Responder {}

/// What the responder wants to send next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// A positive acknowledgement that may wait a little for company.
    DeferredAck,
    /// Anything that should leave now (NAK, READ response, atomic result).
    Now,
}

impl Responder {
    /// Starts anew with the attributes of the transition to RTR.
    pub(crate) fn start(&mut self, qp: &QpCommon) {
        let _ = qp;
        todo!()
    }

    /// Takes a request packet. An error means the queue pair goes to the error state; the NAK, if one is due, is
    /// already queued and still leaves, and the open receive, if there was one, has been completed.
    pub(crate) fn handle(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        let _ = (qp, ctx, packet);
        todo!()
    }

    /// Length on the wire (BTH to ICRC) of the next answer, and whether it may wait.
    pub(crate) fn peek(&self, qp: &QpCommon) -> Option<(Answer, usize)> {
        let _ = qp;
        todo!()
    }

    /// Writes the next answer into `out`, which has the length that `peek` gave; false if there is nothing to send
    /// after all (memory of a READ is gone: a NAK is queued in its place).
    pub(crate) fn emit(&mut self, qp: &mut QpCommon, ctx: &mut Ctx<'_>, out: &mut [u8]) -> bool {
        let _ = (qp, ctx, out);
        todo!()
    }

    /// The error state: gives up an open receive with the flush status, forgets answers (but a fatal NAK).
    pub(crate) fn flush(&mut self, qp: &mut QpCommon, ctx: &mut Ctx<'_>) {
        let _ = (qp, ctx);
        todo!()
    }
}
