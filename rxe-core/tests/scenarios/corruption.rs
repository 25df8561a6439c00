//! Damage on the wire: every single bit of every kind of packet, one at a time.

use crate::bench::Bench;
use rxe_core::{
    testing::{ConnectOptions, PairConfig, Verdict},
    work::{SendOp, WcStatus},
};

/// Bits that the ICRC does not cover because routers may change them: BTH byte 4.
fn is_masked(bit: usize) -> bool {
    bit / 8 == 4
}

/// A WRITE, a READ and an atomic, whose `nth` packet from `side` arrives with one bit flipped: it is dropped and counted,
/// sent again, and all comes out right.
fn flip(show_headers: bool, ipv6: bool, side: usize, nth: u64, bit: usize) -> bool {
    let config = PairConfig { name: "corruption", show_headers, ipv6, ..PairConfig::default() };
    let options = ConnectOptions { mtu: rxe_core::qp::Mtu::M256, ..ConnectOptions::default() };
    let mut bench = Bench::with(config, options);
    let hit = std::rc::Rc::new(std::cell::Cell::new(None));
    let seen = hit.clone();
    bench.pair.sides[side].link.set_rule(move |crossing| {
        if crossing.index == nth {
            seen.set(Some(crossing.datagram.bytes.len() * 8));
            return Verdict::Flip(bit);
        }
        Verdict::Pass
    });
    let data = bench.fill(0, 0, 300, 1);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 0)), 0, 300);
    bench.send(0, 2, SendOp::Read(bench.remote(1, 0)), 1000, 300);
    bench.send(0, 3, SendOp::FetchAdd { remote: bench.remote(1, 1024), add: 5 }, 2000, 8);
    bench.pair.run_until_idle();
    let Some(bits) = hit.get() else { return false };
    if bit >= bits {
        return false;
    }
    let good = WcStatus::Success;
    assert_eq!(bench.sent_statuses(0), [(1, good), (2, good), (3, good)], "bit {bit} of packet {nth}");
    assert_eq!(bench.bytes(1, 0, 300), data);
    assert_eq!(bench.bytes(0, 1000, 300), data);
    assert_eq!(bench.bytes(1, 1024, 8), 5_u64.to_ne_bytes());
    let stats = bench.pair.sides[1 - side].endpoint.port_stats();
    let dropped = stats.dropped_icrc
        + stats.dropped_opcode
        + stats.dropped_malformed
        + stats.dropped_short
        + stats.dropped_no_qp
        + stats.dropped_other_slot
        + stats.dropped_no_group;
    assert_eq!(dropped, u64::from(!is_masked(bit)), "bit {bit} of packet {nth} from side {side}");
    true
}

fn every_bit(show_headers: bool, ipv6: bool) {
    let mut flipped = 0;
    for side in 0..2 {
        for nth in 0..8 {
            let mut bit = 0;
            while flip(show_headers, ipv6, side, nth, bit) {
                flipped += 1;
                // All header bits, and a sample of the payload's.
                bit += if bit < 44 * 8 { 1 } else { 37 };
            }
        }
    }
    assert!(flipped > 1500, "only {flipped} bits were flipped");
}

#[test]
fn over_ipv6() {
    every_bit(false, true);
}

#[test]
fn over_ipv4_with_the_header_seen() {
    every_bit(true, false);
}

/// Where the IPv4 ID is hidden, a first packet has little to be judged by: here the peers have talked before.
#[test]
fn over_ipv4_with_the_id_hidden() {
    let mut bench = Bench::new("corruption-hidden");
    let remote = bench.remote(1, 0);
    for wr_id in 0..10 {
        bench.send(0, wr_id, SendOp::Write(remote), 0, 100);
        bench.pair.run_until_idle();
    }
    bench.sent(0);
    let before = bench.bytes(1, 0, 100);
    let mut bit = 0;
    while bit < 132 * 8 {
        bench.fill(0, 0, 100, 1000 + bit as u64);
        let mut once = true;
        bench.pair.sides[0].link.set_rule(move |_| match std::mem::take(&mut once) {
            true => Verdict::Flip(bit),
            false => Verdict::Drop,
        });
        bench.send(0, 1, SendOp::Write(remote), 0, 100);
        bench.pair.run_for(std::time::Duration::from_millis(1));
        let after = bench.bytes(1, 0, 100);
        assert!(is_masked(bit) || after == before, "bit {bit} of a damaged packet was believed");
        bench.mend(0);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
        bench.fill(1, 0, 100, 0);
        let clean = bench.fill(0, 0, 100, 0);
        assert_eq!(bench.bytes(1, 0, 100), clean);
        bit += 1;
        bench.pair.sides[1].heap.set(bench.addr(1, 0), &before);
    }
}
