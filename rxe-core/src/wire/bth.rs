//! The base transport header, 12 bytes, first in every packet (IBTA vol. 1, 9.2).

use super::opcode::{BTH_LEN, Opcode};
use crate::num::{Pkey, Psn, Qpn};

/// A base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Operation and service.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion also wakes a consumer that waits for solicited completions only.
    pub solicited: bool,
    /// MigReq, the migration state. ConnectX sends 1, kernel rxe 0. A receiver does not check it.
    pub migreq: bool,
    /// Pad bytes behind the payload, 0 to 3.
    pub pad: u8,
    /// Transport header version, 4 bits. Only 0 is defined.
    pub version: u8,
    /// Partition key.
    pub pkey: Pkey,
    /// The byte that routers may change, so the ICRC does not cover it: [`Self::FECN`], [`Self::BECN`].
    pub congestion: u8,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// Whether the responder is to acknowledge this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Forward congestion notification, a bit of [`Bth::congestion`].
    pub const FECN: u8 = 0x80;
    /// Backward congestion notification, a bit of [`Bth::congestion`].
    pub const BECN: u8 = 0x40;

    /// A header with usual values in the other fields: default partition, MigReq 1 (as hardware sends it), no acknowledgement request.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            version: 0,
            pkey: Pkey::DEFAULT,
            congestion: 0,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads a header; reserved bits are ignored.
    #[must_use]
    pub fn parse(bytes: &[u8; BTH_LEN]) -> Self {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            opcode: Opcode(bytes[0]),
            solicited: bytes[1] & 0x80 != 0,
            migreq: bytes[1] & 0x40 != 0,
            pad: bytes[1] >> 4 & 3,
            version: bytes[1] & 0x0f,
            pkey: Pkey(u16::from_be_bytes([bytes[2], bytes[3]])),
            congestion: bytes[4],
            dest_qp: Qpn::new(word(4)),
            ack_req: bytes[8] & 0x80 != 0,
            psn: Psn::new(word(8)),
        }
    }

    /// Writes the header; reserved bits are zero.
    #[must_use]
    pub fn emit(&self) -> [u8; BTH_LEN] {
        let mut out = [0; BTH_LEN];
        out[0] = self.opcode.0;
        out[1] = u8::from(self.solicited) << 7
            | u8::from(self.migreq) << 6
            | (self.pad & 3) << 4
            | self.version & 0x0f;
        out[2..4].copy_from_slice(&self.pkey.0.to_be_bytes());
        out[4..8].copy_from_slice(&self.dest_qp.value().to_be_bytes());
        out[4] = self.congestion;
        out[8..12].copy_from_slice(&self.psn.value().to_be_bytes());
        out[8] = u8::from(self.ack_req) << 7;
        out
    }
}
