//! Service IDs: what a listener is found by. rdma_cm makes them of a port space and a port.

use core::fmt;

/// A port space of rdma_cm (enum rdma_port_space): ports of different spaces do not collide.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortSpace {
    /// RDMA_PS_IPOIB: datagrams between IPoIB interfaces.
    Ipoib,
    /// RDMA_PS_TCP: connections, as TCP's ports.
    Tcp,
    /// RDMA_PS_UDP: datagrams, as UDP's ports.
    Udp,
    /// RDMA_PS_IB: any service, named by InfiniBand addresses.
    Ib,
}

impl PortSpace {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib];

    /// The number that rdma_cm gives it.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Ipoib => 0x0002,
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }

    /// The port space with that number.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            0x0002 => Some(Self::Ipoib),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }
}

/// A service ID, 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service ID of `port` in `space`.
    #[must_use]
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self((space.number() as u64) << 16 | port as u64)
    }

    /// Port space and port, if this is a service ID of rdma_cm.
    #[must_use]
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        if self.0 >> 32 != 0 {
            return None;
        }
        match PortSpace::from_number((self.0 >> 16) as u16) {
            Some(space) => Some((space, self.0 as u16)),
            None => None,
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)?;
        match self.port() {
            Some((space, port)) => write!(f, " ({space:?} port {port})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
