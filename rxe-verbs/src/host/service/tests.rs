use super::{
    ask::{Asked, Question},
    clients::{Client, Kind},
    presence::Contact,
    *,
};
use crate::{
    device::LISTED,
    host::{
        message::{MAX_ANSWER, MAX_MESSAGE, ToClient, decode, parts},
        report::{ClientStats, HostStats},
    },
    sys::unix::Received,
};
use nix::sched::{CloneFlags, unshare};
use rxe_core::{
    endpoint::RunMeta,
    num::{Psn, Qkey, Qpn},
    wire::{Bth, Deth, Ext, HeaderSeen, Opcode, Packet, emit, wire_len},
};
use std::{io::Write, net::Ipv4Addr, process::Command};

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

/// A query of subnet administration, with a GID of the default prefix for the other end of a path.
fn query(attribute: u8, mask: u8) -> [u8; 256] {
    let mut mad = [0; 256];
    (mad[0], mad[1], mad[2], mad[3], mad[17], mad[55]) = (1, 3, 2, 1, attribute, mask);
    (mad[64], mad[65]) = (0xfe, 0x80);
    mad
}

/// A datagram arrives at queue pair 1 of the loopback.
fn arrives(service: &mut Service, from: Ipv4Addr, mad: &[u8; 256]) {
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(1));
    let ext = Ext { deth: Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI }, ..Ext::default() };
    let mut packet = vec![0; wire_len(bth.opcode, mad.len())];
    emit(&bth, &ext, mad.len(), &mut packet).unwrap().copy_from_slice(mad);
    let meta = RunMeta {
        src: from.into(),
        dst: Ipv4Addr::LOCALHOST.into(),
        src_port: 49_152,
        ifindex: 1,
        tos: 0,
        hop_limit: 64,
        seen: HeaderSeen::Hidden,
    };
    service.handle_mad(&meta, &Packet::decode(&packet).unwrap());
}

fn loopback_up() {
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
}

/// Other hosts may ask as often as they like, and to list the devices takes up to a millisecond.
#[test]
fn questions_of_other_hosts_have_the_devices_listed_once() {
    observe(|mut service, _, _| {
        loopback_up();
        let before = LISTED.get();
        // Nodes, and the path to a GID.
        for (attribute, mask) in [(0x11, 0), (0x35, 4), (0x11, 0)] {
            arrives(&mut service, Ipv4Addr::new(127, 0, 0, 9), &query(attribute, mask));
        }
        assert_eq!((service.counters.managed, LISTED.get() - before), (3, 1));
    });
}

/// Any user can send a datagram from an address of this host to itself. It is not taken for one of our programs, which may ask
/// without limit, and whose requests such an answer could complete.
#[test]
fn datagrams_from_our_own_address_are_dropped() {
    observe(|mut service, _, _| {
        loopback_up();
        arrives(&mut service, Ipv4Addr::LOCALHOST, &query(0x11, 0));
        assert_eq!((service.counters.managed, service.counters.dropped), (0, 1));
        arrives(&mut service, Ipv4Addr::new(127, 0, 0, 9), &query(0x11, 0));
        assert_eq!((service.counters.managed, service.counters.dropped), (1, 1));
    });
}
