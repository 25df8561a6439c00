//! Standard output, whose reader may go (`rxe devices -v | head`): the program ends then, as others do by SIGPIPE, and says nothing.
//! By the signal itself it would also end where a peer's socket is closed.

use crate::Result;
use serde::Serialize;
use std::{
    fmt::Arguments,
    io::{self, IsTerminal, Write},
    process,
};

/// What shells make of a program that SIGPIPE has ended.
const NOBODY_READS: i32 = 128 + 13;
/// It could not be written for another reason: a full disk, say.
const NOT_WRITTEN: i32 = 1;

/// Prints; ends the process if that is not possible.
pub(crate) fn put(text: Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        if error.kind() == io::ErrorKind::BrokenPipe {
            process::exit(NOBODY_READS);
        }
        // Nobody may be there to read that either.
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

/// As `print`, without a panic.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::put(format_args!($($text)*)) };
}

/// As `println`, without a panic.
macro_rules! outln {
    () => { $crate::output::put(format_args!("\n")) };
    ($($text:tt)+) => { $crate::output::put(format_args!("{}\n", format_args!($($text)+))) };
}
