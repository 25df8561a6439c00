//! IP over InfiniBand (IPoIB) between hosts that run rxe: a TUN interface whose packets travel through queue pairs, like those
//! of `ib0` of the kernel's ib_ipoib on InfiniBand.
//!
//! Datagram mode is RFC 4391: each IP packet is a datagram (UD) with 4 bytes in front. ARP and neighbour discovery carry
//! 20-byte link-layer addresses, and groups are multicast GIDs. Connected mode is RFC 4755: packets to a neighbour that accepts
//! connections are sent over a reliable connection (RC), with an MTU of up to 65520.
//!
//! A TUN interface has neither link-layer addresses nor groups, so this crate does what kernel and driver do elsewhere.
//! [`proto`] has the formats and the neighbour table, without sockets and clocks. [`Interface`] has the TUN interface, the
//! queue pairs, and the thread that moves packets between them. `control` handles requests to a running interface.

#![forbid(unsafe_code)]

pub mod control;
mod counters;
mod error;
mod interface;
mod local;
mod network;
mod pool;
mod port;
pub mod proto;
mod tun;

pub use counters::Counters;
pub use error::Error;
pub use interface::{ConnectionReport, Interface, NeighbourReport, Options, Report};
pub use port::Mode;
