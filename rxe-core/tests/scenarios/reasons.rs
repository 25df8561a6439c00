//! Why a queue pair failed is kept, in words, on both sides.

use crate::bench::{BUFFER, Bench};
use rxe_core::{
    num::Key,
    qp::{QpState, QpType},
    testing::{ConnectOptions, PairConfig},
    work::{Remote, SendOp, SendWr, Sge},
};

fn bench(name: &'static str, options: ConnectOptions) -> Bench {
    Bench::with(PairConfig { name, ..PairConfig::default() }, options)
}

/// What a side says: why it refused, and why its own request failed.
fn said(bench: &Bench, side: usize) -> (String, String) {
    let words = |reason: Option<rxe_core::qp::Reason>| reason.map_or_else(String::new, |why| why.to_string());
    let reasons = bench.pair.sides[side].endpoint.reasons(bench.qpn(side)).copied().unwrap_or_default();
    (words(reasons.refused), words(reasons.failed))
}

/// Both sides' words after `op` of side 0 has failed, with another request behind it.
fn after(bench: &mut Bench, op: SendOp, len: u32) -> [(String, String); 2] {
    assert_eq!([said(bench, 0), said(bench, 1)], <[(String, String); 2]>::default());
    bench.send(0, 1, op, 0, len);
    bench.send(0, 2, SendOp::Send, 0, 8);
    bench.pair.run_until_idle();
    assert_eq!(bench.state(0), QpState::Error);
    [said(bench, 0), said(bench, 1)]
}

#[test]
fn beyond_the_end() {
    let mut bench = Bench::new("reason-range");
    let remote = bench.remote(1, BUFFER - 40);
    let [(refused, failed), (theirs, none)] = after(&mut bench, SendOp::Write(remote), 4096);
    let what = format!("RDMA WRITE to {:#x}, 4096 bytes, key {:#010x}: ", remote.addr, remote.rkey.0);
    let range = format!("remote access: 4096 bytes at {:#x} are not inside the region", remote.addr);
    assert_eq!(theirs, what.clone() + &range);
    assert_eq!(failed, what + "the peer says that a key, range or right does not allow it (syndrome 0x62)");
    assert_eq!((refused, none), (String::new(), String::new()));
    // It starts anew without.
    for side in 0..2 {
        bench.go_to(side, QpState::Reset);
        assert_eq!(said(&bench, side), (String::new(), String::new()));
    }
}

#[test]
fn an_unknown_key() {
    let mut bench = Bench::new("reason-key");
    let remote = Remote { rkey: Key(0x0bad_0bad), ..bench.remote(1, 0) };
    let [_, (theirs, _)] = after(&mut bench, SendOp::FetchAdd { remote, add: 1 }, 8);
    let what = format!("fetch and add at {:#x}, 8 bytes, key 0x0bad0bad: remote access: key", remote.addr);
    assert!(theirs.starts_with(&what) && theirs.ends_with("names no region or window"), "{theirs}");
}

/// What was there when a READ came, and is gone when it is to be answered.
#[test]
fn memory_that_is_gone() {
    let mut bench = Bench::new("reason-gone");
    let remote = bench.remote(1, 0);
    bench.pair.sides[1].heap.take_away(remote.addr, 8);
    let [(_, failed), (theirs, _)] = after(&mut bench, SendOp::Read(remote), 64);
    let what = format!("RDMA READ from {:#x}, 64 bytes, key {:#010x}: ", remote.addr, remote.rkey.0);
    assert_eq!(theirs, format!("{what}remote access: memory at {:#x} is gone", remote.addr));
    assert_eq!(failed, what + "the peer failed on its own account (syndrome 0x63)");
}

#[test]
fn no_receive() {
    let mut bench = bench("reason-rnr", ConnectOptions { rnr_retry: 0, ..ConnectOptions::default() });
    let [(_, failed), theirs] = after(&mut bench, SendOp::Send, 10);
    assert_eq!(failed, "SEND, 10 bytes: the peer had no receive posted, after all retries");
    assert_eq!(theirs, (String::new(), String::new()), "it is still ready");
}

#[test]
fn no_answer() {
    let mut bench = bench("reason-silence", ConnectOptions { retry_count: 1, ..ConnectOptions::default() });
    bench.cut(0);
    let [(_, failed), _] = after(&mut bench, SendOp::Send, 10);
    assert_eq!(failed, "SEND, 10 bytes: no answer after all retries");
}

/// The request's own memory, of reliable and unreliable services.
#[test]
fn own_memory() {
    for (qp_type, why) in [
        (QpType::Rc, "the request's own memory: key"),
        (QpType::Uc, "a local key, range or right does not allow it"),
    ] {
        let mut bench = bench("reason-own", ConnectOptions { qp_type, ..ConnectOptions::default() });
        let sges = [Sge { lkey: Key(7), ..bench.sge(0, 0, 100) }];
        let remote = bench.remote(1, 0);
        let wr = SendWr::new(1, SendOp::Write(remote), &sges);
        bench.pair.post_send(0, bench.connection.qpns[0], &wr).unwrap();
        bench.pair.run_until_idle();
        let what = format!("RDMA WRITE to {:#x}, 100 bytes, key {:#010x}: {why}", remote.addr, remote.rkey.0);
        let (_, failed) = said(&bench, 0);
        assert!(failed.starts_with(&what), "{failed}");
    }
}
