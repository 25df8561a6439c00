//! Queue pairs to one destination share its window: who leaves gives room to those that wait. What nobody holds yet gets one
//! packet at once; it is the others that wait.

use crate::bench::Bench;
use rxe_core::{
    endpoint::EndpointConfig,
    num::{Key, Qpn},
    qp::{QpChange, QpState},
    testing::{ConnectOptions, PairConfig, Verdict, connect::SEND_CQ},
    wire::Class,
    work::{Remote, SendOp, SendWr, WcStatus},
};
use std::time::Duration;

/// Two connections between the same hosts and a window that the first one's request fills; no acknowledgement of it
/// arrives. Gives the second one's queue pair, of whose request all but the first packet waits.
fn blocked(name: &'static str) -> (Bench, Qpn) {
    let endpoint = EndpointConfig { send_window: (16 * 1024, 16 * 1024), ..EndpointConfig::default() };
    let config = PairConfig { name, endpoints: [endpoint.clone(), endpoint], ..PairConfig::default() };
    // Time-outs would help the second one: there are none.
    let options = ConnectOptions { timeout: 0, ..ConnectOptions::default() };
    let mut bench = Bench::with(config, options);
    let second = bench.pair.connect(&options).qpns[0];
    bench.pair.sides[1].link.set_rule(|crossing| match crossing.packet.map(|packet| packet.info.class) {
        Some(Class::Acknowledge) => Verdict::Drop,
        _ => Verdict::Pass,
    });
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 100_000);
    let sges = [bench.sge(0, 0, 5000)];
    let write = SendOp::Write(bench.remote(1, 100_000));
    let wr = SendWr { flags: rxe_core::work::SendFlags::SIGNALED, ..SendWr::new(2, write, &sges) };
    let before = bench.wire_of(0, Class::Write).len();
    bench.pair.post_send(0, second, &wr).unwrap();
    bench.pair.run_for(Duration::from_millis(1));
    assert_eq!(bench.wire_of(0, Class::Write).len() - before, 1, "the others wait");
    bench.mend(1);
    (bench, second)
}

/// The second one's request completes, without another nudge.
fn goes_on(bench: &mut Bench) {
    bench.pair.run_for(Duration::from_millis(5));
    let done = bench.pair.take_completions(0, SEND_CQ);
    let done: Vec<_> = done.iter().filter(|wc| wc.wr_id == 2).map(|wc| wc.status).collect();
    assert_eq!(done, [WcStatus::Success]);
}

#[test]
fn who_is_reset_gives_room() {
    let (mut bench, _) = blocked("window-reset");
    let reset = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
    bench.pair.modify(0, bench.qpn(0), &reset).unwrap();
    goes_on(&mut bench);
}

#[test]
fn who_is_destroyed_gives_room() {
    let (mut bench, _) = blocked("window-destroyed");
    let qpn = bench.qpn(0);
    bench.pair.sides[0].endpoint.destroy_qp(qpn).unwrap();
    bench.pair.drain(0);
    goes_on(&mut bench);
}

/// Its peer asks for what it may not have.
#[test]
fn who_refuses_a_request_gives_room() {
    let (mut bench, _) = blocked("window-refused");
    let nowhere = Remote { addr: bench.addr(0, 0), rkey: Key(0x0bad_0bad) };
    bench.send(1, 3, SendOp::Write(nowhere), 0, 8);
    bench.pair.run_for(Duration::from_millis(1));
    assert_eq!(bench.state(0), QpState::Error);
    goes_on(&mut bench);
}
