//! NFS 4.1 over RPC over RDMA, both ends.
//!
//! * [`xdr`]: the encoding of values (RFC 4506).
//! * `rpc`: calls and replies (RFC 5531).
//! * [`transport`]: RPC over RDMA, version 1 (RFC 8166, and RFC 8797 for the sizes of messages). A call or reply is a SEND
//!   that begins with a header. A part that is too long, or is the data of a file (RFC 8267), is left out of the message.
//!   Instead the header names memory of the client by address and key, which the server reads or writes by RDMA.
//! * `v4`: the operations' numbers and errors (RFC 8881).
//! * [`Client`] reads, writes and lists files. [`Server`] serves a folder as it was when the server started, for reading
//!   only.

mod client;
mod rpc;
mod server;
pub mod transport;
mod v4;
pub mod xdr;

pub use client::{Client, Mount};
pub use server::{Server, ServerOptions};
