//! The RoCEv2 protocol core. See ARCHITECTURE.md.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod num;
pub mod time;
pub mod wire;
