//! The sending half of the unreliable services. Packets are sent once. A request is complete when its last packet was sent
//! (IBTA vol. 1, 9.8).

use super::{
    QpState, QpType,
    common::{QpCommon, Scene, SendQueue},
    plan::{Draft, Plan},
};
use crate::{
    num::{Psn, Qkey},
    wire::{self, Bth, Deth},
    work::WcStatus,
};

/// A sender of UC or UD packets.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// PSN of the next packet.
    pub next: Psn,
    /// Packets of the front request that were sent.
    sent: u32,
}

/// Base of UC's opcodes.
const UC: u8 = 0x20;
/// Base of UD's opcodes.
const UD: u8 = 0x60;

impl Sender {
    /// Starts at the transition to RTS.
    pub(crate) fn start(&mut self, qp: &QpCommon) {
        *self = Self { next: qp.attrs.sq_psn, ..Self::default() };
    }

    /// Whether no message was begun and not ended.
    pub(crate) const fn is_drained(&self) -> bool {
        self.sent == 0
    }

    /// Gives up a message that was begun.
    pub(crate) const fn abandon(&mut self) {
        self.sent = 0;
    }

    /// The next step. A datagram has at most `port_mtu` bytes of payload.
    pub(crate) fn plan(&self, qp: &QpCommon, sq: &SendQueue, port_mtu: u32) -> Plan {
        let Some(wqe) = sq.ring.front() else { return Plan::Nothing };
        if qp.state() == QpState::Sqd && self.sent == 0 {
            return Plan::Nothing;
        }
        if wqe.is_local() {
            return Plan::Local;
        }
        let (mtu, base) = if qp.config.qp_type == QpType::Uc { (qp.mtu(), UC) } else { (port_mtu, UD) };
        if base == UD && wqe.len > port_mtu {
            return Plan::Fail(WcStatus::LocalLength);
        }
        let draft = wqe.message(wqe.offset(self.sent, mtu), mtu, false);
        Plan::Send(Draft { opcode: draft.opcode.on(base), ..draft })
    }

    /// Executes the front request, which needs no packet. An error fails the request. The result is `false`, because no packet
    /// was written.
    pub(crate) fn run_local(scene: &mut Scene<'_, '_>) -> Result<bool, WcStatus> {
        let Scene { qp, sq, ctx, .. } = scene;
        let Some(wqe) = sq.ring.front() else { return Ok(false) };
        wqe.run_local(ctx.memory, qp.asker())?;
        sq.complete_front(qp, ctx, WcStatus::Success, 0);
        Ok(false)
    }

    /// Writes the packet of `draft` into `out`, which has the length of the packet. An error fails the front request.
    pub(crate) fn commit(
        &mut self,
        scene: &mut Scene<'_, '_>,
        draft: &Draft,
        out: &mut [u8],
    ) -> Result<bool, WcStatus> {
        let Scene { qp, sq, ctx, .. } = scene;
        let Some(wqe) = sq.ring.front() else { return Ok(false) };
        let end = draft.end;
        let mut bth = Bth::new(draft.opcode, qp.attrs.dest_qpn, self.next);
        bth.pkey = qp.pkey;
        bth.solicited = end && wqe.is_solicited();
        let mut ext = wqe.extensions(draft, 0);
        if let Some(dest) = sq.dests.front() {
            bth.dest_qp = dest.remote_qpn;
            let qkey = if qp.config.qp_type == QpType::Gsi {
                bth.pkey = dest.pkey.unwrap_or(qp.pkey);
                Qkey::GSI
            } else if dest.remote_qkey.is_controlled() {
                qp.attrs.qkey
            } else {
                dest.remote_qkey
            };
            ext.deth = Deth { qkey, src_qp: qp.qpn };
        }
        let Some(slot) = wire::emit(&bth, &ext, draft.payload as usize, out) else { return Ok(false) };
        wqe.read(ctx.memory, qp.asker(), draft.offset, slot).map_err(|_| WcStatus::LocalProtection)?;
        self.next = self.next.next();
        qp.stats.packets_sent += 1;
        qp.stats.bytes_sent += u64::from(draft.payload);
        if end {
            self.sent = 0;
            sq.complete_front(qp, ctx, WcStatus::Success, 0);
        } else {
            self.sent += 1;
        }
        Ok(true)
    }
}
