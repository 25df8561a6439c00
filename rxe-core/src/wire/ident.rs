//! Judging an IPv4 packet's ICRC without seeing its IP header's ID.

use super::icrc::Route;
use crate::time::Instant;

/// What is known of one peer's IPv4 IDs.
#[derive(Clone, Debug, Default)]
pub struct IdentTracker {}

/// What the receiver knows of a packet's IPv4 ID and flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderSeen {
    /// Nothing: an ordinary UDP socket.
    Hidden,
    /// ID and flags-and-offset word: a raw link.
    Seen {
        /// The ID.
        ident: u16,
        /// Flags and fragment offset.
        fragment: u16,
    },
}

impl IdentTracker {
    /// Whether `packet` (BTH to ICRC) is whole.
    pub fn verify(&mut self, now: Instant, route: &Route, seen: HeaderSeen, packet: &[u8]) -> bool {
        let _ = (now, route, seen, packet);
        true
    }
}
