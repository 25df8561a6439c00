//! Packets of a simulated pair that cross a real wire on their way: when they arrive, and whether, the simulation decides, but
//! the frames are the system's.

use super::link::Datagram;
use crate::{
    endpoint::Transmit,
    qp::Mtu,
    wire::{Encapsulation, Ident},
};
use alloc::{rc::Rc, vec::Vec};
use core::{cell::RefCell, fmt, net::IpAddr};

/// A real wire between the two hosts of a [`Pair`](super::Pair). Its ends have the hosts' addresses
/// ([`address`](super::pair::address)).
pub trait Carrier: fmt::Debug {
    /// Top bytes of the queue pair numbers that each side's end takes packets for.
    fn slots(&self) -> [u8; 2];

    /// Largest path MTU that fits.
    fn mtu(&self) -> Mtu;

    /// Takes a batch from side `from` to the other one, and answers what came of it there, in order of arrival. Nothing comes of
    /// packets that are too long for the wire, or for nobody there.
    ///
    /// # Panics
    /// If the wire does not work, or brings something else.
    fn carry(&mut self, from: usize, batch: &Transmit, packets: &[u8]) -> Vec<Datagram>;
}

/// What the packets of a scenario are carried by.
#[derive(Clone, Debug)]
pub struct Wire {
    /// The headers in front of them.
    pub encapsulation: Encapsulation,
    /// The real wire that they cross, if any. It shows the headers.
    pub carrier: Option<Rc<RefCell<dyn Carrier>>>,
}

impl From<Encapsulation> for Wire {
    /// In the simulation alone.
    fn from(encapsulation: Encapsulation) -> Self {
        Self { encapsulation, carrier: None }
    }
}

impl Datagram {
    /// A batch of this one alone.
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

    /// As a wire shows it: RoCEv1 has no port, and nothing but IPv4 has an ID.
    pub(super) fn as_shown(&self) -> Self {
        let is_v1 = self.encapsulation == Encapsulation::V1;
        Self {
            src_port: if is_v1 { 0 } else { self.src_port },
            ident: if self.is_numbered() { self.ident } else { 0 },
            ..self.clone()
        }
    }

    /// Whether it has an ID.
    pub(super) fn is_numbered(&self) -> bool {
        self.encapsulation == Encapsulation::V2 && matches!(self.src, IpAddr::V4(_))
    }
}
