//! The engine: the only place where sockets, threads and time meet the protocol core.
//!
//! A [`Shard`] is one link and one core endpoint behind one lock; a stack has one or several, which know nothing of each
//! other but share the registered memory and the completion queues. Whoever holds the lock takes a turn: send what waits,
//! receive, handle, look at the timers, hand completions to their queues, send what came of it. Turns are taken inline,
//! by the calls of the application (`poll` on an empty queue, posting, waiting for an event), and by a background thread
//! while the application makes none.
//!
//! Lock order: shard, then window, then completion queue, then channel or event queue. Registered memory is read
//! without a lock of its own, by holders of a shard's lock (`sys::table`).

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
