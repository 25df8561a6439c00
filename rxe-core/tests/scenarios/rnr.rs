//! Receiver not ready: how long the sender waits, how often it tries, and that nothing is lost by it.

use crate::bench::Bench;
use rxe_core::{
    num::Msn,
    qp::QpState,
    testing::{ConnectOptions, Datagram, PairConfig},
    wire::{self, Aeth, Bth, Class, Encapsulation, Ext, NakCode, Opcode, Syndrome, icrc, rnr_delay},
    work::{SendOp, WcStatus},
};
use std::time::Duration;

fn bench(name: &'static str, rnr_retry: u8, min_rnr_timer: u8) -> Bench {
    let options = ConnectOptions { rnr_retry, min_rnr_timer, ..ConnectOptions::default() };
    Bench::with(PairConfig { name, ..PairConfig::default() }, options)
}

/// Without a receive: `n` retries after the first try, each after the time the receiver asked for, then the error.
#[test]
fn tries_as_often_as_asked_then_fails() {
    for rnr_retry in [0_u8, 1, 6] {
        for code in [1_u8, 12, 20] {
            let mut bench = bench("rnr-exceeded", rnr_retry, code);
            bench.send(0, 1, SendOp::Send, 0, 10);
            bench.send(0, 2, SendOp::Send, 0, 10);
            bench.pair.run_until_idle();
            let expected = [(1, WcStatus::RnrRetryExceeded), (2, WcStatus::WorkRequestFlushed)];
            assert_eq!(bench.sent_statuses(0), expected);
            assert_eq!((bench.state(0), bench.state(1)), (QpState::Error, QpState::Rts));
            let first = bench.options.psn[0];
            let times: Vec<_> =
                bench.wire(0).iter().filter(|seen| seen.psn == first).map(|seen| seen.at).collect();
            assert_eq!(times.len(), usize::from(rnr_retry) + 1, "rnr_retry {rnr_retry}");
            for gap in times.windows(2).map(|pair| pair[1].since(pair[0])) {
                let wait = rnr_delay(code);
                assert!(
                    gap >= wait && gap <= wait * 2 + Duration::from_millis(1),
                    "{gap:?}, asked for {wait:?}"
                );
            }
        }
    }
}

/// 7 means without end; a late receive gets the message.
#[test]
fn seven_waits_for_ever() {
    let mut bench = bench("rnr-for-ever", 7, 14);
    let data = bench.fill(0, 0, 3000, 1);
    bench.send(0, 1, SendOp::Send, 0, 3000);
    bench.pair.run_for(Duration::from_secs(1));
    assert!(bench.sent(0).is_empty());
    let naks = bench.stats(1).rnr_naks_sent;
    assert!((100..1000).contains(&naks), "one for each 1.28 ms, not {naks}");
    bench.recv(1, 9, 8192, 4096);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.received_statuses(1), [(9, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 8192, 3000), data);
    assert_eq!(bench.stats(0).timeouts, 0, "a peer that answers is not dead");
}

/// The NAK of a PSN sequence error that Linux sends for the second packet of a message whose first one met no receive.
fn late_nak(bench: &Bench) -> Datagram {
    let bth = Bth::new(Opcode(0x11), bench.qpn(0), bench.options.psn[0]);
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), msn: Msn::new(0) };
    let mut bytes = vec![0; wire::wire_len(bth.opcode, 0)];
    wire::emit(&bth, &Ext { aeth, ..Ext::default() }, 0, &mut bytes).expect("it fits");
    let mut nak = Datagram {
        src: bench.pair.sides[1].addr,
        dst: bench.pair.sides[0].addr,
        src_port: 0xc000,
        tos: 0,
        hop_limit: 64,
        ident: 0,
        encapsulation: Encapsulation::V2,
        bytes: Vec::new(),
    };
    icrc::seal(&nak.route(), nak.ident, &mut bytes);
    nak.bytes = bytes;
    nak
}

/// A slow peer's NAK for the second packet comes after the wait that its RNR NAK asked for, each time. The peer answers, so the
/// retries, which are for one that does not, are not spent by it.
#[test]
fn a_nak_that_comes_after_the_wait_spends_nothing() {
    let mut bench = bench("rnr-late-nak", 7, 12);
    let data = bench.fill(0, 0, 3000, 3);
    bench.send(0, 1, SendOp::Send, 0, 3000);
    for round in 1..=20 {
        while bench.stats(0).rnr_naks_received < round {
            assert!(bench.pair.step(bench.pair.now + Duration::from_secs(1)), "round {round}");
        }
        let before = bench.wire(0).len();
        while bench.wire(0).len() == before {
            assert!(bench.pair.step(bench.pair.now + Duration::from_secs(1)), "round {round}");
        }
        let nak = late_nak(&bench);
        bench.pair.inject(0, &nak);
    }
    assert_eq!(bench.stats(0).psn_naks_received, 20);
    assert_eq!(bench.state(0), QpState::Rts);
    bench.recv(1, 9, 8192, 4096);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.received_statuses(1), [(9, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 8192, 3000), data);
}

/// Ready again between two messages: the count starts anew for each.
#[test]
fn progress_renews_the_count() {
    let mut bench = bench("rnr-renewed", 1, 1);
    for wr_id in 0..5 {
        bench.send(0, wr_id, SendOp::Send, 0, 10);
        bench.pair.run_for(Duration::from_micros(12));
        bench.recv(1, wr_id, 0, 10);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(wr_id, WcStatus::Success)]);
        assert_eq!(bench.received_statuses(1), [(wr_id, WcStatus::Success)]);
    }
    assert!(bench.stats(1).rnr_naks_sent >= 1);
}

/// A WRITE with immediate needs its receive at the end only; then its data is all there, once.
#[test]
fn write_with_immediate() {
    let mut bench = bench("rnr-write-imm", 7, 12);
    let data = bench.fill(0, 0, 5000, 2);
    bench.send(0, 1, SendOp::WriteImm(bench.remote(1, 100), [1, 2, 3, 4]), 0, 5000);
    bench.pair.run_for(Duration::from_millis(5));
    assert!(bench.sent(0).is_empty());
    bench.recv(1, 7, 60_000, 0);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    let received = bench.received(1);
    assert_eq!((received[0].wr_id, received[0].byte_len), (7, 5000));
    assert_eq!(bench.bytes(1, 100, 5000), data);
}

/// Operations behind one that waits are not executed before it.
#[test]
fn order_is_kept_while_waiting() {
    let mut bench = bench("rnr-order", 7, 12);
    bench.fill(0, 0, 100, 3);
    bench.send(0, 1, SendOp::Send, 0, 100);
    bench.send(0, 2, SendOp::Write(bench.remote(1, 5000)), 0, 100);
    bench.pair.run_for(Duration::from_millis(3));
    assert_eq!(bench.bytes(1, 5000, 100), vec![0; 100], "the WRITE overtook the SEND");
    bench.recv(1, 7, 0, 100);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 5000, 100), bench.bytes(0, 0, 100));
    assert_eq!(bench.wire_of(1, Class::Acknowledge).iter().filter(|seen| seen.lost).count(), 0);
}

/// Each wait comes before the deadline of an acknowledgement, which is hours away. The list of deadlines does not grow by that.
#[test]
fn waits_leave_no_deadlines_behind() {
    let options =
        ConnectOptions { rnr_retry: 7, min_rnr_timer: 12, timeout: 31, ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name: "rnr-deadlines", ..PairConfig::default() }, options);
    bench.send(0, 1, SendOp::Send, 0, 3000);
    bench.pair.run_for(Duration::from_secs(1));
    let (naks, deadlines) = (bench.stats(1).rnr_naks_sent, bench.pair.sides[0].endpoint.deadlines());
    assert!(naks > 100 && deadlines < 10, "{deadlines} deadlines after {naks} RNR NAKs");
}
