//! One line for every packet that a link sends or receives, for people who watch.

use super::{Capabilities, Link, Path, RecvBatch, SendError, Transmit};
use crate::sys::unix::out_of_the_way;
use core::{fmt::Write as _, net::IpAddr};
use rxe_core::wire::Packet;
use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
    path::Path as FilePath,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Where the lines go. Clones write to the same place.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<Out>>);

#[derive(Debug)]
struct Out {
    to: File,
    start: Instant,
    line: String,
}

impl Trace {
    /// Lines go to this process's standard error as it is now, whatever the program makes of that descriptor later.
    ///
    /// # Errors
    /// Standard error is closed, or there is no descriptor left.
    pub fn to_stderr() -> io::Result<Self> {
        let copy = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self::new(out_of_the_way(copy).into()))
    }

    /// Lines go to a new file.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(path: &FilePath) -> io::Result<Self> {
        File::create(path).map(Self::new)
    }

    fn new(to: File) -> Self {
        Self(Arc::new(Mutex::new(Out { to, start: Instant::now(), line: String::new() })))
    }

    /// Seconds since the start, direction, the other side's address, what the packet says.
    fn packet(&self, direction: char, peer: IpAddr, payload: &[u8]) {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Out { to, start, line } = &mut *out;
        line.clear();
        let seconds = start.elapsed().as_secs_f64();
        // Writing to a string does not fail.
        let _ = match Packet::decode(payload) {
            Ok(packet) => writeln!(line, "{seconds:12.6} {direction} {peer} {packet}"),
            Err(error) => writeln!(line, "{seconds:12.6} {direction} {peer} {} B: {error}", payload.len()),
        };
        // A reader that is gone loses lines; a program in C that does not ignore SIGPIPE ends, as by output of its own.
        let _ = to.write_all(line.as_bytes());
    }
}

/// A link that tells of every packet of another.
#[derive(Debug)]
pub struct TraceLink<L> {
    inner: L,
    trace: Trace,
}

impl<L: Link> TraceLink<L> {
    /// Tells `trace` of the packets of `inner`.
    pub const fn new(inner: L, trace: Trace) -> Self {
        Self { inner, trace }
    }

    fn received(&self, runs: &RecvBatch) {
        for run in runs.iter() {
            for payload in run.packets() {
                self.trace.packet('<', run.src, payload);
            }
        }
    }
}

impl<L: Link> Link for TraceLink<L> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn path(&self, dst: IpAddr, ifindex: u32) -> Path {
        self.inner.path(dst, ifindex)
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        let result = self.inner.send(batch, bytes);
        let sent = result.as_ref().map_or_else(SendError::sent, |()| usize::MAX);
        for payload in bytes.chunks(batch.segment_size.max(1)).take(sent) {
            self.trace.packet('>', batch.dst, payload);
        }
        result
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        let count = self.inner.recv(into)?;
        self.received(into);
        Ok(count)
    }

    fn glance(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        let count = self.inner.glance(into)?;
        self.received(into);
        Ok(count)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.poll_fds()
    }

    fn drops(&self) -> u64 {
        self.inner.drops()
    }

    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.inner.join(group, ifindex)
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.inner.leave(group, ifindex)
    }
}
