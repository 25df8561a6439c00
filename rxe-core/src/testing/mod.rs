//! A simulation for tests: two endpoints, joined by unreliable links, in virtual time. Everything random follows from one seed, so that
//! a failure can be repeated exactly.
//!
//! [`pair::Pair`] is the simulation as a whole, [`link::Link`] a wire that loses packets, [`heap::Heap`] application memory that records
//! writes. [`oracle`] is a random program with a model of the right results, [`gauntlet`] a peer that sends anything. With a [`carrier`]
//! the packets cross a real wire on their way. Compiled for the tests of this crate and, with feature `testing`, for tests, fuzz targets
//! and benches of other crates. Unlike the rest of the crate it may use the standard library.

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
