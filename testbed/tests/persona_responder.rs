//! Our requester asks, the persona answers as a ConnectX card does: one acknowledgement for many, true credits, 0x00 in READ
//! responses; and congestion notifications in both roles.

mod persona_common;

use persona_common::{MTU, NEVER, SHORT, SIZES, both_families, both_families_with, of, pattern, post};
use rxe_verbs::{Key, Messages, Remote, SendOp, WcOpcode};
use testbed::persona::{Ask, Direction, Pair, wire::op};

const ASK_LAWS: [&str; 5] = [
    "requests: PSNs without a gap",
    "requests: LAST, ONLY and READ ask for an acknowledgement",
    "requests: FIRST and MIDDLE full, LAST not empty",
    "requests: FIRST, MIDDLE, LAST, ONLY in order",
    "requests: WRITE as long as announced",
];

fn at(pair: &Pair, offset: u64) -> Remote {
    Remote { addr: pair.responder.base + offset, rkey: Key(pair.responder.rkey) }
}

#[test]
fn every_size_of_every_operation() {
    every_size(Messages::Whole);
}

#[test]
fn every_size_in_parts() {
    every_size(Messages::Parts);
}

fn every_size(messages: Messages) {
    both_families_with(messages, |mut stage| {
        let (pair, end) = stage.connect(1 << 16, NEVER);
        stage.pair(pair).responder.memory = vec![0; 1 << 16];
        for (number, size) in SIZES.into_iter().enumerate() {
            let data = pattern(number as u64, size);
            end.mr.fill(9).unwrap();
            end.mr.write_at(0, &data).unwrap();
            let peer = stage.pair(pair);
            peer.responder.memory.fill(7);
            peer.responder.post_receive(1 << 15);
            peer.responder.post_receive(0);
            let (here, there) = (at(peer, 100), at(peer, 20_001));
            let send = if number % 2 == 1 { SendOp::SendImm(*b"imm!") } else { SendOp::Send };
            post(&end, 1, send, 0, size);
            post(&end, 2, SendOp::Write(here), 0, size);
            post(&end, 3, SendOp::WriteImm(there, *b"WIMM"), 0, size);
            post(&end, 4, SendOp::Read(here), 30_000, size);
            let done = stage.completions(&end, 4);
            assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4]);
            let responder = &stage.pair(pair).responder;
            let imm = (number % 2 == 1).then_some(*b"imm!");
            assert_eq!(responder.inbox[number * 2..], [(data.clone(), imm), (vec![], Some(*b"WIMM"))]);
            for from in [100, 20_001] {
                assert_eq!(responder.memory[from..from + size], data);
                assert_eq!((responder.memory[from - 1], responder.memory[from + size]), (7, 7));
            }
            assert_eq!(end.mr.read_vec(30_000, size).unwrap(), data);
            assert_eq!((end.mr.load_u8(29_999), end.mr.load_u8(30_000 + size)), (Ok(9), Ok(9)));
        }
        let responder = &stage.pair(pair).responder;
        assert_eq!((responder.duplicates, responder.refused), (0, 0));
        assert_eq!(end.qp.stats().retransmitted, 0);
        stage.verdict(&ASK_LAWS);
    });
}

/// As captured: sixteen WRITEs that all ask, one acknowledgement each for 7, 3, 4 and 2 of them.
#[test]
fn one_acknowledgement_for_many() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, NEVER);
        let data = pattern(3, 16 * 512);
        end.mr.write_at(0, &data).unwrap();
        let peer = stage.pair(pair);
        peer.responder.memory = vec![0; 1 << 14];
        peer.responder.steps = [7, 3, 4, 2].into();
        let to = at(peer, 0);
        for number in 0..16_usize {
            let to = Remote { addr: to.addr + number as u64 * 512, ..to };
            post(&end, number as u64, SendOp::Write(to), number * 512, 512);
        }
        let done = stage.completions(&end, 16);
        assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
        let responder = &stage.pair(pair).responder;
        let psns: Vec<_> = responder.said.iter().map(|said| said.0).collect();
        assert_eq!(psns, [0xff_fff6, 0xff_fff9, 0xff_fffd, 0xff_ffff]);
        assert_eq!(responder.memory[..data.len()], data);
        assert_eq!(end.qp.stats().retransmitted, 0);
        stage.verdict(&ASK_LAWS[..2]);
    });
}

/// Credits count down to 0x00. One message goes beyond them, and is refused until a receive is there; the rest wait.
#[test]
fn credits_down_to_none() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, NEVER);
        let messages: Vec<_> = (0..8).map(|number| pattern(number, 1500)).collect();
        for _ in 0..3 {
            stage.pair(pair).responder.post_receive(1500);
        }
        for (number, data) in messages.iter().enumerate() {
            end.mr.write_at(number * 2000, data).unwrap();
            post(&end, number as u64, SendOp::Send, number * 2000, 1500);
            if number == 0 {
                stage.completions(&end, 1);
                stage.pair(pair).expect_credits_heeded();
            }
        }
        stage.completions(&end, 2);
        // It tries again and again, with nothing else.
        stage.persona.run("ten RNR NAKs", |persona| {
            persona.pairs[pair].responder.said.iter().filter(|said| said.1 == 0x2c).count() >= 10
        });
        let said: Vec<_> = stage.pair(pair).responder.said.iter().map(|said| said.1).collect();
        assert_eq!(said[..4], [0x02, 0x01, 0x00, 0x2c]);
        assert_eq!(stage.pair(pair).psns_seen(), 4 * 2, "four messages of two packets");
        for count in 3..8 {
            stage.pair(pair).responder.post_receive(1500);
            let done = stage.completions(&end, 1);
            assert_eq!(done[0].wr_id, count);
        }
        let inbox: Vec<_> =
            stage.pair(pair).responder.inbox.iter().map(|message| message.0.clone()).collect();
        assert_eq!(inbox, messages);
        assert!(end.qp.stats().rnr_naks_received > 0);
        let laws = ["requests: sent again unchanged", "requests: at most one SEND beyond the credits"];
        stage.verdict(&[&ASK_LAWS[..4], &laws].concat());
    });
}

/// Nothing is known before the first acknowledgement: all leaves at once, the surplus is refused and sent again.
#[test]
fn more_than_receives_before_credits_are_known() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, NEVER);
        let data = pattern(1, 8 * 1500);
        end.mr.write_at(0, &data).unwrap();
        stage.pair(pair).responder.post_receive(1500);
        for number in 0..8 {
            post(&end, number as u64, SendOp::Send, number * 1500, 1500);
        }
        stage.completions(&end, 1);
        for count in 1..8 {
            stage.pair(pair).responder.post_receive(1500);
            assert_eq!(stage.completions(&end, 1)[0].wr_id, count);
        }
        let inbox = &stage.pair(pair).responder.inbox;
        assert_eq!(inbox.iter().flat_map(|message| message.0.clone()).collect::<Vec<_>>(), data);
        stage.verdict(&ASK_LAWS[..4]);
    });
}

/// An acknowledgement may come unasked, to tell of new receives. Here the next one comes after five messages: were the
/// tidings not heard, one would leave, and wait for ever.
#[test]
fn credits_told_unasked() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, NEVER);
        let data = pattern(1, 6 * 1500);
        end.mr.write_at(0, &data).unwrap();
        stage.pair(pair).responder.post_receive(1500);
        post(&end, 0, SendOp::Send, 0, 1500);
        stage.completions(&end, 1);
        stage.pair(pair).expect_credits_heeded();
        for _ in 0..5 {
            stage.pair(pair).responder.post_receive(1500);
        }
        stage.pair(pair).responder.steps = [5].into();
        let before = end.qp.stats().packets_received;
        stage.persona.advertise(pair);
        stage.persona.run("the tidings", |_| end.qp.stats().packets_received > before);
        for number in 1..6 {
            post(&end, number as u64, SendOp::Send, number * 1500, 1500);
        }
        stage.completions(&end, 5);
        let inbox = &stage.pair(pair).responder.inbox;
        assert_eq!(inbox.iter().flat_map(|message| message.0.clone()).collect::<Vec<_>>(), data);
        assert_eq!(end.qp.stats().retransmitted, 0);
        stage.verdict(&["requests: at most one SEND beyond the credits"]);
    });
}

/// A peer whose MSN is wrong seems to grant nothing: slow, but no standstill.
#[test]
fn a_peer_that_miscounts_is_not_waited_for() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, NEVER);
        let data = pattern(1, 6 * 1500);
        end.mr.write_at(0, &data).unwrap();
        stage.pair(pair).responder.miscounts = true;
        for number in 0..6 {
            stage.pair(pair).responder.post_receive(1500);
            post(&end, number as u64, SendOp::Send, number * 1500, 1500);
            stage.completions(&end, 1);
        }
        let inbox = &stage.pair(pair).responder.inbox;
        assert_eq!(inbox.iter().flat_map(|message| message.0.clone()).collect::<Vec<_>>(), data);
        stage.verdict(&ASK_LAWS[..4]);
    });
}

#[test]
fn lost_requests_and_answers() {
    lossy(
        Messages::Whole,
        &[
            (Direction::In, op::SEND_FIRST, 0),
            (Direction::In, op::SEND_MIDDLE, 0),
            (Direction::In, op::SEND_LAST, 0),
            (Direction::In, op::WRITE_FIRST, 0),
            (Direction::In, op::WRITE_MIDDLE, 0),
            (Direction::In, op::WRITE_LAST, 0),
            (Direction::In, op::READ_REQUEST, 0),
            (Direction::Out, op::READ_FIRST, 0),
            (Direction::Out, op::READ_MIDDLE, 0),
            (Direction::Out, op::READ_LAST, 0),
        ],
    );
}

#[test]
fn lost_parts_of_writes_and_reads() {
    let writes = [0, 1, 3, 4].map(|skip| (Direction::In, op::WRITE_ONLY, skip));
    let reads = [
        (Direction::In, op::READ_REQUEST, 0),
        (Direction::In, op::READ_REQUEST, 1),
        (Direction::In, op::READ_REQUEST, 2),
        (Direction::Out, op::READ_FIRST, 0),
        (Direction::Out, op::READ_LAST, 0),
        (Direction::Out, op::READ_FIRST, 1),
        (Direction::Out, op::READ_LAST, 1),
        (Direction::Out, op::READ_ONLY, 0),
    ];
    lossy(Messages::Parts, &[&writes[..], &reads].concat());
}

fn lossy(messages: Messages, losses: &[(Direction, u8, u32)]) {
    both_families_with(messages, |mut stage| {
        let (pair, end) = stage.connect(1 << 16, SHORT);
        stage.pair(pair).responder.memory = vec![0; 1 << 16];
        for (number, &(direction, opcode, skip)) in losses.iter().enumerate() {
            let lost = stage.persona.card.lost();
            stage.persona.card.lose(direction, opcode, skip);
            let size = 4 * MTU + 5;
            let data = pattern(number as u64, size);
            end.mr.fill(0).unwrap();
            end.mr.write_at(0, &data).unwrap();
            let peer = stage.pair(pair);
            peer.responder.memory.fill(0);
            peer.responder.post_receive(1 << 14);
            let to = at(peer, 50);
            post(&end, 1, SendOp::Send, 0, size);
            post(&end, 2, SendOp::Write(to), 0, size);
            post(&end, 3, SendOp::Read(to), 30_000, size);
            let done = stage.completions(&end, 3);
            assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
            let responder = &stage.pair(pair).responder;
            assert_eq!(responder.inbox.len(), number + 1, "{direction:?} {opcode:#x}");
            assert_eq!(responder.inbox[number].0, data);
            assert_eq!(responder.memory[50..50 + size], data);
            assert_eq!(end.mr.read_vec(30_000, size).unwrap(), data);
            assert_eq!(stage.persona.card.lost(), lost + 1, "{direction:?} {opcode:#x} did not pass");
        }
        assert!(end.qp.stats().psn_naks_received >= 4);
        stage.verdict(&[&ASK_LAWS[..], &["requests: sent again unchanged"]].concat());
    });
}

/// The last message's acknowledgement is lost: it comes again, is not executed again, and is acknowledged again.
#[test]
fn a_lost_acknowledgement() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, SHORT);
        for number in 0..3_u32 {
            let size = MTU * 3;
            let data = pattern(u64::from(number), size);
            end.mr.write_at(0, &data).unwrap();
            stage.pair(pair).responder.post_receive(size);
            stage.persona.card.lose(Direction::Out, op::ACK, 0);
            post(&end, 1, SendOp::Send, 0, size);
            assert_eq!(of(&stage.completions(&end, 1), WcOpcode::Send).len(), 1);
            let responder = &stage.pair(pair).responder;
            assert_eq!(responder.inbox.len(), number as usize + 1);
            assert_eq!(responder.inbox[number as usize].0, data);
            assert!(responder.duplicates > number);
            assert_eq!(stage.persona.card.lost(), number + 1);
        }
        assert!(end.qp.stats().timeouts >= 3);
        stage.verdict(&[&ASK_LAWS[..4], &["requests: sent again unchanged"]].concat());
    });
}

/// Congestion notifications between the packets of both roles, also to a queue pair that has nothing to do with it and
/// to one that does not exist.
#[test]
fn congestion_notifications_do_no_harm() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 18, SHORT);
        let (idle, other) = stage.connect(1 << 12, SHORT);
        let size = 60 * MTU;
        stage.pair(pair).responder.memory = vec![0; size];
        stage.pair(pair).responder.base = 0x1000;
        let to = at(stage.pair(pair), 0);
        for round in 0..10_u64 {
            let data = pattern(round, size);
            end.mr.write_at(0, &data).unwrap();
            post(&end, round, SendOp::Write(to), 0, size);
            let ask = Ask::Write(end.mr.addr() + size as u64, end.mr.rkey().0, data.clone(), None);
            stage.pair(pair).requester.post(ask);
            for _ in 0..5 {
                stage.persona.notify_congestion(pair);
                stage.persona.step();
                stage.persona.notify_congestion(idle);
            }
            stage.completions(&end, 1);
            stage.persona.finish();
            assert_eq!(stage.pair(pair).responder.memory, data);
            assert_eq!(end.mr.read_vec(size, size).unwrap(), data);
        }
        stage.persona.settle(20);
        // On the way to a socket anything may be lost, but not much of it.
        let (busy, quiet) = (end.qp.stats().cnps_received, other.qp.stats().cnps_received);
        assert!((45..=50).contains(&busy) && (45..=50).contains(&quiet), "{busy} and {quiet} of 50");
        assert_eq!(stage.context.port_stats().dropped_icrc, 0);
        assert_eq!((end.qp.state(), other.qp.state()), (rxe_verbs::QpState::Rts, rxe_verbs::QpState::Rts));
        stage.verdict(&ASK_LAWS);
    });
}
