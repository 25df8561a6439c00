//! Judging the ICRC of a packet whose headers the capture shows.

use crate::frame::{Frame, Net};
use rxe_core::wire::{
    ICRC_LEN, Opcode,
    icrc::{self, ROCE_PORT, Route, header_difference, rxe_flush},
};

/// What a packet's ICRC says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icrc {
    /// It is right.
    Right,
    /// It is what kernel rxe computes for a FLUSH: the headers twice.
    RightTwice,
    /// It is wrong. If the packet came whole through a router that rewrote its headers, this is what it made of them: the
    /// same for all packets of that way.
    Wrong {
        /// The difference of the headers (see [`header_difference`]).
        rewritten: [u8; 4],
    },
    /// The capture has not all of the packet.
    Cut {
        /// Bytes that are missing.
        missing: usize,
    },
}

impl Icrc {
    /// Judges a packet.
    #[must_use]
    pub fn judge(frame: &Frame<'_>) -> Self {
        let missing = frame.len - frame.packet.len();
        let Some((body, icrc)) = frame.packet.split_last_chunk::<ICRC_LEN>().filter(|_| missing == 0) else {
            return Self::Cut { missing };
        };
        let (found, wanted) = (u32::from_le_bytes(*icrc), compute(&frame.net, frame.src_port, body));
        if found == wanted {
            return Self::Right;
        }
        if body.first().is_some_and(|opcode| Opcode(*opcode) == Opcode::RC_FLUSH)
            && found == rxe_flush(wanted, body)
        {
            return Self::RightTwice;
        }
        Self::Wrong { rewritten: header_difference(found, wanted, body.len()).unwrap_or_default() }
    }

    /// Whether it is right.
    #[must_use]
    pub const fn is_right(self) -> bool {
        matches!(self, Self::Right | Self::RightTwice)
    }

    /// Whether it is wrong.
    #[must_use]
    pub const fn is_wrong(self) -> bool {
        matches!(self, Self::Wrong { .. })
    }

    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::RightTwice => "right as kernel rxe computes it for FLUSH",
            Self::Wrong { .. } => "wrong",
            Self::Cut { .. } => "not in the capture",
        }
    }
}

/// The ICRC of a packet, BTH to pad, behind these headers.
fn compute(net: &Net, src_port: u16, body: &[u8]) -> u32 {
    let (src, dst) = net.addresses();
    let (route, ident, fragment) = match *net {
        Net::V4 { ident, fragment, .. } => (Route::v2(src, dst, src_port), ident, fragment),
        Net::V6 { .. } => (Route::v2(src, dst, src_port), 0, 0),
        Net::Grh { .. } => (Route::v1(src, dst), 0, 0),
    };
    icrc::compute(&route, ident, fragment, body)
}

/// How a sender's capture shows packets that left in one piece, to be cut by the system or the card (segmentation offload):
/// the bytes of each, all of one length but the last. Found by the ICRCs, which are right for packets of this length with IPv4
/// IDs that count up. `None` if the frame is no such batch.
#[must_use]
pub fn segment_len(frame: &Frame<'_>) -> Option<usize> {
    // Largest packet that anybody sends: 4096 bytes of payload and the longest headers.
    const LONGEST: usize = 4096 + 64;
    const SHORTEST: usize = 16;
    let bytes = frame.packet;
    if frame.len != bytes.len() {
        return None;
    }
    let head = bytes.first_chunk::<12>()?;
    let is_next = |at: usize| {
        let Some(next) = bytes.get(at..).and_then(|rest| rest.first_chunk::<12>()) else { return false };
        // One destination (a process, that is), partition and version.
        next[5] == head[5]
            && next[1] & 0x0f == 0
            && next[2..4] == head[2..4]
            && Opcode(next[0]).info().is_some()
    };
    (SHORTEST..=LONGEST.min(bytes.len().saturating_sub(SHORTEST))).step_by(4).find(|&len| {
        is_next(len) && {
            let (first, _) = bytes.split_at(len);
            first.split_last_chunk::<ICRC_LEN>().is_some_and(|(body, icrc)| {
                compute(&frame.net, frame.src_port, body) == u32::from_le_bytes(*icrc)
            })
        }
    })
}

/// The header that segment `number` of a batch gets.
#[must_use]
pub fn segment_net(net: Net, number: usize) -> Net {
    match net {
        Net::V4 { src, dst, tos, ident, fragment, ttl, options } => {
            Net::V4 { src, dst, tos, ident: ident.wrapping_add(number as u16), fragment, ttl, options }
        }
        other => other,
    }
}

/// RoCEv2's destination port, for those who show it.
pub const DST_PORT: u16 = ROCE_PORT;
