//! The sending half of the unreliable services: packets leave once, and a request is complete when its last one has
//! left (IBTA vol. 1, 9.8).

use super::{
    QpState, QpType,
    common::{Ctx, QpCommon},
    sq::{SendQueue, SendWqe},
};
use crate::{
    num::{Psn, Qkey},
    wire::{self, Bth, Deth, Ext, Opcode, Position, Reth},
    work::{SendFlags, SendOp, WcStatus},
};

/// A sender of UC or UD packets.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// PSN of the next packet.
    next: Psn,
    /// Packets of the front request that have left.
    sent: u32,
    /// In SQD, and whoever asked for it was not told that it has drained.
    draining: bool,
}

/// Base of UC's opcodes.
const UC: u8 = 0x20;

impl Sender {
    /// Starts anew at the transition to RTS.
    pub(crate) fn start(&mut self, qp: &QpCommon) {
        *self = Self { next: qp.attrs.sq_psn, ..Self::default() };
    }

    /// PSN of the next packet.
    pub(crate) const fn next_psn(&self) -> Psn {
        self.next
    }

    /// Whether no message is begun and not ended.
    pub(crate) const fn is_drained(&self) -> bool {
        self.sent == 0
    }

    /// SQD begins.
    pub(crate) const fn begin_drain(&mut self) {
        self.draining = true;
    }

    /// Whether the drained event is due now; true once.
    pub(crate) const fn take_drained(&mut self) -> bool {
        self.draining && self.is_drained() && {
            self.draining = false;
            true
        }
    }

    /// Gives up the message that has begun.
    pub(crate) const fn abandon(&mut self) {
        self.sent = 0;
    }

    /// Length of the next packet, BTH to ICRC; `Some(0)` for work that needs none.
    pub(crate) fn peek(&self, qp: &QpCommon, sq: &SendQueue, port_mtu: u32) -> Option<usize> {
        let wqe = sq.ring.front()?;
        if qp.state() == QpState::Sqd && self.sent == 0 {
            return None;
        }
        if wqe.is_local() || is_too_long(qp, wqe, port_mtu) {
            return Some(0);
        }
        let (opcode, _, payload, _) = self.plan(qp, wqe, port_mtu);
        Some(wire::wire_len(opcode, payload))
    }

    /// Opcode, offset, payload length and whether the message ends.
    fn plan(&self, qp: &QpCommon, wqe: &SendWqe, port_mtu: u32) -> (Opcode, u64, usize, bool) {
        let mtu = if is_connected(qp) { qp.mtu() } else { port_mtu };
        let offset = wqe.offset(self.sent, mtu);
        let left = u64::from(wqe.len) - offset;
        let end = left <= u64::from(mtu);
        let position = Position::new(self.sent == 0, end);
        let opcode = match wqe.op {
            SendOp::SendImm(_) => Opcode::send(position, true, false),
            SendOp::Write(_) => Opcode::write(position, false),
            SendOp::WriteImm(..) => Opcode::write(position, true),
            _ => Opcode::send(position, false, false),
        };
        let base = if is_connected(qp) { UC } else { 0x60 };
        (opcode.on(base), offset, left.min(u64::from(mtu)) as usize, end)
    }

    /// Does what `peek` announced. `Ok(true)`: `out` holds a packet. An error fails the front request.
    pub(crate) fn emit(
        &mut self,
        qp: &mut QpCommon,
        sq: &mut SendQueue,
        ctx: &mut Ctx<'_>,
        port_mtu: u32,
        out: &mut [u8],
    ) -> Result<bool, WcStatus> {
        let Some(wqe) = sq.ring.front() else { return Ok(false) };
        if wqe.is_local() {
            match wqe.op {
                SendOp::LocalInvalidate(key) => {
                    let done = ctx.memory.invalidate(qp.asker(), key, false);
                    done.map_err(|_| WcStatus::LocalQpOperation)?;
                }
                SendOp::BindWindow(ref bind) => {
                    let done = ctx.memory.bind_window(qp.asker(), bind);
                    done.map_err(|_| WcStatus::MemoryWindowBind)?;
                }
                _ => {}
            }
            sq.complete_front(qp, ctx, WcStatus::Success, 0);
            return Ok(false);
        }
        if is_too_long(qp, wqe, port_mtu) {
            return Err(WcStatus::LocalLength);
        }
        let (opcode, offset, payload, end) = self.plan(qp, wqe, port_mtu);
        let mut bth = Bth::new(opcode, qp.attrs.dest_qpn, self.next);
        bth.pkey = qp.pkey;
        bth.solicited =
            end && wqe.flags.contains(SendFlags::SOLICITED) && !matches!(wqe.op, SendOp::Write(_));
        let mut ext = Ext::default();
        if let Some(dest) = sq.dests.front() {
            bth.dest_qp = dest.remote_qpn;
            let qkey = if qp.config.qp_type == QpType::Gsi {
                Qkey::GSI
            } else if dest.remote_qkey.is_controlled() {
                qp.attrs.qkey
            } else {
                dest.remote_qkey
            };
            ext.deth = Deth {
                qkey,
                src_qp: if qp.config.qp_type == QpType::Gsi { crate::num::Qpn::GSI } else { qp.qpn },
            };
        }
        match wqe.op {
            SendOp::SendImm(imm) => ext.imm = imm,
            SendOp::Write(remote) => ext.reth = Reth { addr: remote.addr, rkey: remote.rkey, len: wqe.len },
            SendOp::WriteImm(remote, imm) => {
                ext.reth = Reth { addr: remote.addr, rkey: remote.rkey, len: wqe.len };
                ext.imm = imm;
            }
            _ => {}
        }
        let Some(slot) = wire::emit(&bth, &ext, payload, out) else { return Ok(false) };
        wqe.read(ctx.memory, qp.asker(), offset, slot).map_err(|_| WcStatus::LocalProtection)?;
        self.next = self.next.next();
        qp.stats.packets_sent += 1;
        qp.stats.bytes_sent += payload as u64;
        if end {
            self.sent = 0;
            sq.complete_front(qp, ctx, WcStatus::Success, 0);
        } else {
            self.sent += 1;
        }
        Ok(true)
    }
}

fn is_connected(qp: &QpCommon) -> bool {
    qp.config.qp_type == QpType::Uc
}

/// A datagram is one packet.
fn is_too_long(qp: &QpCommon, wqe: &SendWqe, port_mtu: u32) -> bool {
    !is_connected(qp) && wqe.len > port_mtu
}
