//! The protocol of rsockets, without sockets, memory, threads and clocks: the data that is exchanged when a connection is
//! established ([`Hello`]), the immediate data of each RDMA WRITE ([`Message`]), and the state of buffers and credits at both
//! ends ([`Stream`]). Datagrams have their own headers ([`datagram`]).
//!
//! It is the protocol of rdma-core, described in `librdmacm/docs/rsocket`. What is open there is done as in its library (44).
//!
//! Each end gives its peer the two halves of its receive buffer in turn. The peer fills a half by RDMA WRITEs, each with its
//! length as immediate data. When the program has read a whole half, the end writes its address again to a directory of two
//! entries in the peer's memory. Immediate data consumes a receive at the peer, so each end also counts how many it may use:
//! the credits.

pub mod datagram;
mod hello;
mod iomap;
mod message;
mod stream;

pub use hello::{Hello, HelloError, Piece};
pub use iomap::{IoEntry, scaled, unscaled};
pub use message::{Control, Message};
pub(crate) use stream::DIRECTORY as DIRECTORY_ENTRIES;
pub use stream::{Chunk, Failure, How, Limits, Phase, Stream, Update, Violation};
