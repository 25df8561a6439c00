//! Networks in virtual time: many hosts, each an [`Endpoint`](rxe_core::endpoint::Endpoint) of rxe-core, joined by links and
//! switches with queues, marking and pause frames. What is simulated is the network and the adapters' edge; queue pairs,
//! packets' headers, acknowledgements and losses' consequences are those of the protocol itself.
//!
//! A [`Scenario`] says what there is, a [`World`] plays it, and [`report`] tells what came of it.

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
