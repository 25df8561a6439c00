//! Encapsulations: how a packet (BTH to ICRC) is carried, and so what lies in front of it under its ICRC.
//!
//! There are two RoCEs on the wire, and memory. A link says which of them it carries and what it shows of the headers; a
//! path has one of them; a batch is sealed for it once, where it is built ([`super::Sealer`]), and an arrival is judged by
//! what was seen ([`super::IdentTracker`]).

/// What carries a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Encapsulation {
    /// RoCEv2: IP and UDP headers, destination port 4791 (IBTA vol. 1, annex A17). From a UDP socket or in frames of our own:
    /// the bytes are the same.
    #[default]
    V2,
    /// RoCEv1: a global route header behind Ethertype 0x8915 (IBTA vol. 1, annex A16), also between IPv4 addresses.
    V1,
    /// Memory that both ends share: no headers, and nothing that could change bits, so the ICRC's place is empty.
    Memory,
}

/// Which IPv4 identifications the packets of one RoCEv2 batch get. (IPv6 and RoCEv1 have none.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ident {
    /// 0, 1, 2, ... in the order of the batch: the kernel cuts one large datagram (UDP_SEGMENT on an unconnected socket that
    /// forbids fragments), or we write the headers ourselves.
    #[default]
    Sequential,
    /// All of them 0: every packet is a send of its own on such a socket.
    Zero,
}

impl Ident {
    /// The identification of packet `index` of a batch.
    #[must_use]
    pub const fn of(self, index: usize) -> u16 {
        match self {
            Self::Zero => 0,
            Self::Sequential => index as u16,
        }
    }
}

/// What an arrival showed of the headers in front of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderSeen {
    /// RoCEv2 by an ordinary UDP socket, which hides the IPv4 ID.
    Hidden,
    /// RoCEv2 on a link that shows whole frames. Of several packets in one frame, which a kernel would have cut on their way,
    /// the first has this ID, and each other one more than the one before it.
    Seen {
        /// The IPv4 ID; 0 for IPv6.
        ident: u16,
        /// IPv4 flags and fragment offset; 0 for IPv6.
        fragment: u16,
    },
    /// RoCEv1.
    Grh,
    /// Nothing, because there was none: memory.
    Bare,
}

impl HeaderSeen {
    /// Of the packet that lies behind this one in the same frame.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::Seen { ident, fragment } => Self::Seen { ident: ident.wrapping_add(1), fragment },
            other => other,
        }
    }

    /// What carried the packet.
    #[must_use]
    pub const fn encapsulation(self) -> Encapsulation {
        match self {
            Self::Hidden | Self::Seen { .. } => Encapsulation::V2,
            Self::Grh => Encapsulation::V1,
            Self::Bare => Encapsulation::Memory,
        }
    }
}
