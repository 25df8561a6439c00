//! The extension headers behind the BTH and their layouts (IBTA vol. 1, 9.2-9.3; FLUSH in annex A19).

use super::aeth::Aeth;
use super::opcode::Extensions;
use crate::num::{Key, Qkey, Qpn};

/// RDMA extended transport header, 16 bytes: the remote memory of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// R_Key of the region or window.
    pub rkey: Key,
    /// Bytes of the whole operation, 0 to 2^31.
    pub len: u32,
}

/// Atomic extended transport header, 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address of the 8 bytes, a multiple of 8.
    pub addr: u64,
    /// R_Key of the region or window.
    pub rkey: Key,
    /// The value to store (CmpSwap) or to add (FetchAdd).
    pub swap_or_add: u64,
    /// The value to compare with (CmpSwap).
    pub compare: u64,
}

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// The receiving queue pair's Q_Key.
    pub qkey: Qkey,
    /// The sending queue pair.
    pub src_qp: Qpn,
}

/// FLUSH extended transport header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feth {
    /// Placement type: bit 0 global visibility, bit 1 persistence.
    pub placement: u8,
    /// Selectivity: 0 the range of the RETH, 1 the whole region.
    pub selectivity: u8,
}

/// All extension headers of one packet. Those that its opcode does not have keep their default values and are not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ext {
    /// Datagram header.
    pub deth: Deth,
    /// XRC shared receive queue number (24 bits).
    pub xrc_srq: u32,
    /// FLUSH header.
    pub feth: Feth,
    /// RDMA header.
    pub reth: Reth,
    /// Atomic header.
    pub atomic: AtomicEth,
    /// Acknowledge header.
    pub aeth: Aeth,
    /// The value that memory had before the atomic operation.
    pub original: u64,
    /// Immediate data: four bytes in the order in which the application gave them.
    pub imm: [u8; 4],
    /// R_Key to invalidate.
    pub invalidate: Key,
}

/// The `N` bytes from `at` on, or zeroes if `bytes` ends before them.
#[inline]
fn at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

fn u32_at(bytes: &[u8], place: usize) -> u32 {
    u32::from_be_bytes(at(bytes, place))
}

fn u64_at(bytes: &[u8], place: usize) -> u64 {
    u64::from_be_bytes(at(bytes, place))
}

impl Ext {
    /// Reads the headers `which` from the front of `bytes`, which must hold at least `which.wire_len()` bytes.
    #[must_use]
    pub(super) fn parse(which: Extensions, bytes: &[u8]) -> Self {
        let mut ext = Self::default();
        let mut at = 0;
        if which.contains(Extensions::DETH) {
            ext.deth = Deth { qkey: Qkey(u32_at(bytes, at)), src_qp: Qpn::new(u32_at(bytes, at + 4)) };
            at += 8;
        }
        if which.contains(Extensions::XRCETH) {
            ext.xrc_srq = u32_at(bytes, at) & 0x00ff_ffff;
            at += 4;
        }
        if which.contains(Extensions::FETH) {
            let low = bytes[at + 3];
            ext.feth = Feth { placement: low & 0x0f, selectivity: low >> 4 & 3 };
            at += 4;
        }
        if which.contains(Extensions::RETH) {
            ext.reth = Reth {
                addr: u64_at(bytes, at),
                rkey: Key(u32_at(bytes, at + 8)),
                len: u32_at(bytes, at + 12),
            };
            at += 16;
        }
        if which.contains(Extensions::ATOMIC_ETH) {
            ext.atomic = AtomicEth {
                addr: u64_at(bytes, at),
                rkey: Key(u32_at(bytes, at + 8)),
                swap_or_add: u64_at(bytes, at + 12),
                compare: u64_at(bytes, at + 20),
            };
            at += 28;
        }
        if which.contains(Extensions::AETH) {
            ext.aeth = Aeth::parse(u32_at(bytes, at));
            at += 4;
        }
        if which.contains(Extensions::ATOMIC_ACK_ETH) {
            ext.original = u64_at(bytes, at);
            at += 8;
        }
        if which.contains(Extensions::IMMDT) {
            ext.imm = u32_at(bytes, at).to_be_bytes();
            at += 4;
        }
        if which.contains(Extensions::IETH) {
            ext.invalidate = Key(u32_at(bytes, at));
        }
        ext
    }

    /// Writes the headers `which` to the front of `out`, which must hold at least `which.wire_len()` bytes.
    pub(super) fn emit(&self, which: Extensions, out: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if which.contains(Extensions::DETH) {
            put(&self.deth.qkey.0.to_be_bytes());
            put(&self.deth.src_qp.value().to_be_bytes());
        }
        if which.contains(Extensions::XRCETH) {
            put(&self.xrc_srq.to_be_bytes());
        }
        if which.contains(Extensions::FETH) {
            put(&[0, 0, 0, self.feth.selectivity << 4 | self.feth.placement & 0x0f]);
        }
        if which.contains(Extensions::RETH) {
            put(&self.reth.addr.to_be_bytes());
            put(&self.reth.rkey.0.to_be_bytes());
            put(&self.reth.len.to_be_bytes());
        }
        if which.contains(Extensions::ATOMIC_ETH) {
            put(&self.atomic.addr.to_be_bytes());
            put(&self.atomic.rkey.0.to_be_bytes());
            put(&self.atomic.swap_or_add.to_be_bytes());
            put(&self.atomic.compare.to_be_bytes());
        }
        if which.contains(Extensions::AETH) {
            put(&self.aeth.emit().to_be_bytes());
        }
        if which.contains(Extensions::ATOMIC_ACK_ETH) {
            put(&self.original.to_be_bytes());
        }
        if which.contains(Extensions::IMMDT) {
            put(&self.imm);
        }
        if which.contains(Extensions::IETH) {
            put(&self.invalidate.0.to_be_bytes());
        }
    }
}
