//! Simulates networks in virtual time. Each host is an [`Endpoint`](rxe_core::endpoint::Endpoint) of rxe-core, and hosts are
//! joined by links and switches with queues, marking and pause frames. Only the network and the lower part of the adapters are
//! simulated. Queue pairs, headers, acknowledgements and loss recovery are those of the real protocol code.
//!
//! A [`Scenario`] describes the network and its traffic, a [`World`] simulates it, and [`report`] has the results.

pub mod on_slurm;
pub mod packet;
pub mod pcap;
pub mod plot;
pub mod report;
mod rng;
pub mod scenario;
pub mod selective;
pub mod sweep;
pub mod topology;
pub mod traffic;
pub mod units;
pub mod world;

pub use scenario::{Scenario, ScenarioError};
pub use world::World;
