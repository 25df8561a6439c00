//! Reliable connection: a requester, a responder and the small helpers they are made of.

mod answers;
pub(crate) mod completer;
mod credits;
mod replay;
pub(crate) mod requester;
pub(crate) mod responder;
mod retry;
