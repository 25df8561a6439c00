//! The host service, from its start until it is killed: requests reach their listener and replies their process, and broken messages
//! and those of others reach nobody.

mod abuse;
#[path = "../common/mod.rs"]
mod common;
mod descriptors;
mod direct;
mod late;
mod life;
mod manage;
mod memory;
#[path = "../../../rxe-verbs/tests/netns/mod.rs"]
mod netns;
mod shards;
mod slate;
mod stage;
mod traffic;

use common::{LASTING, text};
use netns::Namespace;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv, socket};
use stage::{
    End, JOIN, NAME, OBSERVE, REQ, SERVICE, SIDR_REP, SIDR_REQ, Service, VERSION, exchange, group_sockets,
    hello, listens, mad, observe, raw, say_raw, until,
};
use std::{
    fs,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

#[test]
fn requests_find_their_listener_and_replies_their_process() {
    let Some(namespace) = Namespace::new() else { return };
    let mut service = Service::start(&namespace);
    let (a, b, c) = (End::new(&namespace), End::new(&namespace), End::new(&namespace));
    assert_ne!(a.slot(), b.slot());
    let token = a.context.host_port().unwrap().listen(listens(SERVICE)).expect("nobody else listens");
    assert_eq!(b.context.host_port().unwrap().listen(listens(SERVICE)), None, "somebody does now");
    exchange(&a, &b, 1);
    c.hears_nothing();
    let report = observe(&namespace).unwrap();
    assert_eq!((report.counters.dispatched, report.counters.handed_on), (1, 0), "{report:?}");
    // Nobody listens there.
    b.send(&mad(REQ, 0x11, 0, SERVICE + 1));
    until(|| observe(&namespace).unwrap().counters.unheard == 1);
    // The next service knows who listens, and who has which slot.
    service.kill();
    until(|| observe(&namespace).is_some_and(|report| report.counters.rejoined == 3));
    until(|| observe(&namespace).unwrap().clients.iter().any(|client| !client.listening.is_empty()));
    exchange(&a, &b, 2);
    let report = observe(&namespace).unwrap();
    assert!(report.embedded && report.pid == std::process::id(), "{report:?}");
    a.context.host_port().unwrap().unlisten(token);
    until(|| observe(&namespace).unwrap().clients.iter().all(|client| client.listening.is_empty()));
    assert!(c.context.host_port().unwrap().listen(listens(SERVICE)).is_some());
    // A newcomer gets a slot of its own.
    let d = End::new(&namespace);
    assert!([&a, &b, &c].iter().all(|end| end.slot() != d.slot()));
}

#[test]
fn broken_messages_cost_their_sender_the_connection() {
    let Some(namespace) = Namespace::new() else { return };
    let service = Service::start(&namespace);
    let (a, b) = (End::new(&namespace), End::new(&namespace));
    let _token = a.context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
    exchange(&a, &b, 1);
    let before = (observe(&namespace).unwrap(), service.descriptors());
    let devnull = fs::File::open("/dev/null").unwrap();
    let devnull = devnull.as_raw_fd();
    let mut offences = 0;
    let mut offend = |messages: &[(&[u8], &[i32])]| {
        let fd = raw(&namespace);
        for (bytes, fds) in messages {
            say_raw(&fd, bytes, fds);
        }
        offences += 1;
        until(|| observe(&namespace).unwrap().counters.misbehaved == offences);
        exchange(&a, &b, 10 + offences as u32);
    };
    let observer = hello(OBSERVE);
    offend(&[(&[0xee; 100], &[])]);
    offend(&[(&observer[..5], &[])]);
    offend(&[(&[0; 20_000], &[])]);
    offend(&[(b"\0rxex\x03\x03\0\x01x\x02", &[])]);
    // Listen, before a hello and as an observer; a second hello.
    offend(&[(b"\x01\x05\x05\0\0", &[])]);
    offend(&[(&observer, &[]), (b"\x01\x05\x05\0\0", &[])]);
    offend(&[(&observer, &[]), (&observer, &[])]);
    // Descriptors that nobody asked for: with a question, too many, and one that is no pidfd.
    offend(&[(&observer, &[]), (b"\x05", &[devnull])]);
    offend(&[(&observer, &[devnull; 250])]);
    offend(&[(&hello(JOIN), &[devnull])]);
    // A client that leaves in the middle is no offence.
    drop(raw(&namespace));
    // Many at once, and all silent.
    let crowd: Vec<OwnedFd> = (0..600).map(|_| raw(&namespace)).collect();
    exchange(&a, &b, 99);
    drop(crowd);
    until(|| service.descriptors() <= before.1);
    let after = observe(&namespace).unwrap();
    assert_eq!((after.clients.len(), after.counters.joined), (2, before.0.counters.joined));
    assert!(after.log.iter().filter(|line| line.contains("was cut off")).count() >= 10, "{:?}", after.log);
    exchange(&a, &b, 100);
}

/// Newer and older releases: both sides agree on a version, or one is told to upgrade.
#[test]
fn releases_meet_or_say_who_is_to_upgrade() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let answer = |oldest: u8, newest: u8, role: &[u8]| {
        let fd = raw(&namespace);
        let mut bytes = vec![0, b'r', b'x', b'e', b'h', oldest, newest, 0, 3];
        bytes.extend(b"9.9");
        bytes.extend(role);
        // What a newer release has added.
        bytes.extend([7; 9]);
        assert!(say_raw(&fd, &bytes, &[]));
        let mut buffer = [0; 4096];
        let len = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
        buffer[..len].to_vec()
    };
    let welcome = answer(1, 9, JOIN);
    assert_eq!(welcome[..2], [0, VERSION], "{welcome:?}");
    for (oldest, newest, words) in [(1, VERSION - 1, "upgrade the program"), (VERSION + 1, 99, "upgrade it")]
    {
        let refusal = answer(oldest, newest, JOIN);
        let said = String::from_utf8_lossy(&refusal).into_owned();
        assert!(refusal[0] == 1 && said.contains(words) && said.contains("9.9"), "{said}");
    }
}

#[test]
fn the_host_s_file_is_everybody_s() {
    let Some(namespace) = Namespace::new() else { return };
    let file = std::env::temp_dir().join(format!("rxe-host-{}.toml", std::process::id()));
    fs::write(&file, "pkeys = [0xffff, 0x8123]\n[service]\nidle_seconds = 60\n").unwrap();
    let _service = Service::start_with(&namespace, file.to_str().unwrap());
    let rxe = |arguments: &'static str| {
        let output = namespace.run(move || {
            Command::new(env!("CARGO_BIN_EXE_rxe")).args(arguments.split(' ')).output().unwrap()
        });
        assert!(output.status.success(), "{arguments}: {output:?}");
        text(&output.stdout).to_owned()
    };
    assert_eq!(rxe("stat"), "no process uses the port now\n");
    let context = namespace.run(|| rxe_verbs::Context::open_address(stage::HOME).unwrap());
    assert_eq!(*context.pkeys(), [rxe_verbs::Pkey(0xffff), rxe_verbs::Pkey(0x8123)]);
    let status = rxe("service status");
    assert!(status.contains("P_Keys 0xffff 0x8123") && status.contains("slot   1"), "{status}");
    let stat = rxe("stat --qps");
    assert!(stat.contains("slot 1: process ") && stat.contains("0 queue pairs"), "{stat}");
    let link = rxe("link show");
    assert_eq!(link, "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo \n");
    fs::write(&file, "pkeys = [0]").unwrap();
    let wrong = file.to_str().unwrap().to_owned();
    let output = Namespace::new().unwrap().run(move || {
        Command::new(env!("CARGO_BIN_EXE_rxe"))
            .args(["service", "run"])
            .env("RXE_CONFIG", wrong)
            .output()
            .unwrap()
    });
    assert!(!output.status.success() && text(&output.stderr).contains("0x0000 is not a partition key"));
    fs::remove_file(&file).unwrap();
}

/// A queue pair that is its own peer, and refuses what it asks for: it is in error then, before the refusal has come to it.
fn refused_by_itself(context: &rxe_verbs::Context) -> (rxe_verbs::Qp, rxe_verbs::Cq) {
    use rxe_verbs::{Access, Gid, Psn, QpChange, QpInit, QpState, QpType, Remote, SendOp, SendWr, Sge};
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8, None).unwrap());
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let to = |state| QpChange { state: Some(state), ..QpChange::default() };
    let init = QpChange { pkey_index: Some(0), port: Some(1), ..to(QpState::Init) };
    qp.modify(&QpChange { access: Some(Access::REMOTE_WRITE), ..init }).unwrap();
    let av = context.address_vector(0, Gid::from(stage::HOME)).unwrap();
    let rtr =
        QpChange { av: Some(av), dest_qpn: Some(qp.qpn()), rq_psn: Some(Psn::new(0)), ..to(QpState::Rtr) };
    let limits = QpChange { max_dest_rd_atomic: Some(1), min_rnr_timer: Some(1), ..rtr };
    qp.modify(&QpChange { path_mtu: Some(rxe_verbs::Mtu::M1024), ..limits }).unwrap();
    let rts =
        QpChange { sq_psn: Some(Psn::new(0)), timeout: Some(14), retry_count: Some(7), ..to(QpState::Rts) };
    qp.modify(&QpChange { rnr_retry: Some(7), max_rd_atomic: Some(1), ..rts }).unwrap();
    // The region is nobody's to write to.
    let remote = Remote { addr: mr.addr(), rkey: mr.rkey() };
    let sge = Sge { addr: mr.addr(), len: 8, lkey: mr.lkey() };
    qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[sge])).unwrap();
    let wc = cq.poll_within(stage::PATIENCE).unwrap().unwrap();
    assert_eq!(wc.status, rxe_verbs::WcStatus::WorkRequestFlushed);
    (qp, cq)
}

#[test]
fn stat_says_why_a_queue_pair_refused() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (qp, _cq) =
        namespace.run(|| refused_by_itself(&rxe_verbs::Context::open_address(stage::HOME).unwrap()));
    let output =
        namespace.run(|| Command::new(env!("CARGO_BIN_EXE_rxe")).args(["stat", "--qps"]).output().unwrap());
    let (stat, line) = (text(&output.stdout), format!("    refused: {}\n", qp.reasons().refused.unwrap()));
    assert!(line.contains("RDMA WRITE to 0x") && stat.contains(&line), "{line:?} {stat}");
}

/// What rxe-sysfs asks when a program opens a file of the view: the bytes are written and read by hand, as there.
#[test]
fn files_of_the_view_count() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let ask = |path: &str| {
        let question = [&[9, path.len() as u8][..], path.as_bytes()].concat();
        let fd = raw(&namespace);
        assert!(say_raw(&fd, &question, &[]));
        let mut answer = [0; 512];
        let len = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        assert_eq!((&answer[..2], usize::from(answer[2])), (&[6, 1][..], len - 3), "{path}");
        text(&answer[3..len]).to_owned()
    };
    let sent = || ask("rxe0/ports/1/hw_counters/sent_pkts").trim().parse::<u64>().unwrap();
    assert_eq!((ask("rxe0/ports/1/state").as_str(), sent()), ("4: ACTIVE\n", 0));
    assert_eq!(ask("rxe0/ports/1/pkeys/0"), "0xffff\n");
    for nothing in ["rxe9/ports/1/state", "rxe0/ports/2/state", "../x", "rxe0/ports/1/counters/x", ""] {
        assert_eq!(ask(nothing), "", "{nothing}");
    }
    let (a, b) = (End::new(&namespace), End::new(&namespace));
    let _token = a.context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
    exchange(&a, &b, 1);
    let during = sent();
    assert!(during > 0);
    drop((a, b));
    until(|| observe(&namespace).is_some_and(|report| report.clients.is_empty()));
    assert!(sent() >= during, "what is gone was counted");
    namespace.ip("link set lo down");
    assert_eq!(ask("rxe0/ports/1/state"), "1: DOWN\n");
}

#[test]
fn strangers_are_refused_in_words() {
    let Some(namespace) = Namespace::new() else { return };
    let program = for_everybody();
    let service = Service::start(&namespace);
    let user = End::new(&namespace);
    let rxe = |arguments| as_nobody(&namespace, &program, arguments);
    for command in ["service status", "pingpong rc"] {
        let output = rxe(command);
        let said = text(&output.stderr).to_owned();
        assert!(!output.status.success() && said.contains("belongs to user 0"), "{command}: {said}");
    }
    drop((user, service));
}

/// Runs the program as another user. A service that it starts lives long, and is to be stopped.
fn as_nobody(namespace: &Namespace, program: &Path, arguments: &'static str) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command.args(arguments.split(' ')).env("RXE_SERVICE", program).env("RXE_CONFIG", LASTING);
    namespace.run(move || command.output().unwrap())
}

/// Whether another user has a share of the port.
fn nobody_gets_a_slot(namespace: &Namespace, program: &Path) {
    let output = as_nobody(namespace, program, "doctor");
    let good = |line: &str| line.starts_with("ok ") && line.contains("port 4791");
    assert!(text(&output.stdout).lines().any(good), "{output:?}");
}

/// Programs of several users use the port one after the other, and none has to wait until the service of another user ends by itself.
#[test]
fn an_idle_service_makes_room_for_another_user() {
    let Some(namespace) = Namespace::new() else { return };
    let program = for_everybody();
    let file = std::env::temp_dir().join(format!("rxe-idle-{}.toml", std::process::id()));
    fs::write(&file, "[service]\nidle_seconds = 600\n").unwrap();
    let _service = Service::start_with(&namespace, file.to_str().unwrap());
    drop(End::new(&namespace));
    until(|| observe(&namespace).is_some_and(|report| report.clients.is_empty()));
    nobody_gets_a_slot(&namespace, &program);
    assert!(as_nobody(&namespace, &program, "service stop").status.success());
    fs::remove_file(file).unwrap();
}

/// A program that holds the service's name without being one does not prevent others from finding each other by a file.
#[test]
fn a_stranger_with_the_name_is_not_in_the_way() {
    let Some(namespace) = Namespace::new() else { return };
    let program = for_everybody();
    let squatter = namespace.run(|| {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(fd.as_raw_fd(), &UnixAddr::new_abstract(NAME).unwrap()).unwrap();
        listen(&fd, nix::sys::socket::Backlog::new(8).unwrap()).unwrap();
        fd
    });
    nobody_gets_a_slot(&namespace, &program);
    let shown = as_nobody(&namespace, &program, "service status --log");
    assert!(text(&shown.stdout).contains("user 0 (process"), "{shown:?}");
    drop(squatter);
    // The service is still found, and no second one is started.
    let shown = as_nobody(&namespace, &program, "service status");
    assert!(text(&shown.stdout).contains("user 65534"), "{shown:?}");
    nobody_gets_a_slot(&namespace, &program);
    assert!(as_nobody(&namespace, &program, "service stop").status.success());
}

/// The program where everybody may run it.
fn for_everybody() -> PathBuf {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let folder = std::env::temp_dir().join(format!("rxe-cli-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let copy = folder.join("rxe");
        fs::copy(env!("CARGO_BIN_EXE_rxe"), &copy).unwrap();
        copy
    };
    COPY.get_or_init(make).clone()
}

/// Service ID resolution: the request finds its listener, the reply its request's process.
#[test]
fn resolutions_find_their_listener_and_replies_their_process() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let (a, b, c) = (End::new(&namespace), End::new(&namespace), End::new(&namespace));
    let _token = a.context.host_port().unwrap().listen(listens(SERVICE)).expect("nobody else listens");
    let mut round = 0;
    // Requests that went by the service.
    let mut dispatched = || {
        round += 1;
        let id = u32::from(b.slot()) << 24 | round;
        let request = mad(SIDR_REQ, id, 0, SERVICE);
        b.send(&request);
        assert_eq!(a.receive(), request);
        // A reply has the number of the request where requests and other replies have the sender's.
        let reply = mad(SIDR_REP, id, u32::from(c.slot()) << 24, 0);
        a.send(&reply);
        assert_eq!(b.receive(), reply);
        observe(&namespace).unwrap().counters.dispatched
    };
    let mut before = dispatched();
    assert_eq!(before, 1);
    // Others find it without the service, as soon as that has seen to it.
    until(|| core::mem::replace(&mut before, dispatched()) == before);
    let before = dispatched();
    for _ in 0..3 {
        assert_eq!(dispatched(), before);
    }
    c.hears_nothing();
    let counters = observe(&namespace).unwrap().counters;
    assert_eq!((counters.handed_on, counters.unheard), (0, 0), "{counters:?}");
    b.send(&mad(SIDR_REQ, 0x11, 0, SERVICE + 1));
    until(|| observe(&namespace).unwrap().counters.unheard == 1);
    for end in [&a, &c] {
        end.hears_nothing();
    }
}

/// A process that takes the group's program away, from everybody; the service puts it back.
#[test]
fn a_changed_steering_program_is_mended() {
    let Some(namespace) = Namespace::new() else { return };
    let _service = Service::start(&namespace);
    let ends: Vec<End> = (0..4).map(|_| End::new(&namespace)).collect();
    let _token = ends[0].context.host_port().unwrap().listen(listens(SERVICE)).unwrap();
    exchange(&ends[0], &ends[1], 1);
    for socket in group_sockets(&namespace) {
        const DETACH_REUSEPORT_BPF: i32 = 68;
        let none = 0_i32;
        // SAFETY: the option takes an int, which lives through the call.
        let result = unsafe {
            libc::setsockopt(socket, libc::SOL_SOCKET, DETACH_REUSEPORT_BPF, (&raw const none).cast(), 4)
        };
        // All members of a family have one program.
        let gone = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
        assert!(result == 0 || gone, "{}", std::io::Error::last_os_error());
    }
    // Until then packets come to whichever process the hash of their addresses names, and are handed on.
    let mut packet = [0; 24];
    packet[..12].copy_from_slice(&[0x64, 0x40, 0xff, 0xff, 0, ends[3].slot(), 0x77, 0x77, 0, 0, 0, 1]);
    until(|| {
        namespace.run(move || {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(&packet, "127.0.0.1:4791").unwrap();
        });
        observe(&namespace).unwrap().counters.handed_on > 0
    });
    until(|| ends[3].context.port_stats().dropped_no_qp > 0);
    until(|| observe(&namespace).unwrap().counters.mended > 0);
    for (round, end) in (2..).zip(&ends[1..]) {
        exchange(&ends[0], end, round);
    }
}
