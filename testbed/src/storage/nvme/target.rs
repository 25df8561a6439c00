//! A target with one subsystem, which has one namespace in memory, and with the discovery subsystem that lists it. A thread
//! serves each queue; [`commands`] executes the commands.

mod commands;
mod controller;

use super::capsule::{
    ADMIN_ENTRIES, COMMAND, Command, DiscoveryEntry, QueueOffer, RESPONSE, Response, Sgl, Status,
    queue_answer,
};
use crate::storage::link::{Caller, Depth, Link, LinkError, Listener};
use commands::{Done, Reply};
use controller::{Controller, Controllers};
use core::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};
use rxe_cm::Manager;
use rxe_verbs::{Access, Completion, Key, Mr, Pd, RecvWr, Remote, SendFlags, SendOp, SendWr, WcOpcode};
use std::{collections::VecDeque, net::SocketAddr, sync::Arc, thread, time::Instant};

/// Size of a block, as a power of two.
const BLOCK_SHIFT: u8 = 9;
/// Maximum number of data bytes of a command, in pages of 4 KiB as a power of two: 128 KiB.
const MOST_PAGES: u8 = 5;
/// Maximum number of data bytes in a command, behind its first 64 bytes.
const IN_CAPSULE: usize = 8192;
/// Size of a command with as much data in it as possible.
const CAPSULE: usize = COMMAND + IN_CAPSULE;
/// Maximum number of entries of a queue.
const MOST_ENTRIES: u16 = 128;
/// Size of the memory in which data other than blocks are assembled.
const SCRATCH: usize = 4096;
/// Maximum number of queues at a time, of all initiators together.
const MOST_QUEUES: usize = 64;
/// How often a queue's thread checks whether it should end.
const TICK: Duration = Duration::from_millis(200);

/// The options of a target.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// The subsystem's name.
    pub subsystem: String,
    /// Size of the namespace in bytes, a multiple of 512.
    pub size: usize,
    /// How long an initiator may take to answer at the transport level.
    pub patience: Duration,
}

/// A target. It serves while [`Target::serve`] runs.
#[derive(Debug)]
pub struct Target {
    listener: Listener,
    shared: Shared,
}

/// The state that the threads of all queues share.
#[derive(Debug)]
struct Shared {
    options: TargetOptions,
    /// The address that discovery announces.
    address: SocketAddr,
    pd: Pd,
    /// The namespace. Initiators have no access rights to it: the target itself moves its blocks.
    blocks: Mr,
    controllers: Controllers,
    queues: AtomicUsize,
}

impl Target {
    /// Creates a target that listens at an address and port of ours.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn new(manager: &Manager, at: SocketAddr, options: TargetOptions) -> Result<Self, LinkError> {
        let listener = Listener::new(manager, at)?;
        let no_device = || LinkError::protocol("a target needs one address of a device, not all");
        let context = listener.context().ok_or_else(no_device)?;
        let pd = context.alloc_pd()?;
        let blocks = pd.alloc_mr(options.size, Access::LOCAL_WRITE)?;
        let address = listener.address().unwrap_or(at);
        let shared = Shared {
            options,
            address,
            pd,
            blocks,
            controllers: Controllers::default(),
            queues: AtomicUsize::new(0),
        };
        Ok(Self { listener, shared })
    }

    /// The address at which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The current bytes of a part of the namespace.
    ///
    /// # Errors
    /// [`LinkError::Memory`] outside the namespace.
    pub fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, LinkError> {
        Ok(self.shared.blocks.read_vec(offset, len)?)
    }

    /// Writes to a part of the namespace.
    ///
    /// # Errors
    /// [`LinkError::Memory`] outside the namespace.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), LinkError> {
        Ok(self.shared.blocks.write_at(offset, data)?)
    }

    /// The number of queues that are currently served.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.shared.queues.load(Ordering::Acquire)
    }

    /// Serves all initiators that connect, until `stop` is set. Calls `tell` with the error if a queue ended with one.
    ///
    /// # Errors
    /// [`LinkError`] if it can no longer listen.
    pub fn serve(&self, stop: &AtomicBool, tell: impl Fn(&LinkError) + Sync) -> Result<(), LinkError> {
        let (shared, tell) = (&self.shared, &tell);
        thread::scope(|scope| {
            while !stop.load(Ordering::Acquire) {
                let Some(caller) = self.listener.next(TICK)? else { continue };
                if shared.queues.fetch_add(1, Ordering::AcqRel) >= MOST_QUEUES {
                    shared.queues.fetch_sub(1, Ordering::AcqRel);
                    refuse(caller, 6);
                    continue;
                }
                scope.spawn(move || {
                    if let Err(error) = serve_queue(shared, caller, stop) {
                        tell(&error);
                    }
                    shared.queues.fetch_sub(1, Ordering::AcqRel);
                });
            }
            Ok(())
        })
    }
}

/// Refuses a connection with a reason code of RDMA, 2.3.
fn refuse(caller: Caller, reason: u16) {
    let mut words = [0; 4];
    words[2..].copy_from_slice(&reason.to_le_bytes());
    // The rejection fails if the initiator is no longer there; this is no error.
    let _ = caller.reject(&words);
}

fn serve_queue(shared: &Shared, caller: Caller, stop: &AtomicBool) -> Result<(), LinkError> {
    let Some(offer) = QueueOffer::decode(caller.private_data()) else {
        refuse(caller, 2);
        return Err(LinkError::protocol("a connection without its private data"));
    };
    let most = if offer.queue == 0 { ADMIN_ENTRIES } else { MOST_ENTRIES };
    if !(2..=most).contains(&offer.commands) {
        refuse(caller, 4);
        return Err(LinkError::protocol(format!("a queue of {} commands", offer.commands)));
    }
    let mut queue = Queue::open(shared, caller, offer)?;
    let ended = queue.run(stop);
    if let (0, Some(controller)) = (offer.queue, &queue.controller) {
        shared.controllers.remove(controller);
    }
    match ended {
        // An initiator ends its connection in this way.
        Err(LinkError::Ended) => Ok(()),
        other => other,
    }
}

/// The purpose of a work request, in the upper half of its wr_id.
const RECEIVE: u64 = 0;
const RESPOND: u64 = 1 << 32;
const MOVE: u64 = 2 << 32;

/// A queue: one connection.
struct Queue<'a> {
    shared: &'a Shared,
    link: Link,
    offer: QueueOffer,
    /// Memory for commands, then for responses, then the scratch memory.
    memory: Mr,
    responses_at: usize,
    scratch_at: usize,
    /// Places for responses that are free.
    free: Vec<u16>,
    /// Commands that arrived while another was being executed: place and length.
    waiting: VecDeque<(u16, usize)>,
    /// The controller; set by Connect.
    controller: Option<Arc<Controller>>,
    /// Number of commands taken from the queue, modulo the queue's size.
    taken: u16,
    /// Number of outstanding event requests. They are never answered, because there are no events.
    event_requests: u16,
    heard: Instant,
}

impl<'a> Queue<'a> {
    fn open(shared: &'a Shared, caller: Caller, offer: QueueOffer) -> Result<Self, LinkError> {
        let entries = usize::from(offer.commands);
        let responses_at = entries * CAPSULE;
        let scratch_at = responses_at + entries * RESPONSE;
        // For each command, a WRITE of its data and a response may be unacknowledged. In addition, there is one READ that is
        // waited for.
        let depth = Depth { sends: 2 * u32::from(offer.commands) + 1, receives: offer.commands.into() };
        let prepare = |link: &Link| {
            let memory = link.pd().alloc_mr(scratch_at + SCRATCH, Access::LOCAL_WRITE)?;
            (0..offer.commands).try_for_each(|place| post_receive(link, &memory, place))?;
            Ok(memory)
        };
        let answer = queue_answer(offer.commands);
        let patience = shared.options.patience;
        let (link, memory) = Link::accept(caller, &shared.pd, depth, &answer, patience, prepare)?;
        Ok(Self {
            shared,
            link,
            offer,
            memory,
            responses_at,
            scratch_at,
            free: (0..offer.commands).collect(),
            waiting: VecDeque::new(),
            controller: None,
            taken: 0,
            event_requests: 0,
            heard: Instant::now(),
        })
    }

    /// Executes one command after the other until the queue ends.
    fn run(&mut self, stop: &AtomicBool) -> Result<(), LinkError> {
        loop {
            let Some((place, len)) = self.next_command(stop)? else { return Ok(()) };
            let command = self.memory.read_vec(usize::from(place) * CAPSULE, len)?;
            let inside = command.get(COMMAND..).unwrap_or_default();
            let command = Command::decode(&command)?;
            let reply = self.execute(&command, inside)?;
            // The receive is posted before the response, because the initiator may send the next command as soon as it has
            // the response.
            post_receive(&self.link, &self.memory, place)?;
            self.taken = (self.taken + 1) % self.offer.commands;
            if let Reply::Answer(done) = reply {
                self.respond(&command, done)?;
            }
        }
    }

    /// The next command; `None` if the queue should end.
    fn next_command(&mut self, stop: &AtomicBool) -> Result<Option<(u16, usize)>, LinkError> {
        loop {
            if let Some(command) = self.waiting.pop_front() {
                self.heard = Instant::now();
                return Ok(Some(command));
            }
            if stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            if let Some(controller) = &self.controller {
                if controller.has_ended() {
                    return Ok(None);
                }
                if self.offer.queue == 0
                    && let Some(keep_alive) = controller.keep_alive()
                {
                    // Emulated initiators stall for longer than the keep alive time that they announce.
                    let patience = keep_alive + self.shared.options.patience;
                    if self.heard.elapsed() > patience {
                        return Err(LinkError::Silent(patience));
                    }
                }
            } else if self.heard.elapsed() > self.shared.options.patience {
                // The peer has not sent Connect in time.
                return Err(LinkError::Silent(self.shared.options.patience));
            }
            match self.link.next(TICK) {
                Ok(wc) => self.note(&wc),
                Err(LinkError::Silent(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Records a completion, except for those of [`MOVE`].
    fn note(&mut self, wc: &Completion) {
        let place = wc.wr_id as u16;
        match wc.opcode {
            WcOpcode::Recv => self.waiting.push_back((place, wc.byte_len as usize)),
            _ if wc.wr_id & RESPOND != 0 => self.free.push(place),
            _ => {}
        }
    }

    /// Waits for a completion for which `is_it` returns true.
    fn wait_until(&mut self, mut is_it: impl FnMut(&Self, &Completion) -> bool) -> Result<(), LinkError> {
        loop {
            let wc = self.link.next(self.shared.options.patience)?;
            self.note(&wc);
            if is_it(self, &wc) {
                return Ok(());
            }
        }
    }

    /// Reads the initiator's data into our memory by RDMA, and waits until they have arrived.
    fn pull(&mut self, into: &Mr, offset: usize, len: u32, from: Remote) -> Result<(), LinkError> {
        let sges = [into.sge(offset, len)];
        self.link.qp().post_send(&SendWr::new(MOVE, SendOp::Read(from), &sges))?;
        self.wait_until(|_, wc| wc.wr_id == MOVE)
    }

    /// Writes data to the initiator's memory by RDMA. The response follows on the same connection, and so arrives after the
    /// data. Therefore nothing has to wait.
    fn push(&self, from: &Mr, offset: usize, len: u32, to: Remote) -> Result<(), LinkError> {
        let sges = [from.sge(offset, len)];
        let wr = SendWr { flags: SendFlags::empty(), ..SendWr::new(MOVE, SendOp::Write(to), &sges) };
        Ok(self.link.qp().post_send(&wr)?)
    }

    /// Returns data other than blocks to the initiator, with as many bytes as it requested.
    fn give(&mut self, bytes: &[u8], sgl: Sgl) -> Result<Done, LinkError> {
        let Sgl::Keyed { addr, len, key, .. } = sgl else {
            return Ok(Done::status(Status::SGL_TYPE_INVALID));
        };
        if len as usize > bytes.len() {
            return Ok(Done::status(Status::DATA_LENGTH_INVALID));
        }
        // The previous data may still be in transit from this memory.
        self.wait_for_responses()?;
        self.memory.write_at(self.scratch_at, &bytes[..len as usize])?;
        if len > 0 {
            self.push(&self.memory, self.scratch_at, len, Remote { addr, rkey: Key(key) })?;
        }
        Ok(Done::default())
    }

    /// Waits until all responses, and so all data before them, have been acknowledged.
    fn wait_for_responses(&mut self) -> Result<(), LinkError> {
        let all = usize::from(self.offer.commands);
        if self.free.len() == all {
            return Ok(());
        }
        self.wait_until(|queue, _| queue.free.len() == all)
    }

    fn respond(&mut self, command: &Command, done: Done) -> Result<(), LinkError> {
        if self.free.is_empty() {
            // If an initiator never acknowledges responses, its queue waits here, and is closed after a while.
            self.wait_until(|queue, _| !queue.free.is_empty())?;
        }
        let Some(place) = self.free.pop() else { return Ok(()) };
        let response =
            Response { result: done.result, taken: self.taken, id: command.id, status: done.status };
        let at = self.responses_at + usize::from(place) * RESPONSE;
        self.memory.write_at(at, &response.encode())?;
        let sges = [self.memory.sge(at, RESPONSE as u32)];
        let op = match command.sgl {
            Sgl::Keyed { key, invalidate: true, .. } => SendOp::SendInvalidate(Key(key)),
            _ => SendOp::Send,
        };
        Ok(self.link.qp().post_send(&SendWr::new(RESPOND | u64::from(place), op, &sges))?)
    }
}

fn post_receive(link: &Link, memory: &Mr, place: u16) -> Result<(), LinkError> {
    let sges = [memory.sge(usize::from(place) * CAPSULE, CAPSULE as u32)];
    Ok(link.qp().post_recv(&RecvWr { wr_id: RECEIVE | u64::from(place), sges: &sges })?)
}

impl Shared {
    /// The discovery entry for this subsystem at this address.
    fn entry(&self) -> DiscoveryEntry {
        DiscoveryEntry {
            transport: 1,
            family: if self.address.is_ipv4() { 1 } else { 2 },
            service: self.address.port().to_string(),
            subsystem: self.options.subsystem.clone(),
            address: self.address.ip().to_string(),
        }
    }
}
