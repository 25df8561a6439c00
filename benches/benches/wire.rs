//! What each packet costs before any queue pair sees it: sealing, judging the ICRC, decoding.

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
    let route = Route { src: v4, dst: v4, src_port: 0xc000 };
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

criterion_group!(benches, wire);
criterion_main!(benches);
