//! What the measurements share. `cargo bench -p benches` runs the criterion benches, `scripts/bench` the comparison with
//! TCP; `docs/benchmarks.md` explains all of them.

pub mod direct;
pub mod ends;
pub mod turns;
