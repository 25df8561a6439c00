//! End-to-end credits: no more messages leave than the peer has receives for, and one.

use crate::bench::Bench;
use rxe_core::{
    endpoint::EndpointConfig,
    testing::{ConnectOptions, PairConfig},
    wire::Class,
    work::{SendOp, WcStatus},
};
use std::collections::BTreeSet;

const LEN: u32 = 3000;

/// One message and its acknowledgement, which leaves `receives` at the peer.
fn known(name: &'static str, receives: u64) -> Bench {
    let mut bench = Bench::new(name);
    for wr_id in 0..=receives {
        bench.recv(1, wr_id, wr_id * 4096, 4096);
    }
    bench.send(0, 0, SendOp::Send, 0, LEN);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(0, WcStatus::Success)]);
    bench
}

fn psns(bench: &Bench, class: Class) -> usize {
    bench.wire_of(0, class).iter().map(|seen| seen.psn.value()).collect::<BTreeSet<_>>().len()
}

/// Two receives are left: two messages and one that asks leave, the others wait with it.
#[test]
fn one_message_more_than_receives() {
    let mut bench = known("credits", 2);
    let per_message = psns(&bench, Class::Send);
    for wr_id in 1..8 {
        bench.fill(0, wr_id * 4096, LEN.into(), wr_id);
        bench.send(0, wr_id, SendOp::Send, wr_id * 4096, LEN);
    }
    bench.pair.run_for(rxe_core::wire::rnr_delay(bench.options.min_rnr_timer) / 2);
    assert_eq!(psns(&bench, Class::Send), 4 * per_message);
    assert_eq!(bench.stats(1).rnr_naks_sent, 1);
    for wr_id in 3..8 {
        bench.recv(1, wr_id, wr_id * 4096, 4096);
    }
    bench.pair.run_until_idle();
    let expected: Vec<_> = (1..8).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(bench.sent_statuses(0), expected);
    for wr_id in 1..8 {
        assert_eq!(bench.bytes(1, wr_id * 4096, LEN.into()), bench.bytes(0, wr_id * 4096, LEN.into()));
    }
    assert_eq!((bench.stats(0).timeouts, bench.stats(0).psn_naks_received), (0, 0));
}

/// Messages that take no receive are not held back, and take no promise from those that do.
#[test]
fn writes_and_reads_need_none() {
    let mut bench = known("credits-writes", 2);
    let start = bench.pair.now;
    for wr_id in 1..5 {
        bench.send(0, wr_id, SendOp::Write(bench.remote(1, 100_000)), 0, LEN);
        bench.send(0, wr_id, SendOp::Read(bench.remote(1, 100_000)), 8192, LEN);
    }
    bench.send(0, 5, SendOp::Send, 0, LEN);
    bench.send(0, 6, SendOp::WriteImm(bench.remote(1, 100_000), [0; 4]), 0, LEN);
    bench.send(0, 7, SendOp::Send, 0, LEN);
    bench.send(0, 8, SendOp::Send, 0, LEN);
    bench.pair.run_for(rxe_core::wire::rnr_delay(bench.options.min_rnr_timer) / 2);
    let sends = bench.wire_of(0, Class::Send);
    let at_once = sends.iter().filter(|seen| seen.at == start).count();
    // The first SEND, and beyond the WRITE with immediate data one that asks.
    assert_eq!(at_once, 2 * (sends.iter().filter(|seen| seen.at < start).count()));
    assert_eq!(psns(&bench, Class::Send), at_once / 2 * 3, "the last message waits");
    for wr_id in 3..5 {
        bench.recv(1, wr_id, wr_id * 4096, 4096);
    }
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0).len(), 12);
}

/// A READ cut into several requests is several messages to the peer, and all are counted.
#[test]
fn pieces_of_a_read_count() {
    let small = EndpointConfig { receive_window: 32 * 1024, ..EndpointConfig::default() };
    let endpoints = [small, EndpointConfig::default()];
    let config = PairConfig { name: "credits-reads", endpoints, ..PairConfig::default() };
    let mut bench = Bench::with(config, ConnectOptions::default());
    for round in 0..3 {
        for wr_id in 0..4 {
            bench.recv(1, wr_id, 0, 4096);
        }
        bench.send(0, 9, SendOp::Read(bench.remote(1, 0)), 0, 200_000);
        bench.send(0, 0, SendOp::Send, 0, LEN);
        bench.pair.run_until_idle();
        // Three receives are left. Were pieces not counted, more would seem to be.
        let before = psns(&bench, Class::Send);
        for wr_id in 1..8 {
            bench.send(0, wr_id, SendOp::Send, 0, LEN);
        }
        bench.pair.run_for(rxe_core::wire::rnr_delay(bench.options.min_rnr_timer) / 2);
        let per_message = if round == 0 { before } else { before / (8 * round + 1) };
        assert_eq!(psns(&bench, Class::Send) - before, 4 * per_message, "round {round}");
        for wr_id in 4..8 {
            bench.recv(1, wr_id, 0, 4096);
        }
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0).len(), 9);
    }
}

/// A sender without credits goes on when an answer arrives: it waits for no timeout, and sends nothing twice.
#[test]
fn one_receive_at_a_time() {
    let mut bench = known("credits-single", 0);
    for wr_id in 1..50 {
        bench.recv(1, wr_id, 0, 4096);
        bench.send(0, wr_id, SendOp::Send, 0, LEN);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(wr_id, WcStatus::Success)]);
    }
    let stats = bench.stats(0);
    assert_eq!((stats.timeouts, stats.retransmitted, stats.rnr_naks_received), (0, 0, 0));
}
