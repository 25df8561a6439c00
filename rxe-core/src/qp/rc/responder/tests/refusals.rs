//! Every way a request is refused: the NAK the peer gets, what our application gets, and silence afterwards.

use super::*;
use crate::qp::fake::QPN;

/// Sends a wrong request and checks all of its effects. `status` is for a case in which a receive has been taken.
fn refused(mut rig: Rig, wrong: &Packet<'_>, violation: Violation, code: NakCode, status: Option<WcStatus>) {
    let msn = rig.responder.msn;
    let written = rig.world.memory.writes.borrow().len();
    rig.answers();
    rig.world.completions();
    assert_eq!(rig.hear(wrong), Err(violation));
    let events = rig.world.async_events();
    let wc = rig.world.completions();
    match status {
        Some(status) => {
            assert_eq!(wc.iter().map(|wc| wc.status).collect::<Vec<_>>(), [status]);
            assert_eq!(wc[0].vendor_error, u32::from(nak(code).bits()));
            assert!(events.is_empty());
        }
        None => {
            assert!(wc.is_empty(), "{wc:?}");
            assert_eq!(events, [violation.event(QPN)]);
        }
    }
    let responder = &mut rig.responder;
    rig.world.with(|qp, ctx| responder.flush(qp, ctx));
    assert!(rig.world.completions().is_empty());
    let said = rig.answer();
    assert!(said.is(ACK, wrong.bth.psn.value()));
    assert_eq!((said.syndrome, said.msn), (nak(code), msn.value()));
    assert_eq!(rig.world.qp.stats.refusals_sent, 1);
    for psn in 99..104 {
        rig.write(0x0a, psn, (BASE, 1), b"x").unwrap();
    }
    assert_eq!(rig.peek(), None);
    assert_eq!(rig.world.memory.writes.borrow().len(), written);
}

fn invalid(rig: Rig, wrong: &Packet<'_>, violation: Violation) {
    refused(rig, wrong, violation, NakCode::InvalidRequest, None);
}

fn with_receive(len: u32) -> Rig {
    let mut rig = Rig::new();
    rig.world.post(1, LOCAL, 0, len);
    rig
}

#[test]
fn opcodes_out_of_sequence() {
    for opcode in [0x01, 0x02, 0x03, 0x16, 0x07, 0x08, 0x09] {
        invalid(with_receive(600), &packet(opcode, 100, Ext::default(), &[1; 256]), Violation::Sequence);
    }
    // Inside a WRITE: anything but its middle and last.
    for opcode in [0x00, 0x01, 0x02, 0x04, 0x06, 0x0a, 0x0b, 0x0c, 0x13, 0x14, 0x1c, 0x1d] {
        let mut rig = Rig::new();
        rig.write(0x06, 100, (BASE, 600), &[1; 256]).unwrap();
        let payload = &[1; 256][..if opcode < 0x0c { 256 } else { 0 }];
        invalid(rig, &packet(opcode, 101, to(BASE, 256), payload), Violation::Sequence);
    }
    // Inside a SEND the completion of its receive tells.
    for opcode in [0x00, 0x04, 0x06, 0x07, 0x08, 0x0c] {
        let mut rig = with_receive(600);
        rig.send(0x00, 100, &[1; 256]).unwrap();
        let wrong = packet(opcode, 101, to(BASE, 256), &[]);
        let status = Some(WcStatus::RemoteInvalidRequest);
        refused(rig, &wrong, Violation::Sequence, NakCode::InvalidRequest, status);
    }
}

#[test]
fn operations_not_enabled_on_the_queue_pair() {
    for (opcode, right) in [
        (0x06, Access::REMOTE_WRITE),
        (0x0a, Access::REMOTE_WRITE),
        (0x0b, Access::REMOTE_WRITE),
        (0x1d, Access::REMOTE_WRITE),
        (0x0c, Access::REMOTE_READ),
        (0x13, Access::REMOTE_ATOMIC),
        (0x14, Access::REMOTE_ATOMIC),
        (0x1c, Access::FLUSH_GLOBAL),
        (0x1c, Access::FLUSH_PERSISTENT),
    ] {
        let mut rig = with_receive(8);
        rig.world.qp.attrs.access = Access::all().difference(right);
        let feth = Feth { placement: 3, selectivity: 0 };
        invalid(rig, &packet(opcode, 100, Ext { feth, ..to(BASE, 8) }, &[]), Violation::NotEnabled);
    }
}

#[test]
fn flushes_that_mean_nothing() {
    for (placement, selectivity) in [(0, 0), (4, 0), (0xf, 0), (1, 2), (1, 3)] {
        let ext = Ext { feth: Feth { placement, selectivity }, ..to(BASE, 8) };
        invalid(Rig::new(), &packet(0x1c, 100, ext, &[]), Violation::NotEnabled);
    }
}

#[test]
fn lengths_that_do_not_fit() {
    // (opcode, RETH length, payload) as the first packet.
    for (opcode, len, payload) in [
        (0x06, 300, 255),
        (0x06, 300, 257),
        (0x06, 256, 256),
        (0x06, 0, 256),
        (0x06, (1 << 31) + 1, 256),
        (0x0a, 10, 9),
        (0x0a, 10, 11),
        (0x0a, 0, 1),
        (0x0a, 257, 257),
        (0x0a, 8, 0),
        (0x0c, (1 << 31) + 1, 0),
        (0x1d, 8, 7),
        (0x1d, 8, 9),
        (0x1d, 7, 8),
        (0x1d, 0, 0),
    ] {
        let data = pattern(payload);
        invalid(Rig::new(), &packet(opcode, 100, to(BASE, len), &data), Violation::Length);
    }
    // (opcode, payload) behind a WRITE FIRST of 600 bytes.
    for (opcode, payload) in [(0x07, 255), (0x07, 0), (0x08, 0), (0x08, 256), (0x08, 100), (0x08, 345)] {
        let mut rig = Rig::new();
        rig.write(0x06, 100, (BASE, 600), &[1; 256]).unwrap();
        let data = pattern(payload);
        invalid(rig, &packet(opcode, 101, Ext::default(), &data), Violation::Length);
    }
    // A middle that leaves nothing for the last.
    let mut rig = Rig::new();
    rig.write(0x06, 100, (BASE, 512), &[1; 256]).unwrap();
    invalid(rig, &packet(0x07, 101, Ext::default(), &[1; 256]), Violation::Length);
    // A last packet without payload.
    let mut rig = with_receive(600);
    rig.send(0x00, 100, &[1; 256]).unwrap();
    let wrong = packet(0x02, 101, Ext::default(), &[]);
    let status = Some(WcStatus::RemoteInvalidRequest);
    refused(rig, &wrong, Violation::Length, NakCode::InvalidRequest, status);
    // SENDs hold their receive.
    for (opcode, payload) in [(0x00, 255), (0x00, 0), (0x00, 257), (0x04, 257)] {
        let data = pattern(payload);
        let wrong = packet(opcode, 100, Ext::default(), &data);
        let status = Some(WcStatus::RemoteInvalidRequest);
        refused(with_receive(600), &wrong, Violation::Length, NakCode::InvalidRequest, status);
    }
}

#[test]
fn misaligned_atomics() {
    for opcode in [0x13, 0x14] {
        for at in 1..8 {
            let misaligned = Violation::Access(AccessError::Misaligned(BASE + at));
            invalid(Rig::new(), &packet(opcode, 100, atomic(BASE + at, 1, 1), &[]), misaligned);
        }
    }
    let misaligned = Violation::Access(AccessError::Misaligned(BASE + 4));
    invalid(Rig::new(), &packet(0x1d, 100, to(BASE + 4, 8), &[1; 8]), misaligned);
}

/// As in kernel rxe the key is looked at first.
#[test]
fn misaligned_atomics_under_a_wrong_key() {
    let nothing = Key(0x9900);
    for opcode in [0x13, 0x14] {
        let mut ext = atomic(BASE + 4, 1, 1);
        ext.atomic.rkey = nothing;
        let wrong = packet(opcode, 100, ext, &[]);
        let violation = Violation::Access(AccessError::UnknownKey(nothing));
        refused(Rig::new(), &wrong, violation, NakCode::RemoteAccess, None);
    }
}

#[test]
fn reads_and_atomics_without_resources() {
    for (opcode, payload) in [(0x0c, 0), (0x13, 0), (0x14, 0), (0x1d, 8)] {
        let mut rig = Rig::new();
        rig.world.qp.attrs.max_dest_rd_atomic = 0;
        let ext = Ext { atomic: atomic(BASE, 1, 1).atomic, ..to(BASE, 8) };
        let data = pattern(payload);
        invalid(rig, &packet(opcode, 100, ext, &data), Violation::TooManyReads);
    }
}

/// Key, domain, right and range, for every operation that names memory.
#[test]
fn remote_access() {
    let reasons = [
        ("key", named(0x9900, BASE), AccessError::UnknownKey(Key(0x9900))),
        ("domain", named(0x4400, BASE), AccessError::NotYours(Key(0x4400))),
        ("right", named(0x3300, BASE), AccessError::Denied(Access::empty())),
        ("range", named(REMOTE, BASE + 0x4000 - 4), AccessError::Range { addr: 0, len: 0 }),
        ("overflow", named(REMOTE, u64::MAX - 7), AccessError::Range { addr: 0, len: 0 }),
    ];
    for (opcode, payload) in [(0x06, 256), (0x0a, 8), (0x0c, 0), (0x13, 0), (0x14, 0), (0x1c, 0), (0x1d, 8)] {
        for (what, ext, error) in &reasons {
            let rig = Rig::new();
            rig.world.memory.add(0x3300, BASE, 64, Access::empty());
            rig.world.memory.add(0x4400, BASE, 64, Access::all());
            rig.world.memory.regions.borrow_mut().last_mut().unwrap().pd.0 += 1;
            let data = pattern(payload);
            let mut ext = *ext;
            ext.reth.len = if opcode == 0x06 { 300 } else { 8 };
            let wrong = packet(opcode, 100, ext, &data);
            let violation = probe(&rig, &wrong);
            let Violation::Access(seen) = violation else { panic!("{what}: {violation:?}") };
            assert_eq!(core::mem::discriminant(&seen), core::mem::discriminant(error), "{what}");
            refused(rig, &wrong, violation, NakCode::RemoteAccess, None);
        }
    }
}

fn named(rkey: u32, addr: u64) -> Ext {
    let rkey = Key(rkey);
    Ext {
        reth: Reth { addr, rkey, len: 8 },
        atomic: AtomicEth { addr, rkey, ..AtomicEth::default() },
        feth: Feth { placement: 1, selectivity: 0 },
        ..Ext::default()
    }
}

/// The result of another responder in the same state.
fn probe(rig: &Rig, wrong: &Packet<'_>) -> Violation {
    let mut twin = Rig::new();
    twin.world.memory.regions.borrow_mut().clear();
    for region in rig.world.memory.regions.borrow().iter() {
        twin.world.memory.add(region.key.0, region.base, region.len as usize, region.access);
        twin.world.memory.regions.borrow_mut().last_mut().unwrap().pd = region.pd;
    }
    twin.hear(wrong).unwrap_err()
}

#[test]
fn a_write_that_cannot_end_does_not_start() {
    let rig = Rig::new();
    let addr = BASE + 0x4000 - 300;
    let violation = Violation::Access(AccessError::Range { addr, len: 600 });
    let wrong = packet(0x06, 100, to(addr, 600), &[1; 256]);
    refused(rig, &wrong, violation, NakCode::RemoteAccess, None);
}

#[test]
fn a_region_that_disappears_inside_a_write() {
    let mut rig = Rig::new();
    rig.write(0x06, 100, (BASE, 600), &[1; 256]).unwrap();
    rig.world.memory.remove(REMOTE);
    let violation = Violation::Access(AccessError::UnknownKey(Key(REMOTE)));
    refused(rig, &packet(0x07, 101, Ext::default(), &[1; 256]), violation, NakCode::RemoteAccess, None);
}

#[test]
fn a_write_with_immediate_tells_by_its_receive() {
    let violation = Violation::Access(AccessError::UnknownKey(Key(0x9900)));
    let wrong = packet(0x0b, 100, named(0x9900, BASE), &[1; 8]);
    refused(with_receive(0), &wrong, violation, NakCode::RemoteAccess, Some(WcStatus::LocalAccess));
}

/// RNR comes before key and length, the queue pair's rights before RNR.
#[test]
fn order_of_checks() {
    let mut rig = Rig::new();
    rig.hear(&packet(0x0b, 100, named(0x9900, BASE), &[1; 9])).unwrap();
    assert_eq!(rig.answer().syndrome, Syndrome::RnrNak(12));
    let mut rig = Rig::new();
    rig.world.qp.attrs.access = Access::empty();
    let wrong = packet(0x0b, 100, named(0x9900, BASE), &[1; 9]);
    invalid(rig, &wrong, Violation::NotEnabled);
    let mut rig = Rig::new();
    rig.world.qp.attrs.max_dest_rd_atomic = 0;
    invalid(rig, &packet(0x0c, 100, named(0x9900, BASE), &[]), Violation::TooManyReads);
    invalid(Rig::new(), &packet(0x0a, 100, named(0x9900, BASE), &[1; 9]), Violation::Length);
    let bad_key_and_alignment = packet(0x14, 100, named(0x9900, BASE + 1), &[]);
    let violation = Violation::Access(AccessError::UnknownKey(Key(0x9900)));
    refused(Rig::new(), &bad_key_and_alignment, violation, NakCode::RemoteAccess, None);
}

#[test]
fn memory_that_the_application_took_away() {
    let fault = |addr| Violation::Access(AccessError::Fault(addr));
    for (opcode, payload) in [(0x0a, 8), (0x13, 0), (0x14, 0), (0x1d, 8)] {
        let rig = Rig::new();
        rig.world.memory.gone.set(Some(Key(REMOTE)));
        let data = pattern(payload);
        let wrong = packet(opcode, 100, named(REMOTE, BASE), &data);
        refused(rig, &wrong, fault(BASE), NakCode::RemoteOperational, None);
    }
}

#[test]
fn sends_longer_than_their_receive() {
    let status = Some(WcStatus::LocalLength);
    let short = Violation::ReceiveTooShort;
    let wrong = packet(0x04, 100, Ext::default(), &[1; 9]);
    refused(with_receive(8), &wrong, short, NakCode::InvalidRequest, status);
    let mut rig = with_receive(300);
    rig.send(0x00, 100, &[1; 256]).unwrap();
    let wrong = packet(0x02, 101, Ext::default(), &[1; 45]);
    refused(rig, &wrong, short, NakCode::InvalidRequest, status);
    let mut rig = Rig::new();
    rig.world.post_sges(1, &[]);
    refused(rig, &packet(0x04, 100, Ext::default(), &[1]), short, NakCode::InvalidRequest, status);
}

#[test]
fn receives_whose_own_memory_is_wrong() {
    let status = Some(WcStatus::LocalProtection);
    let code = NakCode::RemoteOperational;
    let wrong = packet(0x04, 100, Ext::default(), &[1; 8]);
    let mut rig = Rig::new();
    rig.world.post(1, 0x9900, 0, 8);
    refused(rig, &wrong, Violation::ReceiveAccess(AccessError::UnknownKey(Key(0x9900))), code, status);
    let rig = with_receive(8);
    rig.world.memory.gone.set(Some(Key(LOCAL)));
    refused(rig, &wrong, Violation::ReceiveAccess(AccessError::Fault(0)), code, status);
    let mut rig = Rig::new();
    rig.world.memory.add(0x3300, 0, 64, Access::REMOTE_WRITE);
    rig.world.post(1, 0x3300, 0, 8);
    let denied = Violation::ReceiveAccess(AccessError::Denied(Access::LOCAL_WRITE));
    refused(rig, &wrong, denied, code, status);
}

#[test]
fn answers_before_the_refusal_still_leave() {
    let mut rig = Rig::new();
    rig.read(100, BASE, 300).unwrap();
    rig.write(0x0a, 102, (BASE, 1), b"x").unwrap();
    rig.write(0x0a, 103, (BASE, 9), b"x").unwrap_err();
    let responder = &mut rig.responder;
    rig.world.with(|qp, ctx| responder.flush(qp, ctx));
    let said: Vec<_> = rig.answers().iter().map(|said| (said.opcode, said.psn)).collect();
    assert_eq!(said, [(0x0d, 100), (0x0f, 101), (ACK, 102), (ACK, 103)]);
}

/// Every violation has its NAK and its local status.
#[test]
fn the_table() {
    let fault = AccessError::Fault(0);
    let key = AccessError::UnknownKey(Key(1));
    use crate::wire::NakCode::{InvalidRequest, RemoteAccess, RemoteOperational};
    for (violation, code, status) in [
        (Violation::Sequence, InvalidRequest, WcStatus::RemoteInvalidRequest),
        (Violation::NotEnabled, InvalidRequest, WcStatus::RemoteInvalidRequest),
        (Violation::Length, InvalidRequest, WcStatus::RemoteInvalidRequest),
        (Violation::TooManyReads, InvalidRequest, WcStatus::RemoteInvalidRequest),
        (Violation::Access(AccessError::Misaligned(4)), InvalidRequest, WcStatus::LocalAccess),
        (Violation::Access(key), RemoteAccess, WcStatus::LocalAccess),
        (Violation::Access(fault), RemoteOperational, WcStatus::LocalAccess),
        (Violation::ReceiveTooShort, InvalidRequest, WcStatus::LocalLength),
        (Violation::ReceiveAccess(key), RemoteOperational, WcStatus::LocalProtection),
        (Violation::Invalidate(key), RemoteAccess, WcStatus::RemoteInvalidRequest),
    ] {
        assert_eq!(NakCode::from(violation), code, "{violation:?}");
        assert_eq!(WcStatus::from(violation), status, "{violation:?}");
    }
}
