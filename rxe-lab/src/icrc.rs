//! Checks the ICRC of a packet whose outer headers are in the capture.

use crate::frame::{Frame, Net};
use rxe_core::wire::{
    ICRC_LEN, Opcode,
    icrc::{self, Route, header_difference, rxe_flush},
};

/// The result of checking a packet's ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icrc {
    /// It is correct.
    Right,
    /// It is correct in the form of kernel rxe for a FLUSH, which covers the headers twice.
    RightTwice,
    /// It is wrong. If a router has rewritten the headers of an intact packet, this is the effect of the change. It is the same
    /// for all packets of that path.
    Wrong {
        /// The difference of the headers (see [`header_difference`]).
        rewritten: [u8; 4],
    },
    /// The packet was captured incompletely.
    Cut {
        /// Bytes that are missing.
        missing: usize,
    },
}

impl Icrc {
    /// Checks a packet.
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

    /// Whether it is correct.
    #[must_use]
    pub const fn is_right(self) -> bool {
        matches!(self, Self::Right | Self::RightTwice)
    }

    /// Whether it is wrong.
    #[must_use]
    pub const fn is_wrong(self) -> bool {
        matches!(self, Self::Wrong { .. })
    }

    /// As text.
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

/// In a capture at the sender, several packets may be in one frame, which the system or the card divides later (segmentation
/// offload). Returns the bytes of each packet; all have one length, except for the last. They are found by their ICRCs, which
/// are correct for packets of this length with consecutive IPv4 IDs. `None` if the frame is not such a batch.
#[must_use]
pub fn segment_len(frame: &Frame<'_>) -> Option<usize> {
    // The largest possible packet: 4096 bytes of payload and the longest headers.
    const LONGEST: usize = 4096 + 64;
    const SHORTEST: usize = 16;
    let bytes = frame.packet;
    if frame.len != bytes.len() {
        return None;
    }
    let head = bytes.first_chunk::<12>()?;
    let is_next = |at: usize| {
        let Some(next) = bytes.get(at..).and_then(|rest| rest.first_chunk::<12>()) else { return false };
        // All have the same destination, partition and version.
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
