//! Standard output. If its reader ends (`rxe dissect FILE -p | head`), the program ends, as others do by SIGPIPE.

use serde::Serialize;
use std::{
    io::{self, BufWriter, Stdout, Write},
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The exit status that shells report for a program that SIGPIPE has ended.
const NOBODY_READS: i32 = 128 + 13;

/// Buffered standard output that several parts of the program may flush.
#[derive(Clone, Debug)]
pub(crate) struct Output(Arc<Mutex<BufWriter<Stdout>>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(BufWriter::with_capacity(1 << 16, io::stdout()))))
    }

    fn lock(&self) -> MutexGuard<'_, BufWriter<Stdout>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn line(&self, text: &str) -> super::Result<()> {
        let mut out = self.lock();
        judge(out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")))
    }

    pub(crate) fn json(&self, value: &impl Serialize) -> super::Result<()> {
        self.line(&serde_json::to_string(value)?)
    }

    pub(crate) fn flush(&self) -> super::Result<()> {
        judge(self.lock().flush())
    }
}

fn judge(done: io::Result<()>) -> super::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => process::exit(NOBODY_READS),
        other => other.map_err(|error| format!("cannot write the output: {error}").into()),
    }
}
