//! Service ID resolution.

mod machine_common;

use machine_common::at;
use rxe_cm::proto::{
    CommId, Datagram, Message, PortSpace, PrivateData, ServiceId, SidrRep, SidrReq, SidrStatus,
    machine::{Ignored, SidrEvent, SidrRequester, SidrResponder, SidrTiming, timeout},
};
use rxe_core::{
    num::{Pkey, Qkey, Qpn},
    testing::rng::Rng,
    time::Instant,
};
use std::time::Duration;

const TIMING: SidrTiming = SidrTiming { response_timeout: 20, packet_lifetime: 16, max_retries: 15 };

fn interval() -> Duration {
    timeout(20) + timeout(16) * 2
}

fn request() -> SidrReq {
    SidrReq {
        request_id: CommId(0x51),
        pkey: Pkey(0xffff),
        service_id: ServiceId::new(PortSpace::Udp, 7),
        private_data: PrivateData([3; 216]),
    }
}

fn good() -> SidrRep {
    let (qpn, qkey) = (Qpn::new(0x33), Qkey(0x0123_4567));
    SidrRep { qpn, qkey, private_data: PrivateData([4; 136]), ..SidrRep::default() }
}

fn wire(datagram: Option<Datagram>) -> Datagram {
    Datagram::parse(&datagram.expect("a message").emit()).unwrap()
}

#[test]
fn resolved() {
    let mut requester = SidrRequester::new(at(0), request(), 9, 0x11, TIMING);
    let first = wire(requester.poll_transmit());
    assert_eq!((first.transaction, first.modifier, requester.poll_transmit()), (9, 0x11, None));
    let mut responder = SidrResponder::requested(&first, TIMING).unwrap();
    let SidrReq { service_id, pkey, private_data, .. } = request();
    assert_eq!(responder.poll_event(), Some(SidrEvent::Requested { service_id, pkey, private_data }));
    assert_eq!(responder.handle(&first), Err(Ignored::Duplicate), "not answered yet");
    responder.reply(at(0), &good(), 0x22);
    let answer = wire(responder.poll_transmit());
    assert_eq!(answer.transaction, 9);
    requester.handle(&answer).unwrap();
    let Some(SidrEvent::Resolved(seen)) = requester.poll_event() else { panic!() };
    assert_eq!((seen.status, seen.qpn, seen.qkey), (SidrStatus::OK, good().qpn, good().qkey));
    assert_eq!((seen.service_id, seen.modifier, seen.private_data), (service_id, 0x22, good().private_data));
    assert_eq!((requester.poll_event(), requester.poll_timeout()), (Some(SidrEvent::Closed), None));
    assert_eq!(requester.handle(&answer), Err(Ignored::Duplicate));
    // The answer was lost: it is sent again, until the requester's repetitions are over.
    responder.handle(&first).unwrap();
    assert_eq!(wire(responder.poll_transmit()), answer);
    responder.reply(at(1), &SidrRep { status: SidrStatus::REJECT, ..good() }, 0);
    assert_eq!(responder.poll_transmit(), None, "the first answer counts");
    let due = responder.poll_timeout().unwrap();
    assert_eq!(due, at(0) + interval() * 16);
    responder.handle_timeout(due);
    assert_eq!((responder.poll_event(), responder.poll_timeout()), (Some(SidrEvent::Closed), None));
}

#[test]
fn only_an_answer_can_be_forgotten() {
    let mut requester = SidrRequester::new(at(0), request(), 9, 0, TIMING);
    let first = wire(requester.poll_transmit());
    let mut responder = SidrResponder::requested(&first, TIMING).unwrap();
    responder.poll_event();
    responder.forget_answer();
    assert_eq!(responder.poll_event(), None, "nothing is forgotten that was not answered");
    responder.reply(at(0), &good(), 0);
    responder.forget_answer();
    responder.forget_answer();
    assert_eq!((responder.poll_event(), responder.poll_event()), (Some(SidrEvent::Closed), None));
    assert_eq!(responder.handle(&first), Err(Ignored::Duplicate));
}

#[test]
fn every_status() {
    for number in 0..=u8::MAX {
        let mut requester = SidrRequester::new(at(0), request(), 9, 0, TIMING);
        let mut responder = SidrResponder::requested(&wire(requester.poll_transmit()), TIMING).unwrap();
        let (status, info) = (SidrStatus(number), PrivateData([5; 72]));
        responder.reply(at(0), &SidrRep { status, info_len: 72, info, ..good() }, 0);
        requester.handle(&wire(responder.poll_transmit())).unwrap();
        let Some(SidrEvent::Resolved(seen)) = requester.poll_event() else { panic!() };
        assert_eq!((seen.status, seen.info_len, seen.info), (status, 72, info));
    }
}

#[test]
fn request_is_repeated() {
    let mut requester = SidrRequester::new(at(0), request(), 9, 0, TIMING);
    let first = requester.poll_transmit();
    let mut now = at(0);
    for _ in 0..15 {
        now += interval();
        assert_eq!(requester.poll_timeout(), Some(now));
        requester.handle_timeout(now);
        assert_eq!(requester.poll_transmit(), first);
    }
    requester.handle_timeout(now + interval());
    assert_eq!(requester.poll_transmit(), None);
    assert_eq!(requester.poll_event(), Some(SidrEvent::Unreachable));
    assert_eq!(requester.poll_event(), Some(SidrEvent::Closed));
}

#[test]
fn for_others() {
    let mut requester = SidrRequester::new(at(0), request(), 9, 0, TIMING);
    let first = wire(requester.poll_transmit());
    let datagram = |message: Message| Datagram { message, ..first };
    let other = SidrRep { request_id: CommId(0x52), ..good() };
    assert_eq!(requester.handle(&datagram(other.into())), Err(Ignored::CommId));
    assert_eq!(requester.handle(&first), Err(Ignored::Message));
    let mut responder = SidrResponder::requested(&first, TIMING).unwrap();
    let other = SidrReq { request_id: CommId(0x52), ..request() };
    assert_eq!(responder.handle(&datagram(other.into())), Err(Ignored::CommId));
    assert!(SidrResponder::requested(&datagram(good().into()), TIMING).is_err());
}

/// A third of all messages is lost, and still every resolution succeeds.
#[test]
fn lossy() {
    for seed in 0..1000 {
        let mut rng = Rng::new(seed);
        let mut requester = SidrRequester::new(Instant::ZERO, request(), 9, 0, TIMING);
        let mut responder: Option<SidrResponder> = None;
        let mut requests = 0;
        let seen = loop {
            if let Some(event) = requester.poll_event() {
                break event;
            }
            if let Some(asked) = requester.poll_transmit().filter(|_| !rng.chance(330)) {
                let now = requester.poll_timeout().unwrap();
                match &mut responder {
                    Some(responder) => responder.handle(&asked).unwrap(),
                    None => {
                        requests += 1;
                        responder.insert(SidrResponder::requested(&asked, TIMING).unwrap()).reply(
                            now,
                            &good(),
                            0,
                        );
                    }
                }
            }
            match responder.as_mut().and_then(SidrResponder::poll_transmit).filter(|_| !rng.chance(330)) {
                Some(answer) => requester.handle(&answer).unwrap(),
                None => requester.handle_timeout(requester.poll_timeout().unwrap()),
            }
        };
        assert!(matches!(seen, SidrEvent::Resolved(_)), "seed {seed}: {seen:?}");
        assert_eq!(requests, 1);
    }
}
