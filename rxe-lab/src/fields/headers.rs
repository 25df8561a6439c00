//! Fields of frame, network header, BTH and extension headers.

use super::{Field, Value, cm};
use crate::{
    frame::Net,
    icrc::Icrc,
    packet::{Mad, Packet},
};
use rxe_core::wire::{Bth, Ext, Extensions, Head, Opcode, Syndrome, icrc::ROCE_PORT, rnr_delay};

/// Payload bytes that are shown.
const SHOWN_PAYLOAD: usize = 32;

/// All fields of a packet.
#[must_use]
pub fn fields(packet: &Packet<'_>) -> Vec<Field> {
    let mut all = vec![frame(packet), net(&packet.frame.net, packet)];
    match &packet.head {
        Ok(head) => {
            all.push(bth(&head.bth));
            extensions(&head.ext, head.info.extensions, &mut all);
            payload(packet, head, &mut all);
        }
        Err(error) => {
            let opcode = packet
                .opcode()
                .map(|opcode| Field::number("opcode", opcode.0.into(), 2).note(opcode.to_string()));
            all.extend(opcode);
            all.push(Field::text("unreadable", error.to_string()));
        }
    }
    all.push(icrc(packet.icrc));
    all
}

fn frame(packet: &Packet<'_>) -> Field {
    let mut inside = vec![Field::count("number", packet.number)];
    if packet.part > 0 {
        inside.push(Field::count("part", packet.part.into()).note("left in one piece with others"));
    }
    if let Some([from, to]) = packet.frame.macs {
        inside.push(Field::text("eth_src", from.to_string()));
        inside.push(Field::text("eth_dst", to.to_string()));
    }
    for tci in packet.frame.tags() {
        let priority = format!("priority {}", tci >> 13);
        inside.push(Field::count("vlan", (tci & 0xfff).into()).note(priority));
    }
    if let Some(tunnel) = packet.frame.tunnel {
        inside.push(Field::text("mirrored_in", tunnel.to_string()));
    }
    Field::group("frame", inside)
}

fn ecn(traffic_class: u8) -> &'static str {
    match traffic_class & 3 {
        0 => "not ECN-capable",
        1 => "ECN-capable, ECT(1)",
        2 => "ECN-capable, ECT(0)",
        _ => "marked: congestion experienced",
    }
}

fn net(net: &Net, packet: &Packet<'_>) -> Field {
    let (src, dst) = net.addresses();
    let mut inside = vec![Field::new("src", Value::Address(src)), Field::new("dst", Value::Address(dst))];
    let traffic_class = net.traffic_class();
    let class = Field::number("traffic_class", traffic_class.into(), 2);
    inside.push(class.note(format!("DSCP {}, {}", traffic_class >> 2, ecn(traffic_class))));
    inside.push(Field::count("hops", net.hops().into()));
    let name = match net {
        Net::V4 { ident, fragment, .. } => {
            inside.push(Field::number("ident", (*ident).into(), 4));
            inside.push(Field::flag("dont_fragment", fragment & 0x4000 != 0));
            "ipv4"
        }
        Net::V6 { flow_label, .. } => {
            inside.push(Field::number("flow_label", (*flow_label).into(), 5));
            "ipv6"
        }
        Net::Grh { .. } => "grh",
    };
    if !matches!(net, Net::Grh { .. }) {
        inside.push(Field::count("src_port", packet.frame.src_port.into()));
        inside.push(Field::count("dst_port", ROCE_PORT.into()));
    }
    Field::group(name, inside)
}

fn bth(bth: &Bth) -> Field {
    let Opcode(opcode) = bth.opcode;
    Field::group(
        "bth",
        vec![
            Field::number("opcode", opcode.into(), 2).note(bth.opcode.to_string()),
            Field::flag("solicited", bth.solicited),
            Field::flag("migreq", bth.migreq),
            Field::count("pad", bth.pad.into()),
            Field::count("version", bth.version.into()),
            Field::number("pkey", bth.pkey.0.into(), 4),
            Field::flag("fecn", bth.congestion & Bth::FECN != 0),
            Field::flag("becn", bth.congestion & Bth::BECN != 0),
            Field::number("dest_qp", bth.dest_qp.value().into(), 6),
            Field::flag("ack_req", bth.ack_req),
            Field::count("psn", bth.psn.value().into()).note(format!("{:#08x}", bth.psn.value())),
        ],
    )
}

fn extensions(ext: &Ext, which: Extensions, all: &mut Vec<Field>) {
    if which.contains(Extensions::DETH) {
        all.push(Field::group(
            "deth",
            vec![
                Field::number("qkey", ext.deth.qkey.0.into(), 8),
                Field::number("src_qp", ext.deth.src_qp.value().into(), 6),
            ],
        ));
    }
    if which.contains(Extensions::XRCETH) {
        all.push(Field::group("xrceth", vec![Field::number("srq", ext.xrc_srq.into(), 6)]));
    }
    if which.contains(Extensions::FETH) {
        all.push(Field::group(
            "feth",
            vec![
                Field::number("placement", ext.feth.placement.into(), 1)
                    .note("1 global visibility, 2 persistence"),
                Field::count("selectivity", ext.feth.selectivity.into())
                    .note("0 the range, 1 the whole region"),
            ],
        ));
    }
    if which.contains(Extensions::RETH) {
        all.push(Field::group(
            "reth",
            vec![
                Field::number("va", ext.reth.addr, 16),
                Field::number("rkey", ext.reth.rkey.0.into(), 8),
                Field::count("length", ext.reth.len.into()),
            ],
        ));
    }
    if which.contains(Extensions::ATOMIC_ETH) {
        all.push(Field::group(
            "atomic_eth",
            vec![
                Field::number("va", ext.atomic.addr, 16),
                Field::number("rkey", ext.atomic.rkey.0.into(), 8),
                Field::number("swap_or_add", ext.atomic.swap_or_add, 16),
                Field::number("compare", ext.atomic.compare, 16),
            ],
        ));
    }
    if which.contains(Extensions::AETH) {
        let syndrome = ext.aeth.syndrome;
        all.push(Field::group(
            "aeth",
            vec![
                Field::number("syndrome", syndrome.bits().into(), 2).note(syndrome_note(syndrome)),
                Field::count("msn", ext.aeth.msn.value().into()),
            ],
        ));
    }
    if which.contains(Extensions::ATOMIC_ACK_ETH) {
        all.push(Field::group("atomic_ack_eth", vec![Field::number("original", ext.original, 16)]));
    }
    if which.contains(Extensions::IMMDT) {
        all.push(Field::group(
            "immdt",
            vec![Field::number("immediate", u32::from_be_bytes(ext.imm).into(), 8)],
        ));
    }
    if which.contains(Extensions::IETH) {
        all.push(Field::group("ieth", vec![Field::number("rkey", ext.invalidate.0.into(), 8)]));
    }
}

fn syndrome_note(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack(0x1f) => "ACK, no end-to-end credits".to_owned(),
        Syndrome::Ack(code) => format!("ACK, credit code {code}"),
        Syndrome::RnrNak(code) => format!("RNR NAK, timer {code}: {} us", rnr_delay(code).as_micros()),
        other => other.to_string(),
    }
}

fn payload(packet: &Packet<'_>, head: &Head, all: &mut Vec<Field>) {
    match packet.mad() {
        Some(Mad::Cm(datagram)) => all.push(cm::mad(&datagram)),
        Some(Mad::Other(header)) => all.push(cm::header(&header)),
        Some(Mad::Cut) => all.push(Field::text("mad", "cut")),
        None => {}
    }
    if head.payload_len == 0 {
        return;
    }
    let bytes = packet.payload();
    let mut inside = vec![Field::count("length", head.payload_len as u64)];
    if packet.mad().is_none() {
        inside.push(Field::new("front", Value::Bytes(bytes[..bytes.len().min(SHOWN_PAYLOAD)].to_vec())));
    }
    all.push(Field::group("payload", inside));
}

fn icrc(icrc: Icrc) -> Field {
    let note = match icrc {
        Icrc::Cut { missing } => format!("{missing} bytes of the packet were not kept"),
        Icrc::Wrong { .. } => {
            "corrupted, its headers were rewritten on the way, or its sender computes it wrongly".to_owned()
        }
        _ => String::new(),
    };
    Field::text("icrc", icrc.words()).note(note)
}
