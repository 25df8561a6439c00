//! The laboratory: two endpoints joined by an unreliable link, in virtual time, with memory that knows who touched it.
//! Everything is a function of one seed, so that a failure can be run again, step by step.
//!
//! [`pair::Pair`] is the bench; [`link::Link`] the lossy wire, [`heap::Heap`] the application memory, [`oracle`] a random
//! user with a model of what must come out, [`gauntlet`] a peer that sends anything. With a [`carrier`] the packets cross a real
//! wire on their way. Compiled for this crate's own tests and, with feature `testing`, for other crates' tests, fuzz targets and
//! benches. Unlike the rest of the crate it may use the standard library.

pub mod carrier;
pub mod connect;
pub mod gauntlet;
pub mod heap;
pub mod link;
pub mod oracle;
pub mod pair;
pub mod pcap;
pub mod rng;
pub mod trace;

pub use carrier::{Carrier, Wire};
pub use connect::{ConnectOptions, Connection};
pub use heap::Heap;
pub use link::{Crossing, Datagram, Faults, Link, LinkConfig, Verdict};
pub use pair::{Pair, PairConfig, Side};
pub use rng::Rng;
