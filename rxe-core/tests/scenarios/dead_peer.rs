//! A queue pair whose peer is in the error state gets no answers. No other queue pair waits for it, whatever its timeout.

use crate::bench::{BUFFER, Bench};
use rxe_core::{
    num::Qpn,
    qp::{QpChange, QpState},
    testing::{ConnectOptions, LinkConfig, PairConfig, connect::SEND_CQ},
    work::{RecvWr, SendFlags, SendOp, SendWr, WcStatus},
};
use std::{net::IpAddr, time::Duration};

/// Timeouts of 67 ms, 537 ms, and none.
const TIMEOUTS: [u8; 3] = [14, 17, 0];
/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Read,
    Write,
    Send,
}

/// Where the dead queue pair's peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// At the socket of the other's peer.
    Same,
    /// On another host.
    Elsewhere,
}

const CASES: [(Op, Place); 6] = [
    (Op::Read, Place::Same),
    (Op::Read, Place::Elsewhere),
    (Op::Write, Place::Same),
    (Op::Write, Place::Elsewhere),
    (Op::Send, Place::Same),
    (Op::Send, Place::Elsewhere),
];

fn request(bench: &Bench, op: Op) -> SendOp {
    match op {
        Op::Read => SendOp::Read(bench.remote(1, 0)),
        Op::Write => SendOp::Write(bench.remote(1, 0)),
        Op::Send => SendOp::Send,
    }
}

/// A queue pair of side 0 whose requests of 1 MiB nobody answers.
fn dead(bench: &mut Bench, timeout: u8, place: Place) -> Qpn {
    let options = ConnectOptions { timeout, ..bench.options };
    if place == Place::Same {
        let [qpn, peer] = bench.pair.connect(&options).qpns;
        let error = QpChange { state: Some(QpState::Error), ..QpChange::default() };
        bench.pair.modify(1, peer, &error).unwrap();
        return qpn;
    }
    let qpn = bench.pair.create_qp(0, &options);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let mut change = bench.pair.step_to(0, Qpn::from_parts(9, 77), &options, state);
        if let Some(av) = &mut change.av {
            av.dst = IpAddr::from([10, 0, 0, 99]);
        }
        bench.pair.modify(0, qpn, &change).unwrap();
    }
    qpn
}

fn post(bench: &mut Bench, qpn: Qpn, wr_id: u64, op: SendOp, len: u32) {
    let sges = [bench.sge(0, 0, len / 4); 4];
    let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, op, &sges) };
    bench.pair.post_send(0, qpn, &wr).expect("posted");
}

fn receive(bench: &mut Bench, qpn: Qpn, len: u32) {
    let sges = [bench.sge(1, 0, len)];
    bench.pair.post_recv(1, qpn, &RecvWr { wr_id: 9, sges: &sges }).expect("posted");
}

/// A bench with a dead queue pair that has been asked for four times 1 MiB.
fn beside_a_dead_one(op: Op, place: Place, timeout: u8, config: PairConfig) -> Bench {
    let mut bench = Bench::with(config, ConnectOptions { timeout: 20, ..ConnectOptions::default() });
    let qpn = dead(&mut bench, timeout, place);
    let wr = request(&bench, op);
    (0..4).for_each(|wr_id| post(&mut bench, qpn, 1000 + wr_id, wr, 4 * BUFFER as u32));
    bench
}

/// A small request of another queue pair does not wait, however long the dead one has been dead, and whatever it asks for.
#[test]
fn a_small_request_beside_it_does_not_wait() {
    for ((op, place), timeout) in CASES.into_iter().flat_map(|case| TIMEOUTS.map(|timeout| (case, timeout))) {
        for other in [Op::Read, Op::Write, Op::Send] {
            let config = PairConfig { name: "dead-peer", trace: 0, ..PairConfig::default() };
            let mut bench = beside_a_dead_one(op, place, timeout, config);
            let (qpn, peer) = (bench.qpn(0), bench.qpn(1));
            for turn in 0..20 {
                receive(&mut bench, peer, 64);
                let (start, wr) = (bench.pair.now, request(&bench, other));
                post(&mut bench, qpn, turn, wr, 64);
                bench.pair.run_for(Duration::from_millis(1));
                let done: Vec<_> = bench.sent_statuses(0).into_iter().filter(|(id, _)| *id < 1000).collect();
                assert_eq!(
                    done,
                    [(turn, WcStatus::Success)],
                    "{other:?} beside {op:?} {place:?}, timeout {timeout}, after {:?}",
                    bench.pair.now.since(start)
                );
                // Also when its requests have left again, after a timeout or two.
                bench.pair.run_for(Duration::from_millis(9));
            }
        }
    }
}

/// Many dead queue pairs together hold the whole window: each new queue pair is served nevertheless.
#[test]
fn many_dead_ones() {
    for (op, place) in CASES {
        let config = PairConfig { name: "dead-peers", trace: 0, ..PairConfig::default() };
        let mut bench = beside_a_dead_one(op, place, 0, config);
        for _ in 0..40 {
            let qpn = dead(&mut bench, 0, place);
            let wr = request(&bench, op);
            post(&mut bench, qpn, 1000, wr, 4 * BUFFER as u32);
        }
        for turn in 0..20 {
            let [qpn, peer] = bench.pair.connect(&bench.options).qpns;
            receive(&mut bench, peer, 64);
            let wr = request(&bench, op);
            post(&mut bench, qpn, turn, wr, 64);
            bench.pair.run_for(Duration::from_millis(1));
            assert_eq!(bench.sent_statuses(0), [(turn, WcStatus::Success)], "beside {op:?} {place:?}");
        }
    }
}

/// Keeps four requests of 64 KiB waiting on each of `qpns` for 50 ms; gives the bytes that were done.
fn load(bench: &mut Bench, qpns: &[[Qpn; 2]], op: Op) -> u64 {
    const LEN: u32 = 64 * 1024;
    let end = bench.pair.now + Duration::from_millis(50);
    let again = |bench: &mut Bench, at: usize| {
        let [qpn, peer] = qpns[at];
        if op == Op::Send {
            receive(bench, peer, LEN);
        }
        let wr = request(bench, op);
        post(bench, qpn, at as u64, wr, LEN);
    };
    (0..4 * qpns.len()).for_each(|at| again(bench, at % qpns.len()));
    let mut bytes = 0;
    while bench.pair.now < end && bench.pair.step(end) {
        for wc in bench.pair.take_completions(0, SEND_CQ) {
            if wc.wr_id < 1000 {
                assert_eq!(wc.status, WcStatus::Success);
                bytes += u64::from(LEN);
                again(bench, wc.wr_id as usize);
            }
        }
    }
    bytes
}

/// Healthy queue pairs are nearly as fast as without the dead one.
#[test]
fn healthy_ones_keep_going() {
    let wire = LinkConfig {
        rate: 1_000_000_000,
        latency: Duration::from_micros(20),
        hold: 200_000,
        ..LinkConfig::default()
    };
    for (op, place) in CASES {
        let measure = |timeout: Option<u8>| {
            let config =
                PairConfig { name: "dead-beside", links: [wire; 2], trace: 0, ..PairConfig::default() };
            let mut bench = match timeout {
                Some(timeout) => beside_a_dead_one(op, place, timeout, config),
                None => Bench::with(config, ConnectOptions::default()),
            };
            let qpns: Vec<_> = (0..4).map(|_| bench.pair.connect(&bench.options).qpns).collect();
            load(&mut bench, &qpns, op)
        };
        let alone = measure(None);
        for timeout in TIMEOUTS {
            let beside = measure(Some(timeout));
            assert!(beside * 10 > alone * 9, "{op:?} {place:?} {timeout}: {beside} bytes, alone {alone}");
        }
    }
}

/// What comes of READs that counted no more is placed, and returned to nobody.
#[test]
fn late_answers_are_taken() {
    let config = PairConfig { name: "late-answers", ..PairConfig::default() };
    let mut bench = Bench::with(config, ConnectOptions { timeout: 18, ..ConnectOptions::default() });
    let data = bench.fill(1, 0, BUFFER, 5);
    let slow = bench.pair.connect(&bench.options).qpns;
    // Its answers come after 5 ms, while somebody else waits for room.
    bench.pair.sides[1].link.set_rule(move |crossing| match crossing.packet {
        Some(packet) if packet.bth.dest_qp == slow[0] => {
            rxe_core::testing::Verdict::Delay(Duration::from_millis(5))
        }
        _ => rxe_core::testing::Verdict::Pass,
    });
    let read = SendOp::Read(bench.remote(1, 0));
    let sges = [bench.sge(0, 0, BUFFER as u32)];
    let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(1, read, &sges) };
    bench.pair.post_send(0, slow[0], &wr).unwrap();
    let other = bench.qpn(0);
    for wr_id in 2..6 {
        post(&mut bench, other, wr_id, read, 4096);
    }
    post(&mut bench, other, 6, read, 64 * 1024);
    bench.pair.run_for(Duration::from_millis(2));
    assert_eq!(bench.sent(0).len(), 5, "the others");
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.pair.sides[0].endpoint.qp_stats(slow[0]).unwrap().timeouts, 0);
    assert_eq!(bench.bytes(0, 70_000, BUFFER - 70_000), data[70_000..]);
}
