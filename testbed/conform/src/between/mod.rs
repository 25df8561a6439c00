//! A tester between two devices: a bridge of two interfaces that passes all frames on, but for those which a case wants to be
//! lost, repeated, delayed, held back or changed. Programs on the two hosts drive the devices, and say whether their data
//! came.

mod bridge;
mod cases;
mod run;

pub use bridge::{Act, Bridge, Fault, Side};
pub use cases::{Between, all};
pub use run::{Programs, run};
