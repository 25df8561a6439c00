//! Reliable connection: a requester, a responder and the small helpers they are made of.

mod answers;
mod credits;
mod replay;
pub(crate) mod responder;
