//! The engine: the only place where sockets, threads and time meet the protocol core.
//!
//! A [`Shard`] is one link and one core endpoint behind one lock. A stack has one shard or several. They share the registered
//! memory and the completion queues, and else know nothing of each other.
//!
//! A thread that holds the lock of a shard takes a **turn**: it sends what waits, receives packets, handles them, runs timers that are
//! due, puts completions into their queues, and sends the answers. Calls of the application take turns (`poll` on an empty queue, a
//! post, a wait for an event). A background thread takes turns while the application makes no calls.
//!
//! Lock order: shard, then window, then completion queue, then channel or event queue. Registered memory has no lock of its own: it
//! is read by threads that hold a shard's lock (`sys::table`).

mod absence;
mod background;
mod clock;
mod congestion;
mod hold;
mod lanes;
mod lookout;
mod mailbox;
mod messages;
mod network;
mod polling;
mod promise;
mod reach;
mod registry;
mod shard;
mod stack;
mod state;
mod streams;
mod sums;
mod supply;
mod threads;
mod transmit;
mod wait;

pub(crate) use clock::now;
pub use congestion::Congestion;
pub(crate) use lanes::lanes_of_tables;
pub(crate) use lookout::{Descriptor, First};
pub(crate) use mailbox::Mailbox;
pub use messages::Messages;
pub(crate) use network::Follower;
pub use network::NetworkWatch;
pub use polling::Polling;
pub(crate) use reach::{Reach, ShardSet};
pub use registry::check_environment;
pub(crate) use registry::{Binding, Wrapping, find_or_open, open_inproc, open_link};
pub(crate) use shard::Shard;
pub(crate) use stack::{Stack, StackConfig, Waiter};
pub(crate) use state::{State, Who};
pub(crate) use threads::Threads;
pub use transmit::LinkReport;
pub(crate) use wait::{Patience, Spent};
