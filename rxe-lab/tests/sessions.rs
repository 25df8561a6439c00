//! What is told of sessions in which it is known what happened: each loss is found, with its reason, and the counts are those of
//! the endpoints themselves.

mod common;

use common::{Dissected, dissect, session::Session};
use rxe_core::{
    num::Key,
    testing::{ConnectOptions, Faults, LinkConfig, PairConfig},
    work::{Remote, SendOp},
};
use rxe_lab::flow::{Connection, Direction, Marks};

fn only_connection(dissected: &Dissected) -> &Connection {
    let [connection] = &dissected.summary.connections[..] else {
        panic!("{:#?}", dissected.summary.connections)
    };
    connection
}

/// What side 0 asked.
fn forward(dissected: &Dissected) -> &Direction {
    let connection = only_connection(dissected);
    connection.directions.iter().find(|direction| direction.from.to_string() == "10.0.0.1").unwrap()
}

#[test]
fn one_lost_packet_is_found() {
    let mut session = Session::new("lab-lost");
    session.lose(0, |crossing| crossing.index == 6);
    let remote = session.remote(1);
    session.send(0, SendOp::Write(remote), 20_000);
    session.run();
    let told = dissect(&session.capture());
    let lost: Vec<_> = told.later.iter().filter(|(_, (marks, _))| marks.contains(Marks::LOST)).collect();
    let [(place, (_, why))] = lost[..] else { panic!("{lost:?}") };
    // Packets of the other direction are between them in the capture: it is the seventh of side 0's.
    let sent: Vec<_> =
        told.seen.iter().filter(|seen| seen.json["fields"]["ipv4"]["src"] == "10.0.0.1").collect();
    assert_eq!(sent[6].place, *place);
    assert_eq!(why, "the receiver asked for it again");
    let direction = forward(&told);
    assert_eq!(direction.rounds[0].why, "a NAK asked for it");
    assert_eq!((direction.completed, direction.completed_bytes, direction.unanswered), (1, 20_000, 0));
    assert_eq!(direction.retransmitted, session.stats(0).retransmitted);
    assert_eq!(direction.naks.get("NAK psn sequence"), Some(&1));
    assert_eq!(session.stats(0).psn_naks_received, 1);
    assert_eq!(told.summary.totals.icrc_wrong, 0);
    assert_eq!(only_connection(&told).mtu, Some(1024));
}

#[test]
fn a_lost_answer_is_told_from_a_lost_request() {
    // The acknowledgement.
    let mut session = Session::new("lab-ack");
    session.lose(1, |crossing| crossing.index == 0);
    let remote = session.remote(1);
    session.send(0, SendOp::Write(remote), 100);
    session.run();
    let told = dissect(&session.capture());
    let lost: Vec<_> = told.later.iter().filter(|(_, (marks, _))| marks.contains(Marks::LOST)).collect();
    let [(place, _)] = lost[..] else { panic!("{lost:?}") };
    let seen = told.seen.iter().find(|seen| seen.place == *place).unwrap();
    assert!(seen.label.contains("ACK"), "{}", seen.label);
    assert!(
        forward(&told).rounds[0].why.contains("its answer did not arrive"),
        "{:?}",
        forward(&told).rounds
    );
    // The request.
    let mut session = Session::new("lab-request");
    session.lose(0, |crossing| crossing.index == 0);
    let remote = session.remote(1);
    session.send(0, SendOp::Write(remote), 100);
    session.run();
    let told = dissect(&session.capture());
    assert!(forward(&told).rounds[0].why.contains("no answer for"), "{:?}", forward(&told).rounds);
    assert_eq!(told.later.len(), 1);
    assert_eq!(forward(&told).retransmitted, session.stats(0).retransmitted);
}

#[test]
fn a_lost_read_response_is_found() {
    let mut session = Session::new("lab-read");
    session.lose(1, |crossing| crossing.index == 3);
    let remote = session.remote(1);
    session.send(0, SendOp::Read(remote), 12_000);
    session.run();
    let told = dissect(&session.capture());
    let lost: Vec<_> = told.later.iter().filter(|(_, (marks, _))| marks.contains(Marks::LOST)).collect();
    let [(place, _)] = lost[..] else { panic!("{lost:?} {:#?}", told.summary) };
    let answers: Vec<_> = told.seen.iter().filter(|seen| seen.label.contains("READ_RESPONSE")).collect();
    assert_eq!(answers[3].place, *place);
    assert_eq!(forward(&told).retransmitted, session.stats(0).retransmitted);
    assert_eq!(forward(&told).completed, 1);
}

#[test]
fn a_receiver_that_is_not_ready() {
    let mut session = Session::new("lab-rnr");
    session.send(0, SendOp::Send, 100);
    session.pair.run_for(std::time::Duration::from_millis(1));
    session.recv(1, 1000);
    session.run();
    let told = dissect(&session.capture());
    let direction = forward(&told);
    let rnr: u64 =
        direction.naks.iter().filter(|(what, _)| what.starts_with("RNR")).map(|(_, count)| count).sum();
    assert_eq!(rnr, session.stats(0).rnr_naks_received);
    assert!(rnr > 0 && direction.rounds[0].why.contains("not been ready"), "{direction:#?}");
    assert_eq!(told.count(Marks::RNR), rnr as usize);
}

#[test]
fn a_refused_request_is_no_unanswered_one() {
    let mut session = Session::new("lab-refused");
    let remote = session.remote(1);
    session.send(0, SendOp::Write(remote), 100);
    session.send(0, SendOp::Write(Remote { rkey: Key(remote.rkey.0 ^ 1), ..remote }), 100);
    session.run();
    let told = dissect(&session.capture());
    let direction = forward(&told);
    assert_eq!((direction.completed, direction.refused, direction.unanswered), (1, 1, 0));
    assert_eq!(direction.naks.get("NAK remote access"), Some(&1));
    assert!(told.later.is_empty(), "{:?}", told.later);
}

#[test]
fn what_nobody_answers_is_told() {
    let options = ConnectOptions { retry_count: 2, ..ConnectOptions::default() };
    let mut session = Session::with(PairConfig { name: "lab-dead", ..PairConfig::default() }, &options);
    session.lose(0, |_| true);
    let remote = session.remote(1);
    session.send(0, SendOp::Write(remote), 100);
    session.send(0, SendOp::Write(remote), 100);
    session.run();
    let told = dissect(&session.capture());
    let direction = forward(&told);
    assert_eq!((direction.unanswered, direction.completed), (2, 0));
    assert_eq!(direction.retransmitted, session.stats(0).retransmitted);
    assert!(told.later.values().any(|(marks, _)| marks.contains(Marks::UNANSWERED)));
}

/// Over bad wires, with many seeds: everything that was sent again is counted, and every NAK.
#[test]
fn counts_are_those_of_the_endpoints() {
    for seed in 0..40 {
        let bad = Faults { loss: 30, ..Faults::default() };
        let link = LinkConfig { faults: bad, ..LinkConfig::default() };
        let config = PairConfig { seed, name: "lab-counts", links: [link, link], ..PairConfig::default() };
        let mut session = Session::with(config, &ConnectOptions::default());
        let remote = session.remote(1);
        for round in 0..6 {
            session.send(0, SendOp::Write(remote), 3_000 + 1_000 * round);
            session.send(0, SendOp::Read(remote), 2_500);
            session.send(0, SendOp::FetchAdd { remote, add: 1 }, 8);
            session.send(1, SendOp::Write(session.remote(0)), 4_000);
        }
        session.run();
        let told = dissect(&session.capture());
        let connection = only_connection(&told);
        for side in [0, 1] {
            let stats = session.stats(side);
            let from = format!("10.0.0.{}", side + 1);
            let direction = connection.directions.iter().find(|one| one.from.to_string() == from).unwrap();
            assert_eq!(
                direction.retransmitted, stats.retransmitted,
                "seed {seed} side {side} {direction:#?}"
            );
            let naks = direction.naks.get("NAK psn sequence").copied().unwrap_or(0);
            let arrived = stats.psn_naks_received;
            // The capture is where they leave: some of them are lost after that.
            assert!(naks >= arrived, "seed {seed} side {side}: {naks} {arrived}");
            let sent = session.stats(1 - side).psn_naks_sent;
            assert_eq!(naks, sent, "seed {seed} side {side}");
            // Operations on the wire may be parts of one that was posted; their bytes are the same.
            let wanted = if side == 0 { 33_000 + 6 * 2_500 + 6 * 8 } else { 6 * 4_000 };
            assert_eq!(
                (direction.completed_bytes, direction.unanswered),
                (wanted, 0),
                "seed {seed} side {side}"
            );
            assert_eq!(direction.msn_mismatches, 0, "seed {seed} side {side}");
        }
        let requests = told.seen.iter().filter(|seen| {
            seen.remark.marks.contains(Marks::RETRANSMITTED) && !seen.label.contains("RESPONSE")
        });
        let told: u64 = connection.directions.iter().map(|direction| direction.retransmitted).sum();
        assert_eq!(requests.count() as u64, told, "seed {seed}");
    }
}
