//! What is told in words, on standard error, to those who want to know (`RXE_LOG`, `rxe run -v`): why a call was refused, and
//! why a queue pair failed. The numbers of verbs say much less.

use crate::trust::variable;
use core::fmt::Display;
use std::sync::OnceLock;

/// The variable that asks for it.
const LOG: &str = "RXE_LOG";

/// Whether anybody wants to know.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| variable(LOG).is_some_and(|value| !value.is_empty() && value != "0"))
}

/// A line on standard error, if somebody wants to know.
pub fn tell(words: &dyn Display) {
    if is_wanted() {
        eprintln!("rxe: {words}");
    }
}
