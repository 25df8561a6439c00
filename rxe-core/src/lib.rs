//! The RoCE protocol, versions 1 and 2: bytes, PSNs, queue pairs. No sockets, threads, clock, files or unsafe code: the caller brings
//! packets, time and memory, and takes packets, completions and deadlines.
//!
//! Rooms, each importing only those before it: [`num`] and [`time`], [`wire`], [`work`], [`memory`] and [`region`],
//! [`qp`], [`endpoint`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

pub mod endpoint;
pub mod memory;
pub mod num;
pub mod qp;
pub mod region;
pub mod stats;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod violation;
pub mod wire;
pub mod work;
