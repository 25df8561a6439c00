//! SEND and RDMA WRITE: placement, completions, acknowledgements, credits.

use super::*;
use crate::{num::Qpn, work::Sge};

#[test]
fn send_only_lands_in_the_receive_and_is_acknowledged() {
    let mut rig = Rig::new();
    rig.world.post(9, LOCAL, 16, 64);
    let mut packet = acked(packet(0x05, 100, Ext { imm: [1, 2, 3, 4], ..Ext::default() }, b"hello"));
    packet.bth.solicited = true;
    rig.hear(&packet).unwrap();
    let expected = Completion {
        wr_id: 9,
        opcode: WcOpcode::Recv,
        byte_len: 5,
        extra: WcExtra::Immediate([1, 2, 3, 4]),
        qpn: crate::qp::fake::QPN,
        src_qp: Qpn::new(0),
        grh: true,
        solicited: true,
        ..Completion::default()
    };
    assert!(matches!(
        rig.world.events[0],
        Event::Completion { solicited: true, wc, .. } if wc == expected
    ));
    assert_eq!(&rig.world.memory.bytes(LOCAL)[16..21], b"hello");
    assert_eq!(rig.peek(), Some(Answer::DeferredAck));
    let ack = rig.answer();
    assert!(ack.is(ACK, 100));
    assert_eq!((ack.syndrome, ack.msn), (Syndrome::Ack(0), 1));
    assert_eq!(rig.responder.expected, Psn::new(101));
}

#[test]
fn a_long_send_crosses_elements_and_packets() {
    let mut rig = Rig::new();
    let sges = [(0x100, 300), (0x3000, 1), (0x1000, 400)];
    rig.world.post_sges(1, &sges.map(|(addr, len)| Sge { addr, len, lkey: Key(LOCAL) }));
    let data = pattern(256 * 2 + 100);
    rig.hear(&packet(0x00, 100, Ext::default(), &data[..256])).unwrap();
    rig.hear(&packet(0x01, 101, Ext::default(), &data[256..512])).unwrap();
    assert!(rig.world.completions().is_empty());
    rig.send(0x02, 102, &data[512..]).unwrap();
    let wc = rig.world.completions();
    assert_eq!((wc.len(), wc[0].byte_len, wc[0].extra), (1, 612, WcExtra::None));
    let memory = rig.world.memory.bytes(LOCAL);
    let placed = [&memory[0x100..0x100 + 300], &memory[0x3000..0x3001], &memory[0x1000..0x1000 + 311]];
    assert_eq!(placed.concat(), data);
    assert!(rig.answer().is(ACK, 102));
}

#[test]
fn without_ack_req_nothing_is_said() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 64);
    rig.hear(&packet(0x04, 100, Ext::default(), b"quiet")).unwrap();
    assert_eq!(rig.peek(), None);
    assert_eq!(rig.world.completions().len(), 1);
}

#[test]
fn ack_req_inside_a_message_is_answered_at_once() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 512);
    rig.world.post(2, LOCAL, 0, 512);
    rig.send(0x00, 100, &[1; 256]).unwrap();
    assert_eq!(rig.peek(), Some(Answer::Now));
    let ack = rig.answer();
    // The receive of the message that has begun is not complete: the MSN does not count it yet.
    assert_eq!((ack.psn, ack.msn, ack.syndrome), (100, 0, Syndrome::Ack(2)));
    rig.send(0x02, 101, &[1; 10]).unwrap();
    let ack = rig.answer();
    assert_eq!((ack.psn, ack.msn, ack.syndrome), (101, 1, Syndrome::Ack(1)));
}

#[test]
fn acknowledgements_of_a_run_are_one() {
    let mut rig = Rig::new();
    for psn in 100..120 {
        rig.world.post(psn.into(), LOCAL, 0, 8);
        rig.send(0x04, psn, b"x").unwrap();
        assert_eq!(rig.peek(), Some(Answer::DeferredAck));
    }
    let ack = rig.answer();
    assert_eq!((ack.psn, ack.msn), (119, 20));
}

#[test]
fn credits_count_posted_receives_but_not_shared_ones() {
    let mut rig = Rig::new();
    for wr_id in 0..13 {
        rig.world.post(wr_id, LOCAL, 0, 8);
    }
    rig.send(0x04, 100, &[]).unwrap();
    assert_eq!(rig.answer().syndrome, Syndrome::Ack(7), "12 receives are code 7");
    let mut rig = Rig::new();
    rig.world.share(crate::qp::fake::PD, 0);
    rig.world.post(1, LOCAL, 0, 8);
    rig.send(0x04, 100, &[]).unwrap();
    assert_eq!(rig.answer().syndrome, Syndrome::ACK_NO_CREDITS);
}

#[test]
fn write_goes_straight_to_memory() {
    let mut rig = Rig::new();
    let data = pattern(700);
    let target = (BASE + 5, 700);
    rig.hear(&packet(0x06, 100, to(target.0, target.1), &data[..256])).unwrap();
    rig.hear(&packet(0x07, 101, Ext::default(), &data[256..512])).unwrap();
    rig.send(0x08, 102, &data[512..]).unwrap();
    assert_eq!(rig.world.memory.bytes(REMOTE)[5..705], data);
    assert!(rig.world.events.is_empty());
    assert!(rig.answer().is(ACK, 102));
    rig.write(0x0a, 103, (BASE, 4), b"only").unwrap();
    assert_eq!(&rig.world.memory.bytes(REMOTE)[..4], b"only");
    assert_eq!(rig.answer().msn, 2);
}

#[test]
fn write_with_immediate_uses_a_receive_at_its_end() {
    let mut rig = Rig::new();
    rig.world.post(5, LOCAL, 0, 0);
    rig.world.post(6, LOCAL, 0, 0);
    rig.hear(&packet(0x06, 100, to(BASE, 300), &[7; 256])).unwrap();
    assert_eq!(rig.world.qp.rq.queue.len(), 2);
    rig.hear(&packet(0x09, 101, Ext { imm: *b"imm!", ..Ext::default() }, &[8; 44])).unwrap();
    let only = Ext { imm: *b"only", ..to(BASE, 3) };
    rig.hear(&packet(0x0b, 102, only, b"abc")).unwrap();
    let wc = rig.world.completions();
    let seen: Vec<_> = wc.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.extra)).collect();
    assert_eq!(
        seen,
        [
            (5, WcOpcode::RecvRdmaWithImm, 300, WcExtra::Immediate(*b"imm!")),
            (6, WcOpcode::RecvRdmaWithImm, 3, WcExtra::Immediate(*b"only")),
        ]
    );
    assert!(!rig.world.memory.writes.borrow().iter().any(|write| write.0 == Key(LOCAL)));
}

#[test]
fn messages_of_nothing() {
    let mut rig = Rig::new();
    rig.world.post_sges(1, &[]);
    rig.send(0x04, 100, &[]).unwrap();
    // A WRITE of nothing needs no valid key or address.
    let nowhere = Ext { reth: Reth { addr: 0xdead, rkey: Key(0xbad), len: 0 }, ..Ext::default() };
    rig.hear(&acked(packet(0x0a, 101, nowhere, &[]))).unwrap();
    rig.world.post(2, LOCAL, 0, 0);
    rig.hear(&acked(packet(0x0b, 102, Ext { imm: [9; 4], ..nowhere }, &[]))).unwrap();
    let wc = rig.world.completions();
    assert_eq!(wc.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    assert_eq!(rig.answer().msn, 3);
    assert!(rig.world.memory.writes.borrow().is_empty());
}

#[test]
fn send_with_invalidate() {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, 64);
    rig.world.post(2, LOCAL, 0, 64);
    let key = Key(0x33ee);
    let ext = Ext { invalidate: key, ..Ext::default() };
    rig.hear(&acked(packet(0x17, 100, ext, b"inv"))).unwrap();
    assert_eq!(rig.world.completions()[0].extra, WcExtra::Invalidated(key));
    // It is gone now: the receive of the next one fails, though its bytes have landed, and our side with it; the peer's
    // request was right, and is acknowledged (fault class J).
    let refused = rig.hear(&acked(packet(0x17, 101, ext, b"again")));
    assert!(matches!(refused, Err(Violation::Invalidate(_))));
    let wc = rig.world.completions();
    assert_eq!((wc[0].wr_id, wc[0].status), (2, WcStatus::RemoteInvalidRequest));
    let said = rig.answers();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].is(ACK, 101) && said[0].msn == 1, "{said:?}");
}

#[test]
fn the_first_packet_in_rtr_raises_communication_established_once() {
    let mut rig = Rig::new();
    rig.world.qp.established = false;
    rig.send(0x04, 105, b"ahead").unwrap();
    assert!(rig.world.async_events().is_empty());
    for psn in [100, 101] {
        rig.write(0x0a, psn, (BASE, 1), b"x").unwrap();
    }
    assert_eq!(rig.world.async_events(), [AsyncEvent::CommunicationEstablished(crate::qp::fake::QPN)]);
    let mut rig = Rig::new();
    rig.world.qp.established = false;
    rig.world.qp.attrs.state = QpState::Rts;
    rig.write(0x0a, 100, (BASE, 1), b"x").unwrap();
    assert!(rig.world.async_events().is_empty());
}

#[test]
fn a_shared_queue_raises_its_limit_event() {
    let mut rig = Rig::new();
    rig.world.share(crate::qp::fake::PD, 2);
    for wr_id in 0..3 {
        rig.world.post(wr_id, LOCAL, 0, 8);
    }
    rig.send(0x04, 100, &[]).unwrap();
    assert!(rig.world.async_events().is_empty());
    rig.send(0x04, 101, &[]).unwrap();
    assert_eq!(rig.world.async_events().len(), 1);
    rig.send(0x04, 102, &[]).unwrap();
    assert!(rig.world.async_events().is_empty());
}

/// A message of 2^31 bytes, the longest possible: lengths are right to the last packet, and one byte more is refused.
#[test]
#[cfg_attr(miri, ignore = "a million packets")]
fn two_gibibytes() {
    let len = 1_u32 << 31;
    let mut rig = Rig::new();
    rig.world.qp.attrs.path_mtu = crate::qp::Mtu::M4096;
    rig.world.memory.pretend(0x7700, 0x1_0000_0000, u64::from(len) + 8, 0, Access::all());
    let sges = [(0x1_0000_0000, len), (0x1_0000_0000, 8)];
    for wr_id in 1..=2 {
        rig.world.post_sges(wr_id, &sges.map(|(addr, len)| Sge { addr, len, lkey: Key(0x7700) }));
    }
    let packets = len / 4096;
    let data = [3; 4096];
    let target = |len| Ext { reth: Reth { addr: 0x1_0000_0000, rkey: Key(0x7700), len }, ..Ext::default() };
    for class in [0x06, 0x00] {
        let first = rig.responder.expected.value();
        for k in 0..packets {
            let position = if k == 0 { 0 } else { 1 + u8::from(k + 1 == packets) };
            rig.hear(&packet(class + position, first + k, target(len), &data)).unwrap();
        }
        let last = *rig.world.memory.writes.borrow().last().unwrap();
        assert_eq!(last.1, 0x1_0000_0000 + u64::from(len) - 4096);
    }
    let wc = rig.world.completions();
    assert_eq!((wc.len(), wc[0].byte_len), (1, len));
    assert_eq!(rig.world.memory.writes.borrow().len(), 2 * packets as usize);
    // The second receive has room for more than a message may have.
    let first = rig.responder.expected.value();
    for k in 0..packets {
        rig.hear(&packet(u8::from(k != 0), first + k, Ext::default(), &data)).unwrap();
    }
    rig.send(0x02, first + packets, &[3]).unwrap_err();
    assert_eq!(rig.world.completions()[0].status, WcStatus::RemoteInvalidRequest);
    assert_eq!(rig.answer().syndrome, nak(NakCode::InvalidRequest));
}
