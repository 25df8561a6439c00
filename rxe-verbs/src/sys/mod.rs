//! System calls and nearly all of this crate's `unsafe`: what is above this module calls safe functions.

pub(crate) mod control;
pub(crate) mod message;
pub(crate) mod socket;
#[allow(dead_code, reason = "the engine is its user")]
pub(crate) mod usercopy;
