//! The connection manager between processes of one host: through the host service, and after the death of one.

#[path = "common/mod.rs"]
mod common;
#[path = "../../rxe-verbs/tests/netns/mod.rs"]
mod netns;

use common::LASTING;
use netns::Namespace;
use rxe_cm::{
    CmId, ConnParams, EventChannel, EventKind, Manager,
    proto::{PortSpace, RejectReason, SidrStatus},
};
use rxe_verbs::{Access, QpInit, QpType, RecvWr, SendOp, SendWr, WcStatus, host::Observer};
use std::{
    io::{BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 7174;
const CONNECTIONS: usize = 3;
const HOMES: [&str; 2] = ["127.0.0.1", "::1"];

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A host service, in a process of its own.
fn service(namespace: &Namespace) -> Killed {
    let child = namespace.run(|| {
        Command::new(env!("CARGO_BIN_EXE_rxe"))
            .args(["service", "run"])
            .env("RXE_CONFIG", LASTING)
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    });
    let child = Killed(child);
    let start = Instant::now();
    while namespace.run(|| Observer::connect().ok().flatten()).is_none() {
        assert!(start.elapsed() < PATIENCE, "the service does not come up");
        thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Runs a test below that is ignored, in a process of its own inside the namespace, until it says that it is ready.
fn child(namespace: &Namespace, test: &'static str, home: &'static str) -> Killed {
    let mut child = namespace.run(move || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
            .env("RXE_TEST_HOME", home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
    }
    Killed(child)
}

fn at(home: &str, port: u16) -> SocketAddr {
    SocketAddr::new(home.parse::<IpAddr>().unwrap(), port)
}

/// Waits for an event of that name.
fn expect(channel: &EventChannel, name: &str) -> rxe_cm::CmEvent {
    let event = channel.get_event(Some(PATIENCE)).unwrap();
    assert_eq!(event.kind.name(), name, "{event:?}");
    event
}

fn resolved(manager: &Manager, channel: &EventChannel, space: PortSpace, to: SocketAddr) -> CmId {
    let id = manager.create_id(channel, space).unwrap();
    id.resolve_addr(None, to).unwrap();
    expect(channel, "ADDR_RESOLVED");
    id.resolve_route().unwrap();
    expect(channel, "ROUTE_RESOLVED");
    id
}

#[test]
fn connections_to_a_process_that_is_killed() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = service(&namespace);
    for home in HOMES {
        let mut server = child(&namespace, "child_listens", home);
        namespace.run(move || {
            let manager = Manager::open().unwrap();
            let channel = EventChannel::new().unwrap();
            let mut ids = Vec::new();
            for number in 0..CONNECTIONS {
                let id = resolved(&manager, &channel, PortSpace::Tcp, at(home, PORT));
                let context = id.context().unwrap();
                let pd = context.alloc_pd().unwrap();
                let cq = context.create_cq(16, None).unwrap();
                let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
                let qp = id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq)).unwrap();
                qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, 32)] }).unwrap();
                id.connect(&ConnParams { private_data: &[number as u8], ..ConnParams::default() }).unwrap();
                let event = expect(&channel, "ESTABLISHED");
                assert_eq!(event.private_data[0], number as u8 + 100);
                let wc = cq.poll_within(PATIENCE).unwrap().expect("a greeting");
                assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
                assert_eq!(mr.read_vec(0, 5).unwrap(), b"hello");
                ids.push((id, qp));
            }
            server.0.kill().unwrap();
            let killed = Instant::now();
            for _ in 0..CONNECTIONS {
                expect(&channel, "DISCONNECTED");
            }
            println!("{home}: told of the end of {CONNECTIONS} connections after {:?}", killed.elapsed());
            ids.iter().for_each(|(id, _)| id.disconnect().unwrap());
        });
    }
}

#[test]
#[ignore = "run by connections_to_a_process_that_is_killed"]
fn child_listens() {
    let home = std::env::var("RXE_TEST_HOME").unwrap();
    let manager = Manager::open().unwrap();
    let channel = EventChannel::new().unwrap();
    let listener = manager.create_id(&channel, PortSpace::Tcp).unwrap();
    listener.bind(at(&home, PORT)).unwrap();
    listener.listen(0).unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let request = expect(&channel, "CONNECT_REQUEST");
        let id = request.id;
        let context = id.context().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
        let qp = id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq)).unwrap();
        let answer = [request.private_data[0] + 100];
        id.accept(&ConnParams { private_data: &answer, ..ConnParams::default() }).unwrap();
        expect(&channel, "ESTABLISHED");
        mr.write_at(0, b"hello").unwrap();
        qp.post_send(&SendWr::new(1, SendOp::Send, &[mr.sge(0, 5)])).unwrap();
        open.push((id, mr, cq));
    }
    thread::sleep(2 * PATIENCE);
}

/// The host service answers for ports on which no program listens, and the port of a dead process is free.
#[test]
fn ports_that_nobody_listens_to() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = service(&namespace);
    namespace.run(|| {
        let manager = Manager::open().unwrap();
        let channel = EventChannel::new().unwrap();
        for home in HOMES {
            let id = resolved(&manager, &channel, PortSpace::Tcp, at(home, PORT));
            let context = id.context().unwrap();
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq(16, None).unwrap();
            id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq)).unwrap();
            id.connect(&ConnParams::default()).unwrap();
            let event = expect(&channel, "REJECTED");
            assert!(matches!(event.kind, EventKind::Rejected(RejectReason::INVALID_SERVICE_ID)));
            let id = resolved(&manager, &channel, PortSpace::Udp, at(home, PORT));
            id.connect(&ConnParams::default()).unwrap();
            let event = expect(&channel, "UNREACHABLE");
            assert!(matches!(event.kind, EventKind::NoService(SidrStatus::UNSUPPORTED)), "{event:?}");
        }
    });
}

#[test]
fn a_port_is_had_by_one_process_until_it_dies() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = service(&namespace);
    let other = child(&namespace, "child_has_a_port", HOMES[0]);
    let mut other = Some(other);
    namespace.run(move || {
        let manager = Manager::open().unwrap();
        let channel = EventChannel::new().unwrap();
        let id = manager.create_id(&channel, PortSpace::Tcp).unwrap();
        // A loopback address counts as all addresses (cma_check_port).
        let error = id.bind(at(HOMES[0], PORT)).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{error}");
        // Of another port space, it is another port.
        manager.create_id(&channel, PortSpace::Udp).unwrap().bind(at(HOMES[0], PORT)).unwrap();
        drop(other.take());
        let start = Instant::now();
        while let Err(error) = id.bind(at(HOMES[0], PORT)) {
            assert!(start.elapsed() < PATIENCE, "{error}");
            thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
#[ignore = "run by a_port_is_had_by_one_process_until_it_dies"]
fn child_has_a_port() {
    let manager = Manager::open().unwrap();
    let channel = EventChannel::new().unwrap();
    let id = manager.create_id(&channel, PortSpace::Tcp).unwrap();
    id.bind(at(&std::env::var("RXE_TEST_HOME").unwrap(), PORT)).unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    thread::sleep(2 * PATIENCE);
}
