//! Queue pairs that share a wire or a buffer get fair parts of it, and none starves.

use crate::bench::{BUFFER, Bench};
use rxe_core::{
    endpoint::EndpointConfig,
    num::Qpn,
    testing::{
        ConnectOptions, LinkConfig, PairConfig,
        connect::{RECV_CQ, SEND_CQ},
    },
    time::Instant,
    wire::Class,
    work::{RecvWr, SendFlags, SendOp, SendWr, WcStatus},
};
use std::{collections::BTreeMap, time::Duration};

/// Bytes per second of the wires.
const RATE: u64 = 1_000_000_000;
/// Largest window of an endpoint as tests make them.
const WINDOW: u64 = 192 * 1024;

/// A bench whose wires are busy, and whose senders are held up when they have too much for it.
fn bench(name: &'static str) -> Bench {
    let wire =
        LinkConfig { rate: RATE, hold: 130_000, latency: Duration::from_micros(10), ..LinkConfig::default() };
    Bench::with(
        PairConfig { name, links: [wire; 2], trace: 0, ..PairConfig::default() },
        ConnectOptions { timeout: 18, ..ConnectOptions::default() },
    )
}

fn post(bench: &mut Bench, side: usize, qpn: Qpn, (wr_id, op, len): (u64, SendOp, u32)) {
    let sges = [bench.sge(side, 0, len)];
    let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, op, &sges) };
    bench.pair.post_send(side, qpn, &wr).expect("posted");
}

/// Keeps `depth` requests of `len` bytes waiting on each queue pair of `side` until `end`; gives the bytes done by each.
fn load(
    bench: &mut Bench,
    (side, qpns): (usize, &[Qpn]),
    (op, len, depth): (SendOp, u32, usize),
    end: Instant,
) -> BTreeMap<u64, u64> {
    for (at, qpn) in (0..).zip(qpns) {
        (0..depth).for_each(|_| post(bench, side, *qpn, (at, op, len)));
    }
    let mut bytes: BTreeMap<u64, u64> = (0..qpns.len() as u64).map(|at| (at, 0)).collect();
    while bench.pair.now < end && bench.pair.step(end) {
        for wc in bench.pair.take_completions(side, SEND_CQ) {
            assert_eq!(wc.status, WcStatus::Success);
            *bytes.get_mut(&wc.wr_id).expect("known") += u64::from(len);
            post(bench, side, qpns[wc.wr_id as usize], (wc.wr_id, op, len));
        }
    }
    bytes
}

/// Jain's index: 1 where all have the same, 1/n where one has all.
fn jain(shares: &BTreeMap<u64, u64>) -> f64 {
    let shares: Vec<f64> = shares.values().map(|bytes| *bytes as f64).collect();
    let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
    sum * sum / (shares.len() as f64 * squares)
}

/// 64 queue pairs that always have something to send, or to fetch.
#[test]
fn sixty_four_have_equal_shares() {
    for (name, len, depth) in
        [("fair-long", BUFFER as u32, 1), ("fair", 64 * 1024, 2), ("fair-short", 4096, 4)]
    {
        for read in [false, true] {
            let mut bench = bench(name);
            let remote = bench.remote(1, 0);
            let op = if read { SendOp::Read(remote) } else { SendOp::Write(remote) };
            let qpns: Vec<_> = (0..64).map(|_| bench.pair.connect(&bench.options).qpns[0]).collect();
            let end = bench.pair.now + Duration::from_millis(100);
            let bytes = load(&mut bench, (0, &qpns), (op, len, depth), end);
            let total: u64 = bytes.values().sum();
            assert!(total > RATE / 10 * 8 / 10, "{name} read {read}: {total} bytes in all");
            assert!(jain(&bytes) >= 0.95, "{name} read {read}: {:.3} of {bytes:?}", jain(&bytes));
        }
    }
}

/// A queue pair that begins late soon has its share, although another one held the whole window.
#[test]
fn a_late_one_gets_its_share() {
    for read in [false, true] {
        let mut bench = bench("fair-late");
        let remote = bench.remote(1, 0);
        let op = if read { SendOp::Read(remote) } else { SendOp::Write(remote) };
        let first = bench.qpn(0);
        for _ in 0..100 {
            post(&mut bench, 0, first, (9, op, BUFFER as u32));
        }
        bench.pair.run_for(Duration::from_millis(5));
        let second = bench.pair.connect(&bench.options).qpns[0];
        bench.pair.take_completions(0, SEND_CQ);
        for _ in 0..40 {
            post(&mut bench, 0, second, (1, op, 64 * 1024));
        }
        bench.pair.run_for(Duration::from_millis(4));
        let done = bench.pair.take_completions(0, SEND_CQ);
        let of = |id| done.iter().filter(|wc| wc.wr_id == id).map(|wc| u64::from(wc.byte_len)).sum::<u64>();
        let shares = BTreeMap::from([(0, of(9)), (1, of(1))]);
        assert!(jain(&shares) > 0.9, "read {read}: {shares:?}");
    }
}

/// Our SENDs pass the answers to the peer's READs, of which there are always more.
#[test]
fn requests_pass_answers() {
    let greedy = EndpointConfig { receive_window: 16 << 20, ..EndpointConfig::default() };
    let wire = LinkConfig { rate: RATE, hold: 130_000, ..LinkConfig::default() };
    let endpoints = [EndpointConfig::default(), greedy];
    let config =
        PairConfig { name: "fair-answers", links: [wire; 2], trace: 0, endpoints, ..PairConfig::default() };
    let mut bench = Bench::with(config, ConnectOptions { timeout: 18, ..ConnectOptions::default() });
    let (reader, sender) = (bench.qpn(1), bench.qpn(0));
    let read = SendOp::Read(bench.remote(0, 0));
    for _ in 0..16 {
        post(&mut bench, 1, reader, (1, read, BUFFER as u32));
    }
    let mut fetched = 0;
    for turn in 0..100 {
        let sges = [bench.sge(1, 0, 64)];
        bench.pair.post_recv(1, reader, &RecvWr { wr_id: turn, sges: &sges }).unwrap();
        post(&mut bench, 0, sender, (turn, SendOp::Send, 64));
        let start = bench.pair.now;
        let limit = start + Duration::from_micros(500);
        while bench.pair.take_completions(1, RECV_CQ).is_empty() {
            assert!(bench.pair.step(limit), "SEND {turn} waits for answers");
            for _ in bench.pair.take_completions(1, SEND_CQ) {
                fetched += 1;
                post(&mut bench, 1, reader, (1, read, BUFFER as u32));
            }
        }
    }
    assert!(fetched > 5, "the peer has gone on fetching: {fetched}");
}

/// Requests pass notifications of congestion, of which many wait for a slow wire.
#[test]
fn requests_pass_notices() {
    let marking = LinkConfig { rate: RATE, mark: 1, ..LinkConfig::default() };
    let slow = LinkConfig { rate: 1_000_000, hold: 1, ..LinkConfig::default() };
    let config = PairConfig { name: "fair-notices", links: [marking, slow], ..PairConfig::default() };
    let options = ConnectOptions { timeout: 20, traffic_class: 2, ..ConnectOptions::default() };
    let mut bench = Bench::with(config, options);
    let write = SendOp::Write(bench.remote(1, 0));
    for _ in 0..30 {
        let qpn = bench.pair.connect(&options).qpns[0];
        post(&mut bench, 0, qpn, (1, write, 4096));
    }
    bench.pair.run_for(Duration::from_millis(1));
    let before = bench.wire(1).len();
    let back = SendOp::Write(bench.remote(0, 0));
    bench.send(1, 1, back, 0, 100);
    bench.pair.run_for(Duration::from_millis(20));
    let later = &bench.wire(1)[before..];
    let place = later.iter().position(|seen| seen.class == Class::Write).expect("it leaves");
    let notices = later.iter().filter(|seen| seen.class == Class::Congestion).count();
    assert!(place <= 2 && notices >= 10, "{place} packets before it, {notices} notices in all");
}

/// Two that fetch from each other without pause both go on.
#[test]
fn mutual_readers() {
    let mut bench = bench("fair-mutual");
    let qpns = [bench.qpn(0), bench.qpn(1)];
    let reads = [SendOp::Read(bench.remote(1, 0)), SendOp::Read(bench.remote(0, 0))];
    for side in 0..2 {
        (0..16).for_each(|_| post(&mut bench, side, qpns[side], (0, reads[side], BUFFER as u32)));
    }
    let (mut done, end) = ([0, 0], bench.pair.now + Duration::from_millis(50));
    while bench.pair.now < end && bench.pair.step(end) {
        for side in 0..2 {
            for wc in bench.pair.take_completions(side, SEND_CQ) {
                assert_eq!(wc.status, WcStatus::Success);
                done[side] += u64::from(wc.byte_len);
                post(&mut bench, side, qpns[side], (0, reads[side], BUFFER as u32));
            }
        }
    }
    assert!(done.iter().all(|bytes| *bytes > RATE / 20 * 7 / 10), "{done:?}");
}

/// A small SEND beside eight queue pairs that WRITE 1 MiB without pause.
#[test]
fn a_small_request_passes_large_ones() {
    let mut bench = bench("fair-small");
    let qpns: Vec<_> = (0..8).map(|_| bench.pair.connect(&bench.options).qpns[0]).collect();
    let write = SendOp::Write(bench.remote(1, 0));
    let sges = [bench.sge(0, 0, BUFFER as u32); 4];
    let large = |bench: &mut Bench, at: u64| {
        // The same place four times over would be too long for it.
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(at, write, &sges[..1]) };
        bench.pair.post_send(0, qpns[at as usize], &wr).expect("posted");
    };
    for at in 0..8 {
        (0..4).for_each(|_| large(&mut bench, at));
    }
    bench.pair.run_for(Duration::from_millis(5));
    let (sender, receiver) = (bench.qpn(0), bench.qpn(1));
    let longest = Duration::from_nanos(2 * WINDOW * 1_000_000_000 / RATE);
    for turn in 100..200 {
        let sges = [bench.sge(1, 0, 64)];
        bench.pair.post_recv(1, receiver, &RecvWr { wr_id: turn, sges: &sges }).unwrap();
        post(&mut bench, 0, sender, (turn, SendOp::Send, 64));
        let start = bench.pair.now;
        while bench.pair.take_completions(1, RECV_CQ).is_empty() {
            assert!(bench.pair.step(start + longest), "SEND {turn} waits for more than {longest:?}");
            for wc in bench.pair.take_completions(0, SEND_CQ) {
                if wc.wr_id < 100 {
                    large(&mut bench, wc.wr_id);
                }
            }
        }
    }
}
