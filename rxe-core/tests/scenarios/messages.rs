//! SEND and WRITE in every form: sizes around the packet's, immediate data, inline, elements, solicited events.

use crate::bench::{BUFFER, Bench};
use rxe_core::{
    num::Psn,
    qp::{Mtu, PostError, QpState},
    testing::{
        ConnectOptions, LinkConfig, PairConfig,
        connect::{RECV_CQ, SEND_CQ},
    },
    work::{AsyncEvent, Payload, RecvWr, SendFlags, SendOp, SendWr, WcExtra, WcOpcode, WcStatus},
};
use std::time::Duration;

fn sizes(mtu: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = (0..10).collect();
    for packets in [1, 2, 3, 16] {
        sizes.extend([mtu * packets - 1, mtu * packets, mtu * packets + 1]);
    }
    sizes.retain(|&size| u64::from(size) <= BUFFER / 4);
    sizes
}

#[test]
fn every_mtu_and_size_around_it() {
    for mtu in Mtu::ALL {
        for ipv6 in [false, true] {
            let config = PairConfig { name: "sizes", ipv6, ..PairConfig::default() };
            let options = ConnectOptions {
                mtu,
                psn: [Psn::new(0xff_fff0), Psn::new(0xff_fffe)],
                ..ConnectOptions::default()
            };
            let mut bench = Bench::with(config, options);
            for size in sizes(mtu.bytes()) {
                let data = bench.fill(0, 0, size.into(), size.into());
                bench.recv(1, 1, 0, size);
                bench.recv(1, 2, 0, 0);
                bench.send(0, 3, SendOp::SendImm([1, 2, 3, 4]), 0, size);
                bench.send(0, 4, SendOp::WriteImm(bench.remote(1, BUFFER / 2), [5, 6, 7, 8]), 0, size);
                bench.send(0, 5, SendOp::Read(bench.remote(1, BUFFER / 2)), BUFFER / 2, size);
                bench.pair.run_until_idle();
                let sent = bench.sent(0);
                assert!(
                    sent.iter().all(|wc| wc.status == WcStatus::Success && wc.byte_len == size),
                    "{sent:?}"
                );
                assert_eq!(sent.len(), 3);
                let received = bench.received(1);
                assert_eq!((received[0].opcode, received[0].byte_len), (WcOpcode::Recv, size));
                assert_eq!(received[0].extra, WcExtra::Immediate([1, 2, 3, 4]));
                assert_eq!((received[1].opcode, received[1].byte_len), (WcOpcode::RecvRdmaWithImm, size));
                assert_eq!(received[1].extra, WcExtra::Immediate([5, 6, 7, 8]));
                assert!(received.iter().all(|wc| wc.grh && wc.sl == 0), "{received:?}");
                assert_eq!(bench.bytes(1, 0, size.into()), data, "SEND of {size} at {mtu:?}");
                assert_eq!(bench.bytes(1, BUFFER / 2, size.into()), data, "WRITE of {size} at {mtu:?}");
                assert_eq!(bench.bytes(0, BUFFER / 2, size.into()), data, "READ of {size} at {mtu:?}");
            }
            assert_eq!(bench.stats(0).retransmitted, 0);
        }
    }
}

/// The PSNs wrap while both sides send.
#[test]
fn psns_wrap() {
    let options =
        ConnectOptions { mtu: Mtu::M256, psn: [Psn::new(0xff_ffe0); 2], ..ConnectOptions::default() };
    let mut bench = Bench::with(PairConfig { name: "psn-wrap", ..PairConfig::default() }, options);
    for side in 0..2 {
        let data = bench.fill(side, 0, 60_000, 7 + side as u64);
        bench.send(side, 1, SendOp::Write(bench.remote(1 - side, 70_000)), 0, 60_000);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(side), [(1, WcStatus::Success)]);
        assert_eq!(bench.bytes(1 - side, 70_000, 60_000), data);
        let (next, _) = bench.pair.sides[side].endpoint.psns(bench.qpn(side)).expect("it exists");
        assert_eq!(next, Psn::new(0xff_ffe0).plus(60_000_u32.div_ceil(256)));
    }
}

/// Inline data is copied when posted: the program may change it at once.
#[test]
fn inline_data() {
    let mut bench = Bench::new("inline");
    bench.cut(0);
    bench.recv(1, 1, 0, 100);
    let mut data = *b"the bytes as they were when posted";
    let wr = SendWr { payload: Payload::Inline(&data), ..SendWr::new(1, SendOp::Send, &[]) };
    let qpn = bench.qpn(0);
    bench.pair.post_send(0, qpn, &wr).expect("posted");
    let sent = data;
    data.fill(0);
    bench.mend(0);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(bench.bytes(1, 0, sent.len() as u64), sent);
    let long = vec![0; bench.options.caps.max_inline as usize + 1];
    let wr = SendWr { payload: Payload::Inline(&long), ..SendWr::new(2, SendOp::Send, &[]) };
    assert_eq!(
        bench.pair.post_send(0, qpn, &wr),
        Err(PostError::Inline(long.len(), bench.options.caps.max_inline))
    );
}

/// Gathered from four elements, scattered into four others.
#[test]
fn elements() {
    let mut bench = Bench::new("elements");
    bench.fill(0, 0, 20_000, 3);
    let from =
        [bench.sge(0, 9000, 1), bench.sge(0, 100, 5000), bench.sge(0, 0, 0), bench.sge(0, 12_345, 777)];
    let to = [bench.sge(1, 50_000, 1023), bench.sge(1, 0, 0), bench.sge(1, 3, 3), bench.sge(1, 60_000, 9000)];
    let qpns = bench.connection.qpns;
    bench.pair.post_recv(1, qpns[1], &RecvWr { wr_id: 1, sges: &to }).expect("posted");
    bench.pair.post_send(0, qpns[0], &SendWr::new(1, SendOp::Send, &from)).expect("posted");
    bench.pair.run_until_idle();
    assert_eq!(bench.received(1)[0].byte_len, 5778);
    let sent = [bench.bytes(0, 9000, 1), bench.bytes(0, 100, 5000), bench.bytes(0, 12_345, 777)].concat();
    let found =
        [bench.bytes(1, 50_000, 1023), bench.bytes(1, 3, 3), bench.bytes(1, 60_000, 5778 - 1026)].concat();
    assert_eq!(found, sent);
    let many = [bench.sge(0, 0, 1); 5];
    let refused = bench.pair.post_send(0, qpns[0], &SendWr::new(2, SendOp::Send, &many));
    assert_eq!(refused, Err(PostError::Elements(5, 4)));
}

/// Only what is marked, or fails, wakes a consumer that waits for solicited events.
#[test]
fn solicited_events() {
    let mut bench = Bench::new("solicited");
    for (flags, solicited) in
        [(SendFlags::SIGNALED, false), (SendFlags::SIGNALED | SendFlags::SOLICITED, true)]
    {
        for op in [SendOp::Send, SendOp::WriteImm(bench.remote(1, 0), [0; 4])] {
            bench.recv(1, 1, 0, 5000);
            bench.send_with(0, 1, op, 0, 5000, flags);
            bench.pair.run_until_idle();
            let (_, wakes) = bench.pair.poll_cq_solicited(1, RECV_CQ).expect("received");
            assert_eq!(wakes, solicited, "{op:?}");
            let (_, wakes) = bench.pair.poll_cq_solicited(0, SEND_CQ).expect("sent");
            assert!(!wakes);
        }
    }
}

/// Unsignaled requests are silent when they succeed, and make room.
#[test]
fn unsignaled_requests() {
    let mut bench = Bench::new("unsignaled");
    for round in 0..10 {
        for wr_id in 0..100 {
            bench.send_with(0, wr_id, SendOp::Write(bench.remote(1, 0)), 0, 100, SendFlags::empty());
        }
        bench.send(0, round, SendOp::Write(bench.remote(1, 0)), 0, 100);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(round, WcStatus::Success)]);
    }
}

#[test]
fn a_full_queue_says_so() {
    let mut bench = Bench::new("full");
    bench.cut(0);
    let qpn = bench.qpn(0);
    for wr_id in 0..128 {
        bench.send(0, wr_id, SendOp::Write(bench.remote(1, 0)), 0, 1);
        bench.recv(0, wr_id, 0, 1);
    }
    let sges = [bench.sge(0, 0, 1)];
    let wr = SendWr::new(200, SendOp::Write(bench.remote(1, 0)), &sges);
    assert_eq!(bench.pair.post_send(0, qpn, &wr), Err(PostError::Full(128)));
    assert_eq!(bench.pair.post_recv(0, qpn, &RecvWr { wr_id: 1, sges: &sges }), Err(PostError::Full(128)));
    bench.mend(0);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent(0).len(), 128);
}

/// A message longer than its receive: an error on both sides, and not a byte beyond the receive's end.
#[test]
fn a_receive_too_short() {
    for (size, room) in [(11, 10), (5000, 4999), (5000, 1024), (1, 0)] {
        let mut bench = Bench::new("too-short");
        bench.fill(0, 0, 6000, 1);
        bench.recv(1, 9, 0, room);
        bench.send(0, 1, SendOp::Send, 0, size);
        bench.pair.run_until_idle();
        assert_eq!(bench.sent_statuses(0), [(1, WcStatus::RemoteInvalidRequest)], "{size} into {room}");
        assert_eq!(bench.received_statuses(1), [(9, WcStatus::LocalLength)], "{size} into {room}");
        assert_eq!((bench.state(0), bench.state(1)), (QpState::Error, QpState::Error));
        assert_eq!(bench.bytes(1, room.into(), 6000), vec![0; 6000], "{size} into {room}");
    }
}

/// The first packet in RTR is told: the peer may be faster than the connection manager.
#[test]
fn communication_established() {
    let mut bench = Bench::new("established");
    let options = bench.options;
    let qpns = [bench.pair.create_qp(0, &options), bench.pair.create_qp(1, &options)];
    bench.pair.bring_up(0, qpns[0], qpns[1], &options, QpState::Rts);
    bench.pair.bring_up(1, qpns[1], qpns[0], &options, QpState::Rtr);
    bench.connection.qpns = qpns;
    bench.recv(1, 1, 0, 10);
    bench.recv(1, 2, 0, 10);
    bench.send(0, 1, SendOp::Send, 0, 10);
    bench.send(0, 2, SendOp::Send, 0, 10);
    bench.pair.run_until_idle();
    assert_eq!(bench.events(1), [AsyncEvent::CommunicationEstablished(qpns[1])]);
    assert_eq!(bench.sent(0).len(), 2, "in RTR it answers");
    let sges = [bench.sge(1, 0, 1)];
    let refused = bench.pair.post_send(1, qpns[1], &SendWr::new(1, SendOp::Send, &sges));
    assert_eq!(refused, Err(PostError::State(QpState::Rtr)));
}

/// While a message is under way, each side knows when a packet arrives that more will follow.
#[test]
fn who_is_in_the_middle_of_a_message_knows_it() {
    let link = LinkConfig { rate: 1_000_000_000, ..LinkConfig::default() };
    let config = PairConfig { name: "amid", links: [link; 2], ..PairConfig::default() };
    let mut bench = Bench::with(config, ConnectOptions::default());
    let remote = bench.remote(1, 0);
    for (op, size, expected) in [
        (SendOp::Write(remote), BUFFER as u32, [true, true]),
        // A target of READs waits for nothing but the next request.
        (SendOp::Read(remote), BUFFER as u32, [true, false]),
        (SendOp::Send, 64, [false, false]),
    ] {
        bench.recv(1, 1, 0, 64);
        bench.send(0, 2, op, 0, size);
        let mut amid = [false; 2];
        while bench.sent(0).is_empty() {
            assert!(bench.pair.step(bench.pair.now + Duration::from_secs(1)), "{op:?} goes on");
            for (side, amid) in amid.iter_mut().enumerate() {
                *amid |= bench.pair.sides[side].endpoint.is_amid();
            }
        }
        assert_eq!(amid, expected, "{op:?} of {size}");
        assert!(bench.pair.sides.iter().all(|side| !side.endpoint.is_amid()), "{op:?} is over");
    }
}
