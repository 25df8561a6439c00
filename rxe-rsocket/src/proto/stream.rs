//! The state of one end of a connected stream: its buffers, the messages that may be sent to the peer, and its end.
//!
//! It has offsets into buffers, but not the buffers themselves. The caller copies the bytes, posts the work requests, and
//! reports what has arrived ([`Stream::on_message`]) and what was sent ([`Stream::on_sent`]). The peer's messages are checked.
//! If the peer writes more than it has room for, or sends more messages than it has credits for, the connection ends.

use super::{Control, Hello, IoEntry, Message, Piece};
use std::collections::VecDeque;

/// Entries of our directory: the peer's receive buffer has two halves.
pub(crate) const DIRECTORY: u32 = 2;
/// Most messages about credits and the end of the connection that are under way. They need no credits.
const CONTROLS: u8 = 4;
/// A stream is writable while this many bytes of its send buffer are free, as with rdma-core.
const LOW_WATER: u32 = 2048;
/// Most bytes of a message.
const MOST: u32 = 65536;

/// The sizes of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Length of the receive queue: messages with immediate data.
    pub receives: u16,
    /// Length of the send queue, in work requests.
    pub sends: u16,
    /// Bytes of the receive buffer; it is used in two halves.
    pub receive_buffer: u32,
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Most bytes that are sent inline, without the send buffer.
    pub inline: u32,
}

impl Limits {
    /// Bytes of half a receive buffer.
    #[must_use]
    pub const fn half(&self) -> u32 {
        self.receive_buffer / 2
    }
}

/// The state of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It is established.
    Open,
    /// One of the two ends has closed it in the regular way.
    Ended,
    /// It has failed.
    Failed(Failure),
}

/// Why a connection has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The peer is gone, or has closed the connection without notice.
    #[error("the peer has cut the connection")]
    Reset,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    TimedOut,
    /// The peer refuses a write to its own receive buffer.
    #[error("the peer refuses a write to its own buffer")]
    Refused,
    /// The peer violates the protocol.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(Violation),
    /// An operation on our side failed.
    #[error("the device cannot go on")]
    Device,
}

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// It wrote more bytes than it had room for.
    #[error("it wrote {wrote} bytes where it had room for {room}")]
    Room {
        /// Bytes that it wrote.
        wrote: u32,
        /// Bytes that it had room for.
        room: u32,
    },
    /// It sent more messages than it had credits for.
    #[error("it sent more than the {0} messages that it had credits for")]
    Credits(u16),
    /// It sent a message without immediate data, or of an unknown type.
    #[error("it sent a message of no known type")]
    Message,
}

/// The direction that a program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// The receiving direction.
    Read,
    /// The sending direction.
    Write,
    /// Both directions.
    Both,
}

/// A message with data to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Bytes.
    pub len: u32,
    /// The destination in the peer's memory.
    pub to: Piece,
    /// The place in our send buffer: up to two ranges, each an offset and a length. None if the data is sent inline.
    pub through: Option<[(u32, u32); 2]>,
    /// The immediate data, if any.
    pub message: Message,
    /// Whether earlier messages are under way, as far as is known from completions.
    pub follows: bool,
}

/// A write to an entry of the peer's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update {
    /// The entry's address.
    pub to: Piece,
    /// The new value.
    pub entry: [u8; Piece::LEN],
}

/// One end of a stream.
#[derive(Debug)]
pub struct Stream {
    limits: Limits,
    phase: Phase,
    readable: bool,
    writable: bool,
    out: Out,
    into: In,
    /// The end of a direction that the peer still has to be told.
    farewell: Option<Control>,
    controls: u8,
    big_endian: bool,
    turn: u64,
}

/// The sending side.
#[derive(Debug)]
struct Out {
    /// Messages sent, and the number up to which more may be sent.
    sent: u16,
    may: u16,
    /// Free work requests, free bytes of the send buffer, and the offset of the next bytes in it.
    requests: u16,
    free: u32,
    at: u32,
    /// The place for the next bytes in the peer's memory.
    target: Piece,
    /// The entry of our directory that will have the place after that.
    entry: u32,
}

/// The receiving side.
#[derive(Debug)]
struct In {
    /// Lengths of unread messages, and their sum.
    messages: VecDeque<u32>,
    unread: u32,
    at: u32,
    /// Bytes that were read and not yet given back to the peer, and the offset of the first.
    free: u32,
    next: u32,
    /// Bytes that the peer may still write.
    granted: u32,
    /// Messages read, and the number at which credits are due.
    taken: u16,
    due: u16,
    /// The peer's directory, and the next entry to write.
    directory: Piece,
    entry: u32,
}

impl Stream {
    /// Creates the end of a connection to the peer that sent `hello`.
    #[must_use]
    pub fn new(limits: Limits, hello: &Hello) -> Self {
        let half = limits.half();
        Self {
            limits,
            phase: Phase::Open,
            readable: true,
            writable: true,
            out: Out {
                sent: 0,
                may: hello.credits,
                requests: limits.sends.saturating_sub(CONTROLS.into()),
                free: limits.send_buffer,
                at: 0,
                target: hello.buffer,
                entry: 1,
            },
            into: In {
                messages: VecDeque::new(),
                unread: 0,
                at: 0,
                free: half,
                next: half,
                granted: half,
                taken: 0,
                due: limits.receives / 2,
                directory: hello.directory,
                entry: 1,
            },
            farewell: None,
            controls: CONTROLS,
            big_endian: hello.big_endian,
            turn: 0,
        }
    }

    /// Whether it is established.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// A count that changes with each message that arrives and each request that completes, for edge-triggered waiting.
    #[must_use]
    pub const fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether more data may arrive: neither end has ended this direction.
    #[must_use]
    pub const fn can_come(&self) -> bool {
        self.readable && matches!(self.phase, Phase::Open)
    }

    /// Whether the program may write.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable && matches!(self.phase, Phase::Open)
    }

    /// The connection has failed. Data that was received can still be read. The first reason is kept.
    pub fn fail(&mut self, failure: Failure) {
        if self.phase == Phase::Open {
            self.turn += 1;
            // Both ends have told each other their ends. The peer may go then, before we know that it has ours.
            let told = !self.readable && !self.writable && self.farewell.is_none();
            let is_end = told && failure == Failure::Reset;
            self.phase = if is_end { Phase::Ended } else { Phase::Failed(failure) };
        }
    }

    /// Whether the send queue and the send buffer have room for a message.
    fn has_room(&self) -> bool {
        let low = LOW_WATER.min(self.limits.send_buffer);
        self.is_writable() && self.out.requests > 0 && self.out.free >= low
    }

    /// Whether data can be sent now.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.has_room() && self.out.sent != self.out.may && self.out.target.len > 0
    }

    /// The entry of our directory in which the peer writes the next place, if it has to be read now.
    #[must_use]
    pub fn wants_entry(&self) -> Option<u32> {
        (self.out.target.len == 0).then_some(self.out.entry)
    }

    /// Takes the content of that entry. If there was a place in it, the entry must be cleared before anything is sent, so that
    /// it is not taken again.
    pub fn take_entry(&mut self, found: Piece) -> bool {
        if self.out.target.len > 0 || found.len == 0 {
            return false;
        }
        self.turn += 1;
        self.out.target = found;
        self.out.entry = (self.out.entry + 1) % DIRECTORY;
        true
    }

    /// Reserves room for a message with up to `len` bytes of the stream; `None` if nothing can be sent now. It must be posted
    /// before any message that is reserved later.
    pub fn take_chunk(&mut self, len: usize) -> Option<Chunk> {
        if len == 0 || !self.can_send() {
            return None;
        }
        let wanted = u32::try_from(len).unwrap_or(MOST).min(MOST);
        let len = wanted.min(self.out.free).min(self.out.target.len);
        let to = Piece { len, ..self.out.target };
        self.out.target.addr = self.out.target.addr.wrapping_add(len.into());
        self.out.target.len -= len;
        self.out.sent = self.out.sent.wrapping_add(1);
        let follows = self.out.requests < self.most_requests();
        Some(Chunk { len, to, through: self.take_buffer(len), message: Message::Data(len), follows })
    }

    /// The same for a write to a buffer that the peer has mapped, from `to` on.
    pub fn take_direct(&mut self, len: usize, to: Piece) -> Option<Chunk> {
        if len == 0 || to.len == 0 || !self.has_room() {
            return None;
        }
        let wanted = u32::try_from(len).unwrap_or(MOST).min(MOST);
        let len = wanted.min(self.out.free).min(to.len);
        // The message is not sent. It records how many bytes become free again.
        Some(Chunk {
            len,
            to: Piece { len, ..to },
            through: self.take_buffer(len),
            message: Message::Data(len),
            follows: false,
        })
    }

    /// Reserves a request that tells the peer of a mapped buffer.
    pub fn take_map(&mut self, index: u16) -> Option<Message> {
        if !self.can_send() {
            return None;
        }
        self.out.sent = self.out.sent.wrapping_add(1);
        self.out.requests -= 1;
        self.out.free -= IoEntry::LEN as u32;
        Some(Message::IoMap(index))
    }

    fn take_buffer(&mut self, len: u32) -> Option<[(u32, u32); 2]> {
        self.out.requests -= 1;
        self.out.free -= len;
        if len <= self.limits.inline {
            return None;
        }
        let size = self.limits.send_buffer;
        let first = len.min(size - self.out.at);
        let through = [(self.out.at, first), (0, len - first)];
        self.out.at = (self.out.at + len) % size;
        Some(through)
    }

    /// A request with this message has completed.
    pub fn on_sent(&mut self, message: Message) {
        self.turn += 1;
        match message {
            Message::Credits(_) => self.controls += 1,
            Message::Control(control) => {
                self.controls += 1;
                if control == Control::Disconnect && self.phase == Phase::Open {
                    self.phase = Phase::Ended;
                }
            }
            Message::Data(len) => {
                self.out.requests += 1;
                self.out.free += len;
            }
            Message::IoMap(_) => {
                self.out.requests += 1;
                self.out.free += IoEntry::LEN as u32;
            }
            Message::Reserved(_) => {}
        }
        self.end_when_all_sent();
    }

    /// Both directions have ended. The connection has to stay until the peer has everything.
    fn end_when_all_sent(&mut self) {
        if self.phase == Phase::Open && !self.readable && !self.writable && self.is_all_sent() {
            self.phase = Phase::Ended;
        }
    }

    /// Most work requests with data that may be under way.
    fn most_requests(&self) -> u16 {
        self.limits.sends.saturating_sub(CONTROLS.into())
    }

    /// Whether no request is under way.
    #[must_use]
    pub fn is_all_sent(&self) -> bool {
        let idle = self.out.requests == self.most_requests();
        idle && self.controls == CONTROLS && self.farewell.is_none()
    }

    /// Requests under way and messages to be sent, for waiting until they become fewer.
    #[must_use]
    pub fn backlog(&self) -> u32 {
        let requests = u32::from(self.most_requests().saturating_sub(self.out.requests));
        requests + u32::from(CONTROLS.saturating_sub(self.controls)) + u32::from(self.farewell.is_some())
    }

    /// Handles a message of the peer.
    pub fn on_message(&mut self, message: Message) {
        self.turn += 1;
        if self.phase != Phase::Open {
            return;
        }
        match message {
            Message::Data(len) => {
                if len > self.into.granted {
                    let violation = Violation::Room { wrote: len, room: self.into.granted };
                    return self.fail(Failure::Protocol(violation));
                }
                if self.into.messages.len() >= self.limits.receives.into() {
                    return self.fail(Failure::Protocol(Violation::Credits(self.limits.receives)));
                }
                self.into.granted -= len;
                self.into.unread += len;
                if len == 0 {
                    self.into.taken = self.into.taken.wrapping_add(1);
                } else {
                    self.into.messages.push_back(len);
                }
            }
            Message::Credits(limit) => self.out.may = limit,
            Message::Control(Control::Disconnect) => self.phase = Phase::Ended,
            Message::Control(Control::Shutdown) => {
                self.readable = false;
                self.end_when_all_sent();
            }
            // Its table has changed already. The message took a credit, as data do.
            Message::IoMap(_) => self.into.taken = self.into.taken.wrapping_add(1),
            // rdma-core's library also ignores unknown messages.
            Message::Control(_) => {}
            Message::Reserved(_) => self.fail(Failure::Protocol(Violation::Message)),
        }
    }

    /// Number of bytes that can be read.
    #[must_use]
    pub const fn unread(&self) -> u32 {
        self.into.unread
    }

    /// The place of the first `len` unread bytes in the receive buffer: up to two ranges, each an offset and a length.
    #[must_use]
    pub fn unread_ranges(&self, len: usize) -> [(u32, u32); 2] {
        let len = u32::try_from(len).unwrap_or(u32::MAX).min(self.into.unread);
        let first = len.min(2 * self.limits.half() - self.into.at);
        [(self.into.at, first), (0, len - first)]
    }

    /// The program has read this many bytes.
    pub fn consume(&mut self, len: u32) {
        let mut left = len.min(self.into.unread);
        self.into.unread -= left;
        self.into.free += left;
        self.into.at = (self.into.at + left) % (2 * self.limits.half()).max(1);
        while left > 0 {
            let Some(first) = self.into.messages.front_mut() else { break };
            if left < *first {
                *first -= left;
                break;
            }
            left -= *first;
            self.into.messages.pop_front();
            self.into.taken = self.into.taken.wrapping_add(1);
        }
    }

    /// The program ends a direction. [`Self::take_control`] tells the peer, as soon as that is possible.
    pub fn shut_down(&mut self, how: How) {
        if self.phase != Phase::Open {
            return;
        }
        let had = (self.readable, self.writable);
        self.readable &= how == How::Write;
        self.writable &= how == How::Read;
        self.farewell = match (had, self.readable, self.writable) {
            // The first of two ends in a row may not have been sent yet.
            _ if !self.readable && !self.writable => Some(Control::Disconnect),
            ((_, true), true, false) => Some(Control::Shutdown),
            _ => self.farewell,
        };
    }

    /// The next message other than data. It must be posted. `key` and `buffer` are those of our receive buffer.
    pub fn take_control(&mut self, key: u32, buffer: u64) -> Option<(Message, Option<Update>)> {
        if self.phase != Phase::Open || self.controls == 0 {
            return None;
        }
        if let Some(farewell) = self.farewell.take() {
            self.controls -= 1;
            return Some((Message::Control(farewell), None));
        }
        let half = self.limits.half();
        let is_due = self.into.taken.wrapping_sub(self.into.due) < 0x8000;
        let piece = self.into.free >= half && half > 0;
        if !piece && !is_due {
            return None;
        }
        self.controls -= 1;
        self.into.due = self.into.taken.wrapping_add(self.limits.receives / 2);
        let message = Message::Credits(self.into.taken.wrapping_add(self.limits.receives));
        Some((message, piece.then(|| self.give_half(half, key, buffer))))
    }

    /// Gives half of the receive buffer back to the peer.
    fn give_half(&mut self, half: u32, key: u32, buffer: u64) -> Update {
        let told = Piece { addr: buffer.wrapping_add(self.into.next.into()), key, len: half };
        self.into.free -= half;
        self.into.granted += half;
        self.into.next = (self.into.next + half) % (2 * half);
        let directory = self.into.directory;
        let addr = directory.addr.wrapping_add(u64::from(self.into.entry) * Piece::LEN as u64);
        self.into.entry = (self.into.entry + 1) % directory.len.max(1);
        let to = Piece { addr, key: directory.key, len: Piece::LEN as u32 };
        Update { to, entry: told.encode(self.big_endian) }
    }

    /// Reserves a keep-alive request. It completes with [`Control::KeepAlive`].
    pub fn take_keep_alive(&mut self) -> bool {
        let may = self.phase == Phase::Open && self.controls > 0;
        self.controls -= u8::from(may);
        may
    }
}

#[cfg(test)]
mod tests;
