//! The acknowledge header: a syndrome and the MSN (IBTA vol. 1, 9.7.5.2.1).

use crate::num::Msn;
use core::time::Duration;

/// What an acknowledgement says: the eight bits of a syndrome (IBTA vol. 1, 9.7.5.2.1). Reserved values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// A positive acknowledgement. The five-bit code gives end-to-end credits; 31: they are not used.
    Ack(u8),
    /// Receiver not ready. The five-bit code says how long the requester waits ([`rnr_delay`]).
    RnrNak(u8),
    /// The request was refused.
    Nak(NakCode),
    /// A reserved value.
    Reserved(u8),
}

/// Why a request was refused: the low five bits of a NAK syndrome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// The PSN is ahead of the expected one: packets were lost.
    PsnSequence,
    /// The request is malformed, or the responder does not support it.
    InvalidRequest,
    /// The key, address range or access right does not permit the access.
    RemoteAccess,
    /// The responder failed, though the request is valid.
    RemoteOperational,
    /// The request is not valid on a reliable datagram QP. Other services do not use it.
    InvalidRdRequest,
    /// A reserved code.
    Reserved(u8),
}

impl NakCode {
    const fn from_bits(bits: u8) -> Self {
        match bits & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            other => Self::Reserved(other),
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(other) => other & 0x1f,
        }
    }
}

impl Syndrome {
    /// A positive acknowledgement that does not use end-to-end credits.
    pub const ACK_NO_CREDITS: Self = Self::Ack(0x1f);

    /// Reads the eight bits of a syndrome.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits >> 5 {
            0 => Self::Ack(bits & 0x1f),
            1 => Self::RnrNak(bits & 0x1f),
            3 => Self::Nak(NakCode::from_bits(bits)),
            _ => Self::Reserved(bits),
        }
    }

    /// The eight bits on the wire.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code.bits(),
            Self::Reserved(bits) => bits,
        }
    }
}

impl Default for Syndrome {
    fn default() -> Self {
        Self::ACK_NO_CREDITS
    }
}

/// An acknowledge header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aeth {
    /// Whether the request succeeded, and why not.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed, modulo 2^24.
    pub msn: Msn,
}

impl Aeth {
    pub(super) const fn parse(word: u32) -> Self {
        Self { syndrome: Syndrome::from_bits((word >> 24) as u8), msn: Msn::new(word) }
    }

    pub(super) const fn emit(self) -> u32 {
        (self.syndrome.bits() as u32) << 24 | self.msn.value()
    }
}

/// The RNR timer table in units of 10 us (IBTA vol. 1, table 45).
const RNR_TIMER: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How long a requester waits after an RNR NAK with this timer code (its low five bits count): 0.01 ms to 655.36 ms.
#[must_use]
pub const fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(RNR_TIMER[(code & 0x1f) as usize] as u64 * 10)
}
