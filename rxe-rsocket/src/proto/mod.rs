//! The protocol of rsockets, without sockets, memory, threads or clock: what is exchanged when a connection is made
//! ([`Hello`]), the 32 bits that go with each RDMA WRITE ([`Message`]), and the two ends' bookkeeping of buffers and
//! credits ([`Stream`]). Datagrams have headers of their own ([`datagram`]).
//!
//! It is rdma-core's, which describes it in `librdmacm/docs/rsocket`; what that leaves open is as its library (44) does it.
//!
//! An end gives its peer two pieces of its receive buffer in turn. The peer fills a piece by RDMA WRITEs, each of which
//! brings its length as immediate data; when the program has read a whole piece, the end writes its address anew into a
//! directory of two entries in the peer's memory. Immediate data takes a receive of the peer's, so each end also counts
//! how many it may use: the credits.

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
