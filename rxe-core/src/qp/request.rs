//! The packets of a request: how it is cut, and its headers. They are the same for reliable and unreliable services.

use super::{
    common::SendWqe,
    plan::{Draft, Half},
};
use crate::{
    wire::{AtomicEth, Ext, Feth, Opcode, Position, Reth},
    work::{Remote, SendFlags, SendOp},
};

impl SendWqe {
    /// The packet of a SEND or WRITE that begins `offset` bytes into its data. `part`: whether it is a message of its own. The
    /// opcode is that of RC.
    pub(crate) fn message(&self, offset: u64, mtu: u32, part: bool) -> Draft {
        let left = u64::from(self.len) - offset;
        let end = left <= u64::from(mtu);
        let position = Position::new(offset == 0 || part, end || part);
        let opcode = match self.op {
            SendOp::SendImm(_) => Opcode::send(position, true, false),
            SendOp::SendInvalidate(_) => Opcode::send(position, false, true),
            SendOp::Write(_) => Opcode::write(position, false),
            SendOp::WriteImm(..) => Opcode::write(position, true),
            _ => Opcode::send(position, false, false),
        };
        let payload = left.min(u64::from(mtu)) as u32;
        Draft { offset, end, part, ..Draft::single(Half::Requester, opcode, payload) }
    }

    /// Whether its last packet has the solicited bit.
    pub(crate) const fn is_solicited(&self) -> bool {
        self.flags.contains(SendFlags::SOLICITED) && self.takes_receive()
    }

    /// The extension headers of a packet. Headers that the opcode does not have are not written. A READ asks for `responses`
    /// bytes.
    pub(crate) fn extensions(&self, draft: &Draft, responses: u32) -> Ext {
        let reth =
            |Remote { addr, rkey }, offset, len| Reth { addr: u64::wrapping_add(addr, offset), rkey, len };
        let mut ext = Ext { xrc_srq: self.xrc_srq & 0x00ff_ffff, ..Ext::default() };
        match self.op {
            SendOp::SendImm(imm) => ext.imm = imm,
            SendOp::SendInvalidate(key) => ext.invalidate = key,
            SendOp::Write(remote) if draft.part => ext.reth = reth(remote, draft.offset, draft.payload),
            SendOp::Write(remote) => ext.reth = reth(remote, 0, self.len),
            SendOp::WriteImm(remote, imm) => (ext.reth, ext.imm) = (reth(remote, 0, self.len), imm),
            SendOp::Read(remote) => ext.reth = reth(remote, draft.offset, responses),
            SendOp::CompareSwap { remote: Remote { addr, rkey }, compare, swap } => {
                ext.atomic = AtomicEth { addr, rkey, swap_or_add: swap, compare };
            }
            SendOp::FetchAdd { remote: Remote { addr, rkey }, add } => {
                ext.atomic = AtomicEth { addr, rkey, swap_or_add: add, compare: 0 };
            }
            SendOp::AtomicWrite { remote, .. } => ext.reth = reth(remote, 0, 8),
            SendOp::Flush { remote, len, placement, selectivity } => {
                ext.feth = Feth { placement, selectivity };
                ext.reth = reth(remote, 0, len);
            }
            SendOp::Send | SendOp::LocalInvalidate(_) | SendOp::BindWindow(_) => {}
        }
        ext
    }
}
