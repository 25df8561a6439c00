//! A conformance suite for RoCE devices.
//!
//! [`wire`] makes packets and takes them apart, right ones and wrong ones, and shares no code with the stack that the suite
//! may judge. [`link`] brings them to a device and back: through memory, UDP sockets or a packet socket. [`dut`] is the
//! device: the verbs that a program on it would call, in this process or by an agent on another host. [`mod@bench`],
//! [`conn`] and, for the connection manager, [`cm`] put both together, and [`cases`] says, rule by rule, what has to come of it;
//! [`replay`] plays a recorded session instead. [`between`] is a tester between two devices. [`run`] runs them, and [`report`]
//! tells.

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
