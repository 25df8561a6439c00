//! Prints one line of text for every packet that a link sends or receives.

use super::{
    file::Output,
    tap::{Record, Sink},
};
use crate::sys::lock;
use core::{
    fmt::{Display, Write as _},
    net::IpAddr,
};
use rxe_core::wire::Packet;
use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    sync::{Arc, Mutex},
    time::Instant,
};

/// Where the lines go. Clones write to the same place.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<Out>>);

#[derive(Debug)]
struct Out {
    to: Output,
    start: Instant,
    line: String,
}

impl Trace {
    /// Lines go to this process's current standard error, even if the program replaces or closes that descriptor later.
    ///
    /// # Errors
    /// Standard error is closed, or no descriptor is left.
    pub fn to_stderr() -> io::Result<Self> {
        let copy = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self::to_file(copy.into()))
    }

    /// Lines go to a file.
    #[must_use]
    pub fn to_file(to: File) -> Self {
        Self::to(Output::new(to))
    }

    pub(crate) fn to(to: Output) -> Self {
        Self(Arc::new(Mutex::new(Out { to, start: Instant::now(), line: String::new() })))
    }

    /// Writes one line: seconds since the start, `done`, direction, the peer's address, the decoded packet. `done` says what a
    /// fault did to the packet: it is empty, or ends with a blank.
    pub(super) fn line(&self, done: &dyn Display, outbound: bool, peer: IpAddr, payload: &[u8]) {
        let direction = if outbound { '>' } else { '<' };
        let mut out = lock(&self.0);
        let Out { to, start, line } = &mut *out;
        line.clear();
        let seconds = start.elapsed().as_secs_f64();
        // Writing to a string does not fail.
        let _ = match Packet::decode(payload) {
            Ok(packet) => writeln!(line, "{seconds:12.6} {done}{direction} {peer} {packet}"),
            Err(error) => {
                writeln!(line, "{seconds:12.6} {done}{direction} {peer} {} B: {error}", payload.len())
            }
        };
        // A full disk or a closed pipe loses lines, not packets. But a C program that does not ignore SIGPIPE is killed by a
        // closed pipe, as it would be by output of its own.
        let _ = to.write_all(line.as_bytes());
    }
}

impl Sink for Trace {
    fn record(&self, record: &Record<'_>) {
        let peer = if record.outbound { record.dst } else { record.src };
        self.line(&"", record.outbound, peer, record.payload);
    }
}
