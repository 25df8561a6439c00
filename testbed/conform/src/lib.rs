//! A conformance suite for RoCE devices.
//!
//! [`wire`] builds and parses packets, valid and invalid ones. It shares no code with the stack that the suite may test.
//! [`link`] carries packets to a device and back: through memory, UDP sockets or a packet socket. [`dut`] is the device: the
//! verbs that a program on it would call, in this process or by an agent on another host. [`mod@bench`], [`conn`] and, for
//! the connection manager, [`cm`] combine link and device. [`cases`] states, rule by rule, how a device has to behave.
//! [`replay`] plays a recorded session instead. [`between`] is a tester between two devices. [`run`] runs the cases, and
//! [`report`] writes the results.

pub mod bench;
pub mod between;
pub mod case;
pub mod cases;
pub mod cm;
pub mod conn;
pub mod dut;
pub mod laws;
mod left;
pub mod link;
pub mod replay;
pub mod report;
pub mod run;
pub mod wire;
