//! The connection manager: how two ends find each other by address and port and agree on queue pairs.
//!
//! * [`proto`] is the pure half: the messages on queue pair 1, and the machines that exchange them.
//! * The rest is an interface like rdma_cm's: a [`Manager`] has queue pair 1 of a port, a [`CmId`] is one side of a
//!   connection, a listener or a datagram service, and its [`CmEvent`]s arrive on an [`EventChannel`].
//!
//! Rooms: `agent` (queue pair 1, the machines and their timers, and their thread), `id` (the calls of a program), `route`
//! (paths to peers).
//!
//! The machines run in the program's process. The host service gives requests to the processes that listen. By
//! [`attend_services`] it also refuses requests without a listener, and ends connections of processes that died.
#![forbid(unsafe_code)]

mod agent;
mod channel;
mod counter;
mod error;
mod event;
mod host;
mod id;
pub mod proto;
mod route;

pub use agent::{Crossing, Direction, Manager, ManagerCounters, min_rnr_timer};
pub use channel::EventChannel;
pub use error::CmError;
pub use event::{CmEvent, ConnTerms, DatagramTerms, Ece, EventKind, Offer};
pub use host::attend_services;
pub use id::{CmId, CmOptions, ConnParams, ForeignQp, OwnPath, UDP_QKEY};
pub use route::PathRecord;
