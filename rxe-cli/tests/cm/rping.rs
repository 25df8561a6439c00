//! rping, both roles.

use super::{
    common::{Background, PATIENCE, failed, good, rxe, text},
    netns,
    stage::{Host, scratch, until_it_listens},
};
use rxe_cm::{ConnParams, EventChannel, EventKind, Manager, proto::PortSpace};
use rxe_verbs::{Access, Completion, Key, QpInit, QpType, RecvWr, Remote, SendOp, SendWr, WcStatus};
use std::{
    process::Command,
    time::{Duration, Instant},
};

#[test]
fn pings_come_back() {
    let Some(host) = Host::new() else { return };
    for (address, servers, clients) in [
        ("127.0.0.1", "", ""),
        ("::1", "-b ::", ""),
        ("127.0.0.1", "-b 127.0.0.1", "--own-qp"),
        ("::1", "--own-qp", ""),
        ("127.0.0.1", "--own-qp", "--own-qp"),
    ] {
        let server = host.start(&format!("rping -v -c {servers}"));
        let client = host.client(&format!("rping {address} -b {address} -n 20 -s 400 -v -c {clients}"));
        good(&client);
        let said = text(&client.stdout);
        assert!(said.contains("20 pings of 400 bytes came back as they were sent"), "{said}");
        assert_eq!(said.lines().filter(|line| line.starts_with("ping data: rdma-ping-")).count(), 20);
        let server = server.finish();
        good(&server);
        let last = text(&server.stdout).lines().last().unwrap().to_owned();
        assert!(last.starts_with("server ping data: rdma-ping-19: TUVW"), "{last}");
    }
}

#[test]
fn a_persistent_server_has_many_clients() {
    let Some(host) = Host::new() else { return };
    let _server = host.start("rping --persistent -p 99");
    good(&host.client("rping 127.0.0.1 -p 99 -n 1"));
    let clients: Vec<_> = ["127.0.0.1", "::1", "127.0.0.1", "::1"]
        .map(|address| host.start(&format!("rping {address} -p 99 -n 200 -s 65535 -c")))
        .into();
    for client in clients {
        good(&client.finish());
    }
    // One that dies leaves the server to others.
    drop(host.start("rping 127.0.0.1 -p 99"));
    good(&host.client("rping 127.0.0.1 -p 99 -n 3 -c"));
}

/// A user's threads are limited. Who comes when there is none left is refused, and the server goes on.
#[test]
fn a_client_too_many_does_not_end_the_server() {
    if ["prlimit", "setpriv"].iter().any(|tool| Command::new(tool).arg("--version").output().is_err()) {
        return netns::skip("prlimit and setpriv are not both installed (scripts/install-deps)");
    }
    let Some((here, there)) = netns::pair(1500) else { return };
    let (host, peer) = (Host::of(here), Host::of(there));
    // A user who runs nothing else, and may execute this copy.
    let (user, program) = (60_000 + std::process::id() % 5000, scratch("limited"));
    std::fs::copy(env!("CARGO_BIN_EXE_rxe"), &program).unwrap();
    let mut server = Command::new("prlimit");
    server.args(["--nproc=12", "setpriv", "--clear-groups", &format!("--reuid={user}")]);
    server.arg(&program).args(["rping", "--persistent"]);
    let server = host.run(move || Background::spawn(server));
    good(&until_it_listens(|| peer.rxe("rping 10.9.0.1 -n 1")));
    let mut crowd = Vec::new();
    let refused = loop {
        crowd.push(peer.start("rping 10.9.0.1"));
        let output = peer.rxe("rping 10.9.0.1 -n 1");
        if !output.status.success() || crowd.len() > 40 {
            break output;
        }
    };
    failed(&refused, "said no (consumer reject, 28)");
    drop(crowd);
    let start = Instant::now();
    while !peer.rxe("rping 10.9.0.1 -n 1").status.success() {
        assert!(start.elapsed() < PATIENCE, "nobody is served any more");
    }
    drop(server);
    std::fs::remove_file(program).unwrap();
}

/// Processes that share an interface by frames: each takes those of its share of the port, and connection requests find their
/// server. Clients are on the same host and beyond the interface.
#[test]
fn several_processes_over_frames_of_one_interface() {
    let Some((here, there)) = netns::pair(1500) else { return };
    let (host, peer) = (Host::of(here), Host::of(there));
    let over_frames = |arguments: &str| {
        let mut command = rxe(arguments);
        command.env("RXE_LINK", "raw");
        command
    };
    let start = |host: &Host, arguments: &str| {
        let command = over_frames(arguments);
        host.run(move || Background::spawn(command))
    };
    let _servers = [71, 72].map(|port| start(&host, &format!("rping --persistent -p {port}")));
    for port in [71, 72] {
        good(&until_it_listens(|| host.output(over_frames(&format!("rping 10.9.0.1 -p {port} -n 1")))));
    }
    let mut clients = Vec::new();
    for address in ["10.9.0.1", "fd09::1"] {
        for (from, port) in [(&host, 71), (&host, 72), (&peer, 71), (&peer, 72)] {
            clients.push(start(from, &format!("rping {address} -p {port} -n 50 -s 20000 -c")));
        }
    }
    for client in clients {
        good(&client.finish());
    }
}

/// The host service tells the client when the server is killed.
#[test]
fn the_death_of_a_server_is_told() {
    let Some(host) = Host::new() else { return };
    let server = host.start("rping --persistent");
    good(&host.client("rping 127.0.0.1 -n 1"));
    let client = host.watched(rxe("rping 127.0.0.1 -v"), "rdma-ping-5:");
    drop(server);
    let (output, _) = client.end();
    failed(&output, "it has hung up in the middle of ping");
}

/// Servers that are no rping, or a wrong one, are told to the client's user.
#[test]
fn wrong_servers_are_told() {
    // Only one that is silent is to be given up soon.
    for (wrong, patience, part) in [
        (Wrong::Data, 30, "the data of ping 1 are wrong: byte 20 is 0x21 instead of 0x49"),
        (Wrong::Silence, 1, "it has said nothing for 1 s"),
        (Wrong::Length, 30, "it sends 15 bytes; a message of rping has 16"),
        (Wrong::Gone, 30, "it has hung up in the middle of ping 1"),
    ] {
        let Some(host) = Host::new() else { return };
        let server = host.run(move || false_server(wrong));
        let output = host.rxe(&format!("rping 127.0.0.1 -n 3 -c -t {patience}"));
        failed(&output, part);
        server.join().unwrap();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Data,
    Silence,
    Length,
    Gone,
}

/// Listens in this process; its thread answers one ping well and the next in the wrong way.
fn false_server(wrong: Wrong) -> std::thread::JoinHandle<()> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let manager = Manager::open().unwrap();
    let events = EventChannel::new().unwrap();
    let listener = manager.create_id(&events, PortSpace::Tcp).unwrap();
    listener.bind("127.0.0.1:7174".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    std::thread::spawn(move || {
        let _listens = listener;
        let request = events.get_event(Some(PATIENCE)).unwrap();
        assert!(matches!(request.kind, EventKind::ConnectRequest(_)), "{request:?}");
        let context = request.id.context().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let mr = pd.alloc_mr(256, Access::LOCAL_WRITE).unwrap();
        let qp = request.id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq)).unwrap();
        let receive = || qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, 16)] }).unwrap();
        let next = || -> Completion {
            let wc = cq.poll_within(PATIENCE).unwrap().unwrap();
            assert_eq!(wc.status, WcStatus::Success);
            wc
        };
        let remote = || {
            while next().wr_id != 1 {}
            let bytes = mr.read_vec(0, 16).unwrap();
            receive();
            Remote {
                addr: u64::from_be_bytes(bytes[..8].try_into().unwrap()),
                rkey: Key(u32::from_be_bytes(bytes[8..12].try_into().unwrap())),
            }
        };
        let post = |op, at, len| qp.post_send(&SendWr::new(2, op, &[mr.sge(at, len)])).unwrap();
        receive();
        request.id.accept(&ConnParams::default()).unwrap();
        while events.get_event(Some(PATIENCE)).unwrap().kind.name() != "ESTABLISHED" {}
        for ping in 0..2 {
            let from = remote();
            post(SendOp::Read(from), 64, 64);
            while next().opcode != rxe_verbs::WcOpcode::Read {}
            if ping == 1 {
                match wrong {
                    Wrong::Data => mr.write_at(64 + 20, &[0x21]).unwrap(),
                    Wrong::Length => post(SendOp::Send, 0, 15),
                    Wrong::Gone => request.id.disconnect().unwrap(),
                    Wrong::Silence => {}
                }
                if wrong != Wrong::Data {
                    break;
                }
            }
            post(SendOp::Send, 32, 16);
            let to = remote();
            post(SendOp::Write(to), 64, 64);
            post(SendOp::Send, 32, 16);
        }
        // Until the client stops.
        while events.get_event(Some(PATIENCE)).unwrap().kind.name() != "DISCONNECTED" {}
    })
}
