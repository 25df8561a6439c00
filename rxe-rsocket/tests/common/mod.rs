//! Two hosts with rsockets, on a network inside the process.
#![allow(dead_code, reason = "each test file uses a part")]

use rxe_cm::Manager;
use rxe_rsocket::{Domain, Flags, Settings, SocketError, Stack, StreamSocket};
use rxe_verbs::{Context, net::InprocNet};
use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

pub(crate) const PORT: u16 = 7471;
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Host {
    pub(crate) address: IpAddr,
    pub(crate) context: Context,
    pub(crate) manager: Manager,
    pub(crate) stack: Stack,
}

impl Host {
    pub(crate) fn new(net: &InprocNet, address: &str, settings: Settings) -> Self {
        let address = address.parse().unwrap();
        let context = Context::open_inproc(net, &[address]).unwrap();
        let manager = Manager::on(&context).unwrap();
        let stack = Stack::with(manager.clone(), settings).unwrap();
        Self { address, context, manager, stack }
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    pub(crate) fn stream(&self) -> Arc<StreamSocket> {
        StreamSocket::new(&self.stack, Domain::V4).unwrap()
    }

    pub(crate) fn listen(&self, backlog: usize) -> Arc<StreamSocket> {
        let listener = self.stream();
        listener.bind(self.at(PORT)).unwrap();
        listener.listen(backlog).unwrap();
        listener
    }
}

pub(crate) fn hosts() -> (Host, Host) {
    hosts_of(Settings::default())
}

pub(crate) fn hosts_of(settings: Settings) -> (Host, Host) {
    let net = InprocNet::new();
    (Host::new(&net, "10.0.0.1", settings), Host::new(&net, "10.0.0.2", settings))
}

/// A connection from `a` to `b`, both ends.
pub(crate) fn connect(a: &Host, b: &Host) -> (Arc<StreamSocket>, Arc<StreamSocket>) {
    let listener = b.listen(1);
    let active = a.stream();
    // In one thread: a connect does not wait for accept.
    active.connect(b.at(PORT)).unwrap();
    let passive = listener.accept().unwrap();
    listener.close();
    (active, passive)
}

/// Reads to the end.
pub(crate) fn read_all(socket: &StreamSocket) -> Result<Vec<u8>, (Vec<u8>, SocketError)> {
    let (mut all, mut piece) = (Vec::new(), vec![0; 10_000]);
    loop {
        match socket.receive(&mut piece, Flags::NONE) {
            Ok(0) => return Ok(all),
            Ok(count) => all.extend_from_slice(&piece[..count]),
            Err(error) => return Err((all, error)),
        }
    }
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Polls one socket for events; what it has.
pub(crate) fn poll_one(socket: &Arc<StreamSocket>, events: i16, time: Duration) -> i16 {
    use std::os::fd::{AsFd, AsRawFd};
    let fd = socket.as_fd().as_raw_fd();
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    let find = |_| Some(rxe_rsocket::Socket::Stream(Arc::clone(socket)));
    rxe_rsocket::poll(&mut fds, Some(time), find).unwrap();
    fds[0].revents
}

/// Does something after a while, so that a test that fails does not wait for ever; not at all if this is dropped before.
pub(crate) struct Alarm(Option<mpsc::Sender<()>>, Option<thread::JoinHandle<()>>);

impl Alarm {
    pub(crate) fn new(work: impl FnOnce() + Send + 'static) -> Self {
        let (calm, told) = mpsc::channel();
        let wait = move || {
            if told.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                work();
            }
        };
        Self(Some(calm), Some(thread::spawn(wait)))
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        drop(self.0.take());
        let _ = self.1.take().map(thread::JoinHandle::join);
    }
}
