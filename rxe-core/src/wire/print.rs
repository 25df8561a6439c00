//! Prints packets, one line each, for logs and messages of tests:
//! `RC WRITE_FIRST qp 0x000011 psn 123456 va 0x7f00000010 rkey 0x00001a2b len 8192 | 4096 B`.

use super::{
    aeth::{NakCode, Syndrome, rnr_delay},
    bth::Bth,
    ext::Ext,
    opcode::{Class, Extensions, Opcode, OpcodeInfo, Position, Service},
    packet::{Head, Packet},
};
use core::fmt::{self, Display, Formatter};

impl Display for Service {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
            Self::Cnp => "CNP",
        })
    }
}

impl Display for OpcodeInfo {
    /// Service and operation, with the specification's names: `RC SEND_LAST_WITH_IMM`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.class == Class::Congestion {
            return self.service.fmt(f);
        }
        let operation = match self.class {
            Class::Send => "SEND",
            Class::Write => "WRITE",
            Class::ReadRequest => "READ_REQUEST",
            Class::ReadResponse => "READ_RESPONSE",
            Class::Acknowledge => "ACK",
            Class::AtomicAcknowledge => "ATOMIC_ACK",
            Class::CompareSwap => "CMP_SWAP",
            Class::FetchAdd => "FETCH_ADD",
            Class::Flush => "FLUSH",
            Class::AtomicWrite => "ATOMIC_WRITE",
            Class::Congestion => "",
        };
        write!(f, "{} {operation}", self.service)?;
        if matches!(self.class, Class::Send | Class::Write | Class::ReadResponse) {
            f.write_str(match self.position {
                Position::First => "_FIRST",
                Position::Middle => "_MIDDLE",
                Position::Last => "_LAST",
                Position::Only => "_ONLY",
            })?;
        }
        if self.has_immediate() {
            f.write_str("_WITH_IMM")?;
        }
        if self.extensions.contains(Extensions::IETH) {
            f.write_str("_WITH_INV")?;
        }
        Ok(())
    }
}

impl Display for Opcode {
    /// The operation's name, or the number of an unknown one.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => info.fmt(f),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

impl Display for Syndrome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(0x1f) => f.write_str("ack"),
            Self::Ack(credits) => write!(f, "ack credits {credits:#04x}"),
            Self::RnrNak(code) => write!(f, "RNR NAK {} us", rnr_delay(*code).as_micros()),
            Self::Nak(NakCode::PsnSequence) => f.write_str("NAK psn sequence"),
            Self::Nak(NakCode::InvalidRequest) => f.write_str("NAK invalid request"),
            Self::Nak(NakCode::RemoteAccess) => f.write_str("NAK remote access"),
            Self::Nak(NakCode::RemoteOperational) => f.write_str("NAK remote operational"),
            Self::Nak(NakCode::InvalidRdRequest) => f.write_str("NAK invalid RD request"),
            Self::Nak(NakCode::Reserved(code)) => write!(f, "NAK code {code}"),
            Self::Reserved(bits) => write!(f, "syndrome {bits:#04x}"),
        }
    }
}

impl Display for Packet<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { bth, info, ext, payload } = *self;
        Head { bth, info, ext, payload_len: payload.len() }.fmt(f)
    }
}

impl Display for Head {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} qp {} psn {}", self.info, self.bth.dest_qp, self.bth.psn)?;
        flags(&self.bth, f)?;
        extensions(&self.ext, self.info.extensions, f)?;
        if self.payload_len > 0 {
            write!(f, " | {} B", self.payload_len)?;
        }
        Ok(())
    }
}

/// Prints those fields of a BTH that have unusual values. MigReq is left out: nothing depends on it.
fn flags(bth: &Bth, f: &mut Formatter<'_>) -> fmt::Result {
    for (set, name) in [
        (bth.ack_req, " ackreq"),
        (bth.solicited, " solicited"),
        (bth.congestion & Bth::FECN != 0, " fecn"),
        (bth.congestion & Bth::BECN != 0, " becn"),
    ] {
        if set {
            f.write_str(name)?;
        }
    }
    if bth.pkey.0 != 0xffff {
        write!(f, " pkey {:#06x}", bth.pkey.0)?;
    }
    Ok(())
}

fn extensions(ext: &Ext, which: Extensions, f: &mut Formatter<'_>) -> fmt::Result {
    if which.contains(Extensions::DETH) {
        write!(f, " from {} qkey {:?}", ext.deth.src_qp, ext.deth.qkey)?;
    }
    if which.contains(Extensions::XRCETH) {
        write!(f, " srq {:#08x}", ext.xrc_srq)?;
    }
    if which.contains(Extensions::FETH) {
        write!(f, " placement {:#x} selectivity {}", ext.feth.placement, ext.feth.selectivity)?;
    }
    if which.contains(Extensions::RETH) {
        write!(f, " va {:#x} rkey {:?} len {}", ext.reth.addr, ext.reth.rkey, ext.reth.len)?;
    }
    if which.contains(Extensions::ATOMIC_ETH) {
        let atomic = &ext.atomic;
        write!(f, " va {:#x} rkey {:?} operand {:#x}", atomic.addr, atomic.rkey, atomic.swap_or_add)?;
        write!(f, " compare {:#x}", atomic.compare)?;
    }
    if which.contains(Extensions::AETH) {
        write!(f, " {} msn {}", ext.aeth.syndrome, ext.aeth.msn.value())?;
    }
    if which.contains(Extensions::ATOMIC_ACK_ETH) {
        write!(f, " original {:#x}", ext.original)?;
    }
    if which.contains(Extensions::IMMDT) {
        write!(f, " imm {:#010x}", u32::from_be_bytes(ext.imm))?;
    }
    if which.contains(Extensions::IETH) {
        write!(f, " invalidate {:?}", ext.invalidate)?;
    }
    Ok(())
}
