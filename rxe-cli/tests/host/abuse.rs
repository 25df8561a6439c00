//! Programs that behave badly towards the host service: they lose their connection, a line in the log says so, and the others go on.

use super::{
    netns::Namespace,
    stage::{
        End, JOIN, OBSERVE, PATIENCE, SERVICE, Service, connections, exchange, group_sockets, hello, listens,
        observe, raw, say_raw, until,
    },
    traffic::Traffic,
};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{MsgFlags, Shutdown, SockaddrIn, connect, recv, shutdown},
};
use rxe_verbs::host::report::ServiceReport;
use std::{
    fs::File,
    net::UdpSocket,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    thread,
    time::{Duration, Instant},
};

/// A question of an observer's.
const STATUS: &[u8] = b"\x05";
/// The first byte of an answer that says: later.
const BUSY: u8 = 7;
/// Descriptors that a message brings at most (SCM_MAX_FD).
const MOST: usize = 253;

/// The service that is abused, and well-behaved programs beside.
struct Victims {
    namespace: Namespace,
    service: Service,
    a: End,
    b: End,
    traffic: Traffic,
    rounds: u32,
}

impl Victims {
    fn new() -> Option<Self> {
        let namespace = Namespace::new()?;
        let service = Service::start(&namespace);
        let (a, b) = (End::new(&namespace), End::new(&namespace));
        a.context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
        let traffic = Traffic::start(&namespace);
        let mut victims = Self { namespace, service, a, b, traffic, rounds: 0 };
        victims.go_on();
        Some(victims)
    }

    fn report(&self) -> ServiceReport {
        let mut report = None;
        // It may be too busy for observers.
        until(|| {
            report = observe(&self.namespace);
            report.is_some()
        });
        report.unwrap()
    }

    /// Waits until the service reports so.
    fn becomes(&self, so: impl Fn(&ServiceReport) -> bool) {
        let start = Instant::now();
        loop {
            let report = self.report();
            if so(&report) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "it does not happen: {report:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks that the well-behaved programs still exchange messages.
    fn go_on(&mut self) {
        self.rounds += 1;
        exchange(&self.a, &self.b, self.rounds);
        self.traffic.goes_on();
    }

    /// Checks that nothing is left of the bad program but a line in the log.
    fn is_told(&self, words: &str) {
        let log = self.report().log;
        assert!(log.iter().any(|line| line.contains(words)), "{words}: {log:?}");
    }

    fn end(mut self) {
        self.go_on();
        let report = self.report();
        assert_eq!((report.counters.died, report.counters.corrupt), (0, 0), "{report:?}");
        self.traffic.finish();
    }
}

/// What the service says, or nothing if it has closed the connection.
fn hear(fd: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 16 * 1024];
    let len = recv(fd.as_raw_fd(), &mut bytes, MsgFlags::empty()).unwrap_or(0);
    bytes[..len].to_vec()
}

#[test]
fn a_thousand_hellos_are_one_too_many() {
    let Some(mut victims) = Victims::new() else { return };
    let before = (victims.report(), victims.service.descriptors());
    for role in [OBSERVE, JOIN] {
        let fd = raw(&victims.namespace);
        let said = (0..1000).take_while(|_| say_raw(&fd, &hello(role), &[])).count();
        assert!(said < 1000, "it went on listening");
        while !hear(&fd).is_empty() {}
    }
    until(|| victims.report().counters.misbehaved == before.0.counters.misbehaved + 2);
    victims.is_told("was cut off: it said that at the wrong time");
    victims.go_on();
    // The one that joined has a slot until it is dead: it is this process.
    until(|| victims.service.descriptors() <= before.1 + 4);
    assert!(victims.report().clients.len() <= before.0.clients.len() + 1);
    victims.end();
}

#[test]
fn a_thousand_connections_are_too_many() {
    let Some(mut victims) = Victims::new() else { return };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(4096).min(hard), hard).unwrap();
    let before = (victims.report().counters, victims.service.descriptors());
    let crowd: Vec<OwnedFd> = (0..1000).map(|_| raw(&victims.namespace)).collect();
    victims.go_on();
    assert!(victims.service.descriptors() < before.1 + 520, "it is bounded");
    // There was no room for the last ones, and they are told so.
    assert!(crowd[900..].iter().all(|fd| hear(fd).first() == Some(&BUSY) && hear(fd).is_empty()));
    drop(crowd);
    until(|| victims.service.descriptors() <= before.1);
    let counters = victims.report().counters;
    assert!(counters.refused >= before.0.refused + 400, "{counters:?}");
    victims.is_told("was told to come later: too many connections");
    until(|| victims.report().log.iter().any(|line| line.contains("more lines of such kinds were left out")));
    let newcomer = End::new(&victims.namespace);
    exchange(&victims.a, &newcomer, 1);
    victims.end();
}

#[test]
fn descriptors_that_nobody_wants_are_closed() {
    let Some(mut victims) = Victims::new() else { return };
    let null = File::open("/dev/null").unwrap();
    let before = (victims.report().counters, victims.service.descriptors());
    for (round, role) in (1..).zip([OBSERVE, JOIN, JOIN]) {
        let fd = raw(&victims.namespace);
        assert!(say_raw(&fd, &hello(role), &[null.as_raw_fd(); MOST]));
        assert_eq!(hear(&fd), []);
        until(|| victims.report().counters.misbehaved == before.0.misbehaved + round);
    }
    until(|| victims.service.descriptors() <= before.1);
    victims.is_told("brings too many descriptors");
    victims.go_on();
    victims.end();
}

/// A program that reads files of the view need not say hello, but counts as an observer, and the number of observers is limited.
#[test]
fn a_crowd_of_readers_is_told_to_come_later() {
    const READ: &[u8] = b"\x09\x12rxe0/ports/1/state";
    let Some(mut victims) = Victims::new() else { return };
    // They stay.
    let mut crowd = Vec::new();
    let mut ask = |_| {
        let fd = raw(&victims.namespace);
        say_raw(&fd, READ, &[]);
        let answer = hear(&fd).first().copied();
        crowd.push(fd);
        answer
    };
    let answers: Vec<Option<u8>> = (0..100).map(&mut ask).collect();
    let served = answers.iter().filter(|first| **first == Some(6)).count();
    let later = answers.iter().filter(|first| **first == Some(BUSY)).count();
    assert!((1..=64).contains(&served) && served + later == 100, "{answers:?}");
    drop(crowd);
    victims.go_on();
    victims.end();
}

/// A question goes to all clients, so an observer may have only a few open at a time.
#[test]
fn who_asks_without_hearing_is_cut_off() {
    const STATS: &[u8] = b"\x06";
    let Some(mut victims) = Victims::new() else { return };
    let fd = raw(&victims.namespace);
    assert!(say_raw(&fd, &hello(OBSERVE), &[]));
    let _ = (0..1000).take_while(|_| say_raw(&fd, STATS, &[])).count();
    until(|| victims.report().counters.misbehaved == 1);
    victims.is_told("asked again before it was answered");
    victims.go_on();
    victims.end();
}

/// A program that has closed its direction still gets the answer to its last question, and is disconnected then.
#[test]
fn a_half_closed_connection_is_closed() {
    let Some(mut victims) = Victims::new() else { return };
    let before = victims.service.descriptors();
    let fds: Vec<OwnedFd> = (0..20).map(|_| raw(&victims.namespace)).collect();
    for fd in &fds {
        assert!(say_raw(fd, &hello(OBSERVE), &[]) && say_raw(fd, STATUS, &[]));
        shutdown(fd.as_raw_fd(), Shutdown::Write).unwrap();
    }
    for fd in &fds {
        assert!(!hear(fd).is_empty(), "an answer");
        while !hear(fd).is_empty() {}
    }
    until(|| victims.service.descriptors() <= before);
    assert_eq!(victims.report().counters.misbehaved, 0);
    victims.go_on();
    victims.end();
}

/// A program shuts down one direction of the library's connections: its clients connect again, and keep their slots.
#[test]
fn half_closed_clients_come_back() {
    let Some(victims) = Victims::new() else { return };
    let slots = [victims.a.slot(), victims.b.slot()];
    let ours = connections(&victims.namespace);
    assert_eq!(ours.len(), 2);
    for fd in ours {
        shutdown(fd, Shutdown::Write).unwrap();
    }
    until(|| victims.report().counters.rejoined == 2);
    let is_back =
        |slot: &u8| victims.report().clients.iter().any(|client| client.slot == *slot && client.connected);
    until(|| slots.iter().all(is_back));
    until(|| victims.report().clients.iter().any(|client| !client.listening.is_empty()));
    assert_eq!(victims.report().counters.deserted, 0);
    victims.end();
}

/// Sockets of a client that joins now.
fn newcomer(victims: &Victims) -> (End, Vec<RawFd>) {
    let before = group_sockets(&victims.namespace);
    let end = End::new(&victims.namespace);
    let own: Vec<RawFd> =
        group_sockets(&victims.namespace).into_iter().filter(|fd| !before.contains(fd)).collect();
    assert_eq!(own.len(), 2, "one for each family");
    (end, own)
}

/// A program of its own that has all packets come to itself: whatever it gets of others' it hands on until the service has
/// put back what belongs there.
#[test]
fn a_client_s_own_steering_program_is_replaced() {
    let Some(mut victims) = Victims::new() else { return };
    let (greedy, sockets) = newcomer(&victims);
    let number = victims.report().members - 1;
    for socket in sockets {
        // BPF_RET | BPF_K: always the member that joined last.
        let mut program = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: number as u32 }];
        let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
        // SAFETY: the option takes a program, which lives through the call.
        let result = unsafe {
            libc::setsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_CBPF,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as u32,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
    victims
        .becomes(|report| report.log.iter().any(|line| line.contains("the steering program was put back")));
    victims.go_on();
    exchange(&victims.a, &greedy, 1);
    victims.end();
}

/// A connected socket leaves the group of its family, and the last member gets its number: all but the culprit go on, and
/// whoever gets the culprit's slot after it gets a sound one.
#[test]
fn a_client_that_connects_its_socket_harms_itself_only() {
    let Some(mut victims) = Victims::new() else { return };
    let (culprit, sockets) = newcomer(&victims);
    let (last, _) = newcomer(&victims);
    // The IPv6 one does not take it.
    let connected = |socket: &RawFd| connect(*socket, &SockaddrIn::new(127, 0, 0, 1, 9)).is_ok();
    assert_eq!(sockets.iter().filter(|socket| connected(socket)).count(), 1);
    victims.becomes(|report| {
        send_to_slot(&victims.namespace, last.slot());
        report.counters.mended > 0
    });
    victims.is_told(&format!(
        "slot {} is number {} of the group now (V4)",
        last.slot(),
        victims.report().members - 2
    ));
    // They came all the time, if by way of others.
    assert!(last.context.port_stats().dropped_no_qp > 0);
    exchange(&victims.a, &last, 1);
    // A client that joins now has a slot that differs from the place of its socket.
    let (newest, _) = newcomer(&victims);
    comes_straight(&victims, &newest);
    comes_straight(&victims, &last);
    let slot = culprit.slot();
    drop(culprit);
    until(|| victims.report().resting.contains(&slot));
    // Rested slots are taken first.
    let mut heir = None;
    until(|| {
        thread::sleep(Duration::from_millis(200));
        let end = newcomer(&victims).0;
        let is_heir = end.slot() == slot;
        heir = Some(end);
        is_heir
    });
    comes_straight(&victims, &heir.unwrap());
    victims.go_on();
    victims.end();
}

/// A packet for no queue pair of a slot's, from a port that the system chooses.
fn send_to_slot(namespace: &Namespace, slot: u8) {
    let mut packet = [0; 24];
    packet[..12].copy_from_slice(&[0x64, 0x40, 0xff, 0xff, 0, slot, 0x77, 0x77, 0, 0, 0, 1]);
    namespace
        .run(move || UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&packet, "127.0.0.1:4791").unwrap());
}

/// Packets for an end come to it without going astray, by now or soon.
fn comes_straight(victims: &Victims, end: &End) {
    const PACKETS: u64 = 32;
    until(|| {
        let got = || end.context.port_stats().dropped_no_qp;
        let before = (victims.report().counters.handed_on, got());
        for _ in 0..PACKETS {
            send_to_slot(&victims.namespace, end.slot());
        }
        until(|| got() >= before.1 + PACKETS);
        victims.report().counters.handed_on == before.0
    });
    exchange(&victims.a, end, u32::from(end.slot()));
}

/// One packet to the multicast queue pair becomes one for each process; so it must be a group's.
#[test]
fn packets_to_our_own_address_are_not_given_to_everybody() {
    const PACKETS: u64 = 200;
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let ends = [End::new(&namespace), End::new(&namespace), End::new(&namespace)];
    let dropped = observe(&namespace).unwrap().counters.dropped;
    namespace.run(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // UD SEND ONLY to queue pair 0xffffff, without payload, and zeroes for an ICRC.
        let mut packet = [0; 24];
        packet[0] = 0x64;
        packet[2..8].copy_from_slice(&[0xff, 0xff, 0, 0xff, 0xff, 0xff]);
        for _ in 0..PACKETS {
            socket.send_to(&packet, "127.0.0.1:4791").unwrap();
        }
    });
    until(|| {
        let counters = observe(&namespace).unwrap().counters;
        counters.dropped - dropped + counters.multicast + counters.corrupt >= PACKETS
    });
    let report = observe(&namespace).unwrap();
    assert_eq!((report.counters.multicast, report.counters.dropped - dropped), (0, PACKETS), "{report:?}");
    drop(ends);
}
