//! Address handles (ibv_ah): the way to a peer of datagrams.

use crate::pd::Pd;
use rxe_core::{
    num::{Qkey, Qpn},
    work::{AddressVector, UdDest},
};

/// An address handle: an address vector that belongs to a protection domain.
#[derive(Clone, Debug)]
pub struct Ah {
    pd: Pd,
    av: AddressVector,
}

impl Ah {
    pub(crate) fn new(pd: &Pd, av: AddressVector) -> Self {
        Self { pd: pd.clone(), av }
    }

    /// The protection domain.
    #[must_use]
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The address vector.
    #[must_use]
    pub const fn address_vector(&self) -> &AddressVector {
        &self.av
    }

    /// The destination of a datagram to a queue pair at this address.
    #[must_use]
    pub const fn dest(&self, remote_qpn: Qpn, remote_qkey: Qkey) -> UdDest {
        UdDest { av: self.av, remote_qpn, remote_qkey, pkey: None }
    }
}
