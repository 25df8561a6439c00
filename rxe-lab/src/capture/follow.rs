//! A file that is still being written.

use std::{
    io::{self, Read},
    thread,
    time::Duration,
};

/// How often the file is checked while it does not grow.
const REST: Duration = Duration::from_millis(50);

/// Reads a file, and waits for more at its end.
pub struct Follow<R, W> {
    file: R,
    /// Called before each wait, so that buffered output can be written. If it returns `false` the file ends here.
    waits: W,
}

impl<R, W> std::fmt::Debug for Follow<R, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").finish_non_exhaustive()
    }
}

impl<R: Read, W: FnMut() -> bool> Follow<R, W> {
    /// Follows `file`. `waits` is called before each wait, and ends the file by returning `false`.
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
