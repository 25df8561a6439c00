//! What is emitted decodes to the same values, and decoding takes anything.

mod wire_common;

use proptest::prelude::*;
use rxe_core::{
    num::{Key, Msn, Pkey, Psn, Qkey, Qpn},
    wire::{
        Aeth, AtomicEth, BTH_LEN, Bth, DecodeError, Deth, Ext, Extensions, Feth, ICRC_LEN, Opcode, Packet,
        Reth, Syndrome, emit, wire_len,
    },
};
use wire_common::{frames, vectors};

fn known_opcodes() -> impl Strategy<Value = Opcode> {
    let known: Vec<_> = (0..=255).map(Opcode).filter(|opcode| opcode.info().is_some()).collect();
    prop::sample::select(known)
}

prop_compose! {
    fn bths()(opcode in known_opcodes(), solicited: bool, migreq: bool, pkey: u16, congestion: u8, qpn: u32,
              ack_req: bool, psn: u32) -> Bth {
        Bth { opcode, solicited, migreq, pad: 0, version: 0, pkey: Pkey(pkey), congestion, dest_qp: Qpn::new(qpn),
              ack_req, psn: Psn::new(psn) }
    }
}

prop_compose! {
    fn exts()(qkey: u32, qpn: u32, srq in 0_u32..1 << 24, placement in 0_u8..16, selectivity in 0_u8..4,
              reth: (u64, u32, u32), atomic: (u64, u32, u64, u64), syndrome: u8, msn: u32, rest: (u64, [u8; 4], u32))
              -> Ext {
        Ext {
            deth: Deth { qkey: Qkey(qkey), src_qp: Qpn::new(qpn) },
            xrc_srq: srq,
            feth: Feth { placement, selectivity },
            reth: Reth { addr: reth.0, rkey: Key(reth.1), len: reth.2 },
            atomic: AtomicEth { addr: atomic.0, rkey: Key(atomic.1), swap_or_add: atomic.2, compare: atomic.3 },
            aeth: Aeth { syndrome: Syndrome::from_bits(syndrome), msn: Msn::new(msn) },
            original: rest.0,
            imm: rest.1,
            invalidate: Key(rest.2),
        }
    }
}

/// `ext` with everything that `which` does not name at its default.
fn only(which: Extensions, ext: Ext) -> Ext {
    let mut out = Ext::default();
    for one in which.iter() {
        match one {
            Extensions::DETH => out.deth = ext.deth,
            Extensions::XRCETH => out.xrc_srq = ext.xrc_srq,
            Extensions::FETH => out.feth = ext.feth,
            Extensions::RETH => out.reth = ext.reth,
            Extensions::ATOMIC_ETH => out.atomic = ext.atomic,
            Extensions::AETH => out.aeth = ext.aeth,
            Extensions::ATOMIC_ACK_ETH => out.original = ext.original,
            Extensions::IMMDT => out.imm = ext.imm,
            Extensions::IETH => out.invalidate = ext.invalidate,
            other => panic!("unknown header {other:?}"),
        }
    }
    out
}

fn build(bth: &Bth, ext: &Ext, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xee; wire_len(bth.opcode, payload.len())];
    emit(bth, ext, payload.len(), &mut bytes).expect("the length fits").copy_from_slice(payload);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 20 } else { 2000 }))]

    #[test]
    fn bth_round_trip(bth in bths(), pad in 0_u8..4, version in 0_u8..16) {
        let bth = Bth { pad, version, ..bth };
        prop_assert_eq!(Bth::parse(&bth.emit()), bth);
    }

    #[test]
    fn bth_bytes_round_trip(bytes: [u8; BTH_LEN]) {
        let mut wanted = bytes;
        wanted[8] &= 0x80;
        prop_assert_eq!(Bth::parse(&bytes).emit(), wanted, "all but the reserved seven bits");
    }

    #[test]
    fn packet_round_trip(bth in bths(), ext in exts(), payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let info = bth.opcode.info().unwrap();
        let payload = if info.payload { &payload[..] } else { &[] };
        let bytes = build(&bth, &ext, payload);
        prop_assert_eq!(bytes.len() % 4, 0);
        let packet = Packet::decode(&bytes).unwrap();
        let pad = payload.len().wrapping_neg() & 3;
        prop_assert_eq!(packet.bth, Bth { pad: pad as u8, ..bth });
        prop_assert_eq!(packet.ext, only(info.extensions, ext));
        prop_assert_eq!(packet.payload, payload);
        prop_assert_eq!(packet.info, info);
        let end = bytes.len() - ICRC_LEN;
        prop_assert!(bytes[end - pad..end].iter().all(|&byte| byte == 0), "pad is zero");
        prop_assert_eq!(&bytes[end..], [0xee; 4], "the ICRC's place is left alone");
        prop_assert!(!packet.to_string().contains('\n'));
    }

    #[test]
    fn truncated_packets_are_refused_or_shorter(bth in bths(), ext in exts(), len in 0_usize..40) {
        let info = bth.opcode.info().unwrap();
        let payload = vec![0x11; if info.payload { len } else { 0 }];
        let bytes = build(&bth, &ext, &payload);
        for cut in 0..bytes.len() {
            match Packet::decode(&bytes[..cut]) {
                Ok(packet) => prop_assert!(packet.payload.len() < payload.len() && cut >= info.header_len + ICRC_LEN),
                Err(DecodeError::Short) => prop_assert!(cut < BTH_LEN + ICRC_LEN),
                Err(DecodeError::Headers) => prop_assert!(cut < info.header_len + ICRC_LEN + 3),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn random_bytes_decode_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(packet) = Packet::decode(&bytes) {
            prop_assert!(packet.payload.len() <= bytes.len() - BTH_LEN - ICRC_LEN);
            let _ = packet.to_string();
        }
    }

    /// Random bytes behind a header that passes: what random ones alone rarely reach.
    #[test]
    fn random_bytes_behind_a_bth(bth in bths(), pad in 0_u8..4, tail in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut bytes = Bth { pad, ..bth }.emit().to_vec();
        bytes.extend(&tail);
        let info = bth.opcode.info().unwrap();
        let fits = bytes.len() >= info.header_len + usize::from(pad) + ICRC_LEN;
        match Packet::decode(&bytes) {
            Ok(packet) => {
                prop_assert!(fits);
                prop_assert_eq!(packet.payload.len(), bytes.len() - info.header_len - usize::from(pad) - ICRC_LEN);
                let _ = packet.to_string();
            }
            Err(DecodeError::Payload(len)) => prop_assert!(fits && len > 0 && !info.payload),
            Err(error) => prop_assert!(!fits, "{}", error),
        }
    }
}

#[test]
fn refusals_say_why() {
    let decode = |bytes: &[u8]| Packet::decode(bytes).unwrap_err();
    let mut bytes = [0; 28];
    assert_eq!(decode(&bytes[..15]), DecodeError::Short);
    bytes[0] = 0x15;
    assert_eq!(decode(&bytes), DecodeError::Opcode(Opcode(0x15)));
    bytes[0] = 0x04;
    bytes[1] = 0x03;
    assert_eq!(decode(&bytes), DecodeError::Version(3));
    bytes[..2].copy_from_slice(&[0x0c, 0]);
    assert_eq!(decode(&bytes), DecodeError::Headers);
    bytes[..2].copy_from_slice(&[0x11, 0]);
    assert_eq!(decode(&bytes), DecodeError::Payload(8));
    bytes[..2].copy_from_slice(&[0x04, 0x30]);
    assert_eq!(decode(&bytes[..16]), DecodeError::Headers, "pad longer than what there is");
}

#[test]
fn emit_refuses_a_wrong_length() {
    let bth = Bth::new(Opcode(0x04), Qpn::new(5), Psn::new(6));
    assert!(emit(&bth, &Ext::default(), 5, &mut [0; 20]).is_none());
    assert!(emit(&bth, &Ext::default(), 5, &mut [0; 24]).is_some());
    assert!(emit(&bth, &Ext::default(), 5, &mut [0; 28]).is_none());
    let unknown = Bth::new(Opcode(0x15), Qpn::new(5), Psn::new(6));
    assert!(emit(&unknown, &Ext::default(), 0, &mut [0; 16]).is_none());
}

/// Every recorded packet comes out byte for byte the same (the Huawei-style reserved bits do not occur in them).
#[test]
fn recorded_packets_are_emitted_again() {
    for frame in frames().into_iter().chain(vectors()) {
        let packet = Packet::decode(&frame.packet).unwrap();
        let bytes = build(&packet.bth, &packet.ext, packet.payload);
        let body = bytes.len() - ICRC_LEN;
        assert_eq!(bytes[..body], frame.packet[..body]);
    }
}
