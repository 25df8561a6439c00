//! Hosts on a network inside the process, and an end of a connection that says what it is told to.
#![allow(dead_code, reason = "each test file uses a part")]

use rxe_cm::Manager;
use rxe_verbs::{Access, Context, Mr, RecvWr, SendOp, SendWr, WcOpcode, net::InprocNet};
use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};
use testbed::storage::link::{Depth, Link, LinkError};

/// How long anything may take, on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long an end that does not do its part is borne. Those that do theirs must not need as long, on a loaded machine.
pub(crate) const SHORT: Duration = Duration::from_secs(5);
/// Bytes of a message that [`ByHand`] takes.
const MESSAGE: usize = 4096;
const RECEIVES: usize = 8;

/// A host.
pub(crate) struct Machine {
    pub(crate) address: IpAddr,
    pub(crate) manager: Manager,
    _context: Context,
}

impl Machine {
    pub(crate) fn new(net: &InprocNet, address: &str) -> Self {
        let address = address.parse().unwrap();
        let context = Context::open_inproc(net, &[address]).unwrap();
        Self { address, manager: Manager::on(&context).unwrap(), _context: context }
    }

    pub(crate) const fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }
}

/// Who serves, and who asks.
pub(crate) fn pair() -> (Machine, Machine) {
    let net = InprocNet::new();
    (Machine::new(&net, "10.0.0.1"), Machine::new(&net, "10.0.0.2"))
}

/// Waits until something is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Has servers stop, also when a test has failed: who waits for their threads would wait for ever.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What a thread came to.
pub(crate) fn outcome<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap()
}

/// An end of a connection that sends what it is told to, right or wrong.
pub(crate) struct ByHand {
    pub(crate) link: Link,
    messages: Mr,
    /// The other end may do with it what it likes.
    pub(crate) memory: Mr,
}

/// Memory and receives of one, or none of those if it is never to read.
pub(crate) fn prepare(link: &Link, reads: bool) -> Result<(Mr, Mr), LinkError> {
    let messages = link.pd().alloc_mr(MESSAGE * (1 + RECEIVES), Access::LOCAL_WRITE)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = link.pd().alloc_mr(1 << 18, rights)?;
    for place in (1..=RECEIVES).take_while(|_| reads) {
        post_receive(link, &messages, place)?;
    }
    Ok((messages, memory))
}

pub(crate) const DEPTH: Depth = Depth { sends: 64, receives: RECEIVES as u32 };

impl ByHand {
    pub(crate) fn connect(
        from: &Machine,
        to: SocketAddr,
        private_data: &[u8],
        reads: bool,
    ) -> Result<Self, LinkError> {
        let prepare = |link: &Link| prepare(link, reads);
        let (link, (messages, memory)) =
            Link::connect(&from.manager, None, to, DEPTH, private_data, PATIENCE, prepare)?;
        Ok(Self { link, messages, memory })
    }

    pub(crate) fn of(link: Link, (messages, memory): (Mr, Mr)) -> Self {
        Self { link, messages, memory }
    }

    pub(crate) fn send(&self, message: &[u8]) {
        self.messages.write_at(0, message).unwrap();
        let sges = [self.messages.sge(0, message.len() as u32)];
        self.link.qp().post_send(&SendWr::new(0, SendOp::Send, &sges)).unwrap();
    }

    /// The next message, or how the connection ended.
    pub(crate) fn receive(&self) -> Result<Vec<u8>, LinkError> {
        loop {
            let wc = self.link.next(PATIENCE)?;
            if wc.opcode == WcOpcode::Recv {
                let place = wc.wr_id as usize;
                let message = self.messages.read_vec(place * MESSAGE, wc.byte_len as usize)?;
                post_receive(&self.link, &self.messages, place)?;
                return Ok(message);
            }
        }
    }

    /// Sends, and gives the answer.
    pub(crate) fn ask(&self, message: &[u8]) -> Vec<u8> {
        self.send(message);
        self.receive().unwrap()
    }

    /// Waits for the other end to end the connection.
    pub(crate) fn is_ended(&self) {
        match self.receive() {
            Err(LinkError::Ended | LinkError::Work { .. }) => {}
            other => panic!("the connection goes on: {other:?}"),
        }
    }
}

fn post_receive(link: &Link, messages: &Mr, place: usize) -> Result<(), LinkError> {
    let sges = [messages.sge(place * MESSAGE, MESSAGE as u32)];
    Ok(link.qp().post_recv(&RecvWr { wr_id: place as u64, sges: &sges })?)
}
