//! P_Key tables that change while queue pairs use them.

use crate::bench::Bench;
use rxe_core::{
    endpoint::EndpointConfig,
    num::Pkey,
    qp::QpState,
    testing::{ConnectOptions, PairConfig, connect::SEND_CQ},
    work::{AsyncEvent, SendFlags, SendOp, SendWr, WcStatus},
};
use std::time::Duration;

const FULL: Pkey = Pkey(0x8012);
const LIMITED: Pkey = Pkey(0x0012);
const OTHER: Pkey = Pkey(0xffff);

/// A connection in the second partition of both tables.
fn bench(name: &'static str) -> Bench {
    let endpoint = || EndpointConfig { pkeys: vec![OTHER, FULL], ..EndpointConfig::default() };
    Bench::with(
        PairConfig { name, endpoints: [endpoint(), endpoint()], ..PairConfig::default() },
        ConnectOptions { pkey_index: 1, retry_count: 1, ..ConnectOptions::default() },
    )
}

fn write(bench: &mut Bench, wr_id: u64, len: u32) {
    let (sges, remote, qpn) = ([bench.sge(0, 0, len)], bench.remote(1, 0), bench.qpn(0));
    let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, SendOp::Write(remote), &sges) };
    bench.pair.post_send(0, qpn, &wr).expect("posted");
}

fn give(bench: &mut Bench, side: usize, table: &[Pkey]) {
    let now = bench.pair.now;
    let side = &mut bench.pair.sides[side];
    side.endpoint.set_pkeys(now, vec![table.to_vec()], &side.heap);
    bench.pair.drain(0);
    bench.pair.drain(1);
}

#[test]
fn a_key_that_is_taken_away_ends_its_queue_pairs_and_nothing_is_lost() {
    let mut bench = bench("pkeys-gone");
    (0..8).for_each(|wr_id| write(&mut bench, wr_id, 64 * 1024));
    bench.pair.run_for(Duration::from_micros(200));
    give(&mut bench, 0, &[OTHER]);
    bench.pair.run_until_idle_for(Duration::from_secs(1));
    let done = bench.pair.take_completions(0, SEND_CQ);
    assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    let flushed = done.iter().filter(|wc| wc.status == WcStatus::WorkRequestFlushed).count();
    assert!(
        flushed > 0 && done[8 - flushed..].iter().all(|wc| wc.status == WcStatus::WorkRequestFlushed),
        "{done:?}"
    );
    let qpn = bench.qpn(0);
    assert_eq!(bench.pair.sides[0].async_events.pop_front(), Some(AsyncEvent::QpFatal(qpn)));
    assert_eq!(bench.pair.sides[0].endpoint.query_qp(qpn).unwrap().0.state, QpState::Error);
}

#[test]
fn a_key_that_moves_is_found_and_the_connection_goes_on() {
    let mut bench = bench("pkeys-moved");
    write(&mut bench, 1, 64 * 1024);
    give(&mut bench, 0, &[FULL]);
    give(&mut bench, 1, &[Pkey(0x8001), OTHER, FULL]);
    write(&mut bench, 2, 64 * 1024);
    bench.pair.run_until_idle_for(Duration::from_secs(1));
    assert!(bench.pair.take_completions(0, SEND_CQ).iter().all(|wc| wc.status == WcStatus::Success));
    let index = |side: usize| bench.pair.sides[side].endpoint.query_qp(bench.qpn(side)).unwrap().0.pkey_index;
    assert_eq!((index(0), index(1)), (0, 2));
}

#[test]
fn limited_members_do_not_hear_each_other_from_then_on() {
    let mut bench = bench("pkeys-limited");
    give(&mut bench, 0, &[OTHER, LIMITED]);
    write(&mut bench, 1, 64);
    bench.pair.run_until_idle_for(Duration::from_secs(1));
    assert_eq!(bench.pair.take_completions(0, SEND_CQ)[0].status, WcStatus::Success, "limited with full");
    give(&mut bench, 1, &[OTHER, LIMITED]);
    write(&mut bench, 2, 64);
    bench.pair.run_until_idle_for(Duration::from_secs(30));
    assert_eq!(bench.pair.take_completions(0, SEND_CQ)[0].status, WcStatus::RetryExceeded);
    let stats = bench.pair.sides[1].endpoint.qp_stats(bench.qpn(1)).unwrap();
    assert!(stats.dropped_pkey > 0, "{stats:?}");
}

/// A queue pair whose partition the port has lost can be put into the error state, as any other.
#[test]
fn it_ends_without_its_partition() {
    let options = ConnectOptions { pkey_index: 1, ..ConnectOptions::default() };
    let mut config = PairConfig { name: "partition-lost", ..PairConfig::default() };
    for endpoint in &mut config.endpoints {
        endpoint.pkeys = vec![Pkey::DEFAULT, Pkey(0x8001)];
    }
    let mut bench = Bench::with(config, options);
    let now = bench.pair.now;
    let side = &mut bench.pair.sides[0];
    side.endpoint.set_pkeys(now, vec![vec![Pkey::DEFAULT]], &side.heap);
    assert_eq!(bench.state(0), QpState::Error);
    bench.go_to(0, QpState::Error);
}
