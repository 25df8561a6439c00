//! What the host service leaves to the connection manager: requests for which no process listens, and connections of
//! processes that died. The crate of the manager imports this one, so the manager registers itself here.

use super::records::Connection;
use rxe_core::time::Instant;
use std::{net::IpAddr, sync::OnceLock};

/// Bytes of a management datagram.
pub const MAD_LEN: usize = rxe_core::wire::MAD_LEN;

/// A datagram of queue pair 1, with its destination or source.
#[derive(Clone, Copy, Debug)]
pub struct Letter {
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// Interface; 0 if routing decides.
    pub ifindex: u32,
    /// Partition key.
    pub pkey: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// The datagram.
    pub mad: [u8; MAD_LEN],
}

/// Answers in the place of processes that do not exist (any more).
pub trait Attendant: Send {
    /// Handles a request for which no process listens, or the end of a connection that no process has. Returns the answer, if there is
    /// one.
    fn unheard(&mut self, mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]>;

    /// Called when a process has died and this connection is in its records.
    fn died(&mut self, now: Instant, connection: &Connection);

    /// Puts the datagrams that are to be sent now into `out`, at most `most`. The caller calls it again at
    /// [`poll_timeout`](Self::poll_timeout).
    fn letters(&mut self, now: Instant, most: usize, out: &mut Vec<Letter>);

    /// When to call [`letters`](Self::letters) again.
    fn poll_timeout(&self) -> Option<Instant>;
}

type Make = fn() -> Box<dyn Attendant>;

static ATTENDANT: OnceLock<Make> = OnceLock::new();

/// Registers the attendant for services of this process. Only the first call counts.
pub fn set_attendant(make: Make) {
    let _ = ATTENDANT.set(make);
}

/// A new attendant, if one is registered.
pub(super) fn attendant() -> Option<Box<dyn Attendant>> {
    ATTENDANT.get().map(|make| make())
}
