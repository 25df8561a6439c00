//! Datagrams of any bytes, and the values inside messages.

use proptest::prelude::*;
use rxe_cm::proto::{
    CMA_HEADER_LEN, CmaError, CmaHeader, Concerns, Datagram, Message, ParseError, PortSpace, PrivateData,
    Rej, RejectReason, ServiceId, SidrStatus, TooLong, Transport,
};
use rxe_core::wire::MadHeader;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A datagram of message `attribute` with the given bytes behind the header.
fn mad(attribute: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = MadHeader::cm(attribute, 0x0123_4567_89ab_cdef).emit().to_vec();
    bytes.extend(body);
    bytes
}

#[test]
fn messages_by_number() {
    let names = ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"];
    for attribute in 0..=u16::MAX {
        let parsed = Datagram::parse(&mad(attribute, &[0; 232]));
        match usize::from(attribute).checked_sub(0x10).and_then(|at| names.get(at)) {
            Some(name) => {
                let message = parsed.unwrap().message;
                assert_eq!((message.name(), message.attribute()), (*name, attribute));
            }
            None => assert_eq!(parsed, Err(ParseError::Message(attribute))),
        }
    }
}

#[test]
fn others_are_refused() {
    let good = mad(0x10, &[0; 232]);
    for (at, value) in [(0, 2), (1, 0x03), (2, 1), (3, 0x83)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_eq!(
            Datagram::parse(&bad),
            Err(ParseError::NotCm { class: bad[1], version: bad[2], method: bad[3] })
        );
    }
    for len in (0..256).chain([257, 512]) {
        let mut bytes = good.clone();
        bytes.resize(len, 0);
        assert_eq!(Datagram::parse(&bytes), Err(ParseError::Length(len)));
    }
    let mut status = good;
    status[5] = 7;
    assert!(Datagram::parse(&status).is_ok(), "the status is ignored");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 3000 }))]

    /// Any body of any message parses; what comes out again parses to the same.
    #[test]
    fn any_body_round_trips(attribute in 0x10_u16..=0x1a, modifier: u32, body in prop::collection::vec(any::<u8>(), 232)) {
        let mut bytes = mad(attribute, &body);
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        let datagram = Datagram::parse(&bytes).unwrap();
        prop_assert_eq!(datagram.modifier, modifier);
        let emitted = datagram.emit();
        prop_assert_eq!(Datagram::parse(&emitted), Ok(datagram));
        // Emitting only clears reserved bits.
        for (at, (out, was)) in emitted.iter().zip(&bytes).enumerate() {
            prop_assert_eq!(out & !was, 0, "byte {}", at);
        }
        let mut fields = 0;
        datagram.message.each(&mut |_, _| fields += 1);
        prop_assert!(fields >= 3);
        prop_assert!(!datagram.to_string().contains('\n'));
    }

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Datagram::parse(&bytes);
    }

    #[test]
    fn cma_header_round_trip(src_port: u16, src: u128, dst: u128, v6: bool) {
        let address = |bits: u128| -> IpAddr {
            if v6 { Ipv6Addr::from(bits).into() } else { Ipv4Addr::from(bits as u32).into() }
        };
        let header = CmaHeader { src_port, src: address(src), dst: address(dst) };
        prop_assert_eq!(CmaHeader::parse(&header.emit()), Ok(header));
    }

    #[test]
    fn cma_header_takes_anything(bytes in prop::array::uniform32(any::<u8>()), front: [u8; 4]) {
        let mut all = [0; CMA_HEADER_LEN];
        all[..4].copy_from_slice(&front);
        all[4..].copy_from_slice(&bytes);
        match CmaHeader::parse(&all) {
            Ok(_) => prop_assert!(front[0] == 0 && matches!(front[1] >> 4, 4 | 6)),
            Err(CmaError::Version(version)) => prop_assert_eq!(version, front[0]),
            Err(CmaError::Family(family)) => prop_assert_eq!(family, front[1] >> 4),
            Err(CmaError::Short) => prop_assert!(false),
        }
    }
}

#[test]
fn cma_header_bytes() {
    let v4 = CmaHeader {
        src_port: 0xaffa,
        src: Ipv4Addr::new(192, 170, 1, 2).into(),
        dst: Ipv4Addr::new(192, 170, 1, 50).into(),
    };
    let mut wanted = [0; CMA_HEADER_LEN];
    wanted[1..4].copy_from_slice(&[0x40, 0xaf, 0xfa]);
    wanted[16..20].copy_from_slice(&[192, 170, 1, 2]);
    wanted[32..].copy_from_slice(&[192, 170, 1, 50]);
    assert_eq!(v4.emit(), wanted);
    let v6 = CmaHeader { src_port: 1, src: "fd00::1".parse().unwrap(), dst: "fd00::2".parse().unwrap() };
    let mut wanted = [0; CMA_HEADER_LEN];
    wanted[1..5].copy_from_slice(&[0x60, 0, 1, 0xfd]);
    (wanted[19], wanted[20], wanted[35]) = (1, 0xfd, 2);
    assert_eq!(v6.emit(), wanted);
}

#[test]
fn private_data_limits() {
    assert_eq!(PrivateData::<196>::LIMIT, 196);
    assert!(PrivateData::<196>::new(&[1; 196]).is_ok());
    assert_eq!(PrivateData::<196>::new(&[1; 197]), Err(TooLong { len: 197, limit: 196 }));
    assert_eq!(PrivateData::<4>::new(&[1, 2]).unwrap().0, [1, 2, 0, 0]);
    let header = CmaHeader { src_port: 1, src: Ipv4Addr::LOCALHOST.into(), dst: Ipv4Addr::LOCALHOST.into() };
    let data = PrivateData::<92>::with_header(&header, &[7; 56]).unwrap();
    assert_eq!(data.split_header(), Ok((header, &[7; 56][..])));
    assert_eq!(PrivateData::<92>::with_header(&header, &[7; 57]), Err(TooLong { len: 57, limit: 56 }));
    assert!(PrivateData::<216>::with_header(&header, &[7; 180]).is_ok());
    assert_eq!(PrivateData::<216>::with_header(&header, &[7; 181]), Err(TooLong { len: 181, limit: 180 }));
    assert_eq!(PrivateData::<20>::with_header(&header, &[]), Err(TooLong { len: 36, limit: 20 }));
    assert_eq!(PrivateData::<20>::default().split_header(), Err(CmaError::Short));
    assert_eq!(format!("{:?}", PrivateData::<9>::new(&[0, 0xab, 0]).unwrap()), "00ab[2/9]");
}

#[test]
fn service_ids_both_ways() {
    for (space, port, id) in [
        (PortSpace::Tcp, 0x1c06, 0x0106_1c06_u64),
        (PortSpace::Udp, 1, 0x0111_0001),
        (PortSpace::Ipoib, 0xffff, 0x0002_ffff),
        (PortSpace::Ib, 0, 0x013f_0000),
    ] {
        assert_eq!(ServiceId::new(space, port), ServiceId(id));
        assert_eq!(ServiceId(id).port(), Some((space, port)));
        assert_eq!(PortSpace::from_number(space.number()), Some(space));
        assert_eq!(ServiceId(id | 1 << 32).port(), None, "more than a port space");
    }
    assert_eq!(PortSpace::ALL.len(), 4);
    assert_eq!(ServiceId(0x1000_0cfe_0000_0000).port(), None);
    assert_eq!(ServiceId(0x0107_0001).port(), None);
    assert_eq!(ServiceId(0x0106_1c06).to_string(), "0x0000000001061c06 (Tcp port 7174)");
}

#[test]
fn reasons_and_statuses() {
    let numbers: Vec<u16> = RejectReason::KNOWN.iter().map(|reason| reason.0).collect();
    assert_eq!(numbers, (1..=33).chain([35]).collect::<Vec<_>>());
    for (reason, number) in [
        (RejectReason::NO_QP, 1),
        (RejectReason::TIMEOUT, 4),
        (RejectReason::INVALID_SERVICE_ID, 8),
        (RejectReason::STALE_CONNECTION, 10),
        (RejectReason::INVALID_GID, 12),
        (RejectReason::INVALID_ALT_GID, 18),
        (RejectReason::INVALID_MTU, 26),
        (RejectReason::CONSUMER_DEFINED, 28),
        (RejectReason::INVALID_CLASS_VERSION, 31),
        (RejectReason::INVALID_ALT_FLOW_LABEL, 33),
        (RejectReason::VENDOR_OPTION_NOT_SUPPORTED, 35),
    ] {
        assert_eq!(reason.0, number);
    }
    assert_eq!(RejectReason(34).words(), None);
    assert_eq!(RejectReason(34).to_string(), "unknown (34)");
    let statuses: Vec<u8> = SidrStatus::KNOWN.iter().map(|status| status.0).collect();
    assert_eq!(statuses, [0, 1, 2, 3, 4, 5]);
    for bits in 0..4 {
        assert_eq!(Transport::from_bits(bits).bits(), bits);
        assert_eq!(Concerns::from_bits(bits).bits(), bits);
    }
    // A length that no REJ can have must not reach beyond the information.
    let rej = Rej { info_len: 127, ..Rej::default() };
    assert_eq!(rej.info().len(), 72);
    let datagram = Datagram { transaction: 1, modifier: 0, message: Message::Rej(rej) };
    assert_eq!(Datagram::parse(&datagram.emit()), Ok(datagram));
}
