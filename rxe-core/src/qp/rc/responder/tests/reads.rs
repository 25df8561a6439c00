//! READ: streams, repetitions, what is remembered, memory that goes away.

use super::*;

fn rig() -> Rig {
    let rig = Rig::new();
    rig.world.memory.fill(REMOTE, |at| pattern(at + 1)[at]);
    rig
}

/// Opcodes and PSNs.
fn shape(said: &[Said]) -> Vec<(u8, u32)> {
    said.iter().map(|said| (said.opcode, said.psn)).collect()
}

fn data(said: &[Said]) -> Vec<u8> {
    said.iter().flat_map(|said| said.payload.iter().copied()).collect()
}

#[test]
fn a_read_is_answered_in_mtu_steps() {
    let mut rig = rig();
    rig.read(100, BASE + 3, 600).unwrap();
    assert_eq!(rig.responder.expected, Psn::new(103));
    assert_eq!(rig.peek(), Some(Answer::Now));
    let said = rig.answers();
    assert_eq!(shape(&said), [(0x0d, 100), (0x0e, 101), (0x0f, 102)]);
    assert_eq!(data(&said), rig.world.memory.bytes(REMOTE)[3..603]);
    assert_eq!((said[0].msn, said[2].msn), (1, 1));
    assert_eq!(rig.world.qp.stats.bytes_sent, 600);
    rig.read(103, BASE, 256).unwrap();
    assert_eq!(shape(&rig.answers()), [(0x10, 103)]);
}

#[test]
fn a_read_of_nothing_needs_no_key() {
    let mut rig = rig();
    let nowhere = Ext { reth: Reth { addr: 1, rkey: Key(0xbad), len: 0 }, ..Ext::default() };
    rig.hear(&acked(packet(0x0c, 100, nowhere, &[]))).unwrap();
    let said = rig.answer();
    assert!(said.is(0x10, 100) && said.payload.is_empty());
    assert_eq!(said.msn, 1, "a message like any other");
    assert_eq!(rig.responder.expected, Psn::new(101));
    rig.hear(&acked(packet(0x0c, 100, nowhere, &[]))).unwrap();
    let again = rig.answer();
    assert!(again.is(0x10, 100) && again.msn == 1);
    rig.hear(&acked(packet(0x0c, 101, nowhere, &[]))).unwrap();
    assert_eq!(rig.answer().msn, 2);
}

#[test]
fn answers_keep_psn_order_and_imply_acknowledgements() {
    let mut rig = rig();
    rig.write(0x0a, 100, (BASE + 0x2000, 1), b"a").unwrap();
    rig.read(101, BASE, 300).unwrap();
    rig.write(0x0a, 103, (BASE + 0x2000, 1), b"b").unwrap();
    rig.add(104, BASE + 0x2008, 1).unwrap();
    rig.write(0x0a, 105, (BASE + 0x2000, 1), b"c").unwrap();
    rig.write(0x0a, 106, (BASE + 0x2000, 1), b"d").unwrap();
    let said = rig.answers();
    assert_eq!(shape(&said), [(0x0d, 101), (0x0f, 102), (0x12, 104), (ACK, 106)]);
    assert_eq!(said.iter().map(|said| said.msn).collect::<Vec<_>>(), [2, 2, 4, 6]);
}

#[test]
fn memory_is_read_when_the_packet_leaves() {
    let mut rig = rig();
    rig.read(100, BASE, 8).unwrap();
    rig.world.memory.fill(REMOTE, |_| 0x42);
    assert_eq!(rig.answer().payload, [0x42; 8]);
}

#[test]
fn repeated_reads_are_executed_again() {
    let mut rig = rig();
    rig.read(100, BASE, 1000).unwrap();
    rig.write(0x0a, 104, (BASE + 0x2000, 1), b"x").unwrap();
    rig.answers();
    let bytes = rig.world.memory.bytes(REMOTE);
    // All of it, the rest from a packet on, one packet, and less than one.
    for (psn, from, len, opcodes) in [
        (100, 0, 1000, &[0x0d, 0x0e, 0x0e, 0x0f][..]),
        (102, 512, 488, &[0x0d, 0x0f]),
        (103, 768, 232, &[0x10]),
        (101, 256, 256, &[0x10]),
        (100, 0, 10, &[0x10]),
    ] {
        rig.read(psn, BASE + from as u64, len).unwrap();
        let said = rig.answers();
        assert_eq!(said.iter().map(|said| said.opcode).collect::<Vec<_>>(), opcodes);
        assert_eq!(said[0].psn, psn);
        assert_eq!(data(&said), bytes[from..from + len as usize]);
    }
    assert_eq!(rig.responder.expected, Psn::new(105));
    assert_eq!(rig.world.qp.stats.duplicates, 5);
    // Not what was asked before: it is dropped, and the connection goes on.
    rig.read(100, BASE + 1, 1000).unwrap();
    rig.read(100, BASE, 1025).unwrap();
    rig.read(99, BASE, 8).unwrap();
    assert_eq!(rig.peek(), None);
}

#[test]
fn a_repetition_replaces_the_stream_it_repeats() {
    let mut rig = rig();
    rig.read(100, BASE, 1000).unwrap();
    rig.emit().unwrap();
    rig.emit().unwrap();
    rig.read(101, BASE + 256, 744).unwrap();
    assert_eq!(shape(&rig.answers()), [(0x0d, 101), (0x0e, 102), (0x0f, 103)]);
}

#[test]
fn a_lost_read_response_is_not_acknowledged_over() {
    let mut rig = rig();
    rig.write(0x0a, 100, (BASE + 0x2000, 1), b"x").unwrap();
    rig.read(101, BASE, 8).unwrap();
    rig.write(0x0a, 102, (BASE + 0x2000, 1), b"y").unwrap();
    rig.answers();
    // The whole answer was lost: the peer asks again from the start.
    rig.write(0x0a, 100, (BASE + 0x2000, 1), b"x").unwrap();
    let ack = rig.answer();
    assert!(ack.is(ACK, 100), "{ack:?}");
    rig.read(101, BASE, 8).unwrap();
    rig.write(0x0a, 102, (BASE + 0x2000, 1), b"y").unwrap();
    assert_eq!(shape(&rig.answers()), [(0x10, 101), (ACK, 102)]);
}

#[test]
fn only_as_many_are_remembered_as_agreed() {
    let mut rig = rig();
    for psn in 100..105 {
        rig.read(psn, BASE, 8).unwrap();
        rig.answers();
    }
    rig.read(100, BASE, 8).unwrap();
    assert_eq!(rig.peek(), None, "the fifth pushed the first out");
    rig.read(101, BASE, 8).unwrap();
    assert!(rig.answer().is(0x10, 101));
}

#[test]
fn limits_are_rounded_up_to_a_power_of_two() {
    let mut rig = rig();
    rig.world.qp.attrs.max_dest_rd_atomic = 3;
    for psn in 100..104 {
        rig.read(psn, BASE, 8).unwrap();
    }
    assert_eq!(rig.read(104, BASE, 8), Err(Violation::TooManyReads));
    let said = rig.answers();
    assert_eq!(said.len(), 5);
    assert_eq!((said[4].psn, said[4].syndrome), (104, nak(NakCode::InvalidRequest)));
}

#[test]
fn repetitions_do_not_count_as_outstanding() {
    let mut rig = rig();
    rig.world.qp.attrs.max_dest_rd_atomic = 1;
    rig.read(100, BASE, 8).unwrap();
    rig.answers();
    rig.read(100, BASE, 8).unwrap();
    // The first answer was only late: the peer goes on while the repetition has not left.
    rig.read(101, BASE, 8).unwrap();
    assert_eq!(shape(&rig.answers()), [(0x10, 100), (0x10, 101)]);
}

#[test]
fn memory_gone_before_the_first_packet_is_a_nak() {
    let mut rig = rig();
    rig.write(0x0a, 100, (BASE + 0x2000, 1), b"x").unwrap();
    rig.read(101, BASE, 600).unwrap();
    rig.write(0x0a, 104, (BASE + 0x2000, 1), b"x").unwrap();
    rig.world.memory.remove(REMOTE);
    assert_eq!(rig.emit(), None);
    assert!(matches!(rig.responder.take_failure(), Some(Violation::Access(AccessError::UnknownKey(_)))));
    assert_eq!(rig.responder.take_failure(), None);
    assert_eq!(rig.world.async_events(), [AsyncEvent::QpAccessError(crate::qp::fake::QPN)]);
    let responder = &mut rig.responder;
    rig.world.with(|qp, ctx| responder.flush(qp, ctx));
    let said = rig.answer();
    assert!(said.is(ACK, 101));
    assert_eq!(said.syndrome, nak(NakCode::RemoteAccess));
    // Silence after that.
    rig.read(105, BASE, 1).unwrap();
    assert_eq!(rig.peek(), None);
    assert_eq!(rig.world.qp.stats.dropped_state, 1);
}

#[test]
fn memory_gone_in_mid_stream_waits_for_the_repetition() {
    let mut rig = rig();
    rig.read(100, BASE, 600).unwrap();
    rig.emit().unwrap();
    rig.world.memory.gone.set(Some(Key(REMOTE)));
    assert_eq!(rig.emit(), None);
    assert_eq!(rig.responder.take_failure(), None);
    assert_eq!(rig.peek(), None);
    rig.read(101, BASE + 256, 344).unwrap();
    assert_eq!(rig.emit(), None);
    let said = rig.answer();
    assert!(said.is(ACK, 101));
    assert_eq!(said.syndrome, nak(NakCode::RemoteOperational));
    assert_eq!(rig.responder.take_failure(), None, "a repetition may be a stray: we go on");
}

/// The peer has asked for the rest of a message in another request already. A refusal of that would end us before the
/// repetition of the first comes, which then had no answer.
#[test]
fn what_follows_a_stream_that_was_given_up_is_not_refused() {
    let mut rig = rig();
    rig.read(100, BASE, 600).unwrap();
    rig.read(103, BASE + 600, 600).unwrap();
    rig.emit().unwrap();
    rig.world.memory.gone.set(Some(Key(REMOTE)));
    assert_eq!((rig.emit(), rig.emit()), (None, None));
    assert_eq!((rig.responder.take_failure(), rig.peek()), (None, None));
    // It asks again from where data is missing.
    rig.read(101, BASE + 256, 344).unwrap();
    assert_eq!(rig.emit(), None);
    let said = rig.answer();
    assert!(said.is(ACK, 101));
    assert_eq!(said.syndrome, nak(NakCode::RemoteOperational));
    assert_eq!(rig.responder.take_failure(), None);
    // It has been answered, so a READ after it is refused as any other.
    rig.read(106, BASE, 8).unwrap();
    assert_eq!(rig.emit(), None);
    assert!(rig.responder.take_failure().is_some());
}

#[test]
fn a_right_taken_back_ends_repetitions_too() {
    let mut rig = rig();
    rig.read(100, BASE, 8).unwrap();
    rig.answers();
    rig.world.qp.attrs.access.remove(Access::REMOTE_READ);
    rig.read(100, BASE, 8).unwrap();
    assert_eq!(rig.peek(), None);
}

/// After half a round through the number space a PSN like that of an old READ means something else.
#[test]
fn old_reads_are_forgotten_before_their_psns_return() {
    let mut rig = rig();
    rig.world.qp.attrs.max_dest_rd_atomic = 8;
    rig.read(100, BASE, 8).unwrap();
    rig.answers();
    // Long READs move the PSN on: four times 2^22 packets are once around.
    rig.world.memory.pretend(0x7700, 0, 1 << 31, 0, Access::all());
    let long = Ext { reth: Reth { addr: 0, rkey: Key(0x7700), len: 1 << 30 }, ..Ext::default() };
    for _ in 0..4 {
        let psn = rig.responder.expected.value();
        rig.hear(&packet(0x0c, psn, long, &[])).unwrap();
    }
    rig.responder.answers = Answers::default();
    assert_eq!(rig.responder.expected, Psn::new(101));
    rig.write(0x0a, 101, (BASE, 1), b"x").unwrap();
    rig.answers();
    rig.read(100, BASE, 8).unwrap();
    assert_eq!(rig.peek(), None);
}

#[test]
fn psns_wrap_inside_a_read() {
    let mut rig = rig();
    rig.world.qp.attrs.rq_psn = Psn::new(0xff_fffe);
    rig.restart();
    rig.read(0xff_fffe, BASE, 1000).unwrap();
    assert_eq!(shape(&rig.answers()), [(0x0d, 0xff_fffe), (0x0e, 0xff_ffff), (0x0e, 0), (0x0f, 1)]);
    rig.read(0, BASE + 512, 488).unwrap();
    assert_eq!(shape(&rig.answers()), [(0x0d, 0), (0x0f, 1)]);
    rig.write(0x0a, 2, (BASE, 1), b"x").unwrap();
    assert!(rig.answer().is(ACK, 2));
}
