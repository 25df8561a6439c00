//! A file that somebody still writes.

use std::{
    io::{self, Read},
    thread,
    time::Duration,
};

/// How often the file is looked at while it does not grow.
const REST: Duration = Duration::from_millis(50);

/// Reads a file and waits for more at its end, for ever or until it is told to stop.
pub struct Follow<R, W> {
    file: R,
    /// Called before each wait: output that was held back can go out. `false` ends the file here.
    waits: W,
}

impl<R, W> std::fmt::Debug for Follow<R, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").finish_non_exhaustive()
    }
}

impl<R: Read, W: FnMut() -> bool> Follow<R, W> {
    /// Follows `file`; `waits` is called before each wait, and ends it by `false`.
    pub const fn new(file: R, waits: W) -> Self {
        Self { file, waits }
    }
}

impl<R: Read, W: FnMut() -> bool> Read for Follow<R, W> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(into) {
                Ok(0) if !into.is_empty() => {
                    if !(self.waits)() {
                        return Ok(0);
                    }
                    thread::sleep(REST);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}
