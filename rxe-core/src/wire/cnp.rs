//! Congestion notification packets (RoCEv2 annex A17.9.3): a receiver tells a sender that its packets were marked.

use super::{
    bth::Bth,
    opcode::{BTH_LEN, Opcode},
    packet::ICRC_LEN,
};
use crate::num::{Psn, Qpn};

/// Size of a congestion notification in bytes: a BTH, 16 reserved bytes and the ICRC.
pub const CNP_LEN: usize = BTH_LEN + 16 + ICRC_LEN;
/// The IP TOS that ConnectX sends its notifications with: DSCP 48, ECT(0).
pub const CNP_TOS: u8 = 0xc2;

/// A congestion notification for queue pair `dest_qp`. The last four bytes are left for the ICRC. All fields have the values that a
/// ConnectX-4 Lx sends: BECN set, MigReq and AckReq clear, PSN 0.
#[must_use]
pub fn cnp(dest_qp: Qpn) -> [u8; CNP_LEN] {
    let bth = Bth { migreq: false, congestion: Bth::BECN, ..Bth::new(Opcode::CNP, dest_qp, Psn::new(0)) };
    let mut out = [0; CNP_LEN];
    out[..BTH_LEN].copy_from_slice(&bth.emit());
    out
}
