//! Management datagrams by the host service: who may answer what, and requests that nobody answers.

use super::{
    netns::Namespace,
    stage::{Service, until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rxe_verbs::host::{MAX_AGENTS, MadAddress, MadFilter, MadPort, ManagedMad, TIMED_OUT};
use std::{fs, net::Ipv4Addr, process::Command, thread, time::Duration};

/// Application specific management (IBTA vol. 1, 13.4.4): no class that the service answers itself.
const CLASS: u8 = 0x11;
const GET: u8 = 1;
const GET_RESP: u8 = 0x81;
/// Status of an answer: the method with this attribute is not supported (IBTA vol. 1, 13.4.7).
const UNSUPPORTED: [u8; 2] = [0, 0x0c];

fn open(namespace: &Namespace) -> MadPort {
    open_on(namespace, "lo")
}

/// The port of an interface's device. Another process tells the device's name, because this one keeps names of earlier namespaces.
fn open_on(namespace: &Namespace, netdev: &'static str) -> MadPort {
    namespace.run(move || {
        let list = Command::new(env!("CARGO_BIN_EXE_rxe")).arg("ibdev2netdev").output().unwrap().stdout;
        let list = String::from_utf8(list).unwrap();
        let device = list.lines().find(|line| line.contains(&format!(" ==> {netdev} "))).unwrap();
        MadPort::open(device.split(' ').next().unwrap()).unwrap()
    })
}

/// Makes an interface va with the address 10.77.0.1.
fn add_va(namespace: &Namespace) {
    for words in [
        "link add va type veth peer name vb",
        "addr add 10.77.0.1/24 dev va",
        "link set va up",
        "link set vb up",
    ] {
        namespace.ip(words);
    }
}

/// A service with this configuration.
fn start_with(namespace: &Namespace, name: &str, config: &str) -> Service {
    let path = std::env::temp_dir().join(format!("rxe-manage-{}-{name}.toml", std::process::id()));
    fs::write(&path, format!("{config}\n[service]\nidle_seconds = 60\n")).unwrap();
    let service = Service::start_with(namespace, path.to_str().unwrap());
    fs::remove_file(path).unwrap();
    service
}

const fn answers(methods: u128) -> MadFilter {
    MadFilter { class: CLASS, version: 1, oui: None, methods }
}

/// A request of that class to an address; to the port itself without one.
fn request(agent: u32, to: Option<Ipv4Addr>, tid: u8) -> ManagedMad {
    let mut bytes = vec![0; 256];
    (bytes[0], bytes[1], bytes[2], bytes[3], bytes[15]) = (1, CLASS, 1, GET, tid);
    let gid = to.map(|address| address.to_ipv6_mapped().octets());
    let address = MadAddress { qpn: 1, qkey: 0x8001_0000, gid, ..MadAddress::default() };
    ManagedMad { agent, timeout_ms: 10, retries: 0, address, bytes, ..ManagedMad::default() }
}

fn next(port: &MadPort) -> ManagedMad {
    let mut come = None;
    until(|| {
        come = port.receive().unwrap();
        come.is_some()
    });
    come.unwrap()
}

#[test]
fn two_programs_do_not_answer_the_same() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (first, second) = (open(&namespace), open(&namespace));
    let own = first.register(answers(1 << GET)).unwrap().expect("nobody else answers");
    assert_eq!(second.register(answers(1 << GET | 1 << 2)).unwrap(), None, "GET has somebody");
    assert_eq!(first.register(answers(1 << GET)).unwrap(), None, "also the same program");
    let other = second.register(answers(1 << 2)).unwrap();
    assert!(other.is_some(), "another method");
    assert!(
        second.register(MadFilter { version: 2, ..answers(1 << GET) }).unwrap().is_some(),
        "another version"
    );
    // A program that only asks takes nothing from others, as long as there is room.
    let asking = (0..=MAX_AGENTS).map(|_| second.register(answers(0)).unwrap());
    assert_eq!(asking.filter(Option::is_some).count(), MAX_AGENTS as usize - 2);
    assert!(first.unregister(own).unwrap());
    assert!(!first.unregister(own).unwrap(), "there is none any more");
    assert!(first.send(request(own, None, 1)).is_err(), "without a registration nothing is sent");
    assert!(first.register(answers(1 << GET)).unwrap().is_some(), "it is free again");
    // A program that has ended has no registration.
    drop(first);
    let third = open(&namespace);
    until(|| third.register(answers(1 << GET)).unwrap().is_some());
}

#[test]
fn a_request_finds_its_program_and_the_answer_who_asked() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (client, server) = (open(&namespace), open(&namespace));
    let asks = client.register(answers(0)).unwrap().unwrap();
    // The port itself answers that the method is not supported.
    client.send(ManagedMad { timeout_ms: 60_000, ..request(asks, None, 1) }).unwrap();
    let refused = next(&client);
    assert_eq!(
        (refused.status, refused.bytes[3], [refused.bytes[4], refused.bytes[5]]),
        (0, GET_RESP, UNSUPPORTED)
    );
    let serves = server.register(answers(1 << GET)).unwrap().unwrap();
    client.send(ManagedMad { timeout_ms: 60_000, ..request(asks, None, 2) }).unwrap();
    let mut asked = next(&server);
    assert_eq!((asked.agent, asked.bytes[3], asked.bytes[15]), (serves, GET, 2));
    (asked.bytes[3], asked.bytes[64]) = (GET_RESP, 77);
    server.send(ManagedMad { timeout_ms: 0, ..asked }).unwrap();
    let answer = next(&client);
    assert_eq!((answer.agent, answer.status, answer.bytes[15], answer.bytes[64]), (asks, 0, 2, 77));
}

#[test]
fn requests_that_nobody_answers_come_back() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let port = open(&namespace);
    let agent = port.register(answers(0)).unwrap().unwrap();
    // There is no way to this address, so nobody hears it.
    let nobody = Some(Ipv4Addr::new(10, 255, 0, 9));
    for (tid, retries) in [(1, 0), (2, 3)] {
        port.send(ManagedMad { retries, ..request(agent, nobody, tid) }).unwrap();
    }
    let mut back: Vec<_> = (0..2).map(|_| next(&port)).map(|mad| (mad.status, mad.bytes[15])).collect();
    back.sort_unstable();
    assert_eq!(back, [(TIMED_OUT, 1), (TIMED_OUT, 2)]);
    // Without a time to wait nothing is waited for, and what a registration that is given back waits for does not come.
    port.send(ManagedMad { timeout_ms: 0, ..request(agent, nobody, 3) }).unwrap();
    let other = port.register(answers(0)).unwrap().unwrap();
    port.send(ManagedMad { timeout_ms: 60_000, ..request(other, nobody, 4) }).unwrap();
    port.unregister(other).unwrap();
    port.send(request(agent, nobody, 5)).unwrap();
    assert_eq!(next(&port).bytes[15], 5);
    assert_eq!(port.receive().unwrap(), None);
}

/// A limited member asks a full one: each uses the key of its own table, which is the second of each.
#[test]
fn members_of_a_partition_ask_each_other() {
    let Some(namespace) = Namespace::new() else { return };
    add_va(&namespace);
    let tables = "[[port]]\ninterface = \"va\"\npkeys = [0x8005, 0x0012]\n\
                  [[port]]\ninterface = \"lo\"\npkeys = [0x8007, 0x8012]";
    let _service = start_with(&namespace, "partition", tables);
    let (client, server) = (open_on(&namespace, "va"), open(&namespace));
    let asks = client.register(answers(0)).unwrap().unwrap();
    let there = Some(Ipv4Addr::LOCALHOST);
    let ask = |tid| {
        let mut request = request(asks, there, tid);
        (request.timeout_ms, request.retries, request.address.pkey_index) = (500, 20, 1);
        client.send(request).unwrap();
    };
    ask(1);
    let refused = next(&client);
    assert_eq!((refused.status, [refused.bytes[4], refused.bytes[5]]), (0, UNSUPPORTED), "the port itself");
    server.register(answers(1 << GET)).unwrap().unwrap();
    ask(2);
    let mut asked = next(&server);
    assert_eq!(asked.address.pkey_index, 1, "its place in the table here");
    asked.bytes[3] = GET_RESP;
    server.send(ManagedMad { timeout_ms: 0, ..asked }).unwrap();
    let answer = next(&client);
    assert_eq!((answer.status, answer.bytes[3], answer.bytes[15]), (0, GET_RESP, 2), "the program");
}

/// Subnet administration's class, its methods, and attributes.
const SA: u8 = 3;
const GET_TABLE: u8 = 0x12;
const NODE_RECORD: u8 = 0x11;
const PATH_RECORD: u8 = 0x35;
/// No room for the records (IBTA vol. 1, 15.2.2).
const NO_RESOURCES: [u8; 2] = [1, 0];

/// Asks for all records of a kind. Returns the status and the number of records.
fn table(port: &MadPort, to: Option<Ipv4Addr>, attribute: u8) -> ([u8; 2], usize) {
    let agent = port.register(MadFilter { class: SA, version: 2, oui: None, methods: 0 }).unwrap().unwrap();
    let mut request = ManagedMad { timeout_ms: 500, retries: 20, ..request(agent, to, 1) };
    (request.bytes[1], request.bytes[2], request.bytes[3], request.bytes[17]) = (SA, 2, GET_TABLE, attribute);
    port.send(request).unwrap();
    let told = next(port).bytes;
    port.unregister(agent).unwrap();
    let size = 8 * usize::from(u16::from_be_bytes([told[44], told[45]]));
    ([told[4], told[5]], (told.len() - 56).checked_div(size).unwrap_or(0))
}

/// Hosts of the configuration, by their addresses.
fn hosts(addresses: &[&str]) -> String {
    let mut text = String::new();
    for (index, address) in addresses.iter().enumerate() {
        text += &format!("[[fabric.port]]\nguid = \"{:#x}\"\naddress = [\"{address}\"]\n", index + 1);
    }
    text
}

#[test]
fn another_host_gets_all_paths_or_none() {
    let Some(namespace) = Namespace::new() else { return };
    let known = hosts(&["10.77.0.1", "10.77.0.2", "10.77.0.3", "10.77.0.4"]);
    let _service = start_with(&namespace, "paths", &known);
    let port = open(&namespace);
    // From 127.0.0.1 this is another host.
    let other = Some(Ipv4Addr::new(127, 0, 0, 2));
    assert_eq!(table(&port, other, PATH_RECORD), (NO_RESOURCES, 0));
    assert_eq!(table(&port, None, PATH_RECORD), ([0, 0], 5), "a program of this host");
}

#[test]
fn hosts_with_the_same_usual_lid_are_all_listed() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = start_with(&namespace, "lids", &hosts(&["10.77.0.7", "10.78.0.7", "10.79.0.7"]));
    // With this host, and the switch that stands for the Ethernet.
    assert_eq!(table(&open(&namespace), None, NODE_RECORD), ([0, 0], 5));
}

/// A kernel takes as many datagrams as a program sends, however busy it is.
#[test]
fn a_busy_service_gets_what_is_sent_meanwhile() {
    const MANY: usize = 2000;
    let Some(namespace) = Namespace::new() else { return };
    let service = Service::start(&namespace);
    let port = open(&namespace);
    let agent = port.register(answers(0)).unwrap().unwrap();
    let pid = Pid::from_raw(service.pid());
    kill(pid, Signal::SIGSTOP).unwrap();
    let sender = thread::spawn(move || {
        let sent =
            (0..MANY).all(|_| port.send(ManagedMad { timeout_ms: 0, ..request(agent, None, 1) }).is_ok());
        (port, sent)
    });
    // More than may wait have been tried by then.
    thread::sleep(Duration::from_millis(300));
    kill(pid, Signal::SIGCONT).unwrap();
    let (port, sent) = sender.join().unwrap();
    assert!(sent);
    // All were read: what was sent last is answered.
    port.send(ManagedMad { timeout_ms: 60_000, ..request(agent, None, 77) }).unwrap();
    assert_eq!(next(&port).bytes[15], 77);
}

#[test]
fn a_program_asks_another_device_of_its_host() {
    let Some(namespace) = Namespace::new() else { return };
    add_va(&namespace);
    let _service = Service::start(&namespace);
    for (netdev, other) in [("lo", Ipv4Addr::new(10, 77, 0, 1)), ("va", Ipv4Addr::LOCALHOST)] {
        let port = open_on(&namespace, netdev);
        let agent = port.register(answers(0)).unwrap().unwrap();
        port.send(ManagedMad { timeout_ms: 500, retries: 20, ..request(agent, Some(other), 1) }).unwrap();
        let refused = next(&port);
        assert_eq!((refused.status, [refused.bytes[4], refused.bytes[5]]), (0, UNSUPPORTED), "{netdev}");
    }
}
