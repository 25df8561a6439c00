//! PSNs ahead and behind, RNR, and what the error state leaves.

use super::*;

#[test]
fn a_gap_is_told_once() {
    let mut rig = Rig::new();
    for psn in [102, 103, 101] {
        rig.write(0x0a, psn, (BASE, 1), b"x").unwrap();
    }
    let said = rig.answer();
    assert!(said.is(ACK, 100));
    assert_eq!((said.syndrome, said.msn), (nak(NakCode::PsnSequence), 0));
    rig.write(0x0a, 105, (BASE, 1), b"x").unwrap();
    assert_eq!(rig.peek(), None);
    assert_eq!(rig.world.qp.stats.dropped_out_of_order, 4);
    assert_eq!(rig.world.qp.stats.psn_naks_sent, 1);
    assert!(rig.world.memory.writes.borrow().is_empty());
    // The expected one arrives: the next gap is told again.
    rig.write(0x0a, 100, (BASE, 1), b"x").unwrap();
    assert!(rig.answer().is(ACK, 100));
    rig.write(0x0a, 105, (BASE, 1), b"x").unwrap();
    let said = rig.answer();
    assert_eq!((said.psn, said.syndrome, said.msn), (101, nak(NakCode::PsnSequence), 1));
}

#[test]
fn half_the_number_space_is_ahead() {
    let mut rig = Rig::new();
    let far = 100 + Psn::HALF - 1;
    rig.write(0x0a, far, (BASE, 1), b"x").unwrap();
    assert_eq!(rig.world.qp.stats.dropped_out_of_order, 1);
    rig.write(0x0a, far + 1, (BASE, 1), b"x").unwrap();
    assert_eq!(rig.world.qp.stats.duplicates, 1);
    assert!(rig.world.memory.writes.borrow().is_empty());
}

#[test]
fn psns_wrap() {
    let mut rig = Rig::new();
    rig.world.qp.attrs.rq_psn = Psn::new(0xff_ffff);
    rig.restart();
    rig.write(0x0a, 1, (BASE, 1), b"x").unwrap();
    assert_eq!(rig.answer().psn, 0xff_ffff);
    for psn in [0xff_ffff, 0, 1] {
        rig.write(0x0a, psn, (BASE, 1), b"x").unwrap();
    }
    let said = rig.answer();
    assert_eq!((said.psn, said.msn), (1, 3));
    rig.write(0x0a, 0xff_ffff, (BASE, 1), b"y").unwrap();
    assert_eq!(rig.answer().psn, 1, "a repetition is told all that was done");
    assert_eq!(rig.world.memory.writes.borrow().len(), 3);
}

#[test]
fn repetitions_are_acknowledged_once_whatever_they_ask() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 600);
    rig.hear(&packet(0x00, 100, Ext::default(), &[1; 256])).unwrap();
    rig.hear(&packet(0x01, 101, Ext::default(), &[1; 256])).unwrap();
    assert_eq!(rig.peek(), None);
    for psn in [100, 101] {
        rig.hear(&packet(0x00, psn, Ext::default(), &[9; 256])).unwrap();
    }
    assert_eq!(rig.peek(), Some(Answer::Now));
    let said = rig.answer();
    assert_eq!((said.psn, said.msn, said.syndrome), (101, 0, Syndrome::Ack(1)));
    assert!(!rig.world.memory.bytes(LOCAL).contains(&9));
    rig.send(0x02, 102, &[1; 3]).unwrap();
    assert_eq!(rig.world.completions()[0].byte_len, 515);
}

#[test]
fn receiver_not_ready_for_a_send() {
    let mut rig = Rig::new();
    rig.send(0x00, 100, &[1; 256]).unwrap();
    // What follows is silently dropped: the peer will send it again anyway.
    rig.send(0x01, 101, &[1; 256]).unwrap();
    rig.send(0x02, 102, &[1; 256]).unwrap();
    let said = rig.answer();
    assert!(said.is(ACK, 100));
    assert_eq!((said.syndrome, said.msn), (Syndrome::RnrNak(12), 0));
    assert_eq!(said.syndrome.bits(), 0x2c);
    assert_eq!(rig.world.qp.stats.rnr_naks_sent, 1);
    rig.send(0x00, 100, &[1; 256]).unwrap();
    assert_eq!(rig.answer().syndrome, Syndrome::RnrNak(12));
    rig.world.post(1, LOCAL, 0, 600);
    rig.send(0x00, 100, &[1; 256]).unwrap();
    rig.send(0x02, 101, &[1; 1]).unwrap();
    assert!(rig.answer().is(ACK, 101));
    assert_eq!(rig.world.completions().len(), 1);
}

#[test]
fn receiver_not_ready_for_the_end_of_a_write_leaves_its_payload_alone() {
    let mut rig = Rig::new();
    rig.hear(&packet(0x06, 100, to(BASE, 300), &[7; 256])).unwrap();
    rig.send(0x09, 101, &[8; 44]).unwrap();
    assert_eq!(rig.answer().syndrome, Syndrome::RnrNak(12));
    assert_eq!(rig.world.memory.writes.borrow().len(), 1);
    rig.world.post(1, LOCAL, 0, 0);
    rig.send(0x09, 101, &[8; 44]).unwrap();
    assert!(rig.answer().is(ACK, 101));
    assert_eq!(rig.world.completions()[0].byte_len, 300);
}

#[test]
fn a_pending_acknowledgement_leaves_before_a_nak() {
    let mut rig = Rig::new();
    rig.write(0x0a, 100, (BASE, 1), b"x").unwrap();
    assert_eq!(rig.peek(), Some(Answer::DeferredAck));
    rig.send(0x04, 101, b"x").unwrap();
    assert_eq!(rig.peek(), Some(Answer::Now));
    let said = rig.answers();
    assert!(said[0].is(ACK, 100) && said[0].syndrome == Syndrome::Ack(0));
    assert!(said[1].is(ACK, 101) && said[1].syndrome == Syndrome::RnrNak(12));
}

#[test]
fn error_flushes_the_open_receive_and_keeps_acknowledgements() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 8);
    rig.world.post(2, LOCAL, 0, 600);
    rig.send(0x04, 100, b"x").unwrap();
    rig.hear(&packet(0x00, 101, Ext::default(), &[1; 256])).unwrap();
    let responder = &mut rig.responder;
    rig.world.with(|qp, ctx| responder.flush(qp, ctx));
    let wc = rig.world.completions();
    let seen: Vec<_> = wc.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(1, WcStatus::Success), (2, WcStatus::WorkRequestFlushed)]);
    assert!(rig.answer().is(ACK, 100));
    // RESET and again.
    rig.restart();
    assert_eq!(rig.responder.expected, Psn::new(100));
    rig.write(0x0a, 100, (BASE, 1), b"x").unwrap();
    assert_eq!(rig.answer().msn, 1);
}

#[test]
fn answers_carry_the_partition_of_the_queue_pair() {
    let mut rig = Rig::new();
    rig.world.qp.pkey = crate::num::Pkey(0x8123);
    rig.write(0x0a, 100, (BASE, 1), b"x").unwrap();
    assert!(rig.answer().is(ACK, 100));
}

#[test]
fn responses_are_not_for_the_responder() {
    let mut rig = Rig::new();
    for opcode in 0x0d..=0x12 {
        rig.send(opcode, 100, &[]).unwrap();
    }
    assert_eq!(rig.world.qp.stats.dropped_service, 6);
    assert_eq!(rig.responder.expected, Psn::new(100));
}
