//! Datagrams: payload, immediate, source queue pair, and the 40 bytes before the payload.

use crate::{
    bench::QKEY,
    pair::{Pair, equal, same},
};
use rxe_verbs::{Gid, Qkey, SendOp, SendWr, WcExtra, WcOpcode};
use serde_json::json;
use std::net::IpAddr;
use testbed::{agent::Failure, pattern::pattern};

/// Bytes before the payload in a datagram's receive buffer.
const GRH: usize = 40;

/// What the kernel's rxe puts there: the IPv6 header, or 20 zero bytes and the IPv4 header.
fn check_grh(grh: &[u8], from: IpAddr, to: IpAddr, udp_payload: usize) -> Result<(), Failure> {
    let two = |at: usize| usize::from(u16::from_be_bytes([grh[at], grh[at + 1]]));
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            equal("the first half of the GRH area", &grh[..20], &[0; 20])?;
            equal("version, header length", grh[20], 0x45)?;
            equal("total length", two(22), 28 + udp_payload)?;
            equal("protocol", grh[29], 17)?;
            equal("source", &grh[32..36], &from.octets()[..])?;
            equal("destination", &grh[36..40], &to.octets()[..])
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            equal("version", grh[0] >> 4, 6)?;
            equal("payload length", two(4), 8 + udp_payload)?;
            equal("next header", grh[6], 17)?;
            equal("source", &grh[8..24], &from.octets()[..])?;
            equal("destination", &grh[24..40], &to.octets()[..])
        }
        _ => Err("addresses of two families".into()),
    }
}

/// Bytes of a datagram's UDP payload: BTH, DETH, immediate, payload, pad, ICRC.
const fn udp_payload(len: usize, immediate: bool) -> usize {
    12 + 8 + if immediate { 4 } else { 0 } + len.next_multiple_of(4) + 4
}

/// 0, 1 and an odd number of bytes, and the largest datagram the kernel's port takes.
fn lengths(pair: &mut Pair<'_>) -> Result<[usize; 4], Failure> {
    let mtu = pair.agent.number("query_port", &json!({ "ctx": pair.their_ctx }), "active_mtu")?;
    Ok([0, 1, 1023, usize::try_from(mtu)?])
}

fn we_send_as(pair: &mut Pair<'_>, immediate: bool) -> Result<(), Failure> {
    let op = if immediate { SendOp::SendImm([1, 2, 3, 4]) } else { SendOp::Send };
    let av = pair.context.address_vector(0, Gid::from(pair.their_ip))?;
    let dest = pair.pd.create_ah(av).dest(pair.their_qpn, Qkey(QKEY));
    for (seed, len) in (1..).zip(lengths(pair)?) {
        pair.they_receive(0, GRH + 8192)?;
        pair.mr.write_at(0, &pattern(seed, len))?;
        pair.qp.post_send(&SendWr { dest: Some(dest), ..SendWr::new(1, op, &pair.sges(0, len)?) })?;
        pair.we_did(WcOpcode::Send)?;
        let wc = pair.they_did("RECV")?;
        equal("byte_len", wc["byte_len"].as_u64(), Some((GRH + len) as u64))?;
        equal("the source queue pair", wc["src_qp"].as_u64(), Some(pair.qp.qpn().value().into()))?;
        equal("the immediate", wc["imm"].as_u64(), immediate.then_some(0x0102_0304))?;
        if !wc["wc_flags"].as_array().is_some_and(|flags| flags.contains(&json!("GRH"))) {
            return Err(format!("no GRH flag: {wc}").into());
        }
        let grh = pair.their_bytes(0, GRH)?;
        check_grh(&grh, pair.our_ip, pair.their_ip, udp_payload(len, immediate))?;
        pair.they_check(GRH, len, seed)?;
    }
    pair.nothing_more()
}

fn they_send_as(pair: &mut Pair<'_>, immediate: bool) -> Result<(), Failure> {
    let opcode = if immediate { "SEND_WITH_IMM" } else { "SEND" };
    for (seed, len) in (1..).zip(lengths(pair)?) {
        pair.we_receive(3, 0, GRH + 8192)?;
        pair.they_fill(0, len, seed)?;
        pair.they_post(&[json!({
            "opcode": opcode, "sge": pair.their_sges(0, len), "imm": 0x0102_0304,
            "ah": pair.their_ah, "remote_qpn": pair.qp.qpn().value(), "remote_qkey": QKEY,
        })])?;
        let wc = pair.we_did(WcOpcode::Recv)?;
        pair.they_did("SEND")?;
        equal("byte_len", wc.byte_len as usize, GRH + len)?;
        equal("the source queue pair", wc.src_qp, pair.their_qpn)?;
        let extra = if immediate { WcExtra::Immediate([1, 2, 3, 4]) } else { WcExtra::None };
        equal("the immediate", wc.extra, extra)?;
        equal("the GRH flag", wc.grh, true)?;
        let grh = pair.mr.read_vec(0, GRH)?;
        check_grh(&grh, pair.their_ip, pair.our_ip, udp_payload(len, immediate))?;
        same("what was received", &pair.mr.read_vec(GRH, len)?, &pattern(seed, len))?;
    }
    pair.nothing_more()
}

pub(crate) fn we_send(pair: &mut Pair<'_>) -> Result<(), Failure> {
    we_send_as(pair, false)
}

pub(crate) fn we_send_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    we_send_as(pair, true)
}

pub(crate) fn they_send(pair: &mut Pair<'_>) -> Result<(), Failure> {
    they_send_as(pair, false)
}

pub(crate) fn they_send_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    they_send_as(pair, true)
}
