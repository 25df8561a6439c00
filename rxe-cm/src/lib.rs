//! The connection manager: how two ends find each other by address and port and agree on queue pairs.
//!
//! * [`proto`] is the pure half: the messages that cross on queue pair 1, and the machines that exchange them.
//! * The rest is an interface of rdma_cm's shape: a [`Manager`] has queue pair 1 of a port, a [`CmId`] is one side of a
//!   connection, a listener or a datagram service, and tells what happens by [`CmEvent`]s on an [`EventChannel`].
//!
//! Rooms: `agent` (queue pair 1, the machines and their timers, and a thread that looks after both), `id` (what a program
//! does with an id), `route` (which way to a peer).
//!
//! The machines run in the program's process. The host service only hands requests to whoever listens; requests
//! that nobody waits for are refused, and connections of processes that died are ended, by [`attend_services`].
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
