//! Queue pairs that wait in line for room. Many with short requests do not starve them, their timeouts do not pass while they
//! wait, and none is forgotten.

use crate::bench::{BUFFER, Bench};
use rxe_core::{
    num::Qpn,
    qp::{Mtu, QpChange, QpState},
    testing::{ConnectOptions, LinkConfig, PairConfig, connect::SEND_CQ},
    work::{SendFlags, SendOp, SendWr, WcStatus},
};
use std::time::Duration;

/// What a request does.
#[derive(Clone, Copy, Debug)]
enum Op {
    Read,
    Write,
}

impl Op {
    fn of(self, bench: &Bench) -> SendOp {
        match self {
            Self::Read => SendOp::Read(bench.remote(1, 0)),
            Self::Write => SendOp::Write(bench.remote(1, 0)),
        }
    }
}

fn post(bench: &mut Bench, qpn: Qpn, wr_id: u64, op: Op, len: u32) {
    let sges = [bench.sge(0, 0, len)];
    let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, op.of(bench), &sges) };
    bench.pair.post_send(0, qpn, &wr).expect("posted");
}

/// Two ends with a wire of `rate` bytes a second.
fn wired(name: &'static str, rate: u64, options: ConnectOptions) -> Bench {
    let wire =
        LinkConfig { rate, hold: 130_000, latency: Duration::from_micros(10), ..LinkConfig::default() };
    let config = PairConfig { name, links: [wire; 2], trace: 0, ..PairConfig::default() };
    Bench::with(config, options)
}

/// The room that dead readers have lost goes to others that are dead, too. The one behind these is not forgotten.
#[test]
fn a_read_behind_many_dead_ones() {
    for timeout in [20, 0] {
        let config = PairConfig { name: "line-dead", trace: 0, ..PairConfig::default() };
        let mut bench = Bench::with(config, ConnectOptions { timeout: 20, ..ConnectOptions::default() });
        for _ in 0..200 {
            let options = ConnectOptions { timeout, ..bench.options };
            let [qpn, peer] = bench.pair.connect(&options).qpns;
            let error = QpChange { state: Some(QpState::Error), ..QpChange::default() };
            bench.pair.modify(1, peer, &error).unwrap();
            post(&mut bench, qpn, 1000, Op::Read, 32 * 1024);
        }
        let qpn = bench.qpn(0);
        post(&mut bench, qpn, 1, Op::Read, 64 * 1024);
        bench.pair.run_for(Duration::from_millis(900));
        assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)], "timeout {timeout}");
    }
}

/// Many share a wire that loses nothing: no timeout passes, and nothing is sent again.
#[test]
fn many_long_requests() {
    for (op, rate, timeout) in [
        (Op::Write, 1_000_000_000, 9),
        (Op::Write, 125_000_000, 14),
        (Op::Read, 1_000_000_000, 9),
        (Op::Read, 125_000_000, 14),
    ] {
        let mut bench = wired("line-long", rate, ConnectOptions { timeout, ..ConnectOptions::default() });
        let qpns: Vec<_> = (0..600).map(|_| bench.pair.connect(&bench.options).qpns[0]).collect();
        for qpn in &qpns {
            post(&mut bench, *qpn, 1, op, BUFFER as u32);
        }
        bench.pair.run_for(Duration::from_secs(4));
        let good = bench.sent(0).iter().filter(|wc| wc.status == WcStatus::Success).count();
        let stats = qpns.iter().map(|qpn| bench.pair.sides[0].endpoint.qp_stats(*qpn).unwrap());
        let (timeouts, again) =
            stats.fold((0, 0), |sum, stats| (sum.0 + stats.timeouts, sum.1 + stats.retransmitted));
        assert_eq!((good, timeouts, again), (600, 0, 0), "{op:?}, {rate} bytes a second, timeout {timeout}");
    }
}

/// The same with no retries, so that a timeout is an error.
#[test]
fn many_long_requests_without_retries() {
    for op in [Op::Read, Op::Write] {
        let options = ConnectOptions { timeout: 14, retry_count: 0, ..ConnectOptions::default() };
        let mut bench = wired("line-once", 125_000_000, options);
        let qpns: Vec<_> = (0..600).map(|_| bench.pair.connect(&bench.options).qpns[0]).collect();
        for qpn in &qpns {
            post(&mut bench, *qpn, 1, op, BUFFER as u32);
        }
        bench.pair.run_until_idle();
        let good = bench.sent(0).iter().filter(|wc| wc.status == WcStatus::Success).count();
        assert_eq!(good, 600, "{op:?}");
    }
}

/// How many requests of one packet are done in 100 ms by `shorts` queue pairs, each of which always has one under way, and how
/// many of 64 KiB by one queue pair beside them.
fn beside_short_ones(op: Op, shorts: usize) -> (u64, u64) {
    const LONG: u64 = 100_000;
    let options = ConnectOptions { timeout: 18, mtu: Mtu::M4096, ..ConnectOptions::default() };
    let mut bench = wired("line-short", 1_000_000_000, options);
    let qpns: Vec<_> = (0..shorts).map(|_| bench.pair.connect(&bench.options).qpns[0]).collect();
    for (at, qpn) in qpns.iter().enumerate() {
        post(&mut bench, *qpn, at as u64, op, 4096);
    }
    bench.pair.run_for(Duration::from_micros(300));
    let long = bench.qpn(0);
    post(&mut bench, long, LONG, op, 64 * 1024);
    let end = bench.pair.now + Duration::from_millis(100);
    let mut done = (0, 0);
    while bench.pair.now < end && bench.pair.step(end) {
        for wc in bench.pair.take_completions(0, SEND_CQ) {
            assert_eq!(wc.status, WcStatus::Success);
            if wc.wr_id == LONG {
                done.1 += 1;
                post(&mut bench, long, LONG, op, 64 * 1024);
            } else {
                done.0 += 1;
                post(&mut bench, qpns[wc.wr_id as usize], wc.wr_id, op, 4096);
            }
        }
    }
    done
}

#[test]
fn a_long_request_beside_many_short_ones() {
    for op in [Op::Write, Op::Read] {
        for shorts in [20, 80, 200] {
            let (short, long) = beside_short_ones(op, shorts);
            // Of the 100 MB that the wire carries in this time the long ones have their part at least: one among so many.
            eprintln!("{op:?}: {shorts} queue pairs: {short} short ones, {long} long ones");
            assert!(
                short > 10_000 && long > 0,
                "{op:?}: {shorts} queue pairs: {short} short ones, {long} long ones"
            );
        }
    }
}
