use super::*;
use alloc::{format, string::String, vec::Vec};

const MTU: u32 = 256;
const MSN: Msn = Msn::new(0);

fn stream(psn: u32, len: u32, replay: bool) -> Pending {
    let kind = Kind::Read(ReadRest { addr: 0, rkey: Key(1), pd: PdId(0), left: len, started: false });
    Pending { psn: Psn::new(psn), msn: MSN, replay, kind }
}

fn atomic(psn: u32, replay: bool) -> Pending {
    Pending { psn: Psn::new(psn), msn: MSN, replay, kind: Kind::Atomic(0) }
}

/// The queue as "ack 5, read 6+300, ...".
fn show(answers: &Answers) -> Vec<String> {
    let show = |answer: &Pending| {
        let psn = answer.psn.value();
        match answer.kind {
            Kind::Ack { urgent: true } => format!("ack! {psn}"),
            Kind::Ack { urgent: false } => format!("ack {psn}"),
            Kind::Read(stream) => format!("read {psn}+{}", stream.left),
            Kind::Atomic(_) => format!("atomic {psn}"),
            Kind::Written => format!("written {psn}"),
            Kind::Flushed => format!("flushed {psn}"),
            Kind::Retry(_) => format!("retry {psn}"),
            Kind::Refusal(_) => format!("refusal {psn}"),
        }
    };
    answers.queue.iter().map(show).collect()
}

#[test]
fn acknowledgements_merge_and_stay_urgent() {
    let mut answers = Answers::default();
    answers.acknowledge(Psn::new(1), MSN, false);
    answers.acknowledge(Psn::new(2), MSN, false);
    assert!(answers.may_wait());
    answers.acknowledge(Psn::new(3), MSN, true);
    answers.acknowledge(Psn::new(4), Msn::new(9), false);
    assert!(!answers.may_wait());
    assert_eq!(show(&answers), ["ack! 4"]);
    assert_eq!(answers.front().unwrap().msn, Msn::new(9));
}

#[test]
fn a_reply_implies_the_acknowledgement_before_it() {
    let mut answers = Answers::default();
    answers.acknowledge(Psn::new(1), MSN, false);
    answers.reply(stream(2, 600, false));
    answers.acknowledge(Psn::new(5), MSN, false);
    assert_eq!(show(&answers), ["read 2+600", "ack 5"]);
    assert!(!answers.may_wait());
    answers.reply(atomic(6, false));
    assert_eq!(show(&answers), ["read 2+600", "atomic 6"]);
    assert_eq!(answers.outstanding(), Outstanding { flushes: 0, others: 2 });
}

#[test]
fn a_read_leaves_packet_by_packet() {
    let mut answers = Answers::default();
    answers.reply(stream(2, 600, false));
    let mut packets = Vec::new();
    while let Some(front) = answers.front() {
        packets.push((front.psn.value(), front.packet(MTU)));
        answers.advance(MTU);
    }
    let op = Opcode::read_response;
    assert_eq!(
        packets,
        [(2, (op(Position::First), 256)), (3, (op(Position::Middle), 256)), (4, (op(Position::Last), 88))]
    );
}

#[test]
fn acknowledging_again_is_not_needed_before_later_answers() {
    let mut answers = Answers::default();
    answers.reply(stream(10, 600, false));
    answers.acknowledge_again(Psn::new(9), MSN);
    assert_eq!(show(&answers), ["read 10+600"]);
    answers.acknowledge(Psn::new(15), MSN, false);
    answers.acknowledge_again(Psn::new(9), MSN);
    assert_eq!(show(&answers), ["read 10+600", "ack! 15"]);
    let mut answers = Answers::default();
    answers.acknowledge(Psn::new(15), MSN, false);
    answers.acknowledge_again(Psn::new(15), MSN);
    assert_eq!(show(&answers), ["ack! 15"]);
}

#[test]
fn repetitions_replace_what_they_repeat_in_psn_order() {
    let mut answers = Answers::default();
    answers.reply(stream(10, 1024, false));
    answers.reply(atomic(14, false));
    answers.acknowledge(Psn::new(15), MSN, false);
    answers.advance(MTU);
    assert_eq!(show(&answers), ["read 11+768", "atomic 14", "ack 15"]);
    answers.replay(stream(10, 1024, true), MTU);
    assert_eq!(show(&answers), ["read 10+1024", "atomic 14", "ack 15"]);
    answers.replay(atomic(14, true), MTU);
    answers.replay(stream(12, 256, true), MTU);
    assert_eq!(show(&answers), ["read 12+256", "atomic 14", "ack 15"]);
    answers.replay(atomic(8, true), MTU);
    assert_eq!(show(&answers), ["atomic 8", "read 12+256", "atomic 14", "ack 15"]);
    assert_eq!(answers.outstanding(), Outstanding::default());
}

#[test]
fn neighbours_are_not_overlaps() {
    let mut answers = Answers::default();
    answers.reply(stream(10, 512, false));
    answers.replay(stream(8, 512, true), MTU);
    answers.replay(stream(12, 512, true), MTU);
    assert_eq!(show(&answers), ["read 8+512", "read 10+512", "read 12+512"]);
    answers.replay(stream(9, 512, true), MTU);
    assert_eq!(show(&answers), ["read 9+512", "read 12+512"]);
}

#[test]
fn the_queue_is_bounded() {
    let mut answers = Answers::default();
    for psn in 0..10_000 {
        answers.acknowledge(Psn::new(psn), MSN, false);
        answers.ask_retry(Psn::new(psn + 1), MSN, Syndrome::Nak(NakCode::PsnSequence));
    }
    assert_eq!(show(&answers), ["ack 9999", "retry 10000"]);
    for psn in 0..10_000 {
        answers.replay(atomic(psn, true), MTU);
        answers.acknowledge_again(Psn::new(psn), MSN);
    }
    assert!(answers.queue.len() <= MAX_REPLAYS + 3, "{}", answers.queue.len());
}

#[test]
fn in_error_reads_are_given_up_and_nothing_is_said_past_them() {
    let mut answers = Answers::default();
    answers.reply(atomic(1, false));
    answers.acknowledge(Psn::new(2), MSN, false);
    answers.reply(stream(3, 600, false));
    answers.acknowledge(Psn::new(6), MSN, false);
    answers.flush();
    assert_eq!(show(&answers), ["atomic 1"]);
}

#[test]
fn in_error_nobody_is_asked_to_try_again() {
    let mut answers = Answers::default();
    answers.acknowledge(Psn::new(1), MSN, false);
    answers.ask_retry(Psn::new(2), MSN, Syndrome::RnrNak(1));
    answers.flush();
    assert_eq!(show(&answers), ["ack 1"]);
}

#[test]
fn after_a_refusal_everything_before_it_still_leaves() {
    let mut answers = Answers::default();
    answers.reply(stream(3, 600, false));
    answers.acknowledge(Psn::new(6), MSN, false);
    answers.refuse(Psn::new(7), MSN, NakCode::RemoteAccess);
    answers.flush();
    assert_eq!(show(&answers), ["read 3+600", "ack 6", "refusal 7"]);
}
