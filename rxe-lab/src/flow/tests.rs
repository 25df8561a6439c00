use super::*;
use crate::{
    capture::{LinkType, Record},
    packet::Found,
};
use order::steps;
use rxe_cm::proto::CommId;
use rxe_core::{
    num::{Key, Msn},
    wire::{self, Aeth, Bth, Ext, NakCode, Opcode, Reth, Syndrome, icrc},
};

const ENDS: [IpAddr; 2] = [
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
];

/// The first end, which talks to itself.
const ITSELF: usize = 2;

const WRITE_ONLY: Opcode = Opcode(0x0a);
const READ_RESPONSE_FIRST: Opcode = Opcode(0x0d);
const READ_RESPONSE_LAST: Opcode = Opcode(0x0f);
const READ_RESPONSE_ONLY: Opcode = Opcode(0x10);
const READ_RESPONSE_MIDDLE: Opcode = Opcode(0x0e);

/// An analyzer, and the packets that it was given.
#[derive(Default)]
struct Fed {
    analyzer: Analyzer,
    count: u64,
    /// Nanoseconds between packets, beyond the microsecond that is always there.
    waited: u64,
}

impl Fed {
    /// Gives it a packet of the end `from`.
    fn packet(&mut self, from: usize, bth: &Bth, ext: &Ext) -> Remark {
        self.changed(from, bth, ext, 0)
    }

    /// The same, with some bits of the ICRC changed on the way.
    fn changed(&mut self, from: usize, bth: &Bth, ext: &Ext, bits: u8) -> Remark {
        let (src, dst) = if from == ITSELF { (ENDS[0], ENDS[0]) } else { (ENDS[from], ENDS[1 - from]) };
        let mut packet = vec![0; wire::wire_len(bth.opcode, 0)];
        wire::emit(bth, ext, 0, &mut packet).unwrap();
        icrc::seal(&icrc::Route::v2(src, dst, 49_152), 0, &mut packet);
        let last = packet.len() - 1;
        packet[last] ^= bits;
        let udp_len = (packet.len() + icrc::UDP_LEN) as u16;
        let words = [49_152, icrc::ROCE_PORT, udp_len, 0];
        let udp = words.iter().flat_map(|word: &u16| word.to_be_bytes());
        let mut frame = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
        frame[4..6].copy_from_slice(&udp_len.to_be_bytes());
        for address in [src, dst] {
            let IpAddr::V6(address) = address else { unreachable!() };
            frame.extend(address.octets());
        }
        frame.extend(udp.chain(packet));
        self.count += 1;
        let (link, time) = (LinkType::RawIp, self.count * 1_000 + self.waited);
        let record = Record { time, link, interface: 0, direction: 0, wire_len: frame.len(), data: &frame };
        let Ok(Found::One(packet)) = Found::new(self.count, &record) else { panic!("no packet") };
        assert_eq!(packet.icrc.is_right(), bits == 0);
        let remark = self.analyzer.packet(&packet);
        self.analyzer.hindsight();
        remark
    }

    /// An empty WRITE to this queue pair.
    fn write(&mut self, from: usize, qp: u32, psn: u32) -> Remark {
        self.packet(from, &Bth::new(WRITE_ONLY, Qpn::new(qp), Psn::new(psn)), &Ext::default())
    }

    fn ack(&mut self, from: usize, qp: u32, psn: u32) {
        self.ack_of(from, qp, psn, 0);
    }

    /// An acknowledgement that says how many messages are complete.
    fn ack_of(&mut self, from: usize, qp: u32, psn: u32, messages: u32) {
        let aeth = Aeth { syndrome: Syndrome::Ack(0x1f), msn: Msn::new(messages) };
        self.packet(
            from,
            &Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(qp), Psn::new(psn)),
            &Ext { aeth, ..Ext::default() },
        );
    }
}

/// What looking at captures of `n` and of twice as many packets takes: no more than twice as many steps, but for the depth of
/// a search.
fn is_not_quadratic(what: &str, n: u32, feed: impl Fn(&mut Fed, u32)) {
    let taken = [n, 2 * n].map(|n| {
        let mut fed = Fed::default();
        steps::take();
        feed(&mut fed, n);
        fed.analyzer.finish();
        steps::take()
    });
    assert!(taken[0] >= u64::from(n), "{what}: {} steps of {n} are too few to be all", taken[0]);
    assert!(taken[1] * 10 <= taken[0] * 23, "{what}: {taken:?} steps");
}

/// A conversation may name another queue pair in each of its messages; what is kept of that has an end.
#[test]
fn what_the_connection_manager_says_has_an_end() {
    let ends = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
    let mut analyzer = Analyzer::new();
    for number in 0..MOST_KNOWN as u32 + 1000 {
        analyzer.introduce(([(ends[0], Qpn::new(1)), (ends[1], Qpn::new(number))], Some(1024)));
    }
    assert_eq!((analyzer.known.len(), analyzer.mtus.len()), (MOST_KNOWN, MOST_KNOWN));
}

/// Many packets that nobody answers, and then each is sent again, the last one first: each time is one of going back.
#[test]
fn going_back_again_and_again() {
    is_not_quadratic("going back", 4096, |fed, n| {
        for psn in 0..n {
            fed.write(0, 7, psn);
        }
        for psn in (0..n).rev() {
            fed.write(0, 7, psn);
        }
        assert_eq!(fed.analyzer.streams[0].requests.round_count, u64::from(n));
    });
}

/// Answers to a READ that come from the last to the first.
#[test]
fn responses_from_behind() {
    is_not_quadratic("responses", 4096, |fed, n| {
        let read = Ext { reth: Reth { addr: 0, rkey: Key(1), len: 2 * n * 256 }, ..Ext::default() };
        fed.packet(0, &Bth::new(Opcode::RC_READ_REQUEST, Qpn::new(7), Psn::new(0)), &read);
        for psn in (0..2 * n).rev() {
            let bth = Bth::new(READ_RESPONSE_MIDDLE, Qpn::new(8), Psn::new(psn));
            fed.packet(1, &bth, &Ext::default());
        }
        assert_eq!(fed.analyzer.streams[0].peer, Some(1));
    });
}

/// Many queue pairs of two hosts, of which each is known by a conversation, and begins before its peer.
#[test]
fn many_connections_and_conversations() {
    is_not_quadratic("connections", 2048, |fed, n| {
        for qp in 0..n {
            fed.write(0, 2 * qp + 2, 0);
        }
        for qp in 0..n {
            fed.write(1, 2 * qp + 3, 0);
        }
        for qp in 0..n {
            let ends = [(ENDS[0], Qpn::new(2 * qp + 3)), (ENDS[1], Qpn::new(2 * qp + 2))];
            fed.analyzer.introduce((ends, None));
            let mut told = Conversation::new(ENDS[0], ENDS[1], [CommId(qp), CommId(qp)]);
            (told.asker_qp, told.asked_qp) = (2 * qp + 3, 2 * qp + 2);
            fed.analyzer.conversations.list.push(told);
        }
        let summary = fed.analyzer.finish();
        assert_eq!(summary.connections.len(), n as usize);
        for (at, connection) in summary.connections.iter().enumerate() {
            assert_eq!(connection.conversation, Some(at));
        }
    });
}

/// Answers that fit no stream: of those that may be asked for, a bounded number is looked at.
#[test]
fn answers_to_nobody() {
    is_not_quadratic("answers", 1024, |fed, n| {
        for qp in 0..n {
            fed.write(0, qp + 2, 0);
        }
        for _ in 0..n {
            fed.ack(1, 1_000_000, 9_000_000);
        }
    });
}

/// A capture that begins in running traffic also has acknowledgements of messages that are not in it. In a second pass it is
/// known from the beginning whose they are.
#[test]
fn acknowledgements_of_what_was_before_the_capture() {
    let mut first = Analyzer::new();
    for _ in 0..2 {
        let mut fed = Fed { analyzer: Analyzer::again(&first), ..Fed::default() };
        fed.write(0, 7, 10);
        for (psn, messages) in [(7, 1), (8, 2), (10, 4)] {
            fed.ack_of(1, 8, psn, messages);
        }
        let summary = fed.analyzer.finish();
        assert_eq!(summary.connections.len(), 1);
        assert_eq!(summary.connections[0].directions[0].msn_mismatches, 0);
        fed.write(0, 7, 11);
        fed.ack_of(1, 8, 11, 6);
        let summary = fed.analyzer.finish();
        assert_eq!(summary.connections[0].directions[0].msn_mismatches, 1, "the next one is compared");
        first = fed.analyzer;
    }
}

/// A packet that was corrupted is in the capture. It is no gap, and sent again it is no late one.
#[test]
fn a_corrupted_packet_is_in_the_capture() {
    let mut fed = Fed::default();
    let mut bits = 0;
    let mut write = |fed: &mut Fed, psn, is_good: bool| {
        bits += 1;
        let bth = Bth::new(WRITE_ONLY, Qpn::new(7), Psn::new(psn));
        fed.changed(0, &bth, &Ext::default(), if is_good { 0 } else { bits })
    };
    write(&mut fed, 0, true);
    assert_eq!(write(&mut fed, 1, false).marks, Marks::BAD_ICRC);
    let next = write(&mut fed, 2, true);
    assert_eq!(next.marks, Marks::empty());
    assert!(next.why.is_some_and(|why| why.contains("was corrupted")));
    assert_eq!(write(&mut fed, 1, true).marks, Marks::RETRANSMITTED);
    // Of these three one is really not there.
    write(&mut fed, 3, false);
    write(&mut fed, 5, false);
    let next = write(&mut fed, 6, true);
    assert_eq!(next.marks, Marks::GAP);
    let why = next.why.unwrap_or_default();
    assert!(
        why.starts_with("3 packets") && why.ends_with("not in the capture, or were corrupted (2)"),
        "{why}"
    );
    assert_eq!(write(&mut fed, 4, true).marks, Marks::LATE);
    assert_eq!(write(&mut fed, 3, true).marks, Marks::RETRANSMITTED, "it was there before");
    // The late one is not missing. This one is: it never comes.
    assert_eq!(write(&mut fed, 8, true).marks, Marks::GAP);
    let summary = fed.analyzer.finish();
    let direction = &summary.connections[0].directions[0];
    assert_eq!((direction.missing, direction.late, direction.retransmitted), (1, 1, 2));
    assert_eq!(direction.bad_icrc, 3);
}

/// The receiver has dropped it, so it is asked for again, but it is in the capture.
#[test]
fn a_corrupted_answer_is_in_the_capture() {
    let mut fed = Fed::default();
    let read = |fed: &mut Fed, psn| {
        let ext = Ext { reth: Reth { addr: 0, rkey: Key(1), len: 6 * 256 }, ..Ext::default() };
        fed.packet(0, &Bth::new(Opcode::RC_READ_REQUEST, Qpn::new(7), Psn::new(psn)), &ext)
    };
    let respond = |fed: &mut Fed, opcode, psn, bits| {
        let aeth = Aeth { syndrome: Syndrome::Ack(0x1f), msn: Msn::new(1) };
        fed.changed(1, &Bth::new(opcode, Qpn::new(8), Psn::new(psn)), &Ext { aeth, ..Ext::default() }, bits)
    };
    read(&mut fed, 0);
    fed.analyzer.streams[0].requests.know_mtu(256);
    respond(&mut fed, READ_RESPONSE_FIRST, 0, 0);
    respond(&mut fed, READ_RESPONSE_MIDDLE, 1, 1);
    let next = respond(&mut fed, READ_RESPONSE_MIDDLE, 2, 0);
    assert_eq!(next.marks, Marks::empty());
    assert_eq!(next.why.as_deref(), Some("the answer before it (psn 000001) was corrupted"));
    assert_eq!(read(&mut fed, 1).why.as_deref(), Some("the answer with psn 000001 was corrupted"));
    // Another one is really not there.
    respond(&mut fed, READ_RESPONSE_MIDDLE, 3, 2);
    let next = respond(&mut fed, READ_RESPONSE_LAST, 5, 0);
    assert_eq!(next.marks, Marks::GAP);
    let told = "2 answers before it (psn 000003 to 000004) are not in the capture, or were corrupted (1)";
    assert_eq!(next.why.as_deref(), Some(told));
    // The last one of a READ is followed by the first one of another.
    read(&mut fed, 6);
    read(&mut fed, 12);
    respond(&mut fed, READ_RESPONSE_FIRST, 6, 0);
    respond(&mut fed, READ_RESPONSE_LAST, 7, 3);
    assert_eq!(respond(&mut fed, READ_RESPONSE_FIRST, 12, 0).marks, Marks::empty());
    assert_eq!(read(&mut fed, 7).why.as_deref(), Some("the answer with psn 000007 was corrupted"));
    let summary = fed.analyzer.finish();
    let direction = &summary.connections[0].directions[0];
    assert_eq!((direction.missing, direction.bad_icrc), (1, 0));
}

/// Several queues of an adapter may be recorded in another order than that in which the packets came.
#[test]
fn a_late_packet_may_be_recorded_behind_its_acknowledgement() {
    let mut fed = Fed::default();
    fed.write(0, 7, 0);
    assert_eq!(fed.write(0, 7, 2).marks, Marks::GAP);
    fed.ack(1, 8, 2);
    assert_eq!(fed.write(0, 7, 1).marks, Marks::LATE);
    fed.write(0, 7, 4);
    fed.ack(1, 8, 4);
    fed.waited += 5_000_000;
    assert_eq!(fed.write(0, 7, 3).marks, Marks::RETRANSMITTED, "its requester has waited for the answer");
}

/// What the capture missed of an answer is no reason to send something else again.
#[test]
fn an_answer_that_only_the_capture_missed() {
    let mut fed = Fed::default();
    let read = Ext { reth: Reth { addr: 0, rkey: Key(1), len: 3 * 256 }, ..Ext::default() };
    fed.packet(0, &Bth::new(Opcode::RC_READ_REQUEST, Qpn::new(7), Psn::new(0)), &read);
    let aeth = Aeth { syndrome: Syndrome::Ack(0x1f), msn: Msn::new(1) };
    for (opcode, psn) in [(READ_RESPONSE_FIRST, 0), (READ_RESPONSE_LAST, 2)] {
        fed.packet(1, &Bth::new(opcode, Qpn::new(8), Psn::new(psn)), &Ext { aeth, ..Ext::default() });
    }
    fed.write(0, 7, 3);
    let again = fed.write(0, 7, 3);
    assert_eq!(again.why.as_deref(), Some("no answer for 1.00 us"));
    fed.write(0, 7, 5);
    assert_eq!(fed.write(0, 7, 4).marks, Marks::LATE, "no reason is left for it");
}

/// A packet that nobody asks for any more, because what is behind it was acknowledged.
#[test]
fn a_nak_is_no_reason_for_ever() {
    let mut fed = Fed::default();
    fed.write(0, 7, 0);
    fed.write(0, 7, 1);
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), msn: Msn::new(0) };
    let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(8), Psn::new(1));
    fed.packet(1, &bth, &Ext { aeth, ..Ext::default() });
    // It was sent again, which is not in the capture.
    fed.ack(1, 8, 1);
    fed.write(0, 7, 2);
    fed.waited += 1_000_000;
    assert_eq!(fed.write(0, 7, 1).why.as_deref(), Some("its answer did not arrive: no news for 1.00 ms"));
}

/// Silence is measured from when a packet was sent itself, or from the last answer. What else was sent meanwhile is no news.
#[test]
fn silence_is_that_of_the_other_side() {
    let mut fed = Fed::default();
    fed.write(0, 7, 0);
    fed.waited += 3_900_000;
    fed.write(0, 7, 1);
    fed.waited += 100_000;
    assert_eq!(fed.write(0, 7, 0).why.as_deref(), Some("no answer for 4.00 ms"));
    fed.waited += 1_000_000;
    fed.ack(1, 8, 0);
    fed.write(0, 7, 2);
    fed.waited += 2_000_000;
    assert_eq!(fed.write(0, 7, 1).why.as_deref(), Some("no answer for 2.00 ms"));
    // The answer to the first is in the capture, but did not reach its requester.
    fed.waited += 50_000;
    assert_eq!(fed.write(0, 7, 0).why.as_deref(), Some("its answer did not arrive: no news for 3.05 ms"));
}

/// PSNs begin anew after 16 million packets. What was known of the same PSNs then is not true of these.
#[test]
fn sequence_numbers_come_round() {
    const STEP: u32 = 4_000_000;
    let mut fed = Fed::default();
    let read = |fed: &mut Fed, psn| {
        let ext = Ext { reth: Reth { addr: 0, rkey: Key(1), len: 1 }, ..Ext::default() };
        fed.packet(0, &Bth::new(Opcode::RC_READ_REQUEST, Qpn::new(7), Psn::new(psn)), &ext)
    };
    let respond = |fed: &mut Fed, psn| {
        let aeth = Aeth { syndrome: Syndrome::Ack(0x1f), msn: Msn::new(0) };
        let bth = Bth::new(READ_RESPONSE_ONLY, Qpn::new(8), Psn::new(psn));
        fed.packet(1, &bth, &Ext { aeth, ..Ext::default() })
    };
    read(&mut fed, 1);
    respond(&mut fed, 1);
    // Packets 2 to 4 are not in the capture.
    for step in 0..4 {
        fed.write(0, 7, 5 + step * STEP);
        fed.ack(1, 8, 5 + step * STEP);
    }
    let psn = 6 + 3 * STEP;
    read(&mut fed, psn);
    assert_eq!(respond(&mut fed, psn).marks, Marks::empty());
    fed.write(0, 7, psn + STEP);
    fed.ack(1, 8, psn + STEP);
    let begin = 1 << 24;
    for psn in 0..5 {
        fed.write(0, 7, (begin + psn) & 0xff_ffff);
    }
    assert_eq!(fed.write(0, 7, 3).marks, Marks::RETRANSMITTED);
    let again = fed.write(0, 7, 1);
    assert!(again.why.is_some_and(|why| why.starts_with("no answer")), "its answer was that of another");
}

/// How many packets answer a READ follows from the MTU, for all READs that were sent before it was known, and in a second pass
/// from the first packet on.
#[test]
fn the_mtu_is_learnt_behind_reads() {
    let reads = |fed: &mut Fed| {
        let ext = Ext { reth: Reth { addr: 0, rkey: Key(1), len: 4 * 256 }, ..Ext::default() };
        for psn in [0, 4] {
            fed.packet(0, &Bth::new(Opcode::RC_READ_REQUEST, Qpn::new(7), Psn::new(psn)), &ext);
        }
    };
    let mut fed = Fed::default();
    reads(&mut fed);
    fed.analyzer.streams[0].requests.know_mtu(256);
    let lasts = fed.analyzer.streams[0].requests.open.iter().map(|read| read.last.value());
    assert_eq!(lasts.collect::<Vec<_>>(), [3, 7]);
    assert_eq!(fed.write(0, 7, 8).marks, Marks::empty());

    let mut again = Fed { analyzer: Analyzer::again(&fed.analyzer), ..Fed::default() };
    reads(&mut again);
    assert_eq!(again.write(0, 7, 9).marks, Marks::GAP);
}

/// A queue pair may be connected to itself. Both directions are one stream then.
#[test]
fn a_queue_pair_and_itself() {
    let mut fed = Fed::default();
    fed.analyzer.introduce(([(ENDS[0], Qpn::new(7)), (ENDS[0], Qpn::new(7))], None));
    for psn in 0..3 {
        fed.write(ITSELF, 7, psn);
        fed.ack_of(ITSELF, 7, psn, psn + 1);
    }
    let mut second = Fed { analyzer: Analyzer::again(&fed.analyzer), ..Fed::default() };
    second.write(ITSELF, 7, 0);
    second.ack_of(ITSELF, 7, 0, 1);
    for (fed, count) in [(&mut fed, 3), (&mut second, 1)] {
        let summary = fed.analyzer.finish();
        let [connection] = &summary.connections[..] else { panic!("{:?}", summary.connections) };
        let end = (ENDS[0], Some(7));
        assert_eq!((connection.ends, connection.directions.len()), ([end, end], 1));
        let direction = &connection.directions[0];
        assert_eq!((direction.completed, direction.acks, direction.unanswered), (count, count, 0));
    }
}
