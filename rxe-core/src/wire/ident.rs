//! Judging an IPv4 packet's ICRC without seeing its IP header's ID.
//!
//! The ICRC covers the IPv4 ID and flags, which an ordinary UDP socket does not show. CRC is linear, so the difference
//! between the received ICRC and the one computed for a guess tells exactly which ID and flags would make the packet
//! whole ([`super::gf`]). Every packet is whole for *some* 32 bits of ID and flags; a corrupt one for random ones. What
//! makes the check is how few are believed: don't-fragment set and nothing else, and an ID near the peer's last. A jump of
//! the counter costs one packet: the next one near the new place confirms it. Only a peer of which nothing is known, or
//! nothing was heard for a second, may come with any ID at once.
//!
//! Packets without don't-fragment are never believed, though the IP header allows them: every RoCE peer seen forbids
//! fragments, and each further value of the flags that is believed lets twice as many corrupt packets pass. They are told
//! apart ([`Verdict::Fragmentable`]), so that whoever has such a peer finds out why nothing arrives.
//!
//! IDs seen: ours count 0, 1, 2, ... within a segmentation batch and are 0 otherwise; ConnectX counts up by one over all
//! its packets; kernel rxe counts, and after a pause jumps forward by up to one per clock tick; others always send 0.

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

/// How far an ID may be from the peer's last one.
const WINDOW: i32 = 256;
/// After this long without a packet, whole or corrupt, any ID is taken: at most once in this time, that is.
const SILENCE: Duration = Duration::from_secs(1);
/// After this many unlikely IDs in a row a peer is taken to scatter them. Each has a chance of 2^-16 to be corruption.
const SCATTERS: u8 = 4;
/// After this many likely IDs in a row it no longer is.
const SETTLED: u8 = 64;

/// What was found out about a packet's ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Right; everything it covers is known (IPv6, RoCEv1, or a link that shows the IP header), or there is none (memory).
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
    /// Right for an ID far from the peer's last, believed because little is known of the peer.
    Adopted {
        /// The IPv4 ID.
        ident: u16,
    },
    /// Would be right for an ID that is not to be believed (yet): to be dropped.
    Stray {
        /// The IPv4 ID.
        ident: u16,
    },
    /// Would be right for an IPv4 header that allows fragments, which is not believed: to be dropped.
    Fragmentable,
    /// Wrong: to be dropped.
    Corrupt,
}

impl Verdict {
    /// Whether the packet may be used.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        !matches!(self, Self::Stray { .. } | Self::Fragmentable | Self::Corrupt)
    }

    /// The IPv4 ID that was found, if the packet may be used and its header was hidden.
    #[must_use]
    pub const fn ident(self) -> Option<u16> {
        match self {
            Self::Expected { ident } | Self::Near { ident } | Self::Adopted { ident } => Some(ident),
            _ => None,
        }
    }
}

/// What is known of one peer's IPv4 IDs. One for each source address.
#[derive(Clone, Debug, Default)]
pub struct IdentTracker {
    /// ID of the last packet taken, and when.
    last: Option<(u16, Instant)>,
    /// Whether that peer's IDs stand still (else they count up).
    still: bool,
    /// When something corrupt last came in its name.
    corrupt: Option<Instant>,
    /// The last unlikely ID; a second one near it makes both likely.
    stray: Option<u16>,
    /// Unlikely IDs in a row.
    strays: u8,
    /// Likely IDs in a row that must still come before the peer is no longer taken to scatter them; 0 if it is not.
    scattered: u8,
    /// Which ICRC the peer's latest FLUSH had, until somebody asks.
    flush: Option<FlushIcrc>,
}

impl IdentTracker {
    /// Whether `packet` (BTH to ICRC) is whole.
    pub fn verify(&mut self, now: Instant, route: &Route, seen: HeaderSeen, packet: &[u8]) -> bool {
        self.judge(now, &RouteCrc::new(route), seen, packet).is_whole()
    }

    /// Judges `packet` (BTH to ICRC): the same as [`verify`](Self::verify) with the route prepared once for many packets,
    /// and saying how the answer was found.
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

    /// Which ICRC the latest whole FLUSH of this peer had, if there was one since this was last asked.
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
            return self.admit(now, expected, expected);
        }
        // Behind ID and flags lie the rest of the IP header, the UDP header and the packet.
        let behind = IPV4_LEN - 8 + UDP_LEN + body.len();
        let standard = gf::difference(computed ^ received, behind);
        let (form, found) = if is_flush(body) && !matches!(standard, Some([_, _, 0, 0])) {
            let diff = rxe_flush(computed, body) ^ received;
            (FlushIcrc::Rxe, gf::difference(diff, behind + body.len()))
        } else {
            (FlushIcrc::Standard, standard)
        };
        if let Some([high, low, 0, 0]) = found {
            let verdict = self.admit(now, expected, expected ^ u16::from_be_bytes([high, low]));
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

    /// Decides whether `ident` is to be believed, and learns from it.
    fn admit(&mut self, now: Instant, expected: u16, ident: u16) -> Verdict {
        let Some((last, at)) = self.last else {
            return self.take(now, ident, Verdict::Adopted { ident });
        };
        let ahead = i32::from(ident.wrapping_sub(last) as i16);
        let pause = now.since(at);
        // Linux moves its counter on by up to one for each tick of a pause, a thousand a second at most.
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
