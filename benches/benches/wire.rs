//! What each packet costs before any queue pair sees it, and behind: sealing and judging the ICRC, building and parsing
//! headers.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rxe_core::{
    num::{Psn, Qpn},
    wire::{
        Bth, Ext, Opcode, Packet, Position, emit,
        icrc::{DONT_FRAGMENT, Route, RouteCrc},
        wire_len,
    },
};
use std::hint::black_box;

fn packet(payload: usize) -> Vec<u8> {
    let opcode = Opcode::write(Position::Middle, false);
    let mut bytes = vec![0; wire_len(opcode, payload)];
    let bth = Bth::new(opcode, Qpn::new(17), Psn::new(1));
    emit(&bth, &Ext::default(), payload, &mut bytes).expect("the length is right").fill(0xa5);
    bytes
}

fn wire(criterion: &mut Criterion) {
    let v4 = [10, 0, 0, 1].into();
    let route = Route::v2(v4, v4, 0xc000);
    let crc = RouteCrc::new(&route);
    for payload in [0, 64, 1024, 4096] {
        let mut bytes = packet(payload);
        let mut group = criterion.benchmark_group(format!("payload {payload}"));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("seal", |bencher| bencher.iter(|| crc.seal(0, black_box(&mut bytes))));
        group.bench_function("check", |bencher| {
            bencher.iter(|| crc.check(0, DONT_FRAGMENT, black_box(&bytes)));
        });
        group.bench_function("decode", |bencher| bencher.iter(|| Packet::decode(black_box(&bytes)).is_ok()));
        group.finish();
    }
}

/// Headers alone, of those opcodes that differ most in them.
fn headers(criterion: &mut Criterion) {
    let opcodes = [
        ("SEND middle", Opcode::send(Position::Middle, false, false)),
        ("WRITE first", Opcode::write(Position::First, false)),
        ("READ request", Opcode::RC_READ_REQUEST),
        ("acknowledge", Opcode::RC_ACKNOWLEDGE),
        ("compare and swap", Opcode::RC_COMPARE_SWAP),
        ("UD SEND", Opcode::UD_SEND_ONLY),
    ];
    for (name, opcode) in opcodes {
        let mut bytes = vec![0; wire_len(opcode, 0)];
        let (bth, ext) = (Bth::new(opcode, Qpn::new(17), Psn::new(1)), Ext::default());
        let mut group = criterion.benchmark_group(format!("headers of {name}"));
        group.throughput(Throughput::Elements(1));
        group.bench_function("build", |bencher| {
            bencher.iter(|| emit(black_box(&bth), black_box(&ext), 0, black_box(&mut bytes)).is_some());
        });
        assert_eq!(Packet::decode(&bytes).map(|packet| packet.bth), Ok(bth), "what was built");
        group.bench_function("parse", |bencher| {
            bencher.iter(|| Packet::decode(black_box(&bytes)).map(black_box))
        });
        group.finish();
    }
}

criterion_group!(benches, wire, headers);
criterion_main!(benches);
