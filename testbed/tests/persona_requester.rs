//! The persona asks, our responder answers: SEND, WRITE and READ as a ConnectX card sends them.

mod persona_common;

use persona_common::{MTU, NEVER, SHORT, SIZES, both_families, of, pattern};
use rxe_verbs::{RecvWr, WcExtra, WcOpcode};
use testbed::persona::{Answer, Ask, CREDITS, Direction, wire::op};

const ACK_LAWS: [&str; 3] =
    ["answers: PSN was asked", "answers: MSN counts the completed messages", "answers: AckReq 0, SE 0"];
const READ_LAWS: [&str; 3] = [
    "READ responses: FIRST, MIDDLE, LAST, ONLY in order",
    "READ responses: as many bytes as due",
    "READ responses: positive syndrome",
];

#[test]
fn the_first_packet_is_acknowledged_inside_its_message() {
    both_families(|mut stage| {
        for write in [false, true] {
            let (pair, end) = stage.connect(1 << 16, NEVER);
            let data = pattern(1, 5 * MTU + 7);
            end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, 1 << 15)] }).unwrap();
            let ask = if write {
                Ask::Write(end.mr.addr(), end.mr.rkey().0, data.clone(), None)
            } else {
                Ask::Send(data.clone(), None)
            };
            stage.pair(pair).requester.post(ask);
            // Neither end has a timeout: without that acknowledgement the persona would wait for ever.
            stage.persona.finish();
            let requester = &stage.pair(pair).requester;
            let told: Vec<_> = requester.answers.iter().map(|answer| (answer.packet, answer.msn)).collect();
            assert_eq!(told, [(0, 0), (5, 1)]);
            assert_eq!(requester.went_back, 0);
            if !write {
                assert_eq!(stage.completions(&end, 1)[0].byte_len as usize, data.len());
            }
            assert_eq!(end.mr.read_vec(0, data.len()).unwrap(), data);
        }
        stage.verdict(&ACK_LAWS);
    });
}

#[test]
fn every_size_of_every_operation() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, NEVER);
        let (addr, rkey) = (end.mr.addr(), end.mr.rkey().0);
        for (number, size) in SIZES.into_iter().enumerate() {
            let data = pattern(number as u64, size);
            let imm = (number % 2 == 1).then_some(*b"imm!");
            end.mr.fill(7).unwrap();
            end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(100, 10_000)] }).unwrap();
            end.qp.post_recv(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
            let requester = &mut stage.pair(pair).requester;
            requester.post(Ask::Send(data.clone(), imm));
            requester.post(Ask::Write(addr + 20_000, rkey, data.clone(), Some(*b"WIMM")));
            requester.post(Ask::Write(addr + 40_001, rkey, data.clone(), None));
            requester.post(Ask::Read(addr + 40_001, rkey, size as u32));
            stage.persona.finish();

            let done = stage.completions(&end, 2);
            let (received, written) = (of(&done, WcOpcode::Recv), of(&done, WcOpcode::RecvRdmaWithImm));
            assert_eq!((received[0].wr_id, received[0].byte_len as usize), (1, size));
            assert_eq!(received[0].extra, imm.map_or(WcExtra::None, WcExtra::Immediate));
            assert_eq!((written[0].wr_id, written[0].byte_len as usize), (2, size));
            assert_eq!(written[0].extra, WcExtra::Immediate(*b"WIMM"));
            for at in [100, 20_000, 40_001] {
                assert_eq!(end.mr.read_vec(at, size).unwrap(), data);
                assert_eq!((end.mr.load_u8(at - 1), end.mr.load_u8(at + size)), (Ok(7), Ok(7)));
            }
            let requester = &stage.pair(pair).requester;
            assert_eq!(requester.reads.last(), Some(&data));
            assert_eq!((requester.went_back, requester.refused), (0, None));
        }
        assert_eq!(end.qp.stats().duplicates, 0);
        stage.verdict(&[&ACK_LAWS[..], &READ_LAWS].concat());
    });
}

/// The persona sends beyond its credits one packet at a time, as its card does; ours tell the truth.
#[test]
fn our_credits_are_true_and_enough() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, NEVER);
        for number in 0..3 {
            let to = end.mr.sge(number * 4096, 4096);
            end.qp.post_recv(&RecvWr { wr_id: number as u64, sges: &[to] }).unwrap();
        }
        let messages: Vec<_> = (0..6).map(|number| pattern(number, 2 * MTU + 5)).collect();
        for data in &messages {
            stage.pair(pair).requester.post(Ask::Send(data.clone(), None));
        }
        stage.completions(&end, 3);
        // Nothing is posted now: the fourth message's first packet comes alone, and is refused for the time being.
        stage.persona.run("an RNR NAK", |persona| {
            persona.pairs[pair].requester.answers.iter().any(|answer| answer.syndrome == 0x2c)
        });
        let promised: Vec<_> = stage.pair(pair).requester.answers.clone();
        for &Answer { packet, syndrome, msn } in promised.iter().filter(|answer| answer.syndrome < 0x20) {
            // Three receives for six messages of three packets each. The open message's own receive counts.
            let left = 3_u32.saturating_sub(msn);
            let credits = CREDITS[usize::from(syndrome)];
            assert!(credits == left, "packet {packet}: {credits} credits, {left} receives");
        }
        let refused = promised.iter().find(|answer| answer.syndrome == 0x2c).unwrap();
        assert_eq!((refused.packet, refused.msn), (9, 3));

        for number in 3..6 {
            let to = end.mr.sge(number * 4096, 4096);
            end.qp.post_recv(&RecvWr { wr_id: number as u64, sges: &[to] }).unwrap();
        }
        stage.completions(&end, 3);
        stage.persona.finish();
        for (number, data) in messages.iter().enumerate() {
            assert_eq!(end.mr.read_vec(number * 4096, data.len()).unwrap(), *data);
        }
        let last = *stage.pair(pair).requester.answers.last().unwrap();
        assert_eq!((last.syndrome, last.msn), (0, 6), "no receive is left");
        stage.verdict(&ACK_LAWS);
    });
}

#[test]
fn lost_requests_and_acknowledgements() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, SHORT);
        let (addr, rkey) = (end.mr.addr(), end.mr.rkey().0);
        let losses = [
            (Direction::Out, op::SEND_FIRST),
            (Direction::Out, op::SEND_MIDDLE),
            (Direction::Out, op::SEND_LAST),
            (Direction::Out, op::WRITE_FIRST),
            (Direction::Out, op::WRITE_MIDDLE),
            (Direction::Out, op::WRITE_LAST),
            (Direction::Out, op::READ_REQUEST),
            (Direction::In, op::ACK),
        ];
        for (number, (direction, opcode)) in losses.into_iter().enumerate() {
            let lost = stage.persona.card.lost();
            stage.persona.card.lose(direction, opcode, 0);
            let data = pattern(number as u64, 4 * MTU + 1);
            end.mr.fill(0).unwrap();
            end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, 10_000)] }).unwrap();
            let requester = &mut stage.pair(pair).requester;
            requester.post(Ask::Send(data.clone(), None));
            requester.post(Ask::Write(addr + 20_000, rkey, data.clone(), None));
            requester.post(Ask::Read(addr + 20_000, rkey, data.len() as u32));
            stage.persona.finish();
            // One receive was posted: a message executed twice would have been refused.
            assert_eq!(stage.completions(&end, 1)[0].byte_len as usize, data.len());
            assert_eq!(end.mr.read_vec(0, data.len()).unwrap(), data);
            assert_eq!(end.mr.read_vec(20_000, data.len()).unwrap(), data);
            assert_eq!(stage.pair(pair).requester.reads.last(), Some(&data));
            assert_eq!(stage.persona.card.lost(), lost + 1, "{direction:?} {opcode:#x} did not pass");
        }
        let naks = |syndrome| {
            move |persona: &testbed::persona::Persona| {
                persona.pairs[pair].requester.answers.iter().filter(|a| a.syndrome == syndrome).count()
            }
        };
        assert!(naks(0x60)(&stage.persona) >= 4, "gaps are told, not left to the timeout");
        assert_eq!(naks(0x2c)(&stage.persona), 0);
        stage.verdict(&[&ACK_LAWS[..], &READ_LAWS].concat());
    });
}

#[test]
fn lost_read_responses() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, SHORT);
        let data = pattern(5, 6 * MTU + 100);
        end.mr.write_at(0, &data).unwrap();
        for (opcode, skip) in
            [(op::READ_FIRST, 0), (op::READ_MIDDLE, 0), (op::READ_MIDDLE, 3), (op::READ_LAST, 0)]
        {
            let lost = stage.persona.card.lost();
            stage.persona.card.lose(Direction::In, opcode, skip);
            let (addr, rkey) = (end.mr.addr(), end.mr.rkey().0);
            stage.pair(pair).requester.post(Ask::Read(addr, rkey, data.len() as u32));
            stage.pair(pair).requester.post(Ask::Read(addr + 3, rkey, 10));
            stage.persona.finish();
            let reads = &stage.pair(pair).requester.reads;
            assert_eq!(reads[reads.len() - 2], data);
            assert_eq!(reads[reads.len() - 1], data[3..13]);
            assert_eq!(stage.persona.card.lost(), lost + 1);
        }
        stage.verdict(&READ_LAWS);
    });
}

/// Captures show the counter jump by thousands between bursts. Our socket does not show IDs: a jump may cost a packet, and
/// nothing more.
#[test]
fn jumps_of_the_ip_id() {
    both_families(|mut stage| {
        let (pair, end) = stage.connect(1 << 16, SHORT);
        for number in 0..20_u16 {
            let data = pattern(u64::from(number), 2 * MTU + 9);
            end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, 10_000)] }).unwrap();
            stage.persona.card.move_ident(number * 1777);
            stage.pair(pair).requester.post(Ask::Send(data.clone(), None));
            stage.completions(&end, 1);
            stage.persona.finish();
            assert_eq!(end.mr.read_vec(0, data.len()).unwrap(), data);
        }
        let strays = stage.context.port_stats().dropped_icrc;
        let jumps = if stage.is_ipv4() { 1..=19 } else { 0..=0 };
        assert!(jumps.contains(&strays), "{strays} packets were dropped for their ID");
        stage.verdict(&ACK_LAWS);
    });
}

/// One counter for all queue pairs of the card, packets of several interleaved.
#[test]
fn two_queue_pairs_share_the_counter() {
    both_families(|mut stage| {
        let ends = [stage.connect(1 << 16, NEVER), stage.connect(1 << 16, NEVER)];
        let data = pattern(9, 10 * MTU);
        for (pair, end) in &ends {
            for number in 0..4 {
                let ask = Ask::Write(end.mr.addr() + number, end.mr.rkey().0, data.clone(), None);
                stage.pair(*pair).requester.post(ask);
            }
        }
        stage.persona.finish();
        for (pair, end) in &ends {
            assert_eq!(end.mr.read_vec(3, data.len()).unwrap(), data);
            assert_eq!(stage.pair(*pair).requester.went_back, 0);
        }
        assert_eq!(stage.context.port_stats().dropped_icrc, 0);
        stage.verdict(&ACK_LAWS);
    });
}
