//! READs larger than what the receiving socket holds are asked for in pieces, and resumed where they broke off.

use crate::bench::Bench;
use rxe_core::{
    endpoint::EndpointConfig,
    testing::{ConnectOptions, PairConfig, Verdict},
    time::Instant,
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
    assert!(on_its_way(&bench).iter().all(|(_, bytes)| *bytes <= WINDOW.into()));
}

/// Bytes of responses asked for and not arrived, with each request and each arrival. Without losses.
fn on_its_way(bench: &Bench) -> Vec<(Instant, i64)> {
    let requests = bench.wire_of(0, Class::ReadRequest);
    let mut all: Vec<_> = requests.iter().map(|seen| (seen.at, i64::from(seen.asked))).collect();
    let latency = bench.pair.sides[1].link.config().latency;
    let responses = bench.wire_of(1, Class::ReadResponse);
    all.extend(responses.iter().map(|seen| (seen.at + latency, -(seen.payload as i64))));
    all.sort();
    let mut bytes = 0;
    all.into_iter()
        .map(|(at, more)| {
            bytes += more;
            (at, bytes)
        })
        .collect()
}

/// All behind a lost response is asked for again, so the fewer are under way the less it costs; and more again where none
/// is lost any more.
#[test]
fn a_loss_leaves_less_to_be_lost() {
    let mut bench = bench("read-budget");
    let read = |bench: &mut Bench, wr_id| {
        bench.send(0, wr_id, SendOp::Read(bench.remote(1, 0)), 0, LEN);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(wr_id, WcStatus::Success)]);
    };
    // The first request of each READ starts with nothing on its way.
    let first = |bench: &mut Bench, wr_id| {
        let before = bench.wire_of(0, Class::ReadRequest).len();
        read(bench, wr_id);
        bench.wire_of(0, Class::ReadRequest)[before].asked
    };
    assert_eq!(first(&mut bench, 1), WINDOW);
    bench.pair.sides[1].link.set_rule(|crossing| match crossing.index {
        380 => Verdict::Drop,
        _ => Verdict::Pass,
    });
    assert_eq!(first(&mut bench, 2), WINDOW);
    assert!(bench.stats(0).retransmitted > 0);
    let less = first(&mut bench, 3);
    assert!((WINDOW / 2..=WINDOW / 8 * 7).contains(&less), "{less} of {WINDOW}");
    (4..30).for_each(|wr_id| read(&mut bench, wr_id));
    assert_eq!(first(&mut bench, 30), WINDOW);
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
