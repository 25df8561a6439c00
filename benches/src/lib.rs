//! Code that the measurements share. `cargo bench -p benches` runs the criterion benches, `scripts/bench` the comparison
//! with TCP. `docs/benchmarks.md` explains all of them.

pub mod direct;
#[cfg(feature = "sockets")]
pub mod ends;
#[cfg(feature = "sockets")]
pub mod links;
#[cfg(feature = "sockets")]
pub mod turns;
