//! WRITEs in a row leave as messages of one packet each, and READs ask for two packets at a time, so that packets of one
//! length fill batches; one by itself has the usual form.

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

fn with(name: &'static str, parts: bool, options: ConnectOptions) -> Bench {
    let endpoint = EndpointConfig { parts, ..EndpointConfig::default() };
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

/// Posts `count` READs of `len` bytes from different places, and checks that all arrive.
fn read_many(bench: &mut Bench, count: u64, len: u32) {
    let size = u64::from(len);
    let data: Vec<_> = (0..count).map(|k| bench.fill(1, k * size, size, k)).collect();
    for wr_id in 0..count {
        bench.send(0, wr_id, SendOp::Read(bench.remote(1, wr_id * size)), wr_id * size, len);
    }
    bench.pair.run_until_idle();
    let expected: Vec<_> = (0..count).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(bench.sent_statuses(0), expected, "one completion a request");
    for (k, data) in (0..).zip(data) {
        assert_eq!(bench.bytes(0, k * size, size), data, "READ {k}");
    }
}

/// A peer that allows `count` READs at a time.
fn allowing(count: u8) -> ConnectOptions {
    ConnectOptions { max_rd_atomic: [count; 2], max_dest_rd_atomic: [count; 2], ..ConnectOptions::default() }
}

/// What each READ request asked for, in packets.
fn asked(bench: &Bench) -> Vec<u32> {
    let requests = bench.wire_of(0, Class::ReadRequest);
    requests.iter().map(|seen| seen.asked.div_ceil(bench.options.mtu.bytes())).collect()
}

#[test]
fn reads_in_a_row_ask_for_two_packets_and_fill_batches() {
    let [in_parts, whole] = [true, false].map(|parts| {
        let mut bench = with("read-row", parts, allowing(128));
        let packets = LEN / bench.options.mtu.bytes();
        read_many(&mut bench, 16, LEN);
        let asked = asked(&bench);
        assert_eq!(asked.iter().sum::<u32>(), 16 * packets, "each once");
        assert_eq!(asked[1..].iter().all(|asked| *asked == 2), parts, "{asked:?}");
        bench.pair.sides[1].endpoint.port_stats().batches_sent
    });
    assert!(in_parts * 4 <= whole * 3, "{in_parts} batches beside {whole}");
}

/// By itself, if it is long, or if the peer allows few: then its parts would use up what the peer allows.
#[test]
fn other_reads_are_asked_for_as_a_whole() {
    let mtu = ConnectOptions::default().mtu.bytes();
    for (name, count, len, allowed) in
        [("read-alone", 1, 16 * mtu, 16), ("read-long", 4, 17 * mtu, 128), ("read-few", 4, 16 * mtu, 15)]
    {
        let mut bench = with(name, true, allowing(allowed));
        read_many(&mut bench, count, len);
        assert_eq!(asked(&bench), vec![len / mtu; count as usize], "{name}");
    }
}

/// What does not divide: the last part asks for what is left.
#[test]
fn the_last_part_of_a_read_may_be_short() {
    let mut bench = with("read-rest", true, allowing(16));
    let mtu = bench.options.mtu.bytes();
    read_many(&mut bench, 4, 4 * mtu + 100);
    assert_eq!(asked(&bench)[1..], [2, 2, 1, 2, 2, 1, 2, 2, 1]);
}

/// Never more than the peer allows are under way, and what is asked for again ends where it ended at first.
#[test]
fn losses_of_reads_in_parts() {
    let mut bench = with("read-parts-loss", true, allowing(16));
    for side in 0..2 {
        bench.pair.sides[side].link.set_rule(|crossing| match crossing.index {
            3 | 20 | 21 | 77 | 130 => Verdict::Drop,
            _ => Verdict::Pass,
        });
    }
    read_many(&mut bench, 16, LEN);
    assert!(bench.stats(0).retransmitted > 0);
    let mtu = bench.options.mtu.bytes();
    let ends = bench.wire_of(0, Class::ReadRequest).into_iter().map(|seen| {
        let packets = seen.asked.div_ceil(mtu);
        seen.psn.plus(packets - 1).since(bench.options.psn[0])
    });
    let first = LEN / mtu - 1;
    assert!(ends.into_iter().all(|end| end == first || end > first && (end - first).is_multiple_of(2)));
}
