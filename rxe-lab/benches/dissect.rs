//! How many packets a second are dissected: read from a file in memory, decoded, their ICRCs judged, connections followed.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rxe_core::wire::icrc::{Route, seal};
use rxe_lab::{capture::Capture, flow::Analyzer, packet::Found};
use std::{hint::black_box, io::Cursor};

const PACKETS: u32 = 100_000;

/// A pcap file: WRITEs of so many bytes, and an acknowledgement after each eighth.
fn file(payload: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0x0004_0000, 101] {
        out.extend(word.to_le_bytes());
    }
    let mut psn = 0_u32;
    for number in 0..PACKETS {
        let is_ack = number % 9 == 8;
        let (opcode, qp) = if is_ack { (0x11, 0x12) } else { (0x0a, 0x11) };
        let mut packet = vec![opcode, 0x40, 0xff, 0xff, 0, 0, 0, qp];
        let ack_req = if psn % 8 == 7 { 0x8000_0000 } else { 0 };
        let word = if is_ack { psn - 1 } else { psn | ack_req };
        packet.extend(word.to_be_bytes());
        if is_ack {
            packet.extend([0x1f, 0, 0, 0]);
        } else {
            packet.extend([0; 12]);
            packet.extend((payload as u32).to_be_bytes());
            packet.extend(vec![psn as u8; payload]);
            psn += 1;
        }
        packet.extend([0; 4]);
        let (src, dst) = if is_ack { ([10, 0, 0, 2], [10, 0, 0, 1]) } else { ([10, 0, 0, 1], [10, 0, 0, 2]) };
        seal(&Route::v2(src.into(), dst.into(), 0xc000), number as u16, &mut packet);
        let len = packet.len() + 28;
        for word in [number / 1_000_000, number % 1_000_000, len as u32, len as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend([0x45, 0]);
        out.extend((len as u16).to_be_bytes());
        out.extend((number as u16).to_be_bytes());
        out.extend([0x40, 0, 64, 17, 0, 0]);
        out.extend(src);
        out.extend(dst);
        out.extend([0xc0, 0x00, 0x12, 0xb7]);
        out.extend((len as u16 - 20).to_be_bytes());
        out.extend([0, 0]);
        out.extend(packet);
    }
    out
}

fn dissect(file: &[u8]) -> u64 {
    let mut capture = Capture::new(Cursor::new(file.to_vec())).unwrap();
    let mut analyzer = Analyzer::new();
    let mut number = 0;
    while let Some(record) = capture.next_record().unwrap() {
        number += 1;
        match Found::new(number, &record) {
            Ok(Found::One(packet)) => {
                black_box(analyzer.packet(&packet));
            }
            Ok(Found::Batch(batch)) => batch.for_each(|packet| {
                black_box(analyzer.packet(&packet));
            }),
            Err(other) => analyzer.other(other, record.time),
        }
    }
    let summary = analyzer.finish();
    assert_eq!((summary.totals.icrc_right, summary.connections.len()), (u64::from(PACKETS), 1));
    summary.connections[0].directions[0].completed
}

fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dissect");
    group.throughput(Throughput::Elements(PACKETS.into())).sample_size(10);
    for payload in [64, 1024, 4096] {
        let file = file(payload);
        let id = BenchmarkId::from_parameter(payload);
        group.bench_with_input(id, &file, |bench, file| bench.iter(|| dissect(file)));
    }
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
