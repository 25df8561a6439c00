//! Which connection a message is for; stale connections; IDs that are taken.

mod machine_common;

use machine_common::{ACTIVE, PASSIVE, at, established, one, rep, req, route};
use rxe_cm::proto::{
    CommId, Concerns, Dreq, Guid, Message, PrivateData, Rej, RejectReason, Rep, Req, Rtu, SidrReq,
    machine::{Directory, InUse, Peer, Rejection, Route, State},
};
use rxe_core::num::Qpn;

const PEER: Peer = Peer { comm_id: CommId(0x70), ca_guid: Guid(0xc0), qpn: Qpn::new(0x77) };
const ID: CommId = CommId(1);

/// Knows connection 1 with `PEER`, and connection 2 whose peer has not answered yet.
fn directory() -> Directory {
    let mut directory = Directory::default();
    directory.claim(ID).unwrap();
    directory.bind(ID, PEER);
    directory.claim(CommId(2)).unwrap();
    directory
}

fn req_of(comm_id: u32, guid: u64, qpn: u32) -> Req {
    Req { local_comm_id: CommId(comm_id), local_ca_guid: Guid(guid), local_qpn: Qpn::new(qpn), ..req() }
}

fn rep_of(to: u32, comm_id: u32, guid: u64, qpn: u32) -> Rep {
    Rep {
        remote_comm_id: CommId(to),
        local_comm_id: CommId(comm_id),
        local_ca_guid: Guid(guid),
        local_qpn: Qpn::new(qpn),
        ..rep()
    }
}

fn rej_in(route: Route) -> (CommId, Rej) {
    match route {
        Route::Stale { old, answer } => match answer.message {
            Message::Rej(rej) => (old, rej),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests() {
    let directory = directory();
    assert_eq!(route(&directory, req_of(0x71, 0xc0, 0x78)), Route::New);
    // The same numbers with another channel adapter belong to another connection.
    assert_eq!(route(&directory, req_of(0x70, 0xc1, 0x77)), Route::New);
    assert_eq!(route(&directory, req_of(0x70, 0xc0, 0x77)), Route::To(ID));
    let (old, rej) = rej_in(route(&directory, req_of(0x71, 0xc0, 0x77)));
    assert_eq!((old, rej.reason, rej.message), (ID, RejectReason::STALE_CONNECTION, Concerns::Req));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(0), CommId(0x71)));
    assert_eq!(route(&directory, SidrReq::default()), Route::Sidr);
}

#[test]
fn replies() {
    let directory = directory();
    assert_eq!(route(&directory, rep_of(2, 0x71, 0xc0, 0x78)), Route::To(CommId(2)));
    assert_eq!(route(&directory, rep_of(1, 0x70, 0xc0, 0x77)), Route::To(ID), "again");
    assert_eq!(route(&directory, rep_of(3, 0x71, 0xc0, 0x78)), Route::Unknown);
    assert_eq!(route(&directory, rep_of(2, 0x70, 0xc0, 0x78)), Route::Unknown, "that is connection 1");
    let (old, rej) = rej_in(route(&directory, rep_of(2, 0x71, 0xc0, 0x77)));
    assert_eq!((old, rej.reason, rej.message), (ID, RejectReason::STALE_CONNECTION, Concerns::Rep));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(2), CommId(0x71)));
}

#[test]
fn others() {
    let directory = directory();
    let rtu = |remote| Rtu { remote_comm_id: CommId(remote), ..Rtu::default() };
    assert_eq!(route(&directory, rtu(1)), Route::To(ID));
    assert_eq!(route(&directory, rtu(9)), Route::Unknown);
    // By ID, or by channel adapter when the peer gave up without knowing ours.
    let rej = |remote, reason, guid: u64| Rej {
        local_comm_id: PEER.comm_id,
        remote_comm_id: CommId(remote),
        reason,
        info_len: 8,
        info: PrivateData::new(&guid.to_be_bytes()).unwrap(),
        ..Rej::default()
    };
    assert_eq!(route(&directory, rej(2, RejectReason::NO_QP, 0xc0)), Route::To(CommId(2)));
    assert_eq!(route(&directory, rej(0, RejectReason::TIMEOUT, 0xc0)), Route::To(ID));
    assert_eq!(route(&directory, rej(0, RejectReason::TIMEOUT, 0xc1)), Route::Unknown);
    assert_eq!(route(&directory, rej(0, RejectReason::NO_QP, 0xc0)), Route::Unknown);
    // A DREQ for what nobody knows is granted, IDs swapped.
    let dreq = |local, remote| Dreq {
        local_comm_id: CommId(local),
        remote_comm_id: CommId(remote),
        ..Dreq::default()
    };
    assert_eq!(route(&directory, dreq(0x70, 1)), Route::To(ID));
    for (local, remote) in [(0x70, 9), (0x71, 1)] {
        let Route::Answer(answer) = route(&directory, dreq(local, remote)) else { panic!() };
        let Message::Drep(drep) = answer.message else { panic!("{answer}") };
        assert_eq!((drep.local_comm_id, drep.remote_comm_id), (CommId(remote), CommId(local)));
        assert_eq!(answer.transaction, 7);
    }
}

/// In TIMEWAIT the peer's queue pair is free for another connection, but the IDs are not. After it both are.
#[test]
fn time_wait() {
    let mut directory = directory();
    directory.enter_time_wait(ID);
    assert_eq!(route(&directory, req_of(0x71, 0xc0, 0x77)), Route::New);
    assert_eq!(route(&directory, req_of(0x70, 0xc0, 0x77)), Route::To(ID));
    assert_eq!(directory.claim(ID), Err(InUse(ID)));
    // A new connection takes the queue pair; the end of the old one leaves it alone.
    directory.claim(CommId(3)).unwrap();
    directory.bind(CommId(3), Peer { comm_id: CommId(0x71), ..PEER });
    directory.release(ID);
    assert_eq!(directory.claim(ID), Ok(()));
    let (old, _) = rej_in(route(&directory, req_of(0x72, 0xc0, 0x77)));
    assert_eq!(old, CommId(3));
    for id in 1..=3 {
        directory.release(CommId(id));
    }
    assert!(directory.is_empty());
    assert_eq!(route(&directory, req_of(0x71, 0xc0, 0x77)), Route::New);
}

/// A peer was started anew, and sends a REQ from the queue pair of a connection that is established for us: we refuse the new REQ
/// (REJ), and end the old connection (DREQ). The peer, which does not know it, agrees (DREP).
#[test]
fn stale_connection_from_end_to_end() {
    let mut both = established();
    let mut directory = Directory::default();
    directory.claim(PASSIVE.comm_id).unwrap();
    directory.bind(PASSIVE.comm_id, *both.passive.peer().unwrap());
    let again = rxe_cm::proto::machine::Local { comm_id: CommId(0xa1), ..ACTIVE };
    let mut second = rxe_cm::proto::machine::Connection::connect(at(1), again, &req(), 0);
    let Route::Stale { old, answer } = directory.route(&one(&mut second)) else { panic!() };
    assert_eq!(old, PASSIVE.comm_id);
    second.handle(at(1), &answer).unwrap();
    assert_eq!(second.state(), State::TimeWait);
    both.passive.abandon(at(1));
    let Route::Answer(drep) = Directory::default().route(&one(&mut both.passive)) else { panic!() };
    both.passive.handle(at(1), &drep).unwrap();
    assert_eq!(both.passive.state(), State::TimeWait);
}

#[test]
fn nobody_listens() {
    let mut active = rxe_cm::proto::machine::Connection::connect(at(0), ACTIVE, &req(), 0);
    let first = one(&mut active);
    let why = Rejection::because(RejectReason::INVALID_SERVICE_ID);
    let answer = Directory::refuse(&first, why).unwrap();
    assert_eq!(answer.transaction, first.transaction);
    active.handle(at(0), &answer).unwrap();
    assert_eq!(active.state(), State::Closed);
    assert_eq!(Directory::refuse(&answer, why), None);
}
