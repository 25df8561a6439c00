//! Receives datagrams (IBTA vol. 1, 9.8.3), also for queue pair 1.

use super::{
    attrs::QpType,
    common::{Ctx, QpCommon},
    rq::{RecvWqe, receive_asker},
    sges,
};
use crate::{
    num::{Pkey, Qkey},
    violation::Violation,
    wire::{NEXT_HEADER_BTH, Packet},
    work::{Completion, WcExtra, WcOpcode},
};

/// Bytes in front of every datagram in its receive: the area of the IP header.
const GRH_LEN: u64 = 40;

/// The service level that ConnectX cards report for a datagram: bits 2:0 name the packet's network header, bit 3 is UDP.
const SL_UDP_IPV4: u8 = 8 | 2;
const SL_UDP_IPV6: u8 = 8 | 1;
const SL_ROCE_V1: u8 = 0;

/// Takes a datagram. `grh` is the area in front of it: an IPv6 header, or 20 zero bytes and an IPv4 header. With a wrong Q_Key,
/// without a receive, or if the receive is too small, the datagram is dropped and counted; the receive stays. An error means that
/// the memory of the receive is at fault. Then the receive was completed, and the queue pair goes to the error state.
pub(crate) fn receive(
    qp: &mut QpCommon,
    ctx: &mut Ctx<'_>,
    packet: &Packet<'_>,
    grh: &[u8; GRH_LEN as usize],
) -> Result<(), Violation> {
    let gsi = qp.config.qp_type == QpType::Gsi;
    let own = if gsi { Qkey::GSI } else { qp.attrs.qkey };
    if packet.ext.deth.qkey != own {
        qp.stats.dropped_qkey += 1;
        return Ok(());
    }
    let Some(capacity) = next_recv(qp, ctx).map(|recv| sges::total(&recv.sges)) else {
        qp.stats.dropped_no_receive += 1;
        return Ok(());
    };
    let len = GRH_LEN + packet.payload.len() as u64;
    if capacity < len {
        qp.stats.dropped_length += 1;
        return Ok(());
    }
    let Some(recv) = qp.take_recv(ctx) else { return Ok(()) };
    let asker = receive_asker(qp, ctx);
    let placed = sges::scatter(&recv.sges, ctx.memory, asker, 0, grh)
        .and_then(|()| sges::scatter(&recv.sges, ctx.memory, asker, GRH_LEN, packet.payload));
    if let Err(error) = placed {
        let violation = Violation::ReceiveAccess(error);
        qp.fail_recv(ctx, recv.wr_id, violation);
        return Err(violation);
    }
    let immediate = packet.info.has_immediate();
    let wc = Completion {
        wr_id: recv.wr_id,
        opcode: WcOpcode::Recv,
        byte_len: len as u32,
        extra: if immediate { WcExtra::Immediate(packet.ext.imm) } else { WcExtra::None },
        qpn: qp.qpn,
        src_qp: packet.ext.deth.src_qp,
        grh: true,
        sl: match (grh[0] >> 4, grh[6]) {
            (6, NEXT_HEADER_BTH) => SL_ROCE_V1,
            (6, _) => SL_UDP_IPV6,
            _ => SL_UDP_IPV4,
        },
        pkey: if gsi { packet.bth.pkey } else { Pkey::DEFAULT },
        solicited: packet.bth.solicited,
        ..Completion::default()
    };
    qp.complete_recv(ctx, wc);
    Ok(())
}

/// The receive that the next datagram would use.
fn next_recv<'a>(qp: &'a QpCommon, ctx: &'a Ctx<'_>) -> Option<&'a RecvWqe> {
    match qp.config.srq {
        None => qp.rq.queue.front(),
        Some(id) => ctx.srqs.get(id.0 as usize)?.queue.queue.front(),
    }
}

#[cfg(test)]
mod tests;
