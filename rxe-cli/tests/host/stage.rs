//! What the tests of the host service share: a service, and ends with a queue pair 1 that exchange messages.

use super::{common::LASTING, netns::Namespace};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrStorage, UnixAddr, connect,
    getpeername, getsockname, sendmsg, socket,
};
use rxe_verbs::{
    Access, Completion, Context, ContextOptions, Cq, Gid, Mr, Psn, Qkey, Qp, QpChange, QpInit, QpState,
    QpType, Qpn, RecvWr, SendOp, SendWr, UdDest, WcStatus,
    host::{Listen, Observer, report::ServiceReport},
};
use std::{
    fs,
    io::{BufRead, BufReader, IoSlice, Read, Write},
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// The name that services have (`rxe-verbs/src/host/message.rs`).
pub(crate) const NAME: &[u8] = b"rxe/4791";

/// A service in a namespace; ended at the end.
pub(crate) struct Service(Child);

impl Service {
    pub(crate) fn start(namespace: &Namespace) -> Self {
        Self::start_with(namespace, LASTING)
    }

    /// With this configuration.
    pub(crate) fn start_with(namespace: &Namespace, config: &str) -> Self {
        let config = config.to_owned();
        let child = namespace.run(move || {
            Command::new(env!("CARGO_BIN_EXE_rxe"))
                .args(["service", "run"])
                .env("RXE_CONFIG", config)
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        });
        until(|| observe(namespace).is_some());
        Self(child)
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap().count()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
pub(crate) fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a test that is ignored, in a process of its own inside the namespace.
pub(crate) fn child(namespace: &Namespace, test: &str) -> (Child, BufReader<ChildStdout>) {
    let test = test.to_owned();
    let mut child = namespace.run(move || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--ignored", "--nocapture", "--test-threads=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// Waits for a line of a child's.
pub(crate) fn hear(output: &mut impl BufRead, wanted: &str) -> String {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended before it said {wanted:?}");
    }
    line
}

/// Has a child go on.
pub(crate) fn go_on(child: &mut Child) {
    child.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
}

/// In a child: waits for [`go_on`], or the parent's end.
pub(crate) fn wait_for_parent() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Waits for a child, which ends well.
pub(crate) fn finish(mut child: Child, mut output: impl Read) {
    drop(child.stdin.take());
    let mut rest = String::new();
    let _ = output.read_to_string(&mut rest);
    assert!(child.wait().unwrap().success(), "{rest}");
}

pub(crate) fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

pub(crate) fn observe(namespace: &Namespace) -> Option<ServiceReport> {
    namespace.run(|| Observer::connect().ok().flatten()?.status().ok())
}

/// Waits until the service reports so.
#[track_caller]
pub(crate) fn becomes(namespace: &Namespace, so: impl Fn(&ServiceReport) -> bool) -> ServiceReport {
    let start = Instant::now();
    let mut last = None;
    loop {
        let report = observe(namespace);
        match report {
            Some(report) if so(&report) => return report,
            Some(report) => last = Some(report),
            None => {}
        }
        assert!(start.elapsed() < PATIENCE, "it does not happen; the last report: {last:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A process's share of the port, with a queue pair 1. Each is a stack of its own, as if it were a process of its own.
pub(crate) struct End {
    pub(crate) context: Context,
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

/// Where a message lies in the region, behind room for the GRH of received ones.
pub(crate) const GRH: usize = 40;
pub(crate) const MAD: usize = 256;
pub(crate) const OUT: usize = 4096;

impl End {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        namespace.run(Self::here)
    }

    /// In the namespace that the thread is in.
    pub(crate) fn here() -> Self {
        // A partition table of one's own makes a stack of one's own.
        let options = ContextOptions::new().pkeys(vec![rxe_verbs::Pkey::DEFAULT]);
        let context = options.open_address(HOME).unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.alloc_mr(8192, Access::LOCAL_WRITE).unwrap();
        let cq = context.create_cq(64, None).unwrap();
        let qp = pd.create_qp(&QpInit::new(QpType::Gsi, &cq)).unwrap();
        let none = QpChange::default();
        let qkey = Some(Qkey::GSI);
        qp.modify(&QpChange { state: Some(QpState::Init), pkey_index: Some(0), qkey, ..none }).unwrap();
        qp.modify(&QpChange { state: Some(QpState::Rtr), ..none }).unwrap();
        qp.modify(&QpChange { state: Some(QpState::Rts), sq_psn: Some(Psn::new(1)), ..none }).unwrap();
        let end = Self { context, qp, cq, mr };
        for place in 0..4 {
            let sges = [end.mr.sge(place * 512, 512)];
            end.qp.post_recv(&RecvWr { wr_id: place as u64, sges: &sges }).unwrap();
        }
        end
    }

    pub(crate) fn slot(&self) -> u8 {
        self.context.host_port().unwrap().slot()
    }

    pub(crate) fn send(&self, mad: &[u8; MAD]) {
        self.mr.write_at(OUT, mad).unwrap();
        let av = self.context.address_vector(0, Gid::from(HOME)).unwrap();
        let dest = Some(UdDest { av, remote_qpn: Qpn::GSI, remote_qkey: Qkey::GSI, pkey: None });
        let sges = [self.mr.sge(OUT, MAD as u32)];
        self.qp.post_send(&SendWr { dest, ..SendWr::new(100, SendOp::Send, &sges) }).unwrap();
    }

    pub(crate) fn next(&self) -> Completion {
        let wc = self.cq.poll_within(PATIENCE).unwrap().expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
        wc
    }

    /// The next message received.
    pub(crate) fn receive(&self) -> Vec<u8> {
        loop {
            let wc = self.next();
            if wc.wr_id < 100 {
                let at = wc.wr_id as usize * 512;
                let mad = self.mr.read_vec(at + GRH, MAD).unwrap();
                self.qp.post_recv(&RecvWr { wr_id: wc.wr_id, sges: &[self.mr.sge(at, 512)] }).unwrap();
                return mad;
            }
        }
    }

    pub(crate) fn hears_nothing(&self) {
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            if let Some(wc) = self.cq.poll_within(Duration::from_millis(10)).unwrap() {
                assert!(wc.wr_id >= 100, "{wc:?}");
            }
        }
    }
}

/// A message of the connection manager.
pub(crate) fn mad(attribute: u16, local: u32, remote: u32, service_id: u64) -> [u8; MAD] {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[24..28].copy_from_slice(&local.to_be_bytes());
    if matches!(attribute, REQ | SIDR_REQ) {
        mad[32..40].copy_from_slice(&service_id.to_be_bytes());
    } else {
        mad[28..32].copy_from_slice(&remote.to_be_bytes());
    }
    mad[100..].fill(attribute as u8);
    mad
}

pub(crate) const REQ: u16 = 0x10;
pub(crate) const REP: u16 = 0x13;
pub(crate) const SIDR_REQ: u16 = 0x17;
pub(crate) const SIDR_REP: u16 = 0x18;
pub(crate) const SERVICE: u64 = 0x0000_0000_0106_1234;

pub(crate) fn listens(service_id: u64) -> Listen {
    Listen { service_id, address: None, reuse: false }
}

/// `b` asks, `a` answers.
pub(crate) fn exchange(a: &End, b: &End, round: u32) {
    exchange_of(a, b, round, SERVICE);
}

/// The same about another service.
pub(crate) fn exchange_of(a: &End, b: &End, round: u32, service_id: u64) {
    let comm_id = |end: &End| u32::from(end.slot()) << 24 | round;
    let request = mad(REQ, comm_id(b), 0, service_id);
    b.send(&request);
    assert_eq!(a.receive(), request);
    let reply = mad(REP, comm_id(a), comm_id(b), 0);
    a.send(&reply);
    assert_eq!(b.receive(), reply);
}

/// A raw connection to the service.
pub(crate) fn raw(namespace: &Namespace) -> OwnedFd {
    namespace.run(raw_here)
}

/// In the namespace that the thread is in.
pub(crate) fn raw_here() -> OwnedFd {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(fd.as_raw_fd(), &UnixAddr::new_abstract(NAME).unwrap()).unwrap();
    fd
}

/// Says something to the service, with descriptors; false if it has closed the connection.
pub(crate) fn say_raw(fd: &OwnedFd, bytes: &[u8], fds: &[i32]) -> bool {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &rights[..0] } else { &rights[..] };
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(fd.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).is_ok()
}

/// The version of the service's messages that this release speaks: written out, so that a change of it is a decision.
pub(crate) const VERSION: u8 = 8;

/// This version, an observer or a client with a short name.
pub(crate) fn hello(role: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, b'r', b'x', b'e', b'h', VERSION, VERSION, 0, 1, b'x'];
    bytes.extend(role);
    bytes
}

pub(crate) const JOIN: &[u8] = b"\0\x01x";
pub(crate) const OBSERVE: &[u8] = b"\x02";

/// The port-4791 sockets that this process has in a namespace.
pub(crate) fn group_sockets(namespace: &Namespace) -> Vec<RawFd> {
    sockets_where(namespace, |fd| {
        let name = getsockname::<SockaddrStorage>(fd).ok();
        let port = |name: SockaddrStorage| {
            let v4 = name.as_sockaddr_in().map(|v4| v4.port());
            v4.or_else(|| name.as_sockaddr_in6().map(|v6| v6.port()))
        };
        name.and_then(port) == Some(4791)
    })
}

/// The connections to the host service that this process has in a namespace.
pub(crate) fn connections(namespace: &Namespace) -> Vec<RawFd> {
    sockets_where(namespace, |fd| {
        let peer = getpeername::<SockaddrStorage>(fd).ok();
        peer.is_some_and(|peer| peer.as_unix_addr().is_some_and(|name| name.as_abstract() == Some(NAME)))
    })
}

fn sockets_where(namespace: &Namespace, fits: impl Fn(RawFd) -> bool) -> Vec<RawFd> {
    const SIOCGSKNS: libc::c_ulong = 0x894c;
    let home = namespace.run(|| fs::read_link("/proc/thread-self/ns/net").unwrap());
    let numbers = fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    numbers
        .filter(|fd| {
            if !fits(*fd) {
                return false;
            }
            // SAFETY: gives a new descriptor of the socket's namespace, or an error.
            let place = unsafe { libc::ioctl(*fd, SIOCGSKNS as _) };
            let link = fs::read_link(format!("/proc/self/fd/{place}"));
            // SAFETY: made just now, and nobody else's.
            unsafe { libc::close(place) };
            link.is_ok_and(|link| link == home)
        })
        .collect()
}
