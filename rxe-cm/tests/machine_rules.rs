//! Rules of making a connection, one by one.

mod machine_common;

use machine_common::{
    ACTIVE, Both, INTERVAL, PASSIVE, accepted, at, confirmed, established, events, names, one, rep, req,
    requested, sent,
};
use rxe_cm::proto::{
    CmaHeader, CommId, Concerns, Datagram, Guid, Lap, Message, Mra, PrivateData, Rej, RejectReason, Rep, Req,
    Rtu, ServiceId,
    machine::{Connection, Event, Ignored, Proof, Rejection, State, WrongState, ack_timeout, timeout},
};
use rxe_core::{
    num::{Psn, Qpn},
    time::Instant,
};
use std::time::Duration;

/// A private data of pairwise different neighbours.
fn pattern<const N: usize>(len: usize) -> PrivateData<N> {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + 1) as u8 | 1).collect();
    PrivateData::new(&bytes).unwrap()
}

fn rejected(end: &mut Connection) -> Rejection {
    let all = events(end);
    all.iter()
        .find_map(|event| match event {
            Event::Rejected(why) => Some(*why),
            _ => None,
        })
        .unwrap_or_else(|| panic!("{all:?}"))
}

/// Lets `end` repeat a message until it gives up. Returns how often it sent a message of that name, and when it gave up.
fn exhaust(end: &mut Connection, name: &str) -> (usize, Instant) {
    let state = end.state();
    let mut count = names(end).iter().filter(|sent| **sent == name).count();
    loop {
        let due = end.poll_timeout().expect("a timer");
        end.handle_timeout(due);
        if end.state() != state {
            return (count, due);
        }
        assert_eq!(names(end), [name]);
        count += 1;
    }
}

#[test]
fn codes_of_time() {
    assert_eq!(timeout(0), Duration::from_nanos(4096));
    assert_eq!(timeout(20), Duration::from_nanos(4_294_967_296));
    assert_eq!(timeout(31), Duration::from_nanos(8_796_093_022_208));
    // As seen of Linux 6.12 (lifetime 16), 6.1 (18), and with a ConnectX's ACK delay.
    assert_eq!([ack_timeout(15, 16), ack_timeout(15, 18), ack_timeout(16, 16)], [17, 19, 18]);
    assert_eq!([ack_timeout(0, 0), ack_timeout(31, 31), ack_timeout(255, 255)], [2, 31, 31]);
}

#[test]
fn what_each_side_learns() {
    let (mut both, rtu) = confirmed();
    let Message::Rtu(Rtu { local_comm_id, remote_comm_id, .. }) = rtu.message else { panic!("{rtu}") };
    assert_eq!((local_comm_id, remote_comm_id), (ACTIVE.comm_id, PASSIVE.comm_id));
    both.passive.handle(at(0), &rtu).unwrap();
    let seen = events(&mut both.passive);
    let [Event::Requested(request), Event::Established { proof: Proof::Rtu, .. }] = &seen[..] else {
        panic!("{seen:?}")
    };
    let terms = &request.terms;
    assert_eq!((terms.comm_id, terms.ca_guid, terms.qpn), (ACTIVE.comm_id, ACTIVE.ca_guid, Qpn::new(0x11)));
    // We start with the PSN that the peer's REQ names; resources and depth are mirrored.
    assert_eq!(terms.starting_psn, Psn::new(0x111111));
    assert_eq!((terms.responder_resources, terms.initiator_depth), (5, 3));
    assert_eq!((terms.rnr_retry_count, terms.flow_control, terms.srq), (7, true, false));
    assert_eq!((request.retry_count, request.path_mtu, request.primary.ack_timeout), (6, 3, 17));
    assert_eq!(request.service_id, ServiceId(0x0106_1d2f));

    let seen = events(&mut both.active);
    let [Event::Accepted(accepted)] = &seen[..] else { panic!("{seen:?}") };
    let terms = &accepted.terms;
    assert_eq!((terms.comm_id, terms.ca_guid, terms.qpn), (PASSIVE.comm_id, PASSIVE.ca_guid, Qpn::new(0x22)));
    assert_eq!(terms.starting_psn, Psn::new(0x222222));
    assert_eq!((terms.responder_resources, terms.initiator_depth), (2, 4));
    assert_eq!((terms.rnr_retry_count, terms.flow_control, terms.srq), (1, false, true));
    assert_eq!(accepted.target_ack_delay, 15);
    assert_eq!((both.active.state(), both.passive.state()), (State::Established, State::Established));
    assert_eq!((both.active.poll_timeout(), both.passive.poll_timeout()), (None, None));
}

/// Answers carry the transaction of the REQ; the options of enhanced connection establishment arrive.
#[test]
fn transaction_and_modifier() {
    let mut active = Connection::connect(at(0), ACTIVE, &Req { vendor_id: 0x2c9, ..req() }, 0xece);
    let first = one(&mut active);
    assert_eq!((first.transaction, first.modifier), (ACTIVE.transaction, 0xece));
    let mut passive = Connection::requested(PASSIVE, &first).unwrap();
    let Some(Event::Requested(request)) = passive.poll_event() else { panic!() };
    assert_eq!((request.vendor_id, request.modifier), (0x2c9, 0xece));
    passive.accept(at(0), &rep(), 0xece2).unwrap();
    let answer = one(&mut passive);
    assert_eq!((answer.transaction, answer.modifier), (ACTIVE.transaction, 0xece2));
    active.handle(at(0), &answer).unwrap();
    active.confirm(PrivateData::default()).unwrap();
    assert_eq!(one(&mut active).transaction, ACTIVE.transaction);
}

/// Every length of private data in REQ, REP, RTU and REJ, up to the limit, arrives byte for byte.
#[test]
fn private_data_of_every_length() {
    for len in 0..=224 {
        let req_data = pattern(len.min(92));
        let mut active = Connection::connect(at(0), ACTIVE, &Req { private_data: req_data, ..req() }, 0);
        let first = Datagram::parse(&one(&mut active).emit()).unwrap();
        let mut passive = Connection::requested(PASSIVE, &first).unwrap();
        let Some(Event::Requested(request)) = passive.poll_event() else { panic!() };
        assert_eq!(request.private_data, req_data);

        let mut refusing = Connection::requested(PASSIVE, &first).unwrap();
        let rej_data = pattern(len.min(148));
        refusing.reject(at(0), Rejection::by_consumer(rej_data)).unwrap();
        let mut refused = Connection::connect(at(0), ACTIVE, &req(), 0);
        refused.handle(at(0), &Datagram::parse(&one(&mut refusing).emit()).unwrap()).unwrap();
        assert_eq!(rejected(&mut refused).private_data, rej_data);

        let rep_data = pattern(len.min(196));
        passive.accept(at(0), &Rep { private_data: rep_data, ..rep() }, 0).unwrap();
        active.handle(at(0), &Datagram::parse(&one(&mut passive).emit()).unwrap()).unwrap();
        let Some(Event::Accepted(accepted)) = active.poll_event() else { panic!() };
        assert_eq!(accepted.private_data, rep_data);

        let rtu_data = pattern(len);
        active.confirm(rtu_data).unwrap();
        passive.handle(at(0), &Datagram::parse(&one(&mut active).emit()).unwrap()).unwrap();
        let established = Event::Established { proof: Proof::Rtu, private_data: rtu_data };
        assert_eq!(passive.poll_event(), Some(established));
    }
    assert!(PrivateData::<92>::new(&[1; 93]).is_err() && PrivateData::<196>::new(&[1; 197]).is_err());
    // The IP CM header leaves 56 bytes of a REQ.
    let header = CmaHeader { src_port: 9, src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    let private_data = PrivateData::with_header(&header, &pattern::<56>(56).0).unwrap();
    let mut active = Connection::connect(at(0), ACTIVE, &Req { private_data, ..req() }, 0);
    let mut passive = Connection::requested(PASSIVE, &one(&mut active)).unwrap();
    let Some(Event::Requested(request)) = passive.poll_event() else { panic!() };
    assert_eq!(request.private_data.split_header(), Ok((header, &pattern::<56>(56).0[..])));
}

/// The REQ goes out sixteen times, then a REJ that names our channel adapter: all as kernels do it (the interval was measured
/// at 4608 ms there; they round 4.096 us to 4).
#[test]
fn req_is_repeated() {
    let mut active = Connection::connect(at(0), ACTIVE, &req(), 0);
    assert_eq!(active.poll_timeout(), Some(at(0) + INTERVAL));
    active.handle_timeout(at(1));
    assert_eq!(names(&mut active), ["REQ"], "not before its time");
    let (count, end) = exhaust(&mut active, "REQ");
    assert_eq!((1 + count, end), (16, at(0) + INTERVAL * 16));
    assert_eq!(events(&mut active), [Event::Unreachable]);
    let last = one(&mut active);
    let Message::Rej(rej) = &last.message else { panic!("{last}") };
    assert_eq!((rej.reason, rej.message), (RejectReason::TIMEOUT, Concerns::Other));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (ACTIVE.comm_id, CommId(0)));
    assert_eq!(rej.info(), ACTIVE.ca_guid.0.to_be_bytes());
    // The passive side, which has not decided yet, learns of it.
    let Both { mut passive, .. } = requested();
    passive.handle(end, &last).unwrap();
    assert_eq!(rejected(&mut passive).reason, RejectReason::TIMEOUT);
    assert_eq!(passive.state(), State::Closed);
    // The sender of a late REP is told, too, now by its ID.
    let (_, late) = accepted();
    active.handle(end, &late).unwrap();
    let Message::Rej(rej) = one(&mut active).message else { panic!() };
    assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::TIMEOUT, PASSIVE.comm_id));
    active.handle_timeout(active.poll_timeout().unwrap());
    assert_eq!((events(&mut active), active.poll_timeout()), (vec![Event::Closed], None));
}

#[test]
fn retries_are_those_of_the_req() {
    for max_cm_retries in [0, 1, 7] {
        let req = Req { max_cm_retries, ..req() };
        let mut active = Connection::connect(at(0), ACTIVE, &req, 0);
        let first = one(&mut active);
        assert_eq!(exhaust(&mut active, "REQ").0, usize::from(max_cm_retries));
        let mut passive = Connection::requested(PASSIVE, &first).unwrap();
        passive.accept(at(0), &rep(), 0).unwrap();
        assert_eq!(exhaust(&mut passive, "REP").0, 1 + usize::from(max_cm_retries));
    }
}

/// The passive side's interval is the time that the REQ grants the active side.
#[test]
fn response_times_are_not_confused() {
    let req = Req { local_cm_response_timeout: 10, remote_cm_response_timeout: 22, ..req() };
    let mut active = Connection::connect(at(0), ACTIVE, &req, 0);
    assert_eq!(active.poll_timeout(), Some(at(0) + timeout(22) + timeout(16) * 2));
    let mut passive = Connection::requested(PASSIVE, &one(&mut active)).unwrap();
    assert_eq!(passive.poll_timeout(), None, "the user decides when it likes");
    passive.accept(at(3), &rep(), 0).unwrap();
    assert_eq!(passive.poll_timeout(), Some(at(3) + timeout(10) + timeout(16) * 2));
}

/// Without an RTU the REP is repeated. Then the passive side gives up, and an active side that is established is told by a REJ.
#[test]
fn rep_is_repeated() {
    let (mut both, rep) = accepted();
    let (count, end) = exhaust(&mut both.passive, "REP");
    assert_eq!((1 + count, end), (16, at(0) + INTERVAL * 16));
    let last = one(&mut both.passive);
    assert!(events(&mut both.passive).contains(&Event::Unreachable));
    both.active.handle(at(0), &rep).unwrap();
    both.active.confirm(PrivateData::default()).unwrap();
    let rtu = one(&mut both.active);
    // The REJ is lost and the RTU arrives too late: the REJ is sent again.
    both.passive.handle(end, &rtu).unwrap();
    assert_eq!(one(&mut both.passive), last);
    both.active.handle(end, &last).unwrap();
    assert_eq!(rejected(&mut both.active).reason, RejectReason::TIMEOUT);
    assert_eq!(both.active.state(), State::TimeWait);
}

#[test]
fn lost_rtu() {
    let (mut both, rep) = accepted();
    both.active.handle(at(0), &rep).unwrap();
    assert_eq!(both.active.handle(at(0), &rep), Err(Ignored::Duplicate), "the user has not confirmed");
    both.active.confirm(pattern(9)).unwrap();
    let rtu = one(&mut both.active);
    // If the REP arrives again, the RTU is sent again, with its private data.
    both.passive.handle_timeout(at(0) + INTERVAL);
    both.active.handle(at(5), &one(&mut both.passive)).unwrap();
    assert_eq!(one(&mut both.active), rtu);
    assert_eq!(events(&mut both.active).len(), 1);
    // Or the first packet on the queue pair tells that it is established.
    both.passive.handle_data();
    both.passive.handle_data();
    let data = Event::Established { proof: Proof::Data, private_data: PrivateData::default() };
    assert_eq!(events(&mut both.passive)[1..], [data]);
    assert_eq!(both.passive.poll_timeout(), None);
    assert_eq!(both.passive.handle(at(6), &rtu), Err(Ignored::Duplicate));
}

#[test]
fn repeated_req() {
    let Both { mut active, mut passive } = requested();
    active.handle_timeout(at(0) + INTERVAL);
    let again = one(&mut active);
    // Not decided yet, and no MRA asked for: nothing is sent.
    assert_eq!(passive.handle(at(5), &again), Err(Ignored::Duplicate));
    passive.accept(at(5), &rep(), 0).unwrap();
    let rep = one(&mut passive);
    let due = passive.poll_timeout();
    passive.handle(at(6), &again).unwrap();
    passive.handle(at(6), &again).unwrap();
    assert_eq!(one(&mut passive), rep, "REP again, once");
    assert_eq!(passive.poll_timeout(), due, "that is not one of the repetitions");
    // Refused: the REJ is sent again, until the repetitions are over.
    let Both { mut passive, .. } = requested();
    passive.reject(at(0), Rejection::by_consumer(pattern(148))).unwrap();
    let rej = one(&mut passive);
    passive.handle(at(5), &again).unwrap();
    assert_eq!(one(&mut passive), rej);
    passive.handle_timeout(at(60));
    assert_eq!(passive.state(), State::Refused);
    passive.handle_timeout(at(90));
    assert_eq!(passive.state(), State::Closed);
    // Established: a late copy.
    let mut both = established();
    assert_eq!(both.passive.handle(at(1), &again), Err(Ignored::Duplicate));
    // Another REQ is not for this connection.
    for other in [
        Req { local_comm_id: CommId(0xa0), local_ca_guid: ACTIVE.ca_guid, ..req() },
        Req { local_comm_id: ACTIVE.comm_id, local_ca_guid: Guid(7), ..req() },
    ] {
        let other = Datagram { message: other.into(), ..again };
        assert_eq!(both.passive.handle(at(1), &other), Err(Ignored::CommId));
    }
    assert_eq!(both.active.handle(at(1), &again), Err(Ignored::Message));
}

#[test]
fn mra_of_the_passive_side() {
    let Both { mut active, mut passive } = requested();
    passive.send_mra(24, pattern(222)).unwrap();
    let mra = one(&mut passive);
    active.handle(at(1), &mra).unwrap();
    let delayed = Event::Delayed { service_timeout: 24, private_data: pattern(222) };
    assert_eq!(events(&mut active), [delayed]);
    assert_eq!(active.poll_timeout(), Some(at(1) + timeout(24) + timeout(16) * 2));
    assert_eq!(active.handle(at(2), &mra), Err(Ignored::Duplicate), "one for each message of ours");
    assert_eq!(active.poll_timeout(), Some(at(1) + timeout(24) + timeout(16) * 2));
    // After that it repeats as ever, and is answered by MRA as ever.
    active.handle_timeout(at(71));
    let again = one(&mut active);
    assert_eq!(active.poll_timeout(), Some(at(71) + INTERVAL));
    passive.handle(at(71), &again).unwrap();
    assert_eq!(one(&mut passive), mra);
    active.handle(at(71), &mra).unwrap();
    passive.accept(at(72), &rep(), 0).unwrap();
    active.handle(at(72), &one(&mut passive)).unwrap();
    assert_eq!(active.state(), State::RepReceived);
    assert_eq!(active.handle(at(73), &mra), Err(Ignored::State), "too late");
    // One that asks for less than the ordinary wait does not shorten it.
    let Both { mut active, mut passive } = requested();
    passive.send_mra(0, PrivateData::default()).unwrap();
    active.handle(at(0), &one(&mut passive)).unwrap();
    assert_eq!(active.poll_timeout(), Some(at(0) + INTERVAL));
    // Nor does one that asks for hours get them.
    let Both { mut active, mut passive } = requested();
    passive.send_mra(31, PrivateData::default()).unwrap();
    active.handle(at(0), &one(&mut passive)).unwrap();
    assert_eq!(active.poll_timeout(), Some(at(120) + timeout(16) * 2));
}

/// A peer that got an MRA repeats its message later, so the refusal is kept for longer.
#[test]
fn refused_after_mra() {
    let Both { mut passive, .. } = requested();
    passive.send_mra(24, PrivateData::default()).unwrap();
    passive.reject(at(0), Rejection::because(RejectReason::NO_QP)).unwrap();
    assert_eq!(names(&mut passive), ["REJ"], "the MRA is not needed any more");
    assert_eq!(passive.poll_timeout(), Some(at(0) + INTERVAL * 16 + timeout(24)));
}

/// The MRA was never sent, so the peer does not wait for longer. And it may not have a refusal kept for days.
#[test]
fn refused_by_times_of_hours() {
    let Both { mut passive, .. } = requested();
    passive.defer_mra(24, PrivateData::default()).unwrap();
    passive.reject(at(0), Rejection::because(RejectReason::NO_QP)).unwrap();
    assert_eq!(passive.poll_timeout(), Some(at(0) + INTERVAL * 16));
    let slow = Req { remote_cm_response_timeout: 31, ..req() };
    let datagram = Datagram { transaction: 1, modifier: 0, message: slow.into() };
    let mut passive = Connection::requested(PASSIVE, &datagram).unwrap();
    passive.reject(at(0), Rejection::because(RejectReason::NO_QP)).unwrap();
    assert_eq!(passive.poll_timeout(), Some(at(0) + Duration::from_secs(120)));
}

/// As kernels do it: nothing at first, MRA on a repetition; by the active side about the REP.
#[test]
fn deferred_mra_of_the_active_side() {
    let (mut both, rep) = accepted();
    both.active.handle(at(0), &rep).unwrap();
    both.active.defer_mra(24, PrivateData::default()).unwrap();
    assert_eq!(sent(&mut both.active), []);
    both.active.handle(at(1), &rep).unwrap();
    let mra = one(&mut both.active);
    let Message::Mra(Mra { message: Concerns::Rep, service_timeout: 24, .. }) = mra.message else {
        panic!("{mra}")
    };
    both.passive.handle(at(1), &mra).unwrap();
    assert_eq!(both.passive.poll_timeout(), Some(at(1) + timeout(24) + timeout(16) * 2));
    both.active.confirm(PrivateData::default()).unwrap();
    assert_eq!(names(&mut both.active), ["RTU"]);
    assert_eq!(
        both.active.send_mra(1, PrivateData::default()),
        Err(WrongState(State::Established)),
        "no answer is owed"
    );
}

/// Every reason, defined or not, arrives with its information and private data.
#[test]
fn every_reason() {
    for number in (0..=40).chain([1000, u16::MAX]) {
        let why = Rejection {
            reason: RejectReason(number),
            message: Concerns::Other,
            info_len: 72,
            info: pattern(72),
            private_data: pattern(148),
        };
        let Both { mut active, mut passive } = requested();
        passive.reject(at(0), why).unwrap();
        active.handle(at(0), &one(&mut passive)).unwrap();
        let seen = events(&mut active);
        assert_eq!(seen[0], Event::Rejected(Rejection { message: Concerns::Req, ..why }));
        // Stale: the queue pair may still get packets of its former life.
        let stale = number == 10;
        assert_eq!(active.state(), if stale { State::TimeWait } else { State::Closed });
        assert_eq!(seen[1..].contains(&Event::Closed), !stale);
    }
}

#[test]
fn rep_is_refused() {
    let (mut both, rep) = accepted();
    both.active.handle(at(0), &rep).unwrap();
    both.active.reject(at(0), Rejection::because(RejectReason::NO_RESOURCES)).unwrap();
    let rej = one(&mut both.active);
    // It was lost, so the REP arrives again.
    both.passive.handle_timeout(at(0) + INTERVAL);
    both.active.handle(at(5), &one(&mut both.passive)).unwrap();
    assert_eq!(one(&mut both.active), rej);
    both.passive.handle(at(5), &rej).unwrap();
    let why = rejected(&mut both.passive);
    assert_eq!((why.reason, why.message), (RejectReason::NO_RESOURCES, Concerns::Rep));
    assert_eq!(both.passive.state(), State::Closed);
}

/// Kernels send a REJ with 0 in the place of their own ID if they have none yet. Once both IDs are known, both have to be right.
#[test]
fn rej_of_somebody_else() {
    let rej = |local, remote, reason, info: &[u8]| Rej {
        local_comm_id: CommId(local),
        remote_comm_id: CommId(remote),
        info_len: info.len() as u8,
        info: PrivateData::new(info).unwrap(),
        reason,
        ..Rej::default()
    };
    let datagram = |rej: Rej| Datagram { transaction: 0, modifier: 0, message: rej.into() };
    let consumer = RejectReason::CONSUMER_DEFINED;
    let mut both = established();
    let guid = PASSIVE.ca_guid.0.to_be_bytes();
    for bad in [
        rej(0, 0x0a, consumer, &[]),
        rej(0x0b, 0, consumer, &[]),
        rej(0x0b, 0, consumer, &guid),
        rej(0x0b, 0, RejectReason::TIMEOUT, &[9; 8]),
        rej(0x0b, 0, RejectReason::TIMEOUT, &guid[..7]),
        rej(0x0c, 0, RejectReason::TIMEOUT, &guid),
    ] {
        assert_eq!(both.active.handle(at(0), &datagram(bad)), Err(Ignored::CommId), "{bad:?}");
    }
    both.active.handle(at(0), &datagram(rej(0x0b, 0, RejectReason::TIMEOUT, &guid))).unwrap();
    assert_eq!(both.active.state(), State::TimeWait);
    let Both { mut active, .. } = requested();
    assert_eq!(active.handle(at(0), &datagram(rej(0, 0xb, consumer, &[]))), Err(Ignored::CommId));
    active.handle(at(0), &datagram(rej(0, 0x0a, consumer, &[]))).unwrap();
    assert_eq!(active.state(), State::Closed);
}

#[test]
fn lap_is_not_supported() {
    let mut both = established();
    let lap = Lap {
        local_comm_id: ACTIVE.comm_id,
        remote_comm_id: PASSIVE.comm_id,
        remote_qpn: Qpn::new(0x22),
        ..Lap::default()
    };
    let datagram = |lap: Lap| Datagram { transaction: 77, modifier: 0, message: lap.into() };
    both.passive.handle(at(0), &datagram(lap)).unwrap();
    let answer = one(&mut both.passive);
    let Message::Apr(apr) = answer.message else { panic!("{answer}") };
    assert_eq!((apr.status, apr.remote_comm_id, answer.transaction), (2, ACTIVE.comm_id, 77));
    assert_eq!(both.passive.state(), State::Established);
    let other = datagram(Lap { remote_qpn: Qpn::new(0x23), ..lap });
    assert_eq!(both.passive.handle(at(0), &other), Err(Ignored::Qpn));
    assert_eq!(both.active.handle(at(0), &answer), Err(Ignored::Message));
}

/// What destroying an id sends, by state.
#[test]
fn abandoned() {
    let reason = |end: &mut Connection| match one(end).message {
        Message::Rej(rej) => (rej.reason, rej.message),
        other => panic!("{other:?}"),
    };
    let consumer = RejectReason::CONSUMER_DEFINED;
    let Both { mut active, mut passive } = requested();
    active.abandon(at(0));
    passive.abandon(at(0));
    assert_eq!(reason(&mut active), (RejectReason::TIMEOUT, Concerns::Other));
    assert_eq!(reason(&mut passive), (consumer, Concerns::Req));
    let (mut both, rep) = accepted();
    both.active.handle(at(0), &rep).unwrap();
    both.active.abandon(at(0));
    both.passive.abandon(at(0));
    assert_eq!(reason(&mut both.active), (consumer, Concerns::Rep));
    assert_eq!(reason(&mut both.passive), (consumer, Concerns::Other));
    let mut both = established();
    both.active.abandon(at(0));
    let dreq = one(&mut both.active);
    assert_eq!(dreq.message.name(), "DREQ");
    both.passive.handle(at(0), &dreq).unwrap();
    both.passive.abandon(at(0));
    assert_eq!(names(&mut both.passive), ["DREP"]);
    both.passive.abandon(at(0));
    assert_eq!(sent(&mut both.passive), []);
}
