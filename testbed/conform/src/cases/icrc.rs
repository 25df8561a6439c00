//! The invariant CRC: which bytes it covers, and that packets with a wrong one are dropped (IBTA vol. 1, 9.8 and A17.3.3).

use crate::{
    bench::Bench,
    case::{Case, Outcome, must, named, numbered, template},
    conn::{Conn, pattern},
    dut::{Feature, WrOp},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend_from_slice(CASES);
    let bytes = [
        (0, "OPCODE", "the opcode"),
        (1, "FLAGS", "the byte of SE, MigReq and pad count"),
        (3, "PKEY", "the P_Key"),
        (8, "ACKREQ", "the byte of AckReq"),
        (11, "PSN", "the PSN"),
        (19, "VA", "the address"),
        (23, "RKEY", "the R_Key"),
        (27, "LENGTH", "the DMA length"),
        (28, "DATA", "the first byte of payload"),
        (33, "END", "the last byte of payload"),
        (34, "PAD", "the pad"),
        (36, "ICRC", "the ICRC itself"),
    ];
    all.extend(COVERS.family(named(bytes), covers));
    let masks = [(0, "ONE", 1), (1, "ALL", u32::MAX), (2, "SWAPPED", 0), (3, "HIGH", 0x8000_0000)];
    let members = masks.map(|(at, id, mask)| {
        let words =
            if mask == 0 { "its bytes in the other order".into() } else { format!("bits {mask:#x} wrong") };
        (at, id.to_owned(), words)
    });
    all.extend(WRONG.family(members, wrong));
    let members =
        [0x00, 0x01, 0x03, 0x68, 0xff].map(|tos| (tos, format!("{tos:02X}"), format!("{tos:#04x}")));
    all.extend(TOS.family(members, |b, tos| accepted(b, |packet| packet.tos(tos as u8))));
    all.extend(TTL.family(numbered([1, 2, 255]), |b, ttl| accepted(b, |packet| packet.ttl(ttl as u8))));
}

const COVERS: Case =
    must("ICRC.COVERS", "The ICRC covers {}: a packet damaged there is dropped", "IBTA A17.3.3", template);
const WRONG: Case = must(
    "ICRC.WRONG",
    "A packet whose ICRC has {} is dropped in silence",
    "IBTA 9.6.1.1.2, A17.3.3",
    template,
);
const TOS: Case =
    must("ICRC.MASKED.TOS", "A packet with TOS or traffic class {} is taken", "IBTA A17.3.3", template);
const TTL: Case =
    must("ICRC.MASKED.TTL", "A packet with TTL or hop limit {} is taken", "IBTA A17.3.3", template);

/// A WRITE of six bytes: 28 bytes of headers, the payload, two bytes of padding, the ICRC.
fn six(c: &Conn) -> Packet {
    c.write(0, &pattern(7, 6))
}

fn covers(b: &mut Bench, at: u32) -> Outcome {
    let mut c = b.rc()?;
    c.ignores(six(&c).damaged(at as u16))?;
    c.holds(0, &[0; 8])
}

fn wrong(b: &mut Bench, which: u32) -> Outcome {
    let mut c = b.rc()?;
    let packet = six(&c);
    let mask = match which {
        0 => 1,
        1 => u32::MAX,
        2 => {
            // The ICRC in big-endian order; little-endian is right.
            let ends = c.world.borrow().ends();
            let whole = packet.clone().dest_qp(c.qp.qpn).psn(c.psn).encode(&ends);
            let icrc = whole.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            icrc ^ icrc.swap_bytes()
        }
        _ => 0x8000_0000,
    };
    c.ignores(packet.icrc_xor(mask))?;
    c.holds(0, &[0; 8])
}

fn accepted(b: &mut Bench, change: impl Fn(Packet) -> Packet) -> Outcome {
    let mut c = b.rc()?;
    let psn = c.tx(change(six(&c)))?;
    c.acked(psn)?;
    c.holds(0, &pattern(7, 6))
}

const CASES: &[Case] = &[
    must(
        "ICRC.MASKED.BTH",
        "FECN, BECN and the reserved bits beside them do not count",
        "IBTA A17.3.3",
        |b| accepted(b, |packet| packet.fecn(true).becn(true).resv6(0x3f)),
    ),
    must(
        "ICRC.MASKED.SUM",
        "The UDP checksum does not count: none and the right one are both taken",
        "IBTA A17.3.3",
        |b| accepted(b, |packet| packet.udp_sum(0)),
    )
    .needs(&[Feature::Udp]),
    must("ICRC.MASKED.FLOW", "The IPv6 flow label does not count", "IBTA A17.3.3", |b| {
        accepted(b, |packet| packet.flow(0xa_bcde))
    })
    .needs(&[Feature::IpHeader]),
    must(
        "ICRC.IDENT.1",
        "Any IPv4 identification is taken, as the ICRC covers it",
        "IBTA A17.3.3; kernel rxe",
        |b| accepted(b, |packet| packet.ident(0xbeef)),
    )
    .needs(&[Feature::IpHeader, Feature::Udp]),
    must("ICRC.PORT.1", "Any UDP source port is taken", "IBTA A17.5", |b| {
        accepted(b, |packet| packet.sport(50_000))?;
        accepted(b, |packet| packet.sport(1))
    })
    .needs(&[Feature::IpHeader, Feature::Udp]),
    must("ICRC.CUT.1", "A packet that ends inside its headers is dropped", "IBTA 9.6.1", |b| {
        let mut c = b.rc()?;
        for cut in [1, 4, 12, 20, 38] {
            c.ignores(six(&c).cut(cut))?;
        }
        c.holds(0, &[0; 8])
    }),
    must("ICRC.RESPONSE.1", "A response with a wrong ICRC acknowledges nothing", "IBTA 9.8", |b| {
        let mut c = b.rc_with(|o| o.timeout = 0)?;
        let wr = c.post(WrOp::Send, 8)?;
        let got = c.request(Packet::of(op::SEND_ONLY))?;
        let psn = got.psn.unwrap_or(0);
        c.respond(psn, Packet::of(op::ACK).msn(1).icrc_xor(1))?;
        c.nothing_done(crate::dut::Kind::Send)?;
        c.ack(psn)?;
        c.done(crate::dut::Kind::Send, wr).map(|_| ())
    }),
];
