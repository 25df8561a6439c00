//! A SEND or RDMA WRITE message as it arrives: opcode sequence, lengths, placement, and the receive that it uses. Reliable and
//! unreliable connections share this. The consequences of a failure for the peer are theirs.

use super::{
    common::{Ctx, QpCommon},
    rq::{RecvWqe, receive_asker},
    sges,
    sq::MAX_MESSAGE,
};
use crate::{
    violation::Violation,
    wire::{Class, Extensions, OpcodeInfo, Packet, Position, Reth},
    work::{Access, Completion, Event, WcExtra, WcOpcode, WcStatus},
};

/// The message in progress, if any.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    open: Option<Open>,
    /// The receive in use. After a message that was given up it stays for the next message.
    recv: Option<RecvWqe>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    class: Class,
    /// Payload bytes placed so far.
    done: u64,
    /// Where a WRITE goes.
    target: Reth,
}

impl Inbound {
    /// Whether a receive is in use.
    pub(crate) const fn holds_receive(&self) -> bool {
        self.recv.is_some()
    }

    /// Checks that a packet of this kind may come next (IBTA vol. 1, 9.7.4.1.2).
    pub(crate) fn follows(&self, info: &OpcodeInfo) -> Result<(), Violation> {
        let fits = match &self.open {
            Some(open) => open.class == info.class && !info.position.is_start(),
            None => info.position.is_start(),
        };
        if fits { Ok(()) } else { Err(Violation::Sequence) }
    }

    /// Takes a receive if this kind of packet needs one. False if none is posted.
    pub(crate) fn draw(&mut self, qp: &mut QpCommon, ctx: &mut Ctx<'_>, info: &OpcodeInfo) -> bool {
        if !info.takes_receive() {
            return true;
        }
        if self.recv.is_none() {
            self.recv = qp.take_recv(ctx);
        }
        self.recv.is_some()
    }

    /// Takes a packet that [`Self::follows`] and for which [`Self::draw`] succeeded. Checks lengths and access, places the
    /// payload, and completes the receive at the end of the message. After an error the message is closed, but the receive is
    /// still held.
    pub(crate) fn take(
        &mut self,
        qp: &mut QpCommon,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        let info = packet.info;
        packet_length(info.position, packet.payload.len(), qp.mtu())?;
        let mut open =
            self.open.take().unwrap_or(Open { class: info.class, done: 0, target: packet.ext.reth });
        match info.class {
            Class::Send => self.place_send(qp, ctx, &open, packet)?,
            _ => place_write(qp, ctx, &open, packet)?,
        }
        open.done += packet.payload.len() as u64;
        if info.position.is_end() {
            self.finish(qp, ctx, &open, packet)
        } else {
            self.open = Some(open);
            Ok(())
        }
    }

    fn place_send(
        &self,
        qp: &QpCommon,
        ctx: &Ctx<'_>,
        open: &Open,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        let end = open.done + packet.payload.len() as u64;
        if end > MAX_MESSAGE {
            return Err(Violation::Length);
        }
        let recv = self.recv.as_ref().ok_or(Violation::Sequence)?;
        if end > sges::total(&recv.sges) {
            return Err(Violation::ReceiveTooShort);
        }
        sges::scatter(&recv.sges, ctx.memory, receive_asker(qp, ctx), open.done, packet.payload)
            .map_err(Violation::ReceiveAccess)
    }

    fn finish(
        &mut self,
        qp: &QpCommon,
        ctx: &mut Ctx<'_>,
        open: &Open,
        packet: &Packet<'_>,
    ) -> Result<(), Violation> {
        let info = packet.info;
        let mut extra = WcExtra::None;
        if info.has_immediate() {
            extra = WcExtra::Immediate(packet.ext.imm);
        } else if info.extensions.contains(Extensions::IETH) {
            let key = packet.ext.invalidate;
            ctx.memory.invalidate(qp.asker(), key, true).map_err(Violation::Invalidate)?;
            extra = WcExtra::Invalidated(key);
        }
        let opcode = match info.class {
            Class::Send => WcOpcode::Recv,
            _ if info.has_immediate() => WcOpcode::RecvRdmaWithImm,
            _ => return Ok(()),
        };
        if let Some(recv) = self.recv.take() {
            let wc = Completion {
                wr_id: recv.wr_id,
                opcode,
                byte_len: open.done as u32,
                extra,
                qpn: qp.qpn,
                grh: true,
                solicited: packet.bth.solicited,
                ..Completion::default()
            };
            qp.complete_recv(ctx, wc);
        }
        Ok(())
    }

    /// Forgets the open message. Its receive stays for the next one. Returns whether there was a message.
    pub(crate) fn abandon(&mut self) -> bool {
        self.open.take().is_some()
    }

    /// Reports a violation that ends the queue pair to the application: by the receive in use, or else by an event.
    pub(crate) fn fail(&mut self, qp: &QpCommon, ctx: &mut Ctx<'_>, violation: Violation) {
        self.open = None;
        match self.recv.take() {
            Some(recv) => qp.fail_recv(ctx, recv.wr_id, violation),
            None => ctx.events.push_back(Event::Async(violation.event(qp.qpn))),
        }
    }

    /// Forgets the receive without a completion, because its queue was destroyed.
    pub(crate) fn forget_receive(&mut self) {
        self.recv = None;
    }

    /// Gives up the message, and completes the receive with the flush status.
    pub(crate) fn flush(&mut self, qp: &QpCommon, ctx: &mut Ctx<'_>) {
        self.open = None;
        if let Some(recv) = self.recv.take() {
            qp.complete_recv(ctx, Completion::error(recv.wr_id, WcStatus::WorkRequestFlushed, qp.qpn));
        }
    }
}

/// Checks the payload length against the path MTU. All packets of a message but the last are full, and the last of several is
/// not empty (IBTA vol. 1, 9.7.4.1.6).
fn packet_length(position: Position, payload: usize, mtu: u32) -> Result<(), Violation> {
    let mtu = mtu as usize;
    let fits = match position {
        Position::First | Position::Middle => payload == mtu,
        Position::Last => (1..=mtu).contains(&payload),
        Position::Only => payload <= mtu,
    };
    if fits { Ok(()) } else { Err(Violation::Length) }
}

/// Checks the payload against the RETH, then the access, then writes the bytes. A WRITE without bytes touches no memory and
/// needs no valid key (IBTA vol. 1, 9.7.4.1.5, C9-88).
fn place_write(qp: &QpCommon, ctx: &Ctx<'_>, open: &Open, packet: &Packet<'_>) -> Result<(), Violation> {
    let (target, payload) = (open.target, packet.payload);
    let total = u64::from(target.len);
    let end = open.done + payload.len() as u64;
    let complete = if packet.info.position.is_end() { end == total } else { end < total };
    if total > MAX_MESSAGE || !complete {
        return Err(Violation::Length);
    }
    if payload.is_empty() {
        return Ok(());
    }
    let (asker, need) = (qp.asker(), Access::REMOTE_WRITE);
    // For a message of one packet the write itself checks access. A longer message must not start if it cannot end.
    if packet.info.position == Position::First {
        ctx.memory.check(asker, target.rkey, target.addr, total, need).map_err(Violation::Access)?;
    }
    let addr = target.addr.wrapping_add(open.done);
    ctx.memory.write(asker, target.rkey, addr, need, payload).map_err(Violation::Access)
}
