//! rsockets: sockets over RDMA (rsocket(7)), which speak rdma-core's protocol.
//!
//! * [`proto`] is the pure half: messages, credits, rings, states.
//! * [`Socket`] is the API: a [`StreamSocket`] or a [`DatagramSocket`]. [`poll()`] and [`PollSet`] wait for several sockets.
//! * [`Stack`] is shared by all sockets of a process: the connection manager, and a thread that accepts requests for listeners
//!   and notices the end of connections.
//!
//! The data of a stream is copied twice: from the program to the send buffer, because a call returns before the data has
//! arrived, and from the receive buffer to the program. Between the two buffers it is transferred by RDMA WRITEs.
#![deny(unsafe_code)]

mod datagram;
mod error;
mod flags;
mod link;
mod options;
mod packing;
mod poll;
pub mod proto;
mod ready;
mod room;
mod settings;
mod socket;
mod stack;
mod stream;
mod turn;
mod waiters;

pub use datagram::DatagramSocket;
pub use error::SocketError;
pub use flags::Flags;
pub use options::{Name, SOL_RDMA, Value};
pub use poll::{PollSet, poll};
pub use settings::Settings;
pub use socket::{Domain, Received, Socket};
pub use stack::Stack;
pub use stream::{IoMapping, StreamSocket};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a panic of a thread that had it locked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
