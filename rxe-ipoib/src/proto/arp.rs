//! ARP with 20-byte addresses (RFC 826; RFC 4391, 9.1): hardware type 32.

use super::{
    address::{self, LinkAddress},
    bytes,
};
use core::net::Ipv4Addr;

/// Bytes of a packet.
pub const LEN: usize = 8 + 2 * (address::LEN + 4);

/// Hardware type 32 (InfiniBand), protocol 0x0800 (IPv4), lengths 20 and 4.
const HEAD: [u8; 6] = [0, 32, 0x08, 0x00, address::LEN as u8, 4];

/// The operation of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A request for the link-layer address of the target's IP address.
    Request,
    /// A reply: the sender announces its addresses.
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// Request or reply.
    pub operation: Operation,
    /// The sender's addresses.
    pub sender: (LinkAddress, Ipv4Addr),
    /// The target's addresses. In a request the link-layer address is unknown.
    pub target: (Option<LinkAddress>, Ipv4Addr),
}

impl Arp {
    /// The packet's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..6].copy_from_slice(&HEAD);
        out[7] = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        out[8..28].copy_from_slice(&self.sender.0.emit());
        out[28..32].copy_from_slice(&self.sender.1.octets());
        if let Some(target) = self.target.0 {
            out[32..52].copy_from_slice(&target.emit());
        }
        out[52..56].copy_from_slice(&self.target.1.octets());
        out
    }

    /// Parses a packet, which may have padding behind it. `None` for other protocols and operations, and for impossible
    /// senders.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        if bytes::<6>(data, 0)? != HEAD {
            return None;
        }
        let operation = match bytes::<2>(data, 6)? {
            [0, 1] => Operation::Request,
            [0, 2] => Operation::Reply,
            _ => return None,
        };
        let sender = (LinkAddress::parse(data.get(8..28)?)?, Ipv4Addr::from(bytes::<4>(data, 28)?));
        let target = (LinkAddress::parse(data.get(32..52)?), Ipv4Addr::from(bytes::<4>(data, 52)?));
        let unfit = |ip: Ipv4Addr| ip.is_multicast() || ip.is_broadcast() || ip.is_loopback();
        (!unfit(sender.1)).then_some(Self { operation, sender, target })
    }
}
