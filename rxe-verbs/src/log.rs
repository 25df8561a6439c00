//! Messages on standard error, if `RXE_LOG` or `rxe run -v` asks for them. They say why a call was refused and why a queue pair
//! failed. The error numbers of verbs say much less.

use crate::trust::variable;
use core::fmt::Display;
use std::sync::OnceLock;

/// The environment variable that turns the messages on.
const LOG: &str = "RXE_LOG";

/// Whether messages are wanted: the variable is set, and neither empty nor `0`.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| variable(LOG).is_some_and(|value| !value.is_empty() && value != "0"))
}

/// Prints a line on standard error, if messages are wanted.
pub fn tell(words: &dyn Display) {
    if is_wanted() {
        eprintln!("rxe: {words}");
    }
}
