//! Rules of ending a connection, one by one.

mod machine_common;

use machine_common::{
    ACTIVE, Both, INTERVAL, PASSIVE, accepted, at, confirmed, established, events, one, sent,
};
use rxe_cm::proto::{
    CommId, Concerns, Datagram, Drep, Dreq, Message, PrivateData, Rej, RejectReason, Req,
    machine::{Connection, Ending, Event, Ignored, Rejection, State, WrongState, timeout},
};
use rxe_core::{num::Qpn, time::Instant};
use std::time::Duration;

fn data<const N: usize>(byte: u8) -> PrivateData<N> {
    PrivateData([byte; N])
}

/// The DREQ of the active side, which is returned, is on its way.
fn leaving() -> (Both, Datagram) {
    let mut both = established();
    both.active.disconnect(at(1), data(1)).unwrap();
    let dreq = one(&mut both.active);
    (both, dreq)
}

/// How long `end`, which has waited since `since`, goes on waiting until the connection has ended.
fn time_wait(end: &mut Connection, since: Instant) -> Duration {
    assert_eq!(end.state(), State::TimeWait);
    let due = end.poll_timeout().unwrap();
    end.handle_timeout(since);
    assert_eq!(end.state(), State::TimeWait, "not before its time");
    end.handle_timeout(due);
    assert_eq!((end.state(), end.poll_timeout()), (State::Closed, None));
    assert_eq!(events(end).last(), Some(&Event::Closed));
    due.since(since)
}

#[test]
fn asked_and_granted() {
    let (mut both, dreq) = leaving();
    let Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, .. }) = dreq.message else {
        panic!("{dreq}")
    };
    assert_eq!((local_comm_id, remote_comm_id), (ACTIVE.comm_id, PASSIVE.comm_id));
    assert_eq!(remote_qpn, Qpn::new(0x22), "the receiver's queue pair");
    both.passive.handle(at(1), &dreq).unwrap();
    assert_eq!(events(&mut both.passive), [Event::DisconnectRequested(data(1))]);
    assert_eq!(sent(&mut both.passive), [], "the user has to confirm");
    assert_eq!(both.passive.handle(at(2), &dreq), Err(Ignored::Duplicate));
    both.passive.confirm_disconnect(at(2), data(2)).unwrap();
    let drep = one(&mut both.passive);
    assert_eq!(drep.transaction, dreq.transaction);
    both.active.handle(at(2), &drep).unwrap();
    assert_eq!(events(&mut both.active), [Event::Disconnected(Ending::Answered(data(2)))]);
    assert_eq!(both.active.handle(at(2), &drep), Err(Ignored::Duplicate));
    // The DREP was lost: it is sent again, with its private data.
    both.passive.handle(at(2), &dreq).unwrap();
    assert_eq!(one(&mut both.passive), drep);
    // Two packet lifetimes and the peer's ACK delay; the REQ's ACK timeout.
    assert_eq!(time_wait(&mut both.active, at(2)), timeout(16) * 2 + timeout(15));
    assert_eq!(time_wait(&mut both.passive, at(2)), timeout(17));
    assert_eq!(both.passive.handle(at(9), &dreq), Err(Ignored::State), "nobody is left");
}

/// The passive side may end the connection, too. Then the DREQ's transaction ID is its own.
#[test]
fn from_the_passive_side() {
    let mut both = established();
    both.passive.disconnect(at(1), data(3)).unwrap();
    let dreq = one(&mut both.passive);
    assert_eq!(dreq.transaction, PASSIVE.transaction);
    both.active.handle(at(1), &dreq).unwrap();
    both.active.confirm_disconnect(at(1), data(4)).unwrap();
    let drep = one(&mut both.active);
    assert_eq!(drep.transaction, PASSIVE.transaction);
    both.passive.handle(at(1), &drep).unwrap();
    assert_eq!(events(&mut both.passive), [Event::Disconnected(Ending::Answered(data(4)))]);
}

#[test]
fn crossing() {
    let (mut both, from_active) = leaving();
    both.passive.disconnect(at(1), data(5)).unwrap();
    let from_passive = one(&mut both.passive);
    both.active.handle(at(1), &from_passive).unwrap();
    both.passive.handle(at(1), &from_active).unwrap();
    assert_eq!(events(&mut both.active), [Event::Disconnected(Ending::Crossed(data(5)))]);
    assert_eq!(events(&mut both.passive), [Event::Disconnected(Ending::Crossed(data(1)))]);
    let (to_passive, to_active) = (one(&mut both.active), one(&mut both.passive));
    assert_eq!((to_passive.message.name(), to_active.message.name()), ("DREP", "DREP"));
    assert_eq!(both.active.handle(at(1), &to_active), Err(Ignored::Duplicate));
    assert_eq!(both.passive.handle(at(1), &to_passive), Err(Ignored::Duplicate));
    time_wait(&mut both.active, at(1));
    time_wait(&mut both.passive, at(1));
}

/// Our DREQ was answered, and then the peer's own arrives: it is answered as well.
#[test]
fn late_dreq() {
    let (mut both, _) = leaving();
    let drep = Drep {
        local_comm_id: PASSIVE.comm_id,
        remote_comm_id: ACTIVE.comm_id,
        private_data: PrivateData::default(),
    };
    both.active.handle(at(1), &Datagram { transaction: 1, modifier: 0, message: drep.into() }).unwrap();
    both.passive.disconnect(at(1), data(1)).unwrap();
    let dreq = one(&mut both.passive);
    both.active.handle(at(1), &dreq).unwrap();
    let answer = one(&mut both.active);
    assert_eq!((answer.message.name(), answer.transaction), ("DREP", PASSIVE.transaction));
}

#[test]
fn dreq_is_repeated() {
    let (mut both, dreq) = leaving();
    let mut now = at(1);
    for _ in 0..15 {
        now += INTERVAL;
        assert_eq!(both.active.poll_timeout(), Some(now));
        both.active.handle_timeout(now);
        assert_eq!(one(&mut both.active), dreq);
    }
    now += INTERVAL;
    both.active.handle_timeout(now);
    assert_eq!(sent(&mut both.active), []);
    assert_eq!(events(&mut both.active), [Event::Disconnected(Ending::TimedOut)]);
    time_wait(&mut both.active, now);
}

/// The RTU never arrived, but the DREQ does: so the connection was established.
#[test]
fn dreq_instead_of_rtu() {
    let (mut both, _lost) = confirmed();
    both.active.disconnect(at(1), data(1)).unwrap();
    let dreq = one(&mut both.active);
    both.passive.handle(at(1), &dreq).unwrap();
    assert_eq!(both.passive.state(), State::DreqReceived);
    assert_eq!(both.passive.poll_timeout(), None, "the REP is not repeated any more");
    both.passive.confirm_disconnect(at(1), data(1)).unwrap();
    both.active.handle(at(1), &one(&mut both.passive)).unwrap();
    assert_eq!(both.active.state(), State::TimeWait);
}

#[test]
fn dreq_for_another() {
    let (mut both, dreq) = leaving();
    let Message::Dreq(good) = dreq.message else { panic!() };
    for (bad, why) in [
        (Dreq { remote_qpn: Qpn::new(0x11), ..good }, Ignored::Qpn),
        (Dreq { remote_comm_id: CommId(0), ..good }, Ignored::CommId),
        (Dreq { local_comm_id: CommId(0), ..good }, Ignored::CommId),
    ] {
        let bad = Datagram { message: bad.into(), ..dreq };
        assert_eq!(both.passive.handle(at(1), &bad), Err(why));
    }
    assert_eq!(both.passive.state(), State::Established);
}

/// A REJ answers the DREQ: the peer knows nothing of the connection.
#[test]
fn dreq_is_rejected() {
    let (mut both, dreq) = leaving();
    let rej = Rej {
        local_comm_id: PASSIVE.comm_id,
        remote_comm_id: ACTIVE.comm_id,
        message: Concerns::Other,
        reason: RejectReason::INVALID_COMM_ID,
        ..Rej::default()
    };
    both.active.handle(at(2), &Datagram { message: rej.into(), ..dreq }).unwrap();
    let ending = Ending::Rejected(RejectReason::INVALID_COMM_ID);
    assert_eq!(events(&mut both.active), [Event::Disconnected(ending)]);
    time_wait(&mut both.active, at(2));
}

/// The peer asks for hours in which it may answer. It may not have a connection kept for days.
#[test]
fn a_silent_peer_is_not_waited_for_as_long_as_it_says() {
    let slow = machine_common::req();
    let slow = Req { remote_cm_response_timeout: 31, local_cm_response_timeout: 31, ..slow };
    let longest = Duration::from_secs(120);
    let ends = |end: &mut Connection, repeated: State, next: State| {
        let mut due = at(0);
        while end.state() == repeated {
            due = end.poll_timeout().unwrap();
            end.handle_timeout(due);
        }
        assert_eq!((end.state(), due), (next, at(0) + longest));
    };
    let accepted = || {
        let mut active = Connection::connect(at(0), ACTIVE, &slow, 0);
        assert_eq!(active.poll_timeout(), Some(at(0) + timeout(31) + timeout(16) * 2), "the user's choice");
        let mut passive = Connection::requested(PASSIVE, &one(&mut active)).unwrap();
        passive.accept(at(0), &machine_common::rep(), 0).unwrap();
        active.handle(at(0), &one(&mut passive)).unwrap();
        (active, passive)
    };
    let (mut active, mut passive) = accepted();
    ends(&mut passive, State::RepSent, State::Refused);
    active.confirm(data(0)).unwrap();
    active.disconnect(at(0), data(0)).unwrap();
    ends(&mut active, State::DreqSent, State::TimeWait);
    let (mut active, mut passive) = accepted();
    active.confirm(data(0)).unwrap();
    passive.handle(at(0), &one(&mut active)).unwrap();
    passive.disconnect(at(0), data(0)).unwrap();
    ends(&mut passive, State::DreqSent, State::TimeWait);
}

/// In TIMEWAIT the REQ is stale; a connection that was refused grants every DREQ.
#[test]
fn after_the_end() {
    let (mut both, dreq) = leaving();
    both.passive.handle(at(1), &dreq).unwrap();
    both.passive.confirm_disconnect(at(1), data(1)).unwrap();
    sent(&mut both.passive);
    let req = one(&mut Connection::connect(at(0), ACTIVE, &machine_common::req(), 0));
    both.passive.handle(at(1), &req).unwrap();
    let Message::Rej(rej) = one(&mut both.passive).message else { panic!() };
    assert_eq!((rej.reason, rej.message), (RejectReason::STALE_CONNECTION, Concerns::Req));
    assert_eq!(rej.remote_comm_id, ACTIVE.comm_id);

    let (mut both, rep) = accepted();
    both.passive.reject(at(0), Rejection::because(RejectReason::NO_RESOURCES)).unwrap();
    sent(&mut both.passive);
    both.active.handle(at(0), &rep).unwrap();
    both.active.confirm(data(0)).unwrap();
    both.active.disconnect(at(0), data(0)).unwrap();
    let all = sent(&mut both.active);
    both.passive.handle(at(0), all.last().unwrap()).unwrap();
    both.active.handle(at(0), &one(&mut both.passive)).unwrap();
    assert_eq!(both.active.state(), State::TimeWait);
}

/// A command at the wrong time gives an error and changes nothing.
#[test]
fn commands_at_the_wrong_time() {
    let (mut both, rep) = accepted();
    assert_eq!(both.active.confirm(data(0)), Err(WrongState(State::ReqSent)));
    assert_eq!(both.active.disconnect(at(0), data(0)), Err(WrongState(State::ReqSent)));
    assert_eq!(
        both.active.reject(at(0), Rejection::because(RejectReason::NO_QP)),
        Err(WrongState(State::ReqSent))
    );
    assert_eq!(both.passive.disconnect(at(0), data(0)), Err(WrongState(State::RepSent)));
    assert_eq!(both.passive.accept(at(0), &machine_common::rep(), 0), Err(WrongState(State::RepSent)));
    assert_eq!(both.passive.confirm_disconnect(at(0), data(0)), Err(WrongState(State::RepSent)));
    assert_eq!((sent(&mut both.active), sent(&mut both.passive)), (vec![], vec![]));
    both.active.handle(at(0), &rep).unwrap();
    assert_eq!(both.active.disconnect(at(0), data(0)), Err(WrongState(State::RepReceived)));
}
