//! Encapsulations: how a packet (BTH to ICRC) is carried, and so which headers in front of it its ICRC covers.
//!
//! A link says which encapsulations it carries, and which headers of arriving packets it shows. A path has one encapsulation. The ICRCs
//! of a batch are written when the batch is built ([`super::Sealer`]). The ICRC of an arriving packet is checked with the headers that
//! the link showed ([`super::IdentTracker`]).

/// What carries a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Encapsulation {
    /// RoCEv2: IP and UDP headers, destination port 4791 (IBTA vol. 1, annex A17). The bytes are the same whether the kernel (UDP
    /// sockets) or the link itself writes these headers.
    #[default]
    V2,
    /// RoCEv1: a global route header, Ethertype 0x8915 (IBTA vol. 1, annex A16). The addresses are GIDs; IPv4 addresses are mapped.
    V1,
    /// Memory that both ends share, as in the simulator. There are no headers. Bits cannot change on the way, so the ICRC's four bytes
    /// are not used.
    Memory,
}

/// Which IPv4 identifications the packets of one RoCEv2 batch get. (IPv6 and RoCEv1 have none.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ident {
    /// 0, 1, 2, ... in the order of the batch. The kernel gives these when it cuts one large datagram (UDP_SEGMENT on an unconnected
    /// socket that forbids fragments). So does a link that writes the headers itself.
    #[default]
    Sequential,
    /// 0 for all packets: the kernel gives this when each packet is sent by itself on such a socket.
    Zero,
}

impl Ident {
    /// The identification of packet `index` (from 0) of a batch.
    #[must_use]
    pub const fn of(self, index: usize) -> u16 {
        match self {
            Self::Zero => 0,
            Self::Sequential => index as u16,
        }
    }
}

/// What a link showed of the headers in front of a packet that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderSeen {
    /// RoCEv2 from an ordinary UDP socket, which does not show the IPv4 ID.
    Hidden,
    /// RoCEv2 on a link that shows whole frames. If a frame holds several packets (that the kernel has not cut), the first has this ID,
    /// and each further packet has the ID of the one before it plus 1.
    Seen {
        /// The IPv4 ID; 0 for IPv6.
        ident: u16,
        /// IPv4 flags and fragment offset; 0 for IPv6.
        fragment: u16,
    },
    /// RoCEv1: all of the global route header that the ICRC covers is known.
    Grh,
    /// Memory: there are no headers.
    Bare,
}

impl HeaderSeen {
    /// The same for the next packet in the same frame.
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
