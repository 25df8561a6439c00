//! One line for every packet that a link sends or receives, for people who watch.

use super::tap::{Record, Sink};
use crate::sys::{lock, unix::out_of_the_way};
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
        Ok(Self::to_file(out_of_the_way(copy).into()))
    }

    /// Lines go to a file.
    #[must_use]
    pub fn to_file(to: File) -> Self {
        Self(Arc::new(Mutex::new(Out { to, start: Instant::now(), line: String::new() })))
    }

    /// Seconds since the start, what was done to the packet (nothing, or words that end with a blank), direction, the other
    /// side's address, what the packet says.
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
        // A disk that is full loses lines, not packets. A reader that is gone loses lines; a program in C that does not ignore SIGPIPE ends, as by output of its own.
        let _ = to.write_all(line.as_bytes());
    }
}

impl Sink for Trace {
    fn record(&self, record: &Record<'_>) {
        let peer = if record.outbound { record.dst } else { record.src };
        self.line(&"", record.outbound, peer, record.payload);
    }
}
