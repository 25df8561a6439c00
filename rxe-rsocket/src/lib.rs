//! rsockets: sockets over RDMA (rsocket(7)), which speak rdma-core's protocol.
//!
//! * [`proto`] is the pure half: messages, credits, rings, states.
//! * [`Socket`] is what programs have: a [`StreamSocket`] or a [`DatagramSocket`]. [`poll()`] and [`PollSet`] wait for several.
//! * [`Stack`] is what all sockets of a process share: the connection manager, and a thread that takes requests for
//!   listeners and notices ends.
//!
//! A stream's bytes are copied twice: from the program to the send buffer, since a call returns before the peer has them,
//! and from the receive buffer to the program. Between those they go as any RDMA WRITE.
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
mod settings;
mod socket;
mod stack;
mod stream;
mod waiters;

pub use datagram::DatagramSocket;
pub use error::SocketError;
pub use flags::Flags;
pub use options::{Name, SOL_RDMA, Value};
pub use poll::{PollSet, poll};
pub use settings::Settings;
pub use socket::{Domain, Socket};
pub use stack::Stack;
pub use stream::{IoMapping, StreamSocket};
