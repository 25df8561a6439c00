//! Standard output. If its reader ends (`rxe devices -v | head`), the program ends without a message, as others do by SIGPIPE.
//! The signal itself is not used, because it would also end the program if a peer closes its socket.

use crate::Result;
use serde::Serialize;
use std::{
    fmt::{self, Arguments},
    io::{self, IsTerminal, StdoutLock, Write},
    process,
};

/// The exit status that shells report for a program that SIGPIPE has ended.
const NOBODY_READS: i32 = 128 + 13;
/// The exit status if the output could not be written for another reason, such as a full disk.
const NOT_WRITTEN: i32 = 1;

/// Prints, and ends the process if that is not possible.
pub(crate) fn put(text: Arguments<'_>) {
    written(|out| out.write_fmt(text));
}

/// Prints what may be no UTF-8, such as a path.
pub(crate) fn bytes(bytes: &[u8]) {
    written(|out| out.write_all(bytes));
}

fn written(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>) {
    let mut out = io::stdout().lock();
    if let Err(error) = write(&mut out).and_then(|()| out.flush()) {
        if error.kind() == io::ErrorKind::BrokenPipe {
            process::exit(NOBODY_READS);
        }
        // This may fail as well.
        let _ = writeln!(io::stderr(), "rxe: cannot write the output: {error}");
        process::exit(NOT_WRITTEN);
    }
}

/// Prints a value as JSON: on several lines for people, on one for programs.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let is_read_by_people = io::stdout().is_terminal();
    let text =
        if is_read_by_people { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    put(format_args!("{}\n", text?));
    Ok(())
}

/// Tells people that a server waits, who would else see nothing until a client comes.
pub(crate) fn waits(place: impl fmt::Display) {
    if io::stderr().is_terminal() {
        // This may fail.
        let _ = writeln!(io::stderr(), "waiting for the other side ({place})");
    }
}

/// Like `print`, but without a panic.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::put(format_args!($($text)*)) };
}

/// Like `println`, but without a panic.
macro_rules! outln {
    () => { $crate::output::put(format_args!("\n")) };
    ($($text:tt)+) => { $crate::output::put(format_args!("{}\n", format_args!($($text)+))) };
}
