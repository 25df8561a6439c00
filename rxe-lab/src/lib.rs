//! The laboratory: explains what was on the wire. `rxe-dissect` is the program, and this library is what it is made of.
//!
//! * [`capture`] reads pcap and pcapng files, whatever state they are in.
//! * [`frame`] finds the RoCE packet in a captured frame, [`packet`] its headers, and [`icrc`] whether it came whole.
//! * [`fields`] is a packet as a tree of named values.
//! * [`flow`] follows connections: what was asked and answered, lost and sent again, and why.
//! * [`filter`] chooses packets by words, [`report`] shows all of it as text, JSON or a ladder.
//!
//! Headers are parsed by the protocol's own code (`rxe_core::wire`, `rxe_cm::proto`), so the output shows what an
//! implementation sees. Captures may be hostile: none causes a panic, and memory is bounded.
#![forbid(unsafe_code)]

pub mod capture;
pub mod fields;
pub mod filter;
pub mod flow;
pub mod frame;
pub mod icrc;
pub mod packet;
pub mod report;
