//! Lets packets of a simulated pair cross a real wire on their way. The simulation still decides whether and when they arrive; the
//! operating system makes the frames.

use super::link::Datagram;
use crate::{
    endpoint::Transmit,
    qp::Mtu,
    wire::{Encapsulation, Ident},
};
use alloc::{rc::Rc, vec::Vec};
use core::{cell::RefCell, fmt, net::IpAddr};

/// A real wire between the two hosts of a [`Pair`](super::Pair). Its ends have the addresses of the hosts
/// ([`address`](super::pair::address)).
pub trait Carrier: fmt::Debug {
    /// The slot of each side: the top byte of the queue pair numbers for which its end of the wire takes packets.
    fn slots(&self) -> [u8; 2];

    /// Largest path MTU that fits the wire.
    fn mtu(&self) -> Mtu;

    /// Carries a batch from side `from` to the other side. Returns what arrived there, in order of arrival. Packets that are too long for
    /// the wire, or that nobody there receives, do not arrive.
    ///
    /// # Panics
    /// If the wire does not work, or if something else arrives.
    fn carry(&mut self, from: usize, batch: &Transmit, packets: &[u8]) -> Vec<Datagram>;
}

/// What carries the packets of a scenario.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Which headers are in front of them.
    pub encapsulation: Encapsulation,
    /// The real wire that they cross, if any. Receivers see the headers then.
    pub carrier: Option<Rc<RefCell<dyn Carrier>>>,
}

impl From<Encapsulation> for Wire {
    /// Without a real wire.
    fn from(encapsulation: Encapsulation) -> Self {
        Self { encapsulation, carrier: None }
    }
}

impl Datagram {
    /// A batch that has only this packet.
    pub(super) const fn batch(&self) -> Transmit {
        Transmit {
            src: self.src,
            dst: self.dst,
            src_port: self.src_port,
            ifindex: 0,
            tos: self.tos,
            hop_limit: self.hop_limit,
            encapsulation: self.encapsulation,
            lane: 0,
            ident: Ident::Sequential,
            len: self.bytes.len(),
            segment: self.bytes.len(),
            count: 1,
        }
    }

    /// The same as a real wire shows it: RoCEv1 has no port, and only RoCEv2 in IPv4 has an ID.
    pub(super) fn as_shown(&self) -> Self {
        let is_v1 = self.encapsulation == Encapsulation::V1;
        Self {
            src_port: if is_v1 { 0 } else { self.src_port },
            ident: if self.is_numbered() { self.ident } else { 0 },
            ..self.clone()
        }
    }

    /// Whether it has an IPv4 ID.
    pub(super) fn is_numbered(&self) -> bool {
        self.encapsulation == Encapsulation::V2 && matches!(self.src, IpAddr::V4(_))
    }
}
