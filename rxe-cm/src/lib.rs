//! The connection manager: how two ends find each other by address and port and agree on queue pairs.
//!
//! [`proto`] is the pure half: the messages that cross on queue pair 1, and the machines that exchange them.

pub mod proto;
