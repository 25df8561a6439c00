//! Checks the ICRC of an IPv4 packet whose IPv4 ID is not known.
//!
//! The ICRC covers the IPv4 ID and flags, which an ordinary UDP socket does not show. A CRC is linear. So the difference between the
//! received ICRC and one computed for a guess gives the ID and flags for which the received one is right ([`super::gf`]). There are such
//! 32 bits (ID, flags and fragment offset) for every packet; for a corrupt packet they are random. The packet is accepted only if they
//! are plausible: of the flags only don't-fragment is set, the offset is 0, and the ID is near the peer's last one. If a peer's counter
//! jumps, one packet is lost: it is dropped, and the next one, with an ID near it, confirms the jump. An arbitrary ID is accepted
//! at once from a peer of which nothing is known, or from which nothing was heard for a second. It is also accepted from a peer that
//! has sent several arbitrary IDs in a row (`SCATTERS`).
//!
//! Packets without don't-fragment are never accepted, though IPv4 allows them: every RoCE peer seen forbids fragments, and accepting a
//! second value of the flags would let twice as many corrupt packets pass. They have a verdict of their own
//! ([`Verdict::Fragmentable`]), so that counters show why packets of such a peer are dropped.
//!
//! IDs of peers seen: this implementation sends 0, 1, 2, ... within a segmentation batch and 0 otherwise. ConnectX counts its packets.
//! Kernel rxe counts, and after a pause jumps forward by up to one for each clock tick. Others always send 0.

use super::{
    encap::HeaderSeen,
    gf,
    icrc::{DONT_FRAGMENT, IPV4_LEN, Route, RouteCrc, UDP_LEN, rxe_flush},
    opcode::BTH_LEN,
    packet::ICRC_LEN,
    seal::{FlushIcrc, is_flush},
};
use crate::time::Instant;
use core::time::Duration;

/// How far from the peer's last ID an ID may be to be likely, in both directions.
const WINDOW: i32 = 256;
/// If no packet, whole or corrupt, has come for this long, any ID is accepted: at most one in this time.
const SILENCE: Duration = Duration::from_secs(1);
/// After this many unlikely IDs in a row it is assumed that the peer's IDs are random. A corrupt packet looks like one of these with
/// probability 2^-16.
const SCATTERS: u8 = 4;
/// After this many likely IDs in a row that is no longer assumed.
const SETTLED: u8 = 64;

/// The result of checking a packet's ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Right, and everything it covers is known (IPv6, RoCEv1, or a link that shows the IP header). Or there is none (memory).
    Checked,
    /// Right for the ID that was expected.
    Expected {
        /// The IPv4 ID.
        ident: u16,
    },
    /// Right for another ID near the peer's last.
    Near {
        /// The IPv4 ID.
        ident: u16,
    },
    /// Right for an ID far from the peer's last, which was accepted: the peer is new, was silent, has confirmed it or sends random IDs.
    Adopted {
        /// The IPv4 ID.
        ident: u16,
    },
    /// Right only for an ID far from the peer's last, which is not accepted (yet). The packet must be dropped.
    Stray {
        /// The IPv4 ID.
        ident: u16,
    },
    /// Right only for an IPv4 header that allows fragments, which is never accepted. The packet must be dropped.
    Fragmentable,
    /// Wrong. The packet must be dropped.
    Corrupt,
}

impl Verdict {
    /// Whether the packet may be used.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        !matches!(self, Self::Stray { .. } | Self::Fragmentable | Self::Corrupt)
    }

    /// The IPv4 ID that was found. `None` if the packet must be dropped, or if its ID was known or does not exist.
    #[must_use]
    pub const fn ident(self) -> Option<u16> {
        match self {
            Self::Expected { ident } | Self::Near { ident } | Self::Adopted { ident } => Some(ident),
            _ => None,
        }
    }
}

/// What is known of the IPv4 IDs of one peer (one source address).
#[derive(Clone, Debug, Default)]
pub struct IdentTracker {
    /// ID of the last packet accepted, and when it came.
    last: Option<(u16, Instant)>,
    /// Whether the peer sends the same ID each time (else it counts up).
    still: bool,
    /// When a corrupt packet last came from the peer's address.
    corrupt: Option<Instant>,
    /// The last unlikely ID. If the next one is near it, that is accepted.
    stray: Option<u16>,
    /// Unlikely IDs in a row.
    strays: u8,
    /// Not 0: the peer's IDs are assumed to be random until this many likely ones have come. 0: they are not.
    scattered: u8,
    /// Which ICRC the peer's latest FLUSH had, until [`Self::take_flush`] takes it.
    flush: Option<FlushIcrc>,
}

impl IdentTracker {
    /// Whether `packet` (BTH to ICRC) is whole, that is, may be used.
    pub fn verify(&mut self, now: Instant, route: &Route, seen: HeaderSeen, packet: &[u8]) -> bool {
        self.judge(now, &RouteCrc::new(route), seen, packet).is_whole()
    }

    /// Checks `packet` (BTH to ICRC) as [`verify`](Self::verify) does, with a route that is prepared once for many packets, and says how
    /// the result was found.
    pub fn judge(&mut self, now: Instant, route: &RouteCrc, seen: HeaderSeen, packet: &[u8]) -> Verdict {
        let Some((body, icrc)) = packet.split_last_chunk::<ICRC_LEN>() else { return Verdict::Corrupt };
        if body.len() < BTH_LEN {
            return Verdict::Corrupt;
        }
        let received = u32::from_le_bytes(*icrc);
        match seen {
            HeaderSeen::Hidden if route.is_ipv4() => self.judge_hidden(now, route, body, received),
            HeaderSeen::Hidden | HeaderSeen::Grh => {
                self.judge_seen(route.compute(0, 0, body), body, received)
            }
            HeaderSeen::Seen { ident, fragment } => {
                self.judge_seen(route.compute(ident, fragment, body), body, received)
            }
            HeaderSeen::Bare => Verdict::Checked,
        }
    }

    /// Which ICRC the latest whole FLUSH of this peer had. `None` if none came since the last call.
    #[inline]
    pub const fn take_flush(&mut self) -> Option<FlushIcrc> {
        self.flush.take()
    }

    fn judge_seen(&mut self, computed: u32, body: &[u8], received: u32) -> Verdict {
        if computed == received {
            if is_flush(body) {
                self.flush = Some(FlushIcrc::Standard);
            }
            return Verdict::Checked;
        }
        if is_flush(body) && rxe_flush(computed, body) == received {
            self.flush = Some(FlushIcrc::Rxe);
            return Verdict::Checked;
        }
        Verdict::Corrupt
    }

    fn judge_hidden(&mut self, now: Instant, route: &RouteCrc, body: &[u8], received: u32) -> Verdict {
        let expected = self.last.map_or(0, |(last, _)| last.wrapping_add(u16::from(!self.still)));
        let computed = route.compute(expected, DONT_FRAGMENT, body);
        if computed == received && !is_flush(body) {
            return self.judge_ident(now, expected, expected);
        }
        // Behind the ID and flags are the rest of the IP header, the UDP header and the packet.
        let behind = IPV4_LEN - 8 + UDP_LEN + body.len();
        let standard = gf::difference(computed ^ received, behind);
        let (form, found) = if is_flush(body) && !matches!(standard, Some([_, _, 0, 0])) {
            let diff = rxe_flush(computed, body) ^ received;
            (FlushIcrc::Rxe, gf::difference(diff, behind + body.len()))
        } else {
            (FlushIcrc::Standard, standard)
        };
        if let Some([high, low, 0, 0]) = found {
            let verdict = self.judge_ident(now, expected, expected ^ u16::from_be_bytes([high, low]));
            if is_flush(body) && verdict.is_whole() {
                self.flush = Some(form);
            }
            return verdict;
        }
        self.strays = 0;
        self.corrupt = Some(now);
        match standard {
            Some([_, _, flags, 0]) if u16::from(flags) << 8 == DONT_FRAGMENT => Verdict::Fragmentable,
            _ => Verdict::Corrupt,
        }
    }

    /// Decides whether a packet with this ID is accepted, and records the ID.
    fn judge_ident(&mut self, now: Instant, expected: u16, ident: u16) -> Verdict {
        let Some((last, at)) = self.last else {
            return self.take(now, ident, Verdict::Adopted { ident });
        };
        let ahead = i32::from(ident.wrapping_sub(last) as i16);
        let pause = now.since(at);
        // After a pause Linux adds up to one for each clock tick of it; there are at most a thousand ticks a second.
        let ticks = pause.min(SILENCE).as_millis() as i32;
        if (-WINDOW..=WINDOW + ticks).contains(&ahead) {
            if matches!(ahead, 0 | 1) {
                self.still = ahead == 0;
            }
            self.scattered = self.scattered.saturating_sub(1);
            let found = if ident == expected { Verdict::Expected { ident } } else { Verdict::Near { ident } };
            return self.take(now, ident, found);
        }
        let near_stray = |stray: u16| i32::from(ident.wrapping_sub(stray) as i16).abs() <= WINDOW;
        let quiet = self.corrupt.is_none_or(|corrupt| now.since(corrupt) >= SILENCE);
        if self.stray.is_some_and(near_stray) || pause >= SILENCE && quiet {
            return self.take(now, ident, Verdict::Adopted { ident });
        }
        self.strays = self.strays.saturating_add(1);
        if self.scattered > 0 || self.strays >= SCATTERS {
            self.scattered = SETTLED;
            return self.take(now, ident, Verdict::Adopted { ident });
        }
        self.stray = Some(ident);
        Verdict::Stray { ident }
    }

    fn take(&mut self, now: Instant, ident: u16, verdict: Verdict) -> Verdict {
        self.last = Some((ident, now));
        self.stray = None;
        self.strays = 0;
        verdict
    }
}
