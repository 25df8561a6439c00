//! IP over InfiniBand (IPoIB) between hosts that run rxe: a TUN interface whose packets cross by queue pairs, as those of
//! kernel ib_ipoib's `ib0` do on InfiniBand.
//!
//! Datagram mode is RFC 4391: each IP packet is a datagram (UD), with 4 bytes in front; ARP and neighbour discovery carry
//! 20-byte link-layer addresses, groups are multicast GIDs. Connected mode is RFC 4755: packets to a neighbour that takes
//! connections cross by a reliable one (RC), with an MTU of up to 65520.
//!
//! A TUN interface has neither link-layer addresses nor groups. So what kernel and driver share elsewhere is all here:
//! [`proto`] knows the formats and keeps the neighbour table, without sockets or time; [`Interface`] has the TUN, the queue
//! pairs and the thread that moves packets between them; `control` is how others ask a running interface.

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
