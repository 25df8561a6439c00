//! A target: one subsystem with one namespace in memory, and the discovery subsystem that tells of it. A thread serves each
//! queue; [`commands`] says what each command does.

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

/// Bytes of a block, as a power of two.
const BLOCK_SHIFT: u8 = 9;
/// Most bytes that a command may ask for, in pages of 4 KiB as a power of two: 128 KiB.
const MOST_PAGES: u8 = 5;
/// Bytes that fit into a command behind its first 64.
const IN_CAPSULE: usize = 8192;
/// A command with as much data in it as fits.
const CAPSULE: usize = COMMAND + IN_CAPSULE;
/// Entries of a queue at most.
const MOST_ENTRIES: u16 = 128;
/// Where answers that are no blocks are put together.
const SCRATCH: usize = 4096;
/// Queues at a time, of all initiators.
const MOST_QUEUES: usize = 64;
/// How often a queue's thread looks whether it shall end.
const TICK: Duration = Duration::from_millis(200);

/// What a target is to be.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// The subsystem's name.
    pub subsystem: String,
    /// Bytes of the namespace, a multiple of 512.
    pub size: usize,
    /// How long an initiator may take to answer on the wire.
    pub patience: Duration,
}

/// A target. It serves while [`Target::serve`] runs.
#[derive(Debug)]
pub struct Target {
    listener: Listener,
    shared: Shared,
}

/// What the threads of all queues have.
#[derive(Debug)]
struct Shared {
    options: TargetOptions,
    /// Where it is reached, for discovery.
    address: SocketAddr,
    pd: Pd,
    /// The namespace. Initiators have no rights to it: the target itself moves its blocks.
    blocks: Mr,
    controllers: Controllers,
    queues: AtomicUsize,
}

impl Target {
    /// Makes one that listens at an address and port of ours.
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

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The bytes of the namespace, as they are now.
    ///
    /// # Errors
    /// [`LinkError::Memory`] outside the namespace.
    pub fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, LinkError> {
        Ok(self.shared.blocks.read_vec(offset, len)?)
    }

    /// Fills a part of the namespace.
    ///
    /// # Errors
    /// [`LinkError::Memory`] outside the namespace.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), LinkError> {
        Ok(self.shared.blocks.write_at(offset, data)?)
    }

    /// Queues that are served at the moment.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.shared.queues.load(Ordering::Acquire)
    }

    /// Serves whoever comes, until `stop` is set. `tell` hears why a queue has ended.
    ///
    /// # Errors
    /// [`LinkError`] if it cannot listen any more.
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

/// Refuses a connection for a reason of RDMA, 2.3.
fn refuse(caller: Caller, reason: u16) {
    let mut words = [0; 4];
    words[2..].copy_from_slice(&reason.to_le_bytes());
    // Who is gone need not be told.
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
        // So an initiator leaves.
        Err(LinkError::Ended) => Ok(()),
        other => other,
    }
}

/// What a work request was for: the upper half of its wr_id.
const RECEIVE: u64 = 0;
const RESPOND: u64 = 1 << 32;
const MOVE: u64 = 2 << 32;

/// A queue: one connection.
struct Queue<'a> {
    shared: &'a Shared,
    link: Link,
    offer: QueueOffer,
    /// Commands, then responses, then the scratch.
    memory: Mr,
    responses_at: usize,
    scratch_at: usize,
    /// Places for responses that no response has.
    free: Vec<u16>,
    /// Commands that came while another was worked on: place and length.
    waiting: VecDeque<(u16, usize)>,
    /// The controller, from Connect on.
    controller: Option<Arc<Controller>>,
    /// Commands taken, modulo the queue's size.
    taken: u16,
    /// Event requests that wait for an event, which never comes.
    event_requests: u16,
    heard: Instant,
}

impl<'a> Queue<'a> {
    fn open(shared: &'a Shared, caller: Caller, offer: QueueOffer) -> Result<Self, LinkError> {
        let entries = usize::from(offer.commands);
        let responses_at = entries * CAPSULE;
        let scratch_at = responses_at + entries * RESPONSE;
        // For each command a WRITE of its data and a response may not have been acknowledged, and one READ is waited for.
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

    /// Works on one command after the other until the queue ends.
    fn run(&mut self, stop: &AtomicBool) -> Result<(), LinkError> {
        loop {
            let Some((place, len)) = self.next_command(stop)? else { return Ok(()) };
            let command = self.memory.read_vec(usize::from(place) * CAPSULE, len)?;
            let inside = command.get(COMMAND..).unwrap_or_default();
            let command = Command::decode(&command)?;
            let reply = self.execute(&command, inside)?;
            // Before the answer: the initiator may send the next as soon as it has that.
            post_receive(&self.link, &self.memory, place)?;
            self.taken = (self.taken + 1) % self.offer.commands;
            if let Reply::Answer(done) = reply {
                self.respond(&command, done)?;
            }
        }
    }

    /// The next command; none if the queue shall end.
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
                    // Emulated initiators stall for longer than they promise.
                    let patience = keep_alive + self.shared.options.patience;
                    if self.heard.elapsed() > patience {
                        return Err(LinkError::Silent(patience));
                    }
                }
            } else if self.heard.elapsed() > self.shared.options.patience {
                // Who does not say Connect is no initiator.
                return Err(LinkError::Silent(self.shared.options.patience));
            }
            match self.link.next(TICK) {
                Ok(wc) => self.note(&wc),
                Err(LinkError::Silent(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Remembers what a completion tells, but for those of [`MOVE`].
    fn note(&mut self, wc: &Completion) {
        let place = wc.wr_id as u16;
        match wc.opcode {
            WcOpcode::Recv => self.waiting.push_back((place, wc.byte_len as usize)),
            _ if wc.wr_id & RESPOND != 0 => self.free.push(place),
            _ => {}
        }
    }

    /// Waits until `is_it` knows a completion.
    fn wait_until(&mut self, mut is_it: impl FnMut(&Self, &Completion) -> bool) -> Result<(), LinkError> {
        loop {
            let wc = self.link.next(self.shared.options.patience)?;
            self.note(&wc);
            if is_it(self, &wc) {
                return Ok(());
            }
        }
    }

    /// Fetches the initiator's data into memory of ours, and waits for them.
    fn pull(&mut self, into: &Mr, offset: usize, len: u32, from: Remote) -> Result<(), LinkError> {
        let sges = [into.sge(offset, len)];
        self.link.qp().post_send(&SendWr::new(MOVE, SendOp::Read(from), &sges))?;
        self.wait_until(|_, wc| wc.wr_id == MOVE)
    }

    /// Writes data into the initiator's memory. The response that follows on the same connection arrives behind them, so
    /// nobody has to wait.
    fn push(&self, from: &Mr, offset: usize, len: u32, to: Remote) -> Result<(), LinkError> {
        let sges = [from.sge(offset, len)];
        let wr = SendWr { flags: SendFlags::empty(), ..SendWr::new(MOVE, SendOp::Write(to), &sges) };
        Ok(self.link.qp().post_send(&wr)?)
    }

    /// Gives an answer that is no blocks: as many bytes of it as are asked for.
    fn give(&mut self, bytes: &[u8], sgl: Sgl) -> Result<Done, LinkError> {
        let Sgl::Keyed { addr, len, key, .. } = sgl else {
            return Ok(Done::status(Status::SGL_TYPE_INVALID));
        };
        if len as usize > bytes.len() {
            return Ok(Done::status(Status::DATA_LENGTH_INVALID));
        }
        // The answer before may still be on its way from there.
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
            // One that never reads its responses has the whole queue wait here, and is given up after a while.
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
    /// What discovery tells: this subsystem, at this address.
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
