//! RESET: everything is forgotten, there are no completions or events, and the queue pair can be used again.

use crate::bench::Bench;
use rxe_core::{
    num::{Psn, Qpn},
    qp::{CongestionControl, Pacing, QpAttrs, QpState, Timing},
    testing::{ConnectOptions, Verdict},
    time::Instant,
    wire::Class,
    work::{SendOp, WcStatus},
};
use std::time::Duration;

fn bring_up_again(bench: &mut Bench, psn: [Psn; 2]) {
    bench.options = ConnectOptions { psn, ..bench.options };
    let (options, qpns) = (bench.options, bench.connection.qpns);
    for side in 0..2 {
        bench.pair.bring_up(side, qpns[side], qpns[1 - side], &options, QpState::Rts);
    }
}

fn works(bench: &mut Bench, seed: u64) {
    let data = bench.fill(0, 0, 5000, seed);
    bench.recv(1, 77, 10_000, 5000);
    bench.send(0, 7, SendOp::Send, 0, 5000);
    bench.send(0, 8, SendOp::Read(bench.remote(1, 10_000)), 20_000, 5000);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(7, WcStatus::Success), (8, WcStatus::Success)]);
    assert_eq!(bench.received_statuses(1), [(77, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 10_000, 5000), data);
    assert_eq!(bench.bytes(0, 20_000, 5000), data);
}

#[test]
fn queues_are_emptied_without_completions() {
    let mut bench = Bench::new("reset");
    bench.cut(0);
    bench.recv(0, 1, 0, 100);
    bench.send(0, 2, SendOp::Send, 0, 100);
    bench.go_to(0, QpState::Reset);
    bench.pair.run_until_idle();
    assert!(bench.sent(0).is_empty() && bench.received(0).is_empty());
    let attrs = bench.pair.sides[0].endpoint.query_qp(bench.qpn(0)).expect("it exists").0;
    assert_eq!(attrs, QpAttrs::default());
}

#[test]
fn used_again_many_times_with_other_numbers() {
    let mut bench = Bench::new("reset-reuse");
    works(&mut bench, 0);
    for round in 1..20 {
        // In half of the rounds by way of the error state.
        for side in 0..2 {
            if round % 2 == 0 {
                bench.go_to(side, QpState::Error);
            }
            bench.go_to(side, QpState::Reset);
        }
        bench.sent(0);
        bench.received(1);
        bring_up_again(&mut bench, [Psn::new(round * 0xf_fff1), Psn::new(round * 0x3_3333)]);
        works(&mut bench, u64::from(round));
    }
}

/// Packets of the former life that come late do not disturb the new one.
#[test]
fn late_packets_of_the_former_life() {
    let mut bench = Bench::new("reset-late");
    bench.pair.sides[0].link.set_rule(|_| Verdict::Duplicate(Duration::from_millis(3)));
    bench.pair.sides[1].link.set_rule(|_| Verdict::Duplicate(Duration::from_millis(3)));
    for round in 0..5 {
        works(&mut bench, round);
        let data = bench.fill(0, 30_000, 3000, round + 100);
        bench.send(0, 1, SendOp::Write(bench.remote(1, 30_000)), 30_000, 3000);
        bench.pair.run_for(Duration::from_micros(100));
        bench.go_to(0, QpState::Reset);
        bench.go_to(1, QpState::Reset);
        bench.sent(0);
        // Far from the old numbers, as a program that draws them at random is with near certainty.
        bring_up_again(
            &mut bench,
            [Psn::new((round as u32 + 1) * 0x10_0000), Psn::new((round as u32 + 2) * 0x9_0000)],
        );
        bench.pair.run_for(Duration::from_millis(10));
        assert_eq!(bench.bytes(1, 30_000, 3000), data, "written in its own life");
    }
    works(&mut bench, 99);
    assert_eq!((bench.state(0), bench.state(1)), (QpState::Rts, QpState::Rts));
}

/// One packet at full speed; then eight bits a second, until it is told to begin anew.
#[derive(Debug, Default)]
struct Tired(bool);

impl CongestionControl for Tired {
    fn rate(&mut self, _: Instant) -> u64 {
        if self.0 { 8 } else { u64::MAX }
    }

    fn on_sent(&mut self, _: Instant, _: u32) {
        self.0 = true;
    }

    fn restart(&mut self) {
        self.0 = false;
    }
}

/// Its pacing keeps nothing from before the RESET, neither the rate nor the time of the next packet. Only its clock goes on.
#[test]
fn a_paced_one_starts_at_full_speed_again() {
    let mut bench = Bench::new("reset-paced");
    let timing = Timing { shortest: Duration::from_secs(1), probes: false };
    let pacing = Pacing {
        control: Box::new(Tired::default()),
        window: u32::MAX,
        ask_after: u32::MAX,
        catch_up: Duration::ZERO,
        timing,
    };
    let qpn = bench.qpn(0);
    assert!(bench.pair.sides[0].endpoint.pace(qpn, pacing));
    for round in 1..4 {
        let before = bench.wire_of(0, Class::Write).len();
        for id in 0..3 {
            bench.send(0, id, SendOp::Write(bench.remote(1, 0)), 0, 100);
        }
        bench.pair.run_for(Duration::from_millis(100));
        // The second left by the rate of before it, and the third waits for most of a minute.
        assert_eq!(bench.wire_of(0, Class::Write).len() - before, 2, "life {round}");
        for side in 0..2 {
            bench.go_to(side, QpState::Reset);
        }
        bench.sent(0);
        bring_up_again(&mut bench, [Psn::new(round * 0x10_0000), Psn::new(round * 0x9_0000)]);
    }
    // Its timeouts are as long as before the RESET.
    bench.cut(1);
    let before = bench.wire_of(0, Class::Write).len();
    bench.send(0, 7, SendOp::Write(bench.remote(1, 0)), 0, 100);
    bench.pair.run_for(Duration::from_millis(900));
    assert_eq!(
        bench.wire_of(0, Class::Write).len() - before,
        1,
        "nothing is sent again before its clock says so"
    );
}

#[test]
fn destroyed_numbers_are_not_given_out_at_once() {
    let mut bench = Bench::new("destroy");
    let options = bench.options;
    let old = bench.qpn(0);
    bench.pair.sides[0].endpoint.destroy_qp(old).expect("it exists");
    assert!(bench.pair.sides[0].endpoint.query_qp(old).is_none());
    let fresh: Vec<Qpn> = (0..10).map(|_| bench.pair.create_qp(0, &options)).collect();
    assert!(!fresh.contains(&old), "{old} was used a moment ago");
    assert!(bench.pair.sides[0].endpoint.destroy_qp(old).is_err());
}
