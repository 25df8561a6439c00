//! Requests that are refused: the status on both sides, and what becomes of the requests and receives behind.

pub(crate) mod kernel;
pub(crate) mod ours;
