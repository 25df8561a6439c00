//! UC: what arrives whole is delivered, what does not is dropped without harm to the next.

use crate::bench::Bench;
use rxe_core::{
    qp::{PostError, QpState, QpType},
    testing::{ConnectOptions, Faults, LinkConfig, PairConfig, Verdict},
    work::{SendFlags, SendOp, SendWr, Sge, WcStatus},
};

fn bench(name: &'static str, link: LinkConfig) -> Bench {
    let options = ConnectOptions { qp_type: QpType::Uc, ..ConnectOptions::default() };
    Bench::with(PairConfig { name, links: [link; 2], ..PairConfig::default() }, options)
}

#[test]
fn delivered_and_silent() {
    let mut bench = bench("uc", LinkConfig::default());
    let data = bench.fill(0, 0, 5000, 1);
    bench.recv(1, 7, 0, 5000);
    bench.recv(1, 8, 0, 0);
    bench.send(0, 1, SendOp::Send, 0, 5000);
    bench.send(0, 2, SendOp::WriteImm(bench.remote(1, 10_000), [1; 4]), 0, 5000);
    assert_eq!(
        bench.sent_statuses(0),
        [(1, WcStatus::Success), (2, WcStatus::Success)],
        "done when it has left"
    );
    bench.pair.run_until_idle();
    assert_eq!(bench.received_statuses(1), [(7, WcStatus::Success), (8, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 0, 5000), data);
    assert_eq!(bench.bytes(1, 10_000, 5000), data);
    assert!(bench.wire(1).is_empty(), "nothing comes back");
    let read = SendOp::Read(bench.remote(1, 0));
    let sges = [bench.sge(0, 0, 8)];
    let qpn = bench.qpn(0);
    let refused = bench.pair.post_send(0, qpn, &SendWr::new(3, read, &sges));
    assert_eq!(refused, Err(PostError::Operation));
}

/// Any one packet of a message lost: that message is not delivered, the receive serves the next one.
#[test]
fn one_packet_lost() {
    for lost in 0..4 {
        for op in 0..2 {
            let mut bench = bench("uc-loss", LinkConfig::default());
            bench.pair.sides[0].link.set_rule(move |crossing| match crossing.index == lost {
                true => Verdict::Drop,
                false => Verdict::Pass,
            });
            let data = bench.fill(0, 0, 4000, 1);
            bench.recv(1, 7, 0, 4000);
            let op = if op == 0 { SendOp::Send } else { SendOp::WriteImm(bench.remote(1, 10_000), [1; 4]) };
            bench.send(0, 1, op, 0, 4000);
            bench.pair.run_until_idle();
            assert!(bench.received(1).is_empty(), "{op:?} without packet {lost}");
            bench.send(0, 2, op, 0, 4000);
            bench.pair.run_until_idle();
            assert_eq!(
                bench.received_statuses(1),
                [(7, WcStatus::Success)],
                "{op:?} after packet {lost} was lost"
            );
            let at = if op == SendOp::Send { 0 } else { 10_000 };
            assert_eq!(bench.bytes(1, at, 4000), data);
            assert_eq!(bench.state(1), QpState::Rts);
        }
    }
}

#[test]
fn no_receive_and_no_right() {
    let mut bench = bench("uc-drops", LinkConfig::default());
    bench.send(0, 1, SendOp::Send, 0, 3000);
    bench.pair.run_until_idle();
    assert!(bench.stats(1).dropped_no_receive > 0);
    let mut bad = bench.remote(1, 0);
    bad.rkey = bad.rkey.rotated();
    bench.fill(0, 0, 3000, 5);
    bench.send(0, 2, SendOp::Write(bad), 0, 3000);
    bench.pair.run_until_idle();
    assert!(bench.stats(1).dropped_refused > 0);
    assert_eq!(bench.bytes(1, 0, 3000), vec![0; 3000]);
    bench.recv(1, 7, 0, 3000);
    bench.send(0, 3, SendOp::Send, 0, 3000);
    bench.pair.run_until_idle();
    assert_eq!(bench.received_statuses(1), [(7, WcStatus::Success)], "the queue pair lives on");
    assert_eq!((bench.state(0), bench.state(1)), (QpState::Rts, QpState::Rts));
}

/// Through a storm: every message that is delivered is whole, and most are.
#[test]
fn through_a_storm() {
    let faults = Faults { loss: 20, duplicate: 0, reorder: 20, corrupt: 10 };
    let mut bench = bench("uc-storm", LinkConfig { faults, ..LinkConfig::default() });
    let (mut delivered, count) = (0, 400);
    for round in 0..count {
        let len = 1 + round * 97 % 4500;
        let data = bench.fill(0, 0, len, round);
        if round == 0 || delivered > 0 {
            bench.recv(1, round, 0, 4500);
        }
        bench.send(0, round, SendOp::SendImm((round as u32).to_be_bytes()), 0, len as u32);
        bench.pair.run_until_idle();
        for wc in bench.received(1) {
            assert_eq!(wc.status, WcStatus::Success);
            assert_eq!(wc.extra, rxe_core::work::WcExtra::Immediate((round as u32).to_be_bytes()));
            assert!(wc.grh, "{wc:?}");
            assert_eq!(u64::from(wc.byte_len), len);
            assert!(bench.bytes(1, 0, len) == data, "message {round} is not whole");
            delivered += 1;
        }
        if bench.pair.sides[1].endpoint.query_qp(bench.qpn(1)).is_none() {
            unreachable!("queue pairs do not vanish");
        }
    }
    assert!(delivered > count / 2, "{delivered} of {count}");
    assert_eq!(bench.state(1), QpState::Rts);
}

/// What cannot be sent ends the send queue until the program says otherwise; receiving goes on.
#[test]
fn a_send_queue_in_error() {
    let mut bench = bench("uc-sqe", LinkConfig::default());
    let qpn = bench.qpn(0);
    let beyond = [Sge { addr: bench.addr(0, crate::bench::BUFFER - 10), len: 11, lkey: bench.key(0) }];
    let wrong = SendWr { flags: SendFlags::empty(), ..SendWr::new(1, SendOp::Send, &beyond) };
    bench.pair.post_send(0, qpn, &wrong).expect("posted");
    bench.pair.run_until_idle();
    assert_eq!((bench.state(0), bench.state(1)), (QpState::Sqe, QpState::Rts));
    bench.send(0, 2, SendOp::Send, 0, 10);
    let expected = [(1, WcStatus::LocalProtection), (2, WcStatus::WorkRequestFlushed)];
    assert_eq!(bench.sent_statuses(0), expected);

    bench.recv(0, 7, 0, 100);
    bench.send(1, 3, SendOp::Send, 0, 100);
    bench.pair.run_until_idle();
    assert_eq!(bench.received_statuses(0), [(7, WcStatus::Success)]);
    assert!(bench.events(0).is_empty());

    bench.go_to(0, QpState::Rts);
    bench.recv(1, 8, 0, 5000);
    let data = bench.fill(0, 0, 5000, 1);
    bench.send(0, 4, SendOp::Send, 0, 5000);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(4, WcStatus::Success)]);
    assert_eq!(bench.received_statuses(1), [(8, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 0, 5000), data);
}

/// As with RC, and kernel rxe.
#[test]
fn a_local_invalidate_that_fails() {
    let mut bench = bench("uc-local-invalidate", LinkConfig::default());
    bench.send(0, 1, SendOp::LocalInvalidate(bench.key(0)), 0, 0);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::LocalQpOperation)]);
}
