//! WRITEs in a row leave as messages of one packet each, which fill batches; a WRITE by itself has the usual form.

use crate::bench::Bench;
use rxe_core::{
    endpoint::EndpointConfig,
    qp::QpType,
    testing::{ConnectOptions, PairConfig, Verdict},
    wire::{Class, Opcode, Position},
    work::{SendOp, WcStatus},
};
use std::collections::{BTreeMap, BTreeSet};

/// "RDMA WRITE only".
const ONLY: Opcode = Opcode::write(Position::Only, false);
const LEN: u32 = 16 * 1024;

fn opcodes(bench: &Bench) -> BTreeSet<u8> {
    bench.wire_of(0, Class::Write).iter().map(|seen| seen.opcode.0).collect()
}

fn with(name: &'static str, write_parts: bool, options: ConnectOptions) -> Bench {
    let endpoint = EndpointConfig { write_parts, ..EndpointConfig::default() };
    Bench::with(
        PairConfig { name, endpoints: [endpoint.clone(), endpoint], ..PairConfig::default() },
        options,
    )
}

/// Posts `count` WRITEs to different places, and checks that all arrive.
fn write_many(bench: &mut Bench, count: u64) {
    let len = u64::from(LEN);
    let data: Vec<_> = (0..count).map(|k| bench.fill(0, k * len, len, k)).collect();
    for wr_id in 0..count {
        bench.send(0, wr_id, SendOp::Write(bench.remote(1, wr_id * len)), wr_id * len, LEN);
    }
    bench.pair.run_until_idle();
    let expected: Vec<_> = (0..count).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(bench.sent_statuses(0), expected, "one completion a request");
    for (k, data) in (0..).zip(data) {
        assert_eq!(bench.bytes(1, k * len, len), data, "WRITE {k}");
    }
}

#[test]
fn alone_in_the_usual_form() {
    let mut bench = with("write-alone", true, ConnectOptions::default());
    for _ in 0..3 {
        write_many(&mut bench, 1);
    }
    let usual = [(true, false), (false, false), (false, true)];
    let usual = usual.map(|(start, end)| Opcode::write(Position::new(start, end), false).0);
    assert_eq!(opcodes(&bench), usual.into());
}

#[test]
fn in_a_row_in_parts_and_in_full_batches() {
    let [in_parts, whole] = [true, false].map(|parts| {
        let mut bench = with("write-row", parts, ConnectOptions::default());
        write_many(&mut bench, 16);
        assert_eq!(opcodes(&bench).contains(&ONLY.0), parts);
        let stats = bench.pair.sides[0].endpoint.port_stats();
        let packets = bench.wire_of(0, Class::Write).len() as u64;
        assert_eq!(packets, u64::from(16 * LEN / bench.options.mtu.bytes()));
        assert_eq!(stats.packets_sent, packets);
        stats.batches_sent
    });
    assert!(in_parts * 2 <= whole, "{in_parts} batches beside {whole}");
}

/// Each part names its own place and length.
#[test]
fn every_part_says_where_it_goes() {
    let mut bench = with("write-where", true, ConnectOptions::default());
    write_many(&mut bench, 4);
    let parts: Vec<_> =
        bench.wire_of(0, Class::Write).into_iter().filter(|seen| seen.opcode == ONLY).collect();
    assert_eq!(parts.len() as u32, 3 * LEN / bench.options.mtu.bytes(), "all but the first");
    assert!(parts.iter().all(|seen| seen.asked as usize == seen.payload), "{parts:?}");
}

/// What is sent again has the form it had at first, and is no new message to the peer.
#[test]
fn losses_change_nothing() {
    let mut bench = with("write-loss", true, ConnectOptions::default());
    bench.pair.sides[0].link.set_rule(|crossing| match crossing.index {
        3 | 40 | 41 | 77 | 130 => Verdict::Drop,
        _ => Verdict::Pass,
    });
    write_many(&mut bench, 16);
    assert!(bench.stats(0).retransmitted > 0);
    let mut forms = BTreeMap::new();
    for seen in bench.wire_of(0, Class::Write) {
        assert_eq!(*forms.entry(seen.psn.value()).or_insert(seen.opcode), seen.opcode, "{seen:?}");
    }
}

/// A receiver of an immediate is told the length of the whole message; unreliable messages are dropped as a whole.
#[test]
fn not_with_an_immediate_and_not_unreliably() {
    let mut bench = with("write-imm", true, ConnectOptions::default());
    for wr_id in 0..4 {
        bench.recv(1, wr_id, 0, 0);
        bench.send(0, wr_id, SendOp::WriteImm(bench.remote(1, 0), [7; 4]), 0, LEN);
    }
    bench.pair.run_until_idle();
    assert!(bench.received(1).iter().all(|wc| wc.byte_len == LEN));
    assert!(!opcodes(&bench).contains(&ONLY.0));

    let options = ConnectOptions { qp_type: QpType::Uc, ..ConnectOptions::default() };
    let mut bench = with("write-uc", true, options);
    write_many(&mut bench, 4);
    assert_eq!(opcodes(&bench).len(), 3, "first, middle, last");
}
