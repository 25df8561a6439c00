//! A server of a read-only folder. It keeps the folder in registered memory as it was when the server started. A thread
//! serves each connection. `export` holds the files, `sessions` the clients and their sessions, and `compound` executes the
//! operations.

mod compound;
mod export;
mod sessions;

use super::{
    rpc::{self, Accepted, Call},
    transport::{
        Chunks, Header, HeaderError, Kind, MESSAGE, Refusal, Segment, longest_message, private_data,
    },
    v4,
    xdr::{Reader, Writer, padding},
};
use crate::storage::link::{Caller, Depth, Link, LinkError, Listener};
use compound::Reply;
use core::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};
use export::Export;
use rxe_cm::Manager;
use rxe_verbs::{Access, Completion, Key, Mr, Pd, RecvWr, Remote, SendFlags, SendOp, SendWr, WcOpcode};
use sessions::Sessions;
use std::{collections::VecDeque, net::SocketAddr, path::Path, thread, time::Instant};

/// Maximum number of outstanding calls of a connection.
const CREDITS: u16 = 16;
/// Maximum size of a call in bytes, including the parts left out of the message.
const MOST_CALL: usize = 64 << 10;
/// Maximum size of a reply in bytes, without a file's data.
const MOST_REPLY: usize = 64 << 10;
/// Maximum number of connections at a time.
const MOST_CONNECTIONS: usize = 64;
/// How often a connection's thread checks whether it should end.
const TICK: Duration = Duration::from_millis(200);
/// A connection that is silent for this long is closed: three leases.
const IDLE: Duration = Duration::from_secs(3 * sessions::LEASE as u64);

/// The options of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// How long a client may take to answer at the transport level.
    pub patience: Duration,
}

/// A server. It serves while [`Server::serve`] runs.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    address: SocketAddr,
    shared: Shared,
}

/// The state that the threads of all connections share.
#[derive(Debug)]
struct Shared {
    options: ServerOptions,
    pd: Pd,
    export: Export,
    sessions: Sessions,
    connections: AtomicUsize,
}

impl Server {
    /// Creates a server that listens at an address and port of ours (20049 is the port of NFS over RDMA), and reads
    /// `folder`: ordinary files and folders, 1 GiB at most. Other entries, including symbolic links, are left out.
    ///
    /// # Errors
    /// [`LinkError`]; [`LinkError::Refused`] if a part of the folder cannot be read, or if the folder is too large.
    pub fn new(
        manager: &Manager,
        at: SocketAddr,
        folder: &Path,
        options: ServerOptions,
    ) -> Result<Self, LinkError> {
        let listener = Listener::new(manager, at)?;
        let no_device = || LinkError::protocol("a server needs one address of a device, not all");
        let pd = listener.context().ok_or_else(no_device)?.alloc_pd()?;
        let export = Export::read(folder, &pd)?;
        let address = listener.address().unwrap_or(at);
        let connections = AtomicUsize::new(0);
        let shared = Shared { options, pd, export, sessions: Sessions::default(), connections };
        Ok(Self { listener, address, shared })
    }

    /// The address at which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections that are currently served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Serves all clients that connect, until `stop` is set. Calls `tell` with the error if a connection ended with one.
    ///
    /// # Errors
    /// [`LinkError`] if it can no longer listen.
    pub fn serve(&self, stop: &AtomicBool, tell: impl Fn(&LinkError) + Sync) -> Result<(), LinkError> {
        let (shared, tell) = (&self.shared, &tell);
        thread::scope(|scope| {
            while !stop.load(Ordering::Acquire) {
                let Some(caller) = self.listener.next(TICK)? else { continue };
                if shared.connections.fetch_add(1, Ordering::AcqRel) >= MOST_CONNECTIONS {
                    shared.connections.fetch_sub(1, Ordering::AcqRel);
                    // The rejection fails if the client is no longer there; this is no error.
                    let _ = caller.reject(&[]);
                    continue;
                }
                scope.spawn(move || {
                    let ended = Connection::open(shared, caller).and_then(|mut open| open.run(stop));
                    match ended {
                        // A client ends its connection in this way.
                        Ok(()) | Err(LinkError::Ended) => {}
                        Err(error) => tell(&error),
                    }
                    shared.connections.fetch_sub(1, Ordering::AcqRel);
                });
            }
            Ok(())
        })
    }
}

/// The purpose of a work request, in the upper half of its wr_id.
const RECEIVE: u64 = 0;
const SEND: u64 = 1 << 32;
const MOVE: u64 = 2 << 32;

/// A connection from a client.
struct Connection<'a> {
    shared: &'a Shared,
    link: Link,
    /// Memory for calls, then for messages to send.
    messages: Mr,
    /// Memory for the parts of calls that are read by RDMA, then for replies that are too long for a message.
    long: Mr,
    /// The longest message that the client receives, in bytes.
    longest: usize,
    /// Places for messages that are free.
    free: Vec<u16>,
    /// Calls that arrived while another was being executed: place and length.
    waiting: VecDeque<(u16, usize)>,
    heard: Instant,
}

impl<'a> Connection<'a> {
    fn open(shared: &'a Shared, caller: Caller) -> Result<Self, LinkError> {
        let credits = usize::from(CREDITS);
        // One SEND for each reply, and the RDMA operations that move the data of one: a header has 64 segments at most.
        let depth = Depth { sends: u32::from(CREDITS) + 64, receives: u32::from(CREDITS) };
        let prepare = |link: &Link| {
            let messages = link.pd().alloc_mr(2 * credits * MESSAGE, Access::LOCAL_WRITE)?;
            (0..CREDITS).try_for_each(|place| post_receive(link, &messages, place))?;
            Ok((messages, link.pd().alloc_mr(MOST_CALL + MOST_REPLY, Access::LOCAL_WRITE)?))
        };
        let patience = shared.options.patience;
        let (link, (messages, long)) =
            Link::accept(caller, &shared.pd, depth, &private_data(), patience, prepare)?;
        Ok(Self {
            shared,
            longest: longest_message(link.private_data()),
            link,
            messages,
            long,
            free: (0..CREDITS).collect(),
            waiting: VecDeque::new(),
            heard: Instant::now(),
        })
    }

    /// Executes one call after the other until the connection ends.
    fn run(&mut self, stop: &AtomicBool) -> Result<(), LinkError> {
        while let Some((place, len)) = self.next_call(stop)? {
            let bytes = self.messages.read_vec(usize::from(place) * MESSAGE, len.min(MESSAGE))?;
            post_receive(&self.link, &self.messages, place)?;
            match Header::decode(&bytes) {
                Ok((Header { xid, kind: Kind::Message(chunks), .. }, inline)) => {
                    self.answer(xid, chunks, inline)?;
                }
                Ok((Header { xid, kind: Kind::NoMessage(chunks), .. }, _)) => {
                    self.answer(xid, chunks, &[])?;
                }
                Err(HeaderError::Refused(xid, refusal)) => self.refuse(xid, refusal)?,
                Ok(_) | Err(HeaderError::Garbage) => {
                    return Err(LinkError::protocol("a message that is no call"));
                }
            }
        }
        Ok(())
    }

    /// The next call; `None` if the connection should end.
    fn next_call(&mut self, stop: &AtomicBool) -> Result<Option<(u16, usize)>, LinkError> {
        loop {
            if let Some(call) = self.waiting.pop_front() {
                self.heard = Instant::now();
                return Ok(Some(call));
            }
            if stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            if self.heard.elapsed() > IDLE {
                return Err(LinkError::Silent(IDLE));
            }
            match self.link.next(TICK) {
                Ok(wc) => self.note(&wc),
                Err(LinkError::Silent(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn note(&mut self, wc: &Completion) {
        let place = wc.wr_id as u16;
        match wc.opcode {
            WcOpcode::Recv => self.waiting.push_back((place, wc.byte_len as usize)),
            _ if wc.wr_id & SEND != 0 => self.free.push(place),
            _ => {}
        }
    }

    fn wait_until(&mut self, mut is_it: impl FnMut(&Self, &Completion) -> bool) -> Result<(), LinkError> {
        loop {
            let wc = self.link.next(self.shared.options.patience)?;
            self.note(&wc);
            if is_it(self, &wc) {
                return Ok(());
            }
        }
    }

    /// Executes a call and sends the reply.
    fn answer(&mut self, xid: u32, chunks: Chunks, inline: &[u8]) -> Result<(), LinkError> {
        let Some(call) = self.whole(&chunks, inline)? else { return self.refuse(xid, Refusal::Chunks) };
        let mut from = Reader::new(&call);
        let head = match Call::read(&mut from) {
            Ok(head) if head.xid == xid => head,
            _ => return self.refuse(xid, Refusal::Chunks),
        };
        let accepted = match head {
            Call { program, .. } if program != rpc::NFS => Accepted::NoProgram,
            Call { version, .. } if version != rpc::VERSION => Accepted::WrongVersion,
            Call { procedure: rpc::NULL | rpc::COMPOUND, .. } => Accepted::Success,
            _ => Accepted::NoProcedure,
        };
        let mut out = rpc::reply(xid, accepted);
        let mut reply = Reply::default();
        if (accepted, head.procedure) == (Accepted::Success, rpc::COMPOUND) {
            reply.room = chunks.writes.first().map(|chunk| sum(chunk));
            match compound::execute(self.shared, from, &mut reply) {
                Ok(()) => out.0.extend_from_slice(&reply.results.0),
                Err(_) => out = rpc::reply(xid, Accepted::GarbageArguments),
            }
        }
        self.reply(xid, out, chunks, reply.data)
    }

    /// The whole call: the message, with the parts that were left out inserted at their positions. `None` if the positions
    /// are invalid.
    fn whole(&mut self, chunks: &Chunks, inline: &[u8]) -> Result<Option<Vec<u8>>, LinkError> {
        let mut call: Vec<u8> = Vec::new();
        let mut rest = inline;
        let mut reads = chunks.reads.iter().peekable();
        while let Some(first) = reads.next() {
            // The segments of one chunk have the same position.
            let mut segments = vec![first.segment];
            while let Some(next) = reads.next_if(|next| next.position == first.position) {
                segments.push(next.segment);
            }
            let before = (first.position as usize).checked_sub(call.len());
            let Some(before) = before.filter(|before| *before <= rest.len()) else { return Ok(None) };
            let len = sum(&segments);
            if call.len() + before + len > MOST_CALL {
                return Ok(None);
            }
            let (head, tail) = rest.split_at(before);
            call.extend_from_slice(head);
            call.extend(self.pull(&segments, len)?);
            if first.position != 0 {
                call.resize(call.len() + padding(len), 0);
            }
            rest = tail;
        }
        call.extend_from_slice(rest);
        Ok(Some(call))
    }

    /// Reads the client's memory by RDMA.
    fn pull(&mut self, segments: &[Segment], len: usize) -> Result<Vec<u8>, LinkError> {
        let mut at = 0;
        for segment in segments {
            let sges = [self.long.sge(at, segment.len)];
            let from = Remote { addr: segment.addr, rkey: Key(segment.key) };
            self.link.qp().post_send(&SendWr::new(MOVE, SendOp::Read(from), &sges))?;
            self.wait_until(|_, wc| wc.wr_id == MOVE)?;
            at += segment.len as usize;
        }
        Ok(self.long.read_vec(0, len)?)
    }

    /// Writes to the client's memory by RDMA. Returns the segments with the number of bytes written to each. The reply
    /// follows on the same connection, and so arrives after the data. Therefore nothing has to wait.
    fn push(&self, from: &Mr, offset: usize, len: usize, to: &[Segment]) -> Result<Vec<Segment>, LinkError> {
        let (mut written, mut done) = (Vec::new(), 0);
        for segment in to {
            let part = (len - done).min(segment.len as usize);
            if part > 0 {
                let sges = [from.sge(offset + done, part as u32)];
                let op = SendOp::Write(Remote { addr: segment.addr, rkey: Key(segment.key) });
                let wr = SendWr { flags: SendFlags::empty(), ..SendWr::new(MOVE, op, &sges) };
                self.link.qp().post_send(&wr)?;
            }
            written.push(Segment { len: part as u32, ..*segment });
            done += part;
        }
        Ok(written)
    }

    /// Sends a reply. The data of a file are written to the memory that the client has named. The results are in the
    /// message, or, if they are too long, in the memory for long replies that the client has named.
    fn reply(
        &mut self,
        xid: u32,
        out: Writer,
        chunks: Chunks,
        data: Option<compound::Data>,
    ) -> Result<(), LinkError> {
        let shared = self.shared;
        let mut answer = Chunks::default();
        // The memory of earlier replies must not be changed before these replies, and the data written before them, have
        // arrived.
        self.wait_until_quiet()?;
        for (place, chunk) in chunks.writes.iter().enumerate() {
            let (offset, len) = match data {
                Some(data) if place == 0 => (data.offset, data.len),
                _ => (0, 0),
            };
            answer.writes.push(self.push(shared.export.memory(), offset, len, chunk)?);
        }
        let empty = |segment: &Segment| Segment { len: 0, ..*segment };
        answer.reply = chunks.reply.as_ref().map(|chunk| chunk.iter().map(empty).collect());
        let credits = CREDITS.into();
        let header = Header { xid, credits, kind: Kind::Message(answer.clone()) };
        let mut message = header.encode();
        if message.len() + out.0.len() <= self.longest {
            message.extend_from_slice(&out.0);
            return self.send(&message);
        }
        match &chunks.reply {
            Some(chunk) if out.0.len() <= sum(chunk).min(MOST_REPLY) => {
                self.long.write_at(MOST_CALL, &out.0)?;
                answer.reply = Some(self.push(&self.long, MOST_CALL, out.0.len(), chunk)?);
                self.send(&Header { xid, credits, kind: Kind::NoMessage(answer) }.encode())
            }
            _ => self.refuse(xid, Refusal::Chunks),
        }
    }

    fn refuse(&mut self, xid: u32, refusal: Refusal) -> Result<(), LinkError> {
        self.send(&Header { xid, credits: CREDITS.into(), kind: Kind::Error(refusal) }.encode())
    }

    /// Waits until all messages sent, and so all data before them, have been acknowledged. If a client never acknowledges,
    /// its connection waits here, and is closed after a while.
    fn wait_until_quiet(&mut self) -> Result<(), LinkError> {
        if self.free.len() == usize::from(CREDITS) {
            return Ok(());
        }
        self.wait_until(|connection, _| connection.free.len() == usize::from(CREDITS))
    }

    fn send(&mut self, message: &[u8]) -> Result<(), LinkError> {
        if self.free.is_empty() {
            self.wait_until(|connection, _| !connection.free.is_empty())?;
        }
        let Some(place) = self.free.pop() else { return Ok(()) };
        let at = usize::from(CREDITS + place) * MESSAGE;
        self.messages.write_at(at, message)?;
        let sges = [self.messages.sge(at, message.len() as u32)];
        Ok(self.link.qp().post_send(&SendWr::new(SEND | u64::from(place), SendOp::Send, &sges))?)
    }
}

fn post_receive(link: &Link, messages: &Mr, place: u16) -> Result<(), LinkError> {
    let sges = [messages.sge(usize::from(place) * MESSAGE, MESSAGE as u32)];
    Ok(link.qp().post_recv(&RecvWr { wr_id: RECEIVE | u64::from(place), sges: &sges })?)
}

fn sum(chunk: &[Segment]) -> usize {
    chunk.iter().map(|segment| segment.len as usize).sum()
}
