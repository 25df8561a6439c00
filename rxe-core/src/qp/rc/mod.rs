//! Reliable connection: a requester, a responder and the small helpers they are made of.

pub(crate) mod responder;
