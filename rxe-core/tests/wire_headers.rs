//! The headers around and behind a packet: GRH area, MAD header, CNP; and the one-line printer.

mod wire_common;

use proptest::prelude::*;
use rxe_core::{
    num::Qpn,
    wire::{CNP_LEN, Encapsulation, GRH_LEN, Grh, MAD_HEADER_LEN, MAD_LEN, MadHeader, Packet, cnp, icrc},
};
use std::net::IpAddr;
use wire_common::{frames, hex, vectors};

/// What the area holds is the IP header that the datagram came with, checksum and all.
#[test]
fn grh_is_the_received_ip_header() {
    for frame in frames() {
        let (tos, ttl) = (frame.ip[1], frame.ip[8]);
        let grh = Grh { ident: frame.ident, ..Grh::new(&frame.route, tos, ttl, frame.packet.len()) };
        let area = grh.emit();
        assert_eq!(area[..20], [0; 20]);
        assert_eq!(area[20..], frame.ip, "{frame:?}");
        assert_eq!(Grh::parse(&area), Some(grh));
    }
    let frame = &vectors()[2];
    let grh = Grh::new(&frame.route, 0, 64, frame.packet.len());
    assert_eq!(grh.emit()[..], frame.ip);
    assert_eq!(Grh::parse(&grh.emit()), Some(grh));
}

#[test]
fn grh_families_are_told_apart() {
    assert_eq!(Grh::parse(&[0; GRH_LEN]), None);
    let v6 = Grh {
        encapsulation: Encapsulation::V2,
        // The end of this address is where an IPv4 header would start, and looks like one.
        src: "fe80::4500:1".parse().unwrap(),
        dst: "fe80::2".parse().unwrap(),
        traffic_class: 0xab,
        hop_limit: 255,
        flow_label: 0xf_1234,
        ident: 0,
        len: 1000,
    };
    let area = v6.emit();
    assert_eq!(area[..8], hex("6abf1234 03e8 11 ff"));
    assert_eq!(Grh::parse(&area), Some(v6));
}

proptest! {
    #[test]
    fn grh_round_trip(src: u128, dst: u128, v6: bool, traffic_class: u8, hop_limit: u8, flow in 0_u32..1 << 20,
                      ident: u16, len in 8_u16..65_000, v1: bool) {
        let addr = |bits: u128| -> IpAddr {
            if v6 { std::net::Ipv6Addr::from(bits).into() } else { std::net::Ipv4Addr::from(bits as u32).into() }
        };
        let (encapsulation, has_flow) = if v1 { (Encapsulation::V1, true) } else { (Encapsulation::V2, v6) };
        let grh = Grh {
            encapsulation,
            src: addr(src),
            dst: addr(dst),
            traffic_class,
            hop_limit,
            flow_label: if has_flow { flow } else { 0 },
            ident: if has_flow { 0 } else { ident },
            len,
        };
        prop_assert_eq!(Grh::parse(&grh.emit()), Some(grh));
    }

    #[test]
    fn grh_parse_is_total(area: [u8; GRH_LEN]) {
        let _ = Grh::parse(&area);
    }

    #[test]
    fn mad_round_trip(bytes: [u8; MAD_HEADER_LEN]) {
        let mut wanted = bytes;
        wanted[18..20].fill(0);
        prop_assert_eq!(MadHeader::parse(&bytes).emit(), wanted);
    }
}

/// Queue pair 1 traffic of the recording: attribute and transaction of each message.
#[test]
fn mads_of_the_recording() {
    let mads: Vec<_> = frames()
        .iter()
        .filter_map(|frame| {
            let packet = Packet::decode(&frame.packet).unwrap();
            (packet.bth.dest_qp == Qpn::GSI).then(|| {
                assert_eq!(packet.payload.len(), MAD_LEN);
                let head = packet.payload.first_chunk().unwrap();
                let mad = MadHeader::parse(head);
                assert_eq!(mad.emit(), *head);
                assert!(mad.is_cm());
                assert_eq!(mad, MadHeader::cm(mad.attribute, mad.transaction));
                (mad.attribute, mad.transaction)
            })
        })
        .collect();
    assert_eq!(
        mads,
        [
            (0x10, 0x0000_0003_57fe_b735),
            (0x14, 0x0000_0003_57fe_b735),
            (0x10, 0x0000_0002_f2c9_7e40),
            (0x14, 0x0000_0002_f2c9_7e40),
            (0x15, 0x0000_0002_f2c9_7e40),
            (0x10, 0x0000_0002_7f93_2094),
            (0x10, 0x0000_0002_7f93_2094),
            (0x12, 0x0000_0002_7f93_2094),
        ]
    );
}

#[test]
fn cnp_equals_the_hardware_one() {
    let frame = frames().into_iter().find(|frame| frame.packet[0] == 0x81).unwrap();
    let mut ours = cnp(Qpn::new(0x118));
    icrc::seal(&frame.route, frame.ident, &mut ours);
    assert_eq!(ours.len(), CNP_LEN);
    assert_eq!(ours[..], frame.packet);
    assert_eq!(Packet::decode(&ours).unwrap().to_string(), "CNP qp 0x000118 psn 000000 becn | 16 B");
}

#[test]
fn packets_print_in_one_line() {
    let lines: Vec<_> =
        frames().iter().map(|frame| Packet::decode(&frame.packet).unwrap().to_string()).collect();
    let gsi = |psn, flags| {
        format!("UD SEND_ONLY qp 0x000001 psn {psn}{flags} from 0x000001 qkey 0x80010000 | 256 B")
    };
    assert_eq!(lines[0], gsi("0001cc", ""));
    assert_eq!(lines[2], "RC SEND_ONLY qp 0xdeaded psn fedfed ackreq | 192 B");
    assert_eq!(lines[3], "RC ACK qp 0xdeaded psn cf7bf7 ack credits 0x00 msn 2");
    assert_eq!(lines[5], gsi("000012", " ackreq"));
    for (text, wanted) in [
        (
            "06 00 ffff 00000011 00123456 0000007f00000010 00001a2b 00002000 00000000 00000000",
            "RC WRITE_FIRST qp 0x000011 psn 123456 va 0x7f00000010 rkey 0x00001a2b len 8192 | 4 B",
        ),
        (
            "17 80 7fff 80000011 00123456 00001a2b 00000000",
            "RC SEND_ONLY_WITH_INV qp 0x000011 psn 123456 solicited fecn pkey 0x7fff invalidate 0x00001a2b",
        ),
        (
            "11 00 ffff 00000011 00123456 26000007 00000000",
            "RC ACK qp 0x000011 psn 123456 RNR NAK 80 us msn 7",
        ),
        (
            "11 00 ffff 00000011 00123456 62000007 00000000",
            "RC ACK qp 0x000011 psn 123456 NAK remote access msn 7",
        ),
        (
            "0b 10 ffff 00000011 80123456 0000000000001000 00001a2b 00000003 01020304 61626300 00000000",
            "RC WRITE_ONLY_WITH_IMM qp 0x000011 psn 123456 ackreq va 0x1000 rkey 0x00001a2b len 3 imm 0x01020304 | 3 B",
        ),
        (
            "1c 00 ffff 00000011 80123456 00000013 0000000000001000 00001a2b 00000003 00000000",
            "RC FLUSH qp 0x000011 psn 123456 ackreq placement 0x3 selectivity 1 va 0x1000 rkey 0x00001a2b len 3",
        ),
        (
            "13 00 ffff 00000011 80123456 0000000000001000 00001a2b 0000000000000005 0000000000000004 00000000",
            "RC CMP_SWAP qp 0x000011 psn 123456 ackreq va 0x1000 rkey 0x00001a2b operand 0x5 compare 0x4",
        ),
        (
            "12 00 ffff 00000011 00123456 1f000001 0000000000000009 00000000",
            "RC ATOMIC_ACK qp 0x000011 psn 123456 ack msn 1 original 0x9",
        ),
        (
            "a4 00 ffff 00000011 00123456 00abcdef 61626364 00000000",
            "XRC SEND_ONLY qp 0x000011 psn 123456 srq 0xabcdef | 4 B",
        ),
    ] {
        assert_eq!(Packet::decode(&hex(text)).unwrap().to_string(), wanted);
    }
}
