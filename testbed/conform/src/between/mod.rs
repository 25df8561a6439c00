//! A tester between two devices. It is a bridge between two interfaces that passes on all frames, except for those that a
//! case wants lost, repeated, delayed, held back or changed. Programs on the two hosts drive the devices, and report whether
//! their data arrived.

mod bridge;
mod cases;
mod run;

pub use bridge::{Act, Bridge, Fault, Side};
pub use cases::{Between, all};
pub use run::{Programs, run};
