//! UD: the 40-byte area, keys, lengths, and what is dropped and counted.

use crate::bench::Bench;
use rxe_core::{
    endpoint::EndpointConfig,
    num::{Pkey, Qkey, Qpn},
    qp::{PostError, QpType},
    testing::{ConnectOptions, PairConfig},
    wire::GRH_LEN,
    work::{SendOp, SendWr, UdDest, WcExtra, WcStatus},
};
use std::net::IpAddr;

const QKEY: Qkey = Qkey(0x1111_1111);

fn bench(name: &'static str, ipv6: bool) -> Bench {
    let options = ConnectOptions { qp_type: QpType::Ud, ..ConnectOptions::default() };
    Bench::with(PairConfig { name, ipv6, ..PairConfig::default() }, options)
}

fn post(bench: &mut Bench, dest: UdDest, op: SendOp, len: u32) -> Result<(), PostError> {
    let sges = [bench.sge(0, 0, len)];
    let wr = SendWr { dest: Some(dest), ..SendWr::new(1, op, &sges) };
    let qpn = bench.qpn(0);
    bench.pair.post_send(0, qpn, &wr)
}

fn dest(bench: &Bench) -> UdDest {
    bench.pair.datagram_dest(0, bench.qpn(1), QKEY)
}

#[test]
fn delivered_with_its_header_area() {
    for ipv6 in [false, true] {
        let mut bench = bench("ud", ipv6);
        for len in [0, 1, 3, 1500, 4096] {
            let data = bench.fill(0, 0, len.into(), 1);
            bench.recv(1, 7, 0, len + GRH_LEN as u32);
            let to = dest(&bench);
            post(&mut bench, to, SendOp::SendImm([9, 8, 7, 6]), len).expect("posted");
            bench.pair.run_until_idle();
            assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
            let received = bench.received(1);
            assert_eq!(received.len(), 1, "{len} bytes");
            let wc = received[0];
            assert_eq!((wc.status, wc.byte_len, wc.grh), (WcStatus::Success, len + 40, true));
            // As UCX reads it from a ConnectX: UDP, and which network header.
            let (udp, header) = (8, if bench.pair.sides[0].addr.is_ipv6() { 1 } else { 2 });
            assert_eq!(wc.sl, udp | header);
            assert_eq!((wc.src_qp, wc.extra), (bench.qpn(0), WcExtra::Immediate([9, 8, 7, 6])));
            assert_eq!(bench.bytes(1, 40, len.into()), data);
            let grh = bench.bytes(1, 0, 40);
            let (src, dst) = (bench.pair.sides[0].addr, bench.pair.sides[1].addr);
            match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    assert_eq!(grh[..20], [0; 20]);
                    assert_eq!(grh[20], 0x45);
                    assert_eq!((&grh[32..36], &grh[36..40]), (&src.octets()[..], &dst.octets()[..]));
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    assert_eq!(grh[0] >> 4, 6);
                    assert_eq!((&grh[8..24], &grh[24..40]), (&src.octets()[..], &dst.octets()[..]));
                }
                _ => unreachable!("one family"),
            }
        }
    }
}

#[test]
fn dropped_and_counted() {
    let mut bench = bench("ud-drops", false);
    bench.recv(1, 7, 0, 50);
    let good = dest(&bench);
    post(&mut bench, UdDest { remote_qkey: Qkey(5), ..good }, SendOp::Send, 10).expect("posted");
    post(&mut bench, UdDest { remote_qpn: Qpn::new(0x4321), ..good }, SendOp::Send, 10).expect("posted");
    post(&mut bench, good, SendOp::Send, 11).expect("posted");
    bench.pair.run_until_idle();
    assert!(bench.received(1).is_empty());
    let (stats, port) = (bench.stats(1), bench.pair.sides[1].endpoint.port_stats());
    assert_eq!((stats.dropped_qkey, port.dropped_no_qp, stats.dropped_length), (1, 1, 1));
    // The receive was not used up by what did not fit.
    post(&mut bench, good, SendOp::Send, 10).expect("posted");
    post(&mut bench, good, SendOp::Send, 10).expect("posted");
    bench.pair.run_until_idle();
    assert_eq!(bench.received_statuses(1), [(7, WcStatus::Success)]);
    assert_eq!(bench.stats(1).dropped_no_receive, 1);
    assert_eq!(bench.sent(0).len(), 5, "a datagram is done when it has left");
}

/// A remote Q_Key with the top bit set means the sender's own.
#[test]
fn controlled_qkey() {
    let mut bench = bench("ud-own-qkey", false);
    bench.recv(1, 7, 0, 100);
    let to = UdDest { remote_qkey: Qkey(0x8000_0000), ..dest(&bench) };
    post(&mut bench, to, SendOp::Send, 10).expect("posted");
    bench.pair.run_until_idle();
    assert_eq!(bench.received_statuses(1), [(7, WcStatus::Success)]);
}

#[test]
fn refused_when_posted() {
    let mut bench = bench("ud-refused", false);
    let to = dest(&bench);
    assert!(post(&mut bench, to, SendOp::Send, 4097).is_err(), "longer than a packet");
    let write = SendOp::Write(bench.remote(1, 0));
    assert_eq!(post(&mut bench, to, write, 1), Err(PostError::Operation));
    let sges = [bench.sge(0, 0, 1)];
    let qpn = bench.qpn(0);
    let without = bench.pair.post_send(0, qpn, &SendWr::new(1, SendOp::Send, &sges));
    assert_eq!(without, Err(PostError::Operation));
}

/// Partitions: limited members do not talk to each other.
#[test]
fn partitions() {
    let (full, limited) = (Pkey(0x8123), Pkey(0x0123));
    for (sender, receiver, passes) in [
        (full, full, true),
        (full, limited, true),
        (limited, full, true),
        (limited, limited, false),
        (full, Pkey(0x8124), false),
    ] {
        let endpoint =
            |pkey| EndpointConfig { pkeys: vec![Pkey::DEFAULT, pkey], ..EndpointConfig::default() };
        let config = PairConfig {
            name: "pkey",
            endpoints: [endpoint(sender), endpoint(receiver)],
            ..PairConfig::default()
        };
        let options = ConnectOptions { qp_type: QpType::Ud, pkey_index: 1, ..ConnectOptions::default() };
        let mut bench = Bench::with(config, options);
        bench.recv(1, 7, 0, 100);
        let to = dest(&bench);
        post(&mut bench, to, SendOp::Send, 10).expect("posted");
        bench.pair.run_until_idle();
        assert_eq!(bench.received(1).len(), usize::from(passes), "{sender:?} to {receiver:?}");
        assert_eq!(bench.stats(1).dropped_pkey, u64::from(!passes));
    }
}

/// Queue pair 1 sends by the key that the request names, and hears all partitions of its table. Other queue pairs have one key.
#[test]
fn queue_pair_1_serves_all_partitions() {
    let (first, second, third) = (Pkey(0x8123), Pkey(0x0124), Pkey(0x8125));
    let tables = [vec![first, second, third], vec![Pkey(0x8111), first, Pkey(0x0124)]];
    for (qp_type, key, arrives) in [
        (QpType::Gsi, None, true),
        (QpType::Gsi, Some(second), true),
        (QpType::Gsi, Some(third), false),
        (QpType::Ud, Some(Pkey(0x8111)), false),
    ] {
        let endpoints = tables.clone().map(|pkeys| EndpointConfig { pkeys, ..EndpointConfig::default() });
        let config = PairConfig { name: "pkey-gsi", endpoints, ..PairConfig::default() };
        let mut bench = Bench::with(config, ConnectOptions { qp_type, ..ConnectOptions::default() });
        bench.recv(1, 7, 0, 100);
        let to = UdDest { pkey: key, ..dest(&bench) };
        post(&mut bench, to, SendOp::Send, 10).expect("posted");
        bench.pair.run_until_idle();
        let keys: Vec<_> = bench.received(1).iter().map(|wc| wc.pkey).collect();
        let expected = arrives.then_some(key.unwrap_or(first));
        assert_eq!(keys, expected.into_iter().collect::<Vec<_>>(), "{qp_type:?} by {key:?}");
        assert_eq!(bench.stats(1).dropped_pkey, u64::from(!arrives));
    }
}
