//! Any datagram: decoding is total, a decoded packet is emitted to the same values, the ICRC's judge takes anything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rxe_core::{
    time::Instant,
    wire::{
        Bth, Ext, HeaderSeen, IdentTracker, Packet, emit,
        icrc::{Route, RouteCrc},
        wire_len,
    },
};
use std::net::Ipv4Addr;

fuzz_target!(|data: &[u8]| {
    let route =
        Route::v2(Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into(), 1);
    judge(&RouteCrc::new(&route), data);
    let Ok(packet) = Packet::decode(data) else { return };
    assert!(packet.info.header_len + packet.payload.len() + 4 <= data.len());
    assert!(!packet.to_string().is_empty());
    let bytes = again(&packet.bth, &packet.ext, packet.payload);
    let copy = Packet::decode(&bytes).expect("what is emitted decodes");
    assert_eq!(copy.bth, Bth { pad: copy.bth.pad, ..packet.bth });
    assert_eq!((copy.ext, copy.payload), (packet.ext, packet.payload));
});

fn again(bth: &Bth, ext: &Ext, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; wire_len(bth.opcode, payload.len())];
    emit(bth, ext, payload.len(), &mut bytes).expect("the length fits").copy_from_slice(payload);
    bytes
}

/// Whatever is judged whole without its header being seen is so for the ID that the verdict names.
fn judge(route: &RouteCrc, data: &[u8]) {
    let mut tracker = IdentTracker::default();
    for at in 0..3 {
        let verdict = tracker.judge(Instant::from_nanos(at), route, HeaderSeen::Hidden, data);
        let whole = verdict.ident().is_some_and(|ident| route.check(ident, 0x4000, data));
        assert!(whole == verdict.is_whole() || data[0] == 0x1c, "{verdict:?}");
    }
}
