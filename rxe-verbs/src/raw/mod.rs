//! Raw packet queue pairs (IBV_QPT_RAW_PACKET): they send and receive whole Ethernet frames of a device's interface by a packet
//! socket (`packet(7)`), which needs CAP_NET_RAW. As with an adapter, a queue pair receives the frames that match its flows,
//! and none without flows. Unlike with an adapter, the system receives these frames, too. The system strips VLAN tags, so
//! received frames have none.
//!
//! Each raw queue pair has a datagram queue pair (UD) that never sends. It holds the state, the number and the attributes that
//! all queue pairs have.
//!
//! Read next: `flow` (which frames), `queue` (receive buffers), `spread` (several queues by a hash).

mod flow;
mod queue;
mod spread;

use crate::{
    cq::Cq,
    error::CreateError,
    qp::Qp,
    sys::{
        lock,
        packet::{ALL_TYPES, PacketSocket, Scope},
        poll,
        process::become_background,
        socket::Event,
    },
};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub use flow::{Flow, Layer, Pattern};
pub use queue::{RawQueue, RawQueueState};
use rxe_core::{
    memory::Memory,
    qp::{PostError, QpState},
    work::{Access, Completion, Payload, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus},
};
pub use spread::{Spread, fields};
use std::{
    collections::BTreeMap,
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, Weak},
    thread,
};

/// Most bytes of a frame: a full frame of a loopback interface, with its header.
const MOST: usize = 65_536 + 64;
/// Most flows of a queue pair.
const MOST_FLOWS: usize = 1024;

/// The raw half of a queue pair. It has a thread that receives; dropping it ends the thread.
#[derive(Debug)]
pub struct RawPackets {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    qp: Arc<Qp>,
    send_cq: Cq,
    socket: PacketSocket,
    target: Target,
    flows: Mutex<BTreeMap<u32, Flow>>,
    next_flow: AtomicU32,
    stop: Event,
    stopped: AtomicBool,
}

/// Where received frames go.
#[derive(Debug)]
enum Target {
    /// To the queue pair's own buffers, if its state allows.
    Own(RawQueue),
    /// To one of several queues. The queue pair's own state does not matter.
    Spread(Spread),
}

/// A flow of a queue pair (ibv_flow). Dropping it removes the flow.
#[derive(Debug)]
pub struct FlowHandle {
    shared: Weak<Shared>,
    number: u32,
}

impl FlowHandle {
    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for FlowHandle {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.flows).remove(&self.number);
        }
    }
}

impl RawPackets {
    /// Makes the raw half of a queue pair. `qp` is a datagram queue pair (UD). `cqs` are the completion queues of sends and of
    /// receives.
    ///
    /// # Errors
    /// [`CreateError::System`]: EPERM without CAP_NET_RAW.
    pub fn new(qp: &Arc<Qp>, cqs: (&Cq, &Cq)) -> Result<Self, CreateError> {
        let caps = qp.query().1.caps;
        let own = RawQueue::new(qp.pd(), cqs.1, caps.max_recv_wr, caps.max_recv_sge)?;
        Self::with(qp, cqs.0, Target::Own(own))
    }

    /// Makes a queue pair that receives into several queues. `cq` gets the completions of sends.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn spread(qp: &Arc<Qp>, cq: &Cq, spread: Spread) -> Result<Self, CreateError> {
        Self::with(qp, cq, Target::Spread(spread))
    }

    fn with(qp: &Arc<Qp>, send_cq: &Cq, target: Target) -> Result<Self, CreateError> {
        let system = |action| move |source| CreateError::System { action, source };
        let index = qp.context().device().interface().index;
        let scope = Scope { ethertype: ALL_TYPES, ifindex: index, filter: &[] };
        let socket = PacketSocket::open(scope, false)
            .map_err(system("open a packet socket, which raw packet queue pairs need (CAP_NET_RAW)"))?;
        if !socket.incoming_only {
            let source = io::Error::from(io::ErrorKind::Unsupported);
            return Err(system("hear only what comes in (Linux 4.20), which raw packet queue pairs need")(
                source,
            ));
        }
        let shared = Arc::new(Shared {
            qp: Arc::clone(qp),
            send_cq: send_cq.clone(),
            socket,
            target,
            flows: Mutex::default(),
            next_flow: AtomicU32::new(1),
            stop: Event::new().map_err(system("make an event counter"))?,
            stopped: AtomicBool::new(false),
        });
        let work = Arc::clone(&shared);
        let thread = thread::Builder::new().name("rxe-raw".to_owned()).stack_size(256 * 1024);
        let thread = thread.spawn(move || work.run()).map_err(system("start a thread"))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Adds a flow: from now on the queue pair receives the frames that match it (ibv_create_flow).
    ///
    /// # Errors
    /// [`CreateError::Exhausted`] after 1024.
    pub fn take(&self, flow: Flow) -> Result<FlowHandle, CreateError> {
        let shared = &self.shared;
        let mut flows = lock(&shared.flows);
        if flows.len() >= MOST_FLOWS {
            return Err(CreateError::Exhausted("flows of a queue pair"));
        }
        let number = shared.next_flow.fetch_add(1, Ordering::Relaxed);
        flows.insert(number, flow);
        drop(flows);
        // If this fails, frames to other MAC addresses do not arrive.
        let _ = shared.socket.hear_all();
        Ok(FlowHandle { shared: Arc::downgrade(shared), number })
    }

    /// Sends a frame (ibv_post_send). The system has taken the frame when this returns.
    ///
    /// # Errors
    /// [`PostError`].
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let shared = &self.shared;
        let (attrs, config) = shared.qp.query();
        let status = match attrs.state {
            QpState::Rts | QpState::Sqd => {
                if wr.op != SendOp::Send {
                    return Err(PostError::Operation);
                }
                shared.send(wr, config.caps.max_send_sge)?
            }
            QpState::Sqe | QpState::Error => WcStatus::WorkRequestFlushed,
            other => return Err(PostError::State(other)),
        };
        if config.signal_all || wr.flags.contains(SendFlags::SIGNALED) || status != WcStatus::Success {
            let done = Completion { wr_id: wr.wr_id, status, opcode: WcOpcode::Send, ..shared.completion() };
            shared.send_cq.ring().push(done, false);
        }
        Ok(())
    }

    /// Queues a buffer for a frame (ibv_post_recv).
    ///
    /// # Errors
    /// [`PostError`].
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let Target::Own(own) = &self.shared.target else { return Err(PostError::Operation) };
        match self.shared.qp.state() {
            QpState::Reset => Err(PostError::State(QpState::Reset)),
            _ => own.post_recv(wr, self.shared.qp.qpn()),
        }
    }

    /// Tells the raw half that the queue pair's state changed. Waiting receive buffers are flushed in the Error state, and
    /// forgotten in the Reset state.
    pub fn state_changed(&self) {
        if let Target::Own(own) = &self.shared.target {
            let state = match self.shared.qp.state() {
                QpState::Error => RawQueueState::Error,
                QpState::Reset => RawQueueState::Reset,
                // In Init, buffers may be posted, and they wait.
                QpState::Init => return,
                _ => RawQueueState::Ready,
            };
            own.set_state(state, self.shared.qp.qpn());
        }
    }
}

impl Drop for RawPackets {
    fn drop(&mut self) {
        // A forked child inherits the queue pair, but not the thread. It shares the event with its parent's thread.
        if self.shared.qp.context().check_owner().is_err() {
            core::mem::forget(self.thread.take());
            return;
        }
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.stop.raise();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed its message.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        become_background();
        let mut buffer = vec![0; MOST];
        let goes_on = || !self.stopped.load(Ordering::Acquire);
        while goes_on() {
            let _ = poll::wait(&[self.socket.as_fd(), self.stop.as_fd()], None);
            // Frames may arrive faster than they are handled.
            while goes_on()
                && let Ok(len) = self.socket.receive(&mut buffer)
            {
                self.take(&buffer[..len]);
            }
        }
    }

    fn take(&self, frame: &[u8]) {
        if !lock(&self.flows).values().any(|flow| flow.takes(frame)) {
            return;
        }
        let queue = match &self.target {
            Target::Own(own) => own,
            Target::Spread(spread) => spread.queue_of(frame),
        };
        queue.take(frame, self.qp.qpn());
    }

    fn send(&self, wr: &SendWr<'_>, max_sge: u32) -> Result<WcStatus, PostError> {
        let mut frame = Vec::new();
        match wr.payload {
            Payload::Inline(bytes) => frame.extend_from_slice(bytes),
            Payload::Sges(sges) => {
                if sges.len() > max_sge as usize {
                    return Err(PostError::Elements(sges.len(), max_sge));
                }
                let length: u64 = sges.iter().map(|sge| u64::from(sge.len)).sum();
                if length > MOST as u64 {
                    return Ok(WcStatus::LocalLength);
                }
                for sge in sges {
                    let start = frame.len();
                    frame.resize(start + sge.len as usize, 0);
                    let read = self.qp.with_memory(|memory, asker| {
                        memory.read(asker, sge.lkey, sge.addr, Access::empty(), &mut frame[start..])
                    });
                    if !matches!(read, Ok(Ok(()))) {
                        return Ok(WcStatus::LocalProtection);
                    }
                }
            }
        }
        Ok(match self.socket.send(&frame) {
            Ok(()) => WcStatus::Success,
            // EMSGSIZE: longer than the interface's MTU allows. EINVAL: shorter than an Ethernet header.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMSGSIZE | libc::EINVAL)) => {
                WcStatus::LocalLength
            }
            // The frame is lost, as on a wire: the interface is down, or its queue is full.
            Err(error) if is_loss(&error) => WcStatus::Success,
            Err(_) => WcStatus::LocalQpOperation,
        })
    }

    fn completion(&self) -> Completion {
        Completion { qpn: self.qp.qpn(), ..Completion::default() }
    }
}

fn is_loss(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENOBUFS | libc::EAGAIN))
}
