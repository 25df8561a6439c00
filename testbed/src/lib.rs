//! Foreign peers. [`agent`] speaks to the agent in a guest of `scripts/kernel-vm`, which drives that kernel's rxe; [`persona`]
//! is a peer that behaves as captured ConnectX cards do; [`storage`] has small peers of storage protocols.

pub mod agent;
pub mod pattern;
pub mod persona;
pub mod storage;
