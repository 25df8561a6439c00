//! The RDMA objects of a connected stream: a queue pair with its completion queue, and registered memory. It posts the requests
//! of the protocol's half ([`Stream`]), and reports completions to it. `wait.rs` is how threads wait for these.

mod wait;

pub(crate) use wait::Until;

use crate::{
    error::SocketError,
    lock,
    packing::{Cut, Packing, split},
    proto::{Chunk, Control, Failure, Hello, How, IoEntry, Limits, Message, Phase, Piece, Stream, Violation},
    room::Room,
    settings::Settings,
    waiters::Waiters,
};
use rxe_cm::CmId;
use rxe_verbs::{
    Access, CompChannel, Completion, Cq, Key, Mr, Payload, Pd, Qp, QpCaps, QpInit, QpType, RecvWr, Remote,
    SendFlags, SendOp, SendWr, Sge, WcExtra, WcOpcode, WcStatus,
};
use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, OnceLock, atomic::AtomicBool},
};
use wait::Waiting;

/// This bit is set in the `wr_id` of receives. The `wr_id` of a send is its message.
const RECEIVE: u64 = 1 << 63;
/// The `wr_id` of a keep-alive.
const KEEP_ALIVE: u64 = 1 << 62;
/// The `wr_id` of a WRITE of full packets, whose message follows in another request.
const DATA: u64 = 1 << 61;
/// Bytes of our directory, which is before the table of mapped buffers.
const DIRECTORY: usize = 2 * Piece::LEN;
/// Completions that are polled at a time.
const BATCH: usize = 32;

/// The objects of a connection, also before it is established.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) pd: Pd,
    qp: Arc<Qp>,
    cq: Cq,
    channel: CompChannel,
    receive: Mr,
    send: Mr,
    /// Our directory, and behind it the table of the peer's mapped buffers.
    tables: Mr,
    limits: Limits,
    iomap: u16,
}

impl Parts {
    /// Creates them for an id whose device is known.
    ///
    /// # Errors
    /// The error of the object that could not be created.
    pub(crate) fn new(id: &CmId, settings: &Settings) -> Result<Self, SocketError> {
        let context = id.context().ok_or(SocketError::NotConnected)?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let (sends, receives) = (settings.sends, settings.receives);
        // Large messages need two requests.
        let requests = 2 * u32::from(sends);
        let cq = context.create_cq(requests + u32::from(receives), Some(&channel))?;
        let caps = QpCaps {
            max_send_wr: requests,
            max_recv_wr: receives.into(),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline: u32::from(settings.inline).max(IoEntry::LEN as u32),
        };
        let init = QpInit { caps, ..QpInit::new(QpType::Rc, &cq) };
        let qp = id.create_qp(&pd, &init)?;
        let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let tables = DIRECTORY + usize::from(settings.iomap) * IoEntry::LEN;
        let parts = Self {
            receive: pd.alloc_mr(settings.receive_buffer as usize, written)?,
            send: pd.alloc_mr(settings.send_buffer as usize, Access::LOCAL_WRITE)?,
            tables: pd.alloc_mr(tables, written)?,
            limits: Limits {
                receives,
                sends,
                receive_buffer: settings.receive_buffer,
                send_buffer: settings.send_buffer,
                inline: settings.inline.into(),
            },
            iomap: settings.iomap,
            pd,
            qp,
            cq,
            channel,
        };
        parts.post_receives(receives.into())?;
        Ok(parts)
    }

    fn post_receives(&self, count: usize) -> Result<(), SocketError> {
        const EMPTY: [RecvWr<'_>; BATCH] = [RecvWr { wr_id: RECEIVE, sges: &[] }; BATCH];
        let mut left = count;
        while left > 0 {
            let now = left.min(BATCH);
            self.qp.post_recv_list(&EMPTY[..now]).map_err(|error| error.reason)?;
            left -= now;
        }
        Ok(())
    }

    /// The private data for the peer.
    pub(crate) fn hello(&self) -> Hello {
        Hello {
            big_endian: cfg!(target_endian = "big"),
            credits: self.limits.receives,
            iomap: self.iomap,
            directory: Piece {
                addr: self.tables.addr(),
                key: self.tables.rkey().0,
                len: crate::proto::DIRECTORY_ENTRIES,
            },
            buffer: Piece { addr: self.receive.addr(), key: self.receive.rkey().0, len: self.limits.half() },
        }
    }
}

/// A connection that is or was established.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) parts: Parts,
    /// The peer's private data.
    pub(crate) peer: Hello,
    stream: Mutex<Stream>,
    /// Held by a thread that posts what it has reserved, so that the end of the stream is not posted first. A thread that needs
    /// both locks takes `stream` first.
    posting: Mutex<()>,
    /// The packets of the connection. Set at the first send, because the path MTU may not be known before.
    packing: OnceLock<Packing>,
    /// Whether the completion queue is armed.
    armed: AtomicBool,
    /// Waiting threads: one of them waits for the event, and the others wait for that thread.
    waiting: Mutex<Waiting>,
    /// Threads that wait for the descriptor, or for that thread.
    pub(crate) waiters: Waiters,
}

impl Link {
    pub(crate) fn new(parts: Parts, peer: Hello) -> Self {
        let stream = Mutex::new(Stream::new(parts.limits, &peer));
        Self {
            parts,
            peer,
            stream,
            posting: Mutex::default(),
            packing: OnceLock::new(),
            armed: AtomicBool::new(false),
            waiting: Mutex::default(),
            waiters: Waiters::default(),
        }
    }

    /// The protocol's half.
    pub(crate) fn stream(&self) -> MutexGuard<'_, Stream> {
        lock(&self.stream)
    }

    /// To be locked when a message is reserved, and released when it is posted.
    pub(crate) fn posting(&self) -> MutexGuard<'_, ()> {
        lock(&self.posting)
    }

    /// The descriptor that becomes readable once the queue is armed ([`Self::arm`]).
    pub(crate) fn event_fd(&self) -> RawFd {
        self.parts.channel.as_fd().as_raw_fd()
    }

    /// Handles completions, and sends messages that are due to the peer.
    pub(crate) fn progress(&self, stream: &mut Stream) {
        self.tell(stream);
        let mut done = [Completion::default(); BATCH];
        loop {
            let Ok(count) = self.parts.cq.poll(&mut done) else {
                stream.fail(Failure::Device);
                return;
            };
            let received = done[..count].iter().filter(|wc| self.take(stream, wc)).count();
            if received > 0 && stream.phase() == Phase::Open && self.parts.post_receives(received).is_err() {
                // The queue pair has ended. The reason is, or will be, among the completions.
                stream.fail(Failure::Reset);
            }
            if count < done.len() {
                break;
            }
        }
        if let Some(entry) = stream.wants_entry() {
            self.look_up(stream, entry);
        }
        self.tell(stream);
    }

    /// Handles a completion. Returns whether it was a receive that has to be posted again.
    fn take(&self, stream: &mut Stream, wc: &Completion) -> bool {
        let good = wc.status == WcStatus::Success;
        if wc.wr_id & RECEIVE != 0 {
            match (good, wc.opcode, wc.extra) {
                (true, WcOpcode::RecvRdmaWithImm, WcExtra::Immediate(bytes)) => {
                    stream.on_message(Message::decode(bytes));
                }
                (true, ..) => stream.fail(Failure::Protocol(Violation::Message)),
                // Flushed, because the queue pair has ended. A send has the reason, if there were any.
                _ => stream.fail(Failure::Reset),
            }
            return good;
        }
        if !good {
            stream.fail(match wc.status {
                WcStatus::RetryExceeded => Failure::TimedOut,
                WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperation => {
                    Failure::Refused
                }
                WcStatus::WorkRequestFlushed => Failure::Reset,
                _ => Failure::Device,
            });
        }
        if wc.wr_id & DATA != 0 {
            // Their message is flushed, too.
            return false;
        }
        stream.on_sent(if wc.wr_id & KEEP_ALIVE != 0 {
            Message::Control(Control::KeepAlive)
        } else {
            Message::decode((wc.wr_id as u32).to_be_bytes())
        });
        false
    }

    /// Reads the next place in the peer's memory, if the peer has announced one.
    fn look_up(&self, stream: &mut Stream, entry: u32) {
        let at = entry as usize * Piece::LEN;
        if let Some(bytes) = self.read_entry(at)
            && stream.take_entry(Piece::decode(&bytes))
        {
            let _ = self.parts.tables.write_at(at, &[0; Piece::LEN]);
        }
    }

    /// Reads an entry of our tables; `None` if it is empty. The peer writes it front to back, and the length is at its end: if
    /// that is not 0, an entry that was empty before is complete.
    fn read_entry<const LEN: usize>(&self, at: usize) -> Option<[u8; LEN]> {
        let (mut len, mut bytes) = ([0; 4], [0; LEN]);
        self.parts.tables.read_at(at + LEN - len.len(), &mut len).ok()?;
        if len == [0; 4] {
            return None;
        }
        self.parts.tables.read_at(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Sends messages other than data to the peer.
    pub(crate) fn tell(&self, stream: &mut Stream) {
        let receive = &self.parts.receive;
        while let Some((message, update)) = stream.take_control(receive.rkey().0, receive.addr()) {
            let posted = match &update {
                Some(update) => self.post(message, update.to, Payload::Inline(&update.entry)),
                None => self.post(message, Piece::default(), Payload::Inline(&[])),
            };
            if posted.is_err() {
                stream.fail(Failure::Reset);
            }
        }
    }

    fn post(&self, message: Message, to: Piece, payload: Payload<'_>) -> Result<(), SocketError> {
        let immediate = message.encode();
        let remote = Remote { addr: to.addr, rkey: Key(to.key) };
        let number = u32::from_be_bytes(immediate).into();
        self.post_request(number, SendOp::WriteImm(remote, immediate), payload)
    }

    fn post_request(&self, wr_id: u64, op: SendOp, payload: Payload<'_>) -> Result<(), SocketError> {
        let flags = SendFlags::SIGNALED;
        Ok(self.parts.qp.post_send(&SendWr { wr_id, op, flags, payload, dest: None, xrc_srq: 0 })?)
    }

    /// Sends a keep-alive. If the peer does not answer, the connection ends.
    pub(crate) fn keep_alive(&self) {
        let mut stream = self.stream();
        self.progress(&mut stream);
        self.post_keep_alive(&mut stream);
    }

    fn post_keep_alive(&self, stream: &mut Stream) {
        let nothing = SendOp::Write(Remote::default());
        if stream.take_keep_alive() && self.post_request(KEEP_ALIVE, nothing, Payload::Inline(&[])).is_err() {
            stream.fail(Failure::Reset);
        }
    }

    /// Sends a chunk of data with these `bytes`. Without `tell` there is no message to the peer ([`Stream::take_direct`]).
    ///
    /// # Errors
    /// The queue pair has ended.
    pub(crate) fn send(
        &self,
        chunk: &Chunk,
        bytes: &[&[u8]],
        tell: bool,
        _posting: MutexGuard<'_, ()>,
    ) -> Result<(), SocketError> {
        let mut sges = [Sge::default(); 2];
        let mut few = [0; 1024];
        let payload = match chunk.through {
            Some(ranges) => {
                self.copy_in(&ranges, bytes)?;
                for (sge, (at, len)) in sges.iter_mut().zip(ranges) {
                    *sge = self.parts.send.sge(at as usize, len);
                }
                let used = if ranges[1].1 > 0 { 2 } else { 1 };
                Payload::Sges(&sges[..used])
            }
            None if bytes.len() == 1 => Payload::Inline(bytes[0]),
            None => {
                let mut len = 0;
                for part in bytes {
                    few[len..len + part.len()].copy_from_slice(part);
                    len += part.len();
                }
                Payload::Inline(&few[..len])
            }
        };
        if tell
            && chunk.through.is_some()
            && let Some(cut) = self.packing().cut(chunk.len, chunk.follows)
        {
            return self.post_apart(chunk, sges, cut);
        }
        if tell {
            return self.post(chunk.message, chunk.to, payload);
        }
        let number = u32::from_be_bytes(chunk.message.encode()).into();
        let remote = Remote { addr: chunk.to.addr, rkey: Key(chunk.to.key) };
        self.post_request(number, SendOp::Write(remote), payload)
    }

    /// Posts the full packets of data, and then the message with the rest.
    fn post_apart(&self, chunk: &Chunk, sges: [Sge; 2], cut: Cut) -> Result<(), SocketError> {
        let (whole, rest) = (split(sges, cut.before).0, split(sges, cut.from).1);
        let remote =
            |at: u32| Remote { addr: chunk.to.addr.wrapping_add(at.into()), rkey: Key(chunk.to.key) };
        let immediate = chunk.message.encode();
        let data = SendWr {
            wr_id: DATA,
            op: SendOp::Write(remote(0)),
            flags: SendFlags::empty(),
            payload: Payload::Sges(&whole),
            dest: None,
            xrc_srq: 0,
        };
        let message = SendWr {
            wr_id: u32::from_be_bytes(immediate).into(),
            op: SendOp::WriteImm(remote(cut.from), immediate),
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&rest),
            ..data
        };
        self.parts.qp.post_send_list(&[data, message]).map_err(|error| error.reason)?;
        Ok(())
    }

    fn copy_in(&self, ranges: &[(u32, u32); 2], bytes: &[&[u8]]) -> Result<(), SocketError> {
        let mut ranges = ranges.iter().map(|(at, len)| (*at as usize, *len as usize));
        let (mut at, mut room) = ranges.next().unwrap_or_default();
        for part in bytes {
            let mut part = *part;
            while !part.is_empty() {
                if room == 0 {
                    (at, room) = ranges.next().unwrap_or_default();
                }
                let (now, rest) = part.split_at(part.len().min(room));
                let copied = self.parts.send.write_at(at, now);
                copied.map_err(|_| SocketError::Cut(Failure::Device))?;
                (at, room, part) = (at + now.len(), room - now.len(), rest);
            }
        }
        Ok(())
    }

    /// Ends a direction, after what was reserved before.
    pub(crate) fn shut_down(&self, how: How) {
        let mut stream = self.stream();
        drop(self.posting());
        stream.shut_down(how);
        self.progress(&mut stream);
        if how == How::Read {
            // The peer is told nothing. Threads that wait for data are woken by the completion of this. If there are too many
            // such requests, they are woken by those.
            self.post_keep_alive(&mut stream);
        }
    }

    /// Tells the peer of a mapped buffer, in entry `index` of its table.
    ///
    /// # Errors
    /// The queue pair has ended.
    pub(crate) fn send_map(
        &self,
        message: Message,
        index: u16,
        entry: IoEntry,
        _posting: MutexGuard<'_, ()>,
    ) -> Result<(), SocketError> {
        let table = self.peer.directory;
        let offset = u64::from(table.len) * Piece::LEN as u64 + u64::from(index) * IoEntry::LEN as u64;
        let to = Piece { addr: table.addr.wrapping_add(offset), ..table };
        self.post(message, to, Payload::Inline(&entry.encode(self.peer.big_endian)))
    }

    /// The peer's mapped buffer that contains `offset`.
    pub(crate) fn mapped(&self, offset: u64) -> Option<IoEntry> {
        (0..usize::from(self.parts.iomap)).find_map(|index| {
            let entry = IoEntry::decode(&self.read_entry(DIRECTORY + index * IoEntry::LEN)?);
            entry.room(offset).map(|_| entry)
        })
    }

    /// Copies ranges of the receive buffer. Returns the number of bytes.
    ///
    /// # Errors
    /// The memory is gone.
    pub(crate) fn copy_out(
        &self,
        ranges: &[(u32, u32); 2],
        room: &mut Room<'_, '_>,
    ) -> Result<usize, SocketError> {
        let mut done = 0;
        for (at, len) in ranges {
            done += room.fill(*len as usize, |offset, out| {
                let copied = self.parts.receive.read_at(*at as usize + offset, out);
                copied.map_err(|_| SocketError::Cut(Failure::Device))
            })?;
        }
        Ok(done)
    }

    /// How data is divided into requests. The connection must be established.
    pub(crate) fn packing(&self) -> Packing {
        *self.packing.get_or_init(|| Packing { mtu: self.path_mtu() })
    }

    /// Most data bytes of a packet.
    pub(crate) fn path_mtu(&self) -> u32 {
        self.parts.qp.query().0.path_mtu.bytes()
    }
}
