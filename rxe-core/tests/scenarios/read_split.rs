//! READs larger than what the receiving socket holds are asked for in pieces, and resumed where they broke off.

use crate::bench::Bench;
use rxe_core::{
    endpoint::EndpointConfig,
    testing::{ConnectOptions, PairConfig, Verdict},
    wire::Class,
    work::{SendOp, WcStatus},
};

const WINDOW: u32 = 32 * 1024;
const LEN: u32 = 200_000;

fn bench(name: &'static str) -> Bench {
    let small = EndpointConfig { receive_window: WINDOW, ..EndpointConfig::default() };
    let config = PairConfig { name, endpoints: [small, EndpointConfig::default()], ..PairConfig::default() };
    Bench::with(config, ConnectOptions::default())
}

#[test]
fn no_more_is_asked_for_than_fits() {
    let mut bench = bench("read-split");
    let data = bench.fill(1, 0, LEN.into(), 1);
    bench.send(0, 1, SendOp::Read(bench.remote(1, 0)), 0, LEN);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.bytes(0, 0, LEN.into()), data);
    let requests = bench.wire_of(0, Class::ReadRequest);
    assert!(requests.len() >= (LEN / WINDOW) as usize, "{} requests", requests.len());
    assert!(requests.iter().all(|seen| seen.asked <= WINDOW), "{requests:?}");
    assert_eq!(requests.iter().map(|seen| seen.asked).sum::<u32>(), LEN, "each byte is asked for once");
    // At no time more on its way than fits.
    let mut on_its_way = 0_i64;
    let mut all: Vec<_> = requests.iter().map(|seen| (seen.at, i64::from(seen.asked))).collect();
    let latency = bench.pair.sides[1].link.config().latency;
    let responses = bench.wire_of(1, Class::ReadResponse);
    all.extend(responses.iter().map(|seen| (seen.at + latency, -(seen.payload as i64))));
    all.sort();
    for (at, bytes) in all {
        on_its_way += bytes;
        assert!(on_its_way <= i64::from(WINDOW), "{on_its_way} bytes at {at:?}");
    }
}

/// A lost response: what was received is not asked for again.
#[test]
fn a_broken_read_is_resumed() {
    let mut bench = bench("read-resume");
    let data = bench.fill(1, 0, LEN.into(), 2);
    bench.pair.sides[1].link.set_rule(|crossing| match crossing.index {
        20 | 70 | 71 | 150 => Verdict::Drop,
        _ => Verdict::Pass,
    });
    bench.send(0, 1, SendOp::Read(bench.remote(1, 0)), 0, LEN);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.bytes(0, 0, LEN.into()), data);
    let asked: u32 = bench.wire_of(0, Class::ReadRequest).iter().map(|seen| seen.asked).sum();
    assert!(asked < LEN + 4 * WINDOW, "asked for {asked} bytes in all");
}

#[test]
fn a_read_of_nothing() {
    let mut bench = bench("read-nothing");
    let mut remote = bench.remote(1, 0);
    remote.rkey = rxe_core::num::Key(0xdead_beef);
    bench.send(0, 1, SendOp::Read(remote), 0, 0);
    bench.pair.run_until_idle();
    let sent = bench.sent(0);
    assert_eq!((sent[0].status, sent[0].byte_len), (WcStatus::Success, 0), "no bytes need no key");
}
