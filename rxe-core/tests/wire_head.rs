//! The headers of a packet of which only the front is there.

use proptest::prelude::*;
use rxe_core::{
    num::{Psn, Qpn},
    wire::{Bth, Head, HeadError, ICRC_LEN, Opcode, Packet, icrc},
};
use std::net::Ipv4Addr;

proptest! {
    /// If all bytes are there, its result is that of decoding the whole packet, also for wrong packets.
    #[test]
    fn a_whole_packet_gives_the_same(opcode in 0_u8.., flags: u8, tail in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut bytes = Bth::new(Opcode(opcode), Qpn::new(17), Psn::new(5)).emit().to_vec();
        bytes[1] = flags;
        bytes.extend(&tail);
        match (Head::decode(&bytes, bytes.len()), Packet::decode(&bytes)) {
            (Ok(head), Ok(packet)) => {
                prop_assert_eq!((head.bth, head.ext, head.info), (packet.bth, packet.ext, packet.info));
                prop_assert_eq!(head.payload_len, packet.payload.len());
                prop_assert_eq!(head.to_string(), packet.to_string());
            }
            (Err(HeadError::Decode(head)), Err(packet)) => prop_assert_eq!(head, packet),
            (head, packet) => prop_assert!(false, "{:?} {:?}", head, packet),
        }
    }

    /// For a packet that is cut behind its headers the result is the same. For one that is cut before, it is how much is missing.
    #[test]
    fn a_front_gives_the_headers_or_what_is_missing(opcode in 0_u8.., tail in prop::collection::vec(any::<u8>(), 40..90)) {
        let mut bytes = Bth::new(Opcode(opcode), Qpn::new(17), Psn::new(5)).emit().to_vec();
        bytes.extend(&tail);
        let Ok(whole) = Head::decode(&bytes, bytes.len()) else { return Ok(()) };
        for have in 0..bytes.len() {
            match Head::decode(&bytes[..have], bytes.len()) {
                Ok(head) => prop_assert!(head == whole && have >= whole.info.header_len),
                Err(HeadError::Cut { have: told, need }) => {
                    prop_assert!(told == have && have < need && need <= whole.info.header_len);
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}

/// Two packets of a sender whose address was translated have the same ICRC difference, whatever their contents and lengths. A packet
/// with a flipped bit has another one.
#[test]
fn rewritten_headers_differ_always_in_the_same() {
    let route = |last: u8| {
        icrc::Route::v2(Ipv4Addr::new(10, 0, 0, last).into(), Ipv4Addr::new(10, 0, 9, 9).into(), 4000)
    };
    let difference = |len: usize, flip: u8| {
        let mut packet: Vec<u8> = (0..len).map(|at| at as u8 ^ len as u8).collect();
        let received = icrc::compute(&route(1), 7, icrc::DONT_FRAGMENT, &packet);
        packet[len / 2] ^= flip;
        let computed = icrc::compute(&route(200), 7, icrc::DONT_FRAGMENT, &packet);
        icrc::header_difference(received, computed, len).unwrap()
    };
    let first = difference(16, 0);
    for len in [20, 24, 1040, 4112] {
        assert_eq!(difference(len, 0), first, "{len}");
        assert_ne!(difference(len, 4), first, "{len}");
    }
    assert_ne!(first, [0; 4]);
    assert_eq!(ICRC_LEN, first.len());
}
