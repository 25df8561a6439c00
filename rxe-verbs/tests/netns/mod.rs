//! Private network namespaces for tests, each the home of one thread.
//!
//! Making them needs root. Without it, a part of the tests can be run in a namespace made beforehand:
//! `unshare -n sh -c 'ip link set lo up; RXE_TEST_NETNS=here setpriv --reuid 65534 ... PROGRAM --test-threads=1'`.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod frames;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use rxe_verbs::net::{Link, RecvBatch, interfaces::interfaces};
use socket2::{Domain, Protocol, Socket, Type};

/// How long anything may take that does happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Looks in vain after which it counts that [`PATIENCE`] is over.
const LOOKS: u32 = 200;

/// Waits for what does happen. A process that was stopped for long has not looked meanwhile: it gets its looks afterwards.
pub(crate) struct Waiting {
    start: Instant,
    looks: u32,
}

impl Waiting {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), looks: 0 }
    }

    /// Takes note of a look in vain; whether there have been enough of them.
    pub(crate) fn is_over(&mut self) -> bool {
        self.looks += 1;
        self.looks > LOOKS && self.start.elapsed() > PATIENCE
    }
}

/// Says why this test does nothing; past the test harness, which would keep it to itself.
pub(crate) fn skip(why: &str) {
    let thread = thread::current();
    let _ = writeln!(std::io::stderr(), "skipped: {}: {why}", thread.name().unwrap_or("a test"));
}

/// Whether the tests are to use the namespace they run in.
fn is_here() -> bool {
    std::env::var_os("RXE_TEST_NETNS").is_some_and(|value| value == "here")
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace of its own. Sockets made by [`run`](Self::run) stay in it wherever they are used.
pub(crate) struct Namespace {
    jobs: Sender<Job>,
    /// The thread that lives in it, for `ip ... netns ID`.
    pub(crate) thread: String,
}

impl Namespace {
    /// A namespace with the loopback up; `None`, and why on stderr, where we may not make one.
    pub(crate) fn new() -> Option<Self> {
        let (jobs, todo) = channel::<Job>();
        let (ready, started) = channel();
        thread::spawn(move || {
            let result = if is_here() { Ok(()) } else { unshare(CloneFlags::CLONE_NEWNET) };
            let result = result.map(|()| {
                let link = fs::read_link("/proc/thread-self").unwrap();
                link.file_name().unwrap().to_string_lossy().into_owned()
            });
            ready.send(result).unwrap();
            for job in todo {
                job();
            }
        });
        match started.recv().unwrap() {
            Ok(thread) => {
                let namespace = Self { jobs, thread };
                if !is_here() {
                    namespace.ip("link set lo up");
                }
                Some(namespace)
            }
            Err(error) => {
                skip(&format!("needs root: no network namespace can be made here ({error})"));
                None
            }
        }
    }

    /// Whether the kernel makes VLANs on an interface (the loopback never has any); says why the test does nothing if not.
    pub(crate) fn has_vlans(&self, interface: &'static str) -> bool {
        let try_it = move || {
            let add = ["link", "add", "link", interface, "name", "vlan4", "type", "vlan", "id", "4"];
            let made = Command::new("ip").args(add).output().unwrap();
            if !made.status.success() {
                let why = String::from_utf8_lossy(&made.stderr).trim().to_owned();
                return Err(format!("this kernel makes no VLANs (8021q): {why}"));
            }
            assert!(Command::new("ip").args(["link", "delete", "vlan4"]).status().unwrap().success());
            Ok(())
        };
        self.run(try_it).map_err(|why| skip(&why)).is_ok()
    }

    /// Runs `job` inside.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (give, take) = channel();
        self.jobs.send(Box::new(move || give.send(job()).unwrap())).unwrap();
        take.recv().expect("the job panicked")
    }

    /// Runs `ip` inside, also while a job runs.
    pub(crate) fn ip(&self, arguments: &str) {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let run = || {
            if !is_here() {
                let namespace = File::open(format!("/proc/self/task/{}/ns/net", self.thread)).unwrap();
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            }
            Command::new("ip").args(&arguments).output().expect("ip (iproute2) is needed")
        };
        let output = thread::scope(|scope| scope.spawn(run).join().unwrap());
        assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Waits until an interface works, which takes the system a moment after both ends were set up.
    pub(crate) fn await_up(&self, name: &'static str) {
        let show =
            move || Command::new("ip").args(["-o", "link", "show", name]).output().expect("ip (iproute2)");
        let deadline = Instant::now() + PATIENCE;
        while !String::from_utf8_lossy(&self.run(show).stdout).contains("state UP") {
            assert!(Instant::now() < deadline, "{name} does not come up");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Has the kernel cut batches of UDP before they leave by an interface.
    pub(crate) fn cut_batches(&self, interface: &'static str) {
        let arguments = ["-K", interface, "tx-udp-segmentation", "off"];
        let output =
            self.run(move || Command::new("ethtool").args(arguments).output().expect("ethtool is needed"));
        assert!(
            output.status.success(),
            "ethtool {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Writes a file of /proc/sys/net as seen inside.
    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/net/{name}"), value.to_owned());
        self.run(move || fs::write(&path, value).unwrap_or_else(|e| panic!("{path}: {e}")));
    }
}

/// Two namespaces joined by a veth pair: `v0` with 10.9.0.1 and fd09::1 in the first, `v1` with 10.9.0.2 and fd09::2 in
/// the second; fe80::1 and fe80::2 besides.
pub(crate) fn pair(mtu: u32) -> Option<(Namespace, Namespace)> {
    if is_here() {
        skip("it needs two network namespaces of its own");
        return None;
    }
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    left.ip(&format!("link add v0 mtu {mtu} type veth peer name v1 mtu {mtu} netns {}", right.thread));
    for (namespace, name, number) in [(&left, "v0", 1), (&right, "v1", 2)] {
        namespace.sysctl(&format!("ipv6/conf/{name}/accept_dad"), "0");
        namespace.sysctl(&format!("ipv6/conf/{name}/addr_gen_mode"), "1");
        namespace.ip(&format!("link set {name} up"));
        namespace.ip(&format!("addr add 10.9.0.{number}/24 dev {name}"));
        namespace.ip(&format!("addr add fd09::{number}/64 dev {name} nodad"));
        namespace.ip(&format!("addr add fe80::{number}/64 dev {name} nodad"));
    }
    // What is sent before is lost without a word.
    left.await_up("v0");
    right.await_up("v1");
    left.run(await_passage);
    Some((left, right))
}

/// Waits until packets of every family pass to the other end of a [`pair`] and back, which on a busy machine takes the system
/// longer than to say that the interfaces are up: addresses are put in force one after the other.
fn await_passage() {
    const DISCARD: u16 = 9;
    let index = interfaces().unwrap().iter().find(|interface| interface.name == "v0").expect("v0").index;
    let at = |ip: &str, port| match ip.parse().unwrap() {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => {
            let scope = if ip.is_unicast_link_local() { index } else { 0 };
            SocketAddrV6::new(ip, port, 0, scope).into()
        }
    };
    let start = Instant::now();
    for (own, other) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2"), ("fe80::1", "fe80::2")] {
        let answer = || {
            let socket = UdpSocket::bind(at(own, 0))?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            socket.connect(at(other, DISCARD))?;
            socket.send(&[0])?;
            socket.recv(&mut [0])
        };
        // Nobody has the port: the other end says so.
        while !answer().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            assert!(start.elapsed() < PATIENCE, "{other} is not reached from {own}");
        }
    }
}

/// A packet socket in `namespace` that sees whole frames of every interface.
pub(crate) fn capture(namespace: &Namespace) -> Socket {
    namespace.run(|| {
        let every_protocol = i32::from((libc::ETH_P_ALL as u16).to_be());
        let socket =
            Socket::new(Domain::PACKET, Type::RAW.nonblocking(), Some(Protocol::from(every_protocol)));
        socket.expect("a packet socket")
    })
}

/// The IP packets to UDP port 4791 captured until `count` are there (or patience has ended).
pub(crate) fn captured(mut socket: &Socket, count: usize) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut packets = Vec::new();
    let mut buffer = [0; 70_000];
    while packets.len() < count && Instant::now() < deadline {
        let Ok(len) = socket.read(&mut buffer) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let packet = &buffer[14.min(len)..len];
        let udp = match packet.first().map(|byte| byte >> 4) {
            Some(4) if packet[9] == 17 => 20,
            Some(6) if packet[6] == 17 => 40,
            _ => continue,
        };
        if packet[udp + 2..udp + 4] == 4791u16.to_be_bytes() {
            packets.push(packet.to_vec());
        }
    }
    packets
}

/// A packet as it came out of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) src: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) dst: IpAddr,
    pub(crate) ifindex: u32,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) bytes: Vec<u8>,
    /// Packets in the run it came in.
    pub(crate) run: usize,
}

/// Receives until `count` packets are there (or patience has ended).
pub(crate) fn receive(link: &mut dyn Link, count: usize) -> Vec<Got> {
    let mut waiting = Waiting::new();
    let mut batch = RecvBatch::default();
    let mut got = Vec::new();
    while got.len() < count {
        if link.recv(&mut batch).unwrap() == 0 {
            if waiting.is_over() {
                break;
            }
            thread::sleep(Duration::from_micros(200));
        }
        for run in batch.iter() {
            got.extend(run.packets().map(|bytes| Got {
                src: run.src,
                src_port: run.src_port,
                dst: run.dst,
                ifindex: run.ifindex,
                tos: run.tos,
                ttl: run.ttl,
                bytes: bytes.to_vec(),
                run: run.packets().len(),
            }));
        }
    }
    got
}

/// `count` packets of `size` bytes, each recognisable; the last `short` bytes shorter.
pub(crate) fn packets(count: usize, size: usize, short: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..count * size).map(|i| (i / size * 31 + i % size) as u8).collect();
    bytes.truncate(count * size - short);
    bytes
}
