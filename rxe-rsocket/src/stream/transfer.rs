//! Sending and receiving.

use super::StreamSocket;
use crate::{
    error::SocketError,
    flags::Flags,
    link::{Link, Until},
    lock,
    proto::{Phase, Stream},
    room::Room,
};
use std::{
    sync::{MutexGuard, atomic::Ordering},
    time::Duration,
};

/// Most parts of a message that is sent without the send buffer.
const FEW: usize = 8;

impl StreamSocket {
    /// How long a call with these flags may wait.
    pub(super) fn until(&self, flags: Flags, timeout: Option<Duration>) -> Until {
        if flags.contains(Flags::DONTWAIT) || self.nonblocking.load(Ordering::Relaxed) {
            return Until::Now;
        }
        Until::within(timeout)
    }

    /// Sends bytes: all of them, unless the call must not wait. Returns how many (rsend).
    ///
    /// # Errors
    /// [`SocketError::NoMoreWriting`] after the end of this direction or of the connection, [`SocketError::Cut`] once with the
    /// reason if it has failed; [`SocketError::WouldBlock`], [`SocketError::Interrupted`], [`SocketError::NotConnected`].
    pub fn send(&self, data: &[u8], flags: Flags) -> Result<usize, SocketError> {
        self.send_parts(&[data], flags)
    }

    /// The same for bytes in several buffers (rsendmsg, rwritev).
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_parts(&self, data: &[&[u8]], flags: Flags) -> Result<usize, SocketError> {
        let until = self.until(flags, lock(&self.options).send_timeout);
        let link = self.connected(until)?;
        let _alone = self.sending.take(until)?;
        self.send_maps(link, until).map_err(|error| self.once(error))?;
        let mut left = Rest::new(data);
        let total = left.len;
        while left.len > 0 {
            if let Err(error) = self.send_some(link, &mut left, until) {
                // The reason is told by the next call.
                return if left.len < total { Ok(total - left.len) } else { Err(self.once(error)) };
            }
        }
        Ok(total)
    }

    /// Sends one message.
    fn send_some(&self, link: &Link, left: &mut Rest<'_>, until: Until) -> Result<(), SocketError> {
        let (chunk, posting) = {
            let mut stream = self.wait_writable(link, until, Stream::can_send)?;
            (stream.take_chunk(left.len).ok_or(SocketError::WouldBlock)?, link.posting())
        };
        let mut parts = Vec::new();
        let mut place = [&[][..]; FEW];
        let bytes = left.take(chunk.len as usize, &mut place, &mut parts);
        link.send(&chunk, bytes, true, posting).inspect_err(|_| self.lost(link))
    }

    /// Waits until `test` says that the stream can be written to. If the error is given to the program, it must pass
    /// [`Self::once`].
    pub(super) fn wait_writable<'a>(
        &self,
        link: &'a Link,
        until: Until,
        test: impl Fn(&Stream) -> bool,
    ) -> Result<MutexGuard<'a, Stream>, SocketError> {
        let stream = link.stream();
        let stream = if test(&stream) {
            stream
        } else {
            drop(stream);
            link.wait(until, |s| test(s) || !s.is_writable())?
        };
        if stream.is_writable() {
            return Ok(stream);
        }
        Err(match stream.phase() {
            Phase::Failed(failure) => SocketError::Cut(failure),
            Phase::Open | Phase::Ended => SocketError::NoMoreWriting,
        })
    }

    /// What the program is told of an error of sending: why the connection has failed it is told only once.
    pub(super) fn once(&self, error: SocketError) -> SocketError {
        match error {
            SocketError::Cut(failure) => {
                self.first_failure(Phase::Failed(failure)).unwrap_or(SocketError::NoMoreWriting)
            }
            other => other,
        }
    }

    /// Posting failed. The completions contain the reason.
    pub(super) fn lost(&self, link: &Link) {
        let mut stream = link.stream();
        link.progress(&mut stream);
        stream.fail(crate::proto::Failure::Reset);
    }

    /// Why the connection has failed; only at the first call.
    fn first_failure(&self, phase: Phase) -> Option<SocketError> {
        let Phase::Failed(failure) = phase else { return None };
        let told = core::mem::replace(&mut lock(&self.options).failure_told, true);
        (!told).then_some(SocketError::Cut(failure))
    }

    /// The error number of a failed connection (SO_ERROR); only at the first call.
    pub(super) fn failure_number(&self) -> Option<i32> {
        let phase = self.link.get()?.stream().phase();
        self.first_failure(phase).map(|error| error.errno())
    }

    /// Receives the available data, up to the length of `out` (rrecv). Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// [`SocketError::Cut`] once, if the connection has failed and all data before that was read; [`SocketError::WouldBlock`],
    /// [`SocketError::Interrupted`], [`SocketError::NotConnected`].
    pub fn receive(&self, out: &mut [u8], flags: Flags) -> Result<usize, SocketError> {
        self.receive_parts(&mut [out], flags)
    }

    /// The same into several buffers, one after the other (rrecvmsg, rreadv).
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_parts(&self, out: &mut [&mut [u8]], flags: Flags) -> Result<usize, SocketError> {
        let until = self.until(flags, lock(&self.options).receive_timeout);
        let link = self.connected(until)?;
        let _alone = self.receiving.take(until)?;
        let mut room = Room::new(out);
        let total = room.len;
        while room.len > 0 {
            let stream = link.stream();
            let stream = if stream.unread() > 0 {
                stream
            } else {
                drop(stream);
                match link.wait(until, |stream| stream.unread() > 0 || !stream.can_come()) {
                    Ok(stream) => stream,
                    Err(_) if room.len < total => break,
                    Err(error) => return Err(error),
                }
            };
            if stream.unread() == 0 {
                let phase = stream.phase();
                drop(stream);
                if room.len < total {
                    break;
                }
                // A look takes nothing, the reason neither.
                let failure = match phase {
                    Phase::Failed(failure) if flags.contains(Flags::PEEK) => {
                        (!lock(&self.options).failure_told).then_some(SocketError::Cut(failure))
                    }
                    phase => self.first_failure(phase),
                };
                return failure.map_or(Ok(0), Err);
            }
            let ranges = stream.unread_ranges(room.len);
            drop(stream);
            // No other thread reads, and the peer may not write there.
            let count = link.copy_out(&ranges, &mut room)?;
            if flags.contains(Flags::PEEK) {
                break;
            }
            let mut stream = link.stream();
            stream.consume(count as u32);
            // The peer may wait for the room.
            link.tell(&mut stream);
            if !flags.contains(Flags::WAITALL) && stream.unread() == 0 {
                break;
            }
        }
        Ok(total - room.len)
    }

    /// Bytes that can be received without waiting (FIONREAD).
    #[must_use]
    pub fn unread(&self) -> usize {
        self.link.get().map_or(0, |link| {
            let mut stream = link.stream();
            link.progress(&mut stream);
            stream.unread() as usize
        })
    }
}

/// Bytes that are still to be sent.
pub(super) struct Rest<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part that were sent.
    at: usize,
    pub(super) len: usize,
}

impl<'a> Rest<'a> {
    pub(super) fn new(parts: &'a [&'a [u8]]) -> Self {
        Self { parts, at: 0, len: parts.iter().map(|part| part.len()).sum() }
    }

    /// The next `len` bytes: in `few` if there are few pieces, otherwise in `many`.
    pub(super) fn take<'b>(
        &mut self,
        len: usize,
        few: &'b mut [&'a [u8]; FEW],
        many: &'b mut Vec<&'a [u8]>,
    ) -> &'b [&'a [u8]] {
        let (mut left, mut count) = (len, 0);
        while left > 0 {
            let Some((first, others)) = self.parts.split_first() else { break };
            let rest = &first[self.at..];
            let piece = &rest[..rest.len().min(left)];
            if piece.len() == rest.len() {
                (self.parts, self.at) = (others, 0);
            } else {
                self.at += piece.len();
            }
            left -= piece.len();
            if piece.is_empty() {
                continue;
            }
            if count < FEW {
                few[count] = piece;
            } else {
                if many.is_empty() {
                    many.extend_from_slice(&few[..]);
                }
                many.push(piece);
            }
            count += 1;
        }
        self.len -= len - left;
        if count <= FEW { &few[..count] } else { many }
    }
}
