//! Messages of any content in any order: no panic, bounded output, and every connection ends nevertheless.

mod machine_common;

use machine_common::{ACTIVE, PASSIVE, accepted, confirmed, established, events, rep, requested, sent};
use proptest::prelude::*;
use rxe_cm::proto::{
    Datagram, PrivateData, RejectReason,
    machine::{Connection, Directory, Event, Rejection, Route, State},
};
use rxe_core::{time::Instant, wire::MadHeader};
use std::time::Duration;

/// A message with the right IDs in places where messages have them, or with any bytes at all; always one that parses.
fn message() -> impl Strategy<Value = Datagram> {
    let ids = prop_oneof![
        3 => Just((ACTIVE.comm_id.0, PASSIVE.comm_id.0)),
        3 => Just((PASSIVE.comm_id.0, ACTIVE.comm_id.0)),
        1 => any::<(u32, u32)>(),
    ];
    let body = prop_oneof![Just(vec![0; 232]), prop::collection::vec(any::<u8>(), 232)];
    let qpn = prop_oneof![Just(0x11_u8), Just(0x22), any::<u8>()];
    (0x10_u16..=0x1a, ids, qpn, 0..3_u8, body).prop_map(
        |(attribute, (local, remote), qpn, about, mut body)| {
            body[..4].copy_from_slice(&local.to_be_bytes());
            body[4..8].copy_from_slice(&remote.to_be_bytes());
            match attribute {
                0x15 => body[8..11].copy_from_slice(&[0, 0, qpn]),
                0x11 | 0x12 => body[8] = about << 6,
                _ => {}
            }
            let mut bytes = MadHeader::cm(attribute, 5).emit().to_vec();
            bytes.extend(body);
            Datagram::parse(&bytes).unwrap()
        },
    )
}

/// What may happen to a connection.
#[derive(Clone, Debug)]
enum Step {
    Message(Box<Datagram>),
    Wait(u32),
    Command(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => message().prop_map(|datagram| Step::Message(Box::new(datagram))),
        1 => (0..100_000_u32).prop_map(Step::Wait),
        1 => (0..9_u8).prop_map(Step::Command),
    ]
}

/// Gives a command, whether or not it is allowed now. Returns whether it was accepted.
fn command(end: &mut Connection, number: u8, now: Instant) -> bool {
    let result = match number {
        0 => end.accept(now, &rep(), 0),
        1 => end.confirm(PrivateData::default()),
        2 => end.reject(now, Rejection::because(RejectReason::NO_QP)),
        3 => end.disconnect(now, PrivateData::default()),
        4 => end.confirm_disconnect(now, PrivateData::default()),
        5 => end.send_mra(31, PrivateData::default()),
        6 => end.defer_mra(255, PrivateData::default()),
        7 => {
            end.handle_data();
            Ok(())
        }
        _ => {
            end.abandon(now);
            Ok(())
        }
    };
    result.is_ok()
}

/// A connection in one of eight stages.
fn stage(number: u8) -> Connection {
    match number {
        0 => requested().active,
        1 => requested().passive,
        2 => accepted().0.passive,
        3 => confirmed().0.active,
        4 => established().active,
        5 => established().passive,
        6 => {
            let (mut both, rep) = accepted();
            both.active.handle(Instant::ZERO, &rep).unwrap();
            both.active
        }
        _ => {
            let mut both = established();
            both.active.disconnect(Instant::ZERO, PrivateData::default()).unwrap();
            both.active
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 2000 }))]

    #[test]
    fn any_messages(number in 0..8_u8, steps in prop::collection::vec(step(), 0..40)) {
        let mut end = stage(number);
        let mut log = events(&mut end);
        let mut now = Instant::ZERO;
        for step in steps {
            match step {
                Step::Message(datagram) => {
                    let before = (end.state(), end.poll_timeout());
                    if end.handle(now, &datagram).is_err() {
                        prop_assert_eq!((end.state(), end.poll_timeout()), before, "ignored, yet changed");
                    }
                }
                Step::Wait(ms) => {
                    now += Duration::from_millis(ms.into());
                    end.handle_timeout(now);
                }
                Step::Command(number) => {
                    let before = end.state();
                    if !command(&mut end, number, now) {
                        prop_assert_eq!(end.state(), before, "refused, yet changed");
                    }
                }
            }
            // At most one of each kind, however many came in.
            prop_assert!(sent(&mut end).len() <= 9);
            log.extend(events(&mut end));
        }
        // If the user gives up and nothing arrives, it ends by itself.
        end.abandon(now);
        for _ in 0..100 {
            let Some(due) = end.poll_timeout() else { break };
            end.handle_timeout(due);
            sent(&mut end);
        }
        log.extend(events(&mut end));
        prop_assert_eq!(end.state(), State::Closed);
        prop_assert_eq!(log.iter().filter(|event| **event == Event::Closed).count(), 1);
        prop_assert_eq!(log.last(), Some(&Event::Closed));
        prop_assert!(log.iter().filter(|event| matches!(event, Event::Disconnected(_))).count() <= 1);
    }

    /// The directory takes any message, and answers none in a way that could lead to answers for ever.
    #[test]
    fn any_route(datagrams in prop::collection::vec(message(), 1..20)) {
        let mut directory = Directory::default();
        directory.claim(ACTIVE.comm_id).unwrap();
        let both = established();
        directory.bind(ACTIVE.comm_id, *both.active.peer().unwrap());
        for datagram in datagrams {
            let answer = match directory.route(&datagram) {
                Route::Stale { answer, old } => {
                    prop_assert_eq!(old, ACTIVE.comm_id);
                    answer
                }
                Route::Answer(answer) => answer,
                Route::To(id) => {
                    prop_assert_eq!(id, ACTIVE.comm_id);
                    continue;
                }
                Route::New | Route::Sidr | Route::Unknown => continue,
            };
            // If the answer is sent back to us, it gets no answer.
            let back = directory.route(&answer);
            prop_assert!(matches!(back, Route::Unknown | Route::To(_)), "{:?}", back);
        }
    }
}
