//! Foreign peers. [`agent`] speaks to the agent in a guest of `scripts/kernel-vm`, which drives that kernel's rxe.

pub mod agent;
pub mod pattern;
