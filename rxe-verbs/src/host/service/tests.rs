use super::{
    ask::{Asked, Question},
    clients::{Client, Kind},
    presence::Contact,
    *,
};
use crate::{
    host::{
        message::{MAX_ANSWER, MAX_MESSAGE, ToClient, decode, parts},
        report::{ClientStats, HostStats},
    },
    sys::unix::Received,
};
use nix::sched::{CloneFlags, unshare};
use std::io::Write;

/// Runs a test in a network namespace of its own, with a service, an observer, and what the service says to it.
fn observe(test: impl FnOnce(Service, usize, Channel) + Send + 'static) {
    let work = || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            let _ = writeln!(io::stderr(), "skipped: no network namespace: {error}");
            return;
        }
        let mut service = Service::start(HostConfig::default(), Place::Embedded).unwrap();
        let (channel, theirs) = Channel::pair().unwrap();
        let key = service.clients.insert(Client::new(channel, theirs.peer().unwrap()));
        service.clients[key].kind = Kind::Observer;
        test(service, key, theirs);
    };
    thread::spawn(work).join().unwrap();
}

/// The next message to the observer, which reads as soon as the service writes.
fn hear(service: &mut Service, key: usize, theirs: &Channel) -> ToClient {
    let mut buffer = [0; MAX_MESSAGE];
    service.flush(key);
    let Received::Message(len, _) = theirs.receive(&mut buffer, 0).unwrap() else { panic!("no message") };
    decode(&buffer[..len]).unwrap()
}

/// A process with very many queue pairs tells more than may wait for a program that does not read.
#[test]
fn a_long_report_arrives() {
    observe(|mut service, key, theirs| {
        const LONG: usize = 9 << 20;
        let stats = ClientStats { name: "x".repeat(LONG), ..ClientStats::default() };
        service.presences.begin(1, Contact::Connected(99));
        service.asks.open.push(Asked {
            ask: 1,
            observer: Some(key),
            question: Question::Stats,
            until: Instant::now() + Duration::from_secs(3600),
            open: HashMap::from([(1, Vec::new())]),
            stats: HostStats::default(),
        });
        for part in parts(&stats) {
            service.handle_told(1, 1, part);
        }
        let mut bytes = Vec::new();
        loop {
            let ToClient::Part(part) = hear(&mut service, key, &theirs) else { panic!("no part") };
            bytes.extend(part.bytes);
            if part.last {
                break;
            }
        }
        let told: HostStats = decode(&bytes).unwrap();
        assert_eq!((told.clients[0].name.len(), told.silent.len()), (LONG, 0));
    });
}

#[test]
fn a_report_that_is_too_long_is_refused_in_words() {
    observe(|mut service, key, theirs| {
        service.answer_in_parts(key, &"x".repeat(MAX_ANSWER));
        let ToClient::Refused(text) = hear(&mut service, key, &theirs) else { panic!("not refused") };
        assert!(text.contains("longer than 64 MB"), "{text}");
    });
}
