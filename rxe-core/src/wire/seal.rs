//! Writes the ICRCs of the packets of a batch ("seals" them). All packets that leave get their ICRCs here.

use super::{
    encap::{Encapsulation, Ident},
    icrc::{DONT_FRAGMENT, Route, RouteCrc, rxe_flush},
    opcode::Opcode,
    packet::ICRC_LEN,
};

/// Which ICRC a FLUSH has. Peers differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlushIcrc {
    /// The specification's.
    #[default]
    Standard,
    /// Kernel rxe's (seen with 6.12), which covers the headers twice ([`rxe_flush`]).
    Rxe,
}

impl FlushIcrc {
    /// The other of the two.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Standard => Self::Rxe,
            Self::Rxe => Self::Standard,
        }
    }
}

/// Writes the ICRCs of all packets of one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sealer {
    crc: RouteCrc,
    encapsulation: Encapsulation,
    ident: Ident,
}

impl Sealer {
    /// For a batch over `route`. `ident` says which IPv4 IDs its packets get.
    #[must_use]
    pub fn new(route: &Route, ident: Ident) -> Self {
        Self { crc: RouteCrc::new(route), encapsulation: route.encapsulation, ident }
    }

    /// Writes the ICRC of `packet` into its last four bytes. `index` is its place in the batch, from 0. `flush` is the form of the ICRC
    /// if it is a FLUSH. In memory those four bytes are not changed.
    #[inline]
    pub fn seal(&self, index: usize, packet: &mut [u8], flush: FlushIcrc) {
        if self.encapsulation == Encapsulation::Memory {
            return;
        }
        self.crc.seal(self.ident.of(index), packet);
        if flush == FlushIcrc::Rxe
            && is_flush(packet)
            && let Some((body, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>()
        {
            *icrc = rxe_flush(u32::from_le_bytes(*icrc), body).to_le_bytes();
        }
    }

    /// Writes a new ICRC for a packet that was sealed for the IPv4 ID `before` and leaves with another one. A FLUSH keeps the form of
    /// its ICRC.
    pub fn reseal(&self, index: usize, before: u16, packet: &mut [u8]) {
        let rxe = is_flush(packet) && !self.crc.check(before, DONT_FRAGMENT, packet);
        self.seal(index, packet, if rxe { FlushIcrc::Rxe } else { FlushIcrc::Standard });
    }
}

/// Whether a packet (from the BTH on) is a FLUSH.
pub(super) fn is_flush(packet: &[u8]) -> bool {
    packet.first() == Some(&Opcode::RC_FLUSH.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::icrc;

    fn sealed(opcode: u8, index: usize, ident: Ident, flush: FlushIcrc) -> [u8; 36] {
        let mut packet = [7; 36];
        packet[0] = opcode;
        Sealer::new(&route(Encapsulation::V2), ident).seal(index, &mut packet, flush);
        packet
    }

    fn route(encapsulation: Encapsulation) -> Route {
        Route { encapsulation, ..Route::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000) }
    }

    /// A packet that is sealed again for other IDs equals one that was sealed for them at first.
    #[test]
    fn sealed_again_is_as_if_sealed_so_at_first() {
        for opcode in [Opcode::RC_FLUSH.0, Opcode::RC_READ_REQUEST.0] {
            for flush in [FlushIcrc::Standard, FlushIcrc::Rxe] {
                for (from, to) in [(Ident::Sequential, Ident::Zero), (Ident::Zero, Ident::Sequential)] {
                    let mut packet = sealed(opcode, 3, from, flush);
                    Sealer::new(&route(Encapsulation::V2), to).reseal(2, from.of(3), &mut packet);
                    assert_eq!(packet, sealed(opcode, 2, to, flush), "{opcode:#x} {flush:?} {from:?}");
                }
            }
        }
    }

    #[test]
    fn the_form_matters_to_flush_alone() {
        let read = |flush| sealed(Opcode::RC_READ_REQUEST.0, 1, Ident::Sequential, flush);
        assert_eq!(read(FlushIcrc::Rxe), read(FlushIcrc::Standard));
        assert!(icrc::check(&route(Encapsulation::V2), 1, DONT_FRAGMENT, &read(FlushIcrc::Rxe)));
        let flush = |form| sealed(Opcode::RC_FLUSH.0, 1, Ident::Sequential, form);
        assert_ne!(flush(FlushIcrc::Rxe), flush(FlushIcrc::Standard));
    }

    #[test]
    fn memory_has_no_icrc() {
        let mut packet = [7; 36];
        Sealer::new(&route(Encapsulation::Memory), Ident::Zero).seal(0, &mut packet, FlushIcrc::Standard);
        assert_eq!(packet, [7; 36]);
    }
}
