//! Reliable connections, RC and XRC.
//!
//! `requester` sends requests, and `completer` handles what comes back for them; `retry` has their timers. `responder` executes
//! the peer's requests; `answers` queues what it has to send, and `replay` remembers what was executed.

mod answers;
pub(crate) mod completer;
mod credits;
mod replay;
pub(crate) mod requester;
pub(crate) mod responder;
mod retry;
