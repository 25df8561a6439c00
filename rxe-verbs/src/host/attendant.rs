//! What the host service leaves to the connection manager: requests that nobody listens for, and connections of
//! processes that died. The manager is above this crate, so it names itself here.

use super::records::Connection;
use rxe_core::time::Instant;
use std::{net::IpAddr, sync::OnceLock};

/// Bytes of a management datagram.
pub const MAD_LEN: usize = rxe_core::wire::MAD_LEN;

/// A datagram of queue pair 1, with where it goes or comes from.
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

/// Who speaks for those who cannot.
pub trait Attendant: Send {
    /// A request that no process listens for, or the end of a connection that none has; what to answer, if anything.
    fn unheard(&mut self, mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]>;

    /// A process has died with this connection on record.
    fn died(&mut self, now: Instant, connection: &Connection);

    /// Puts what is to be sent now into `out`, at most `most` datagrams. To be called again when
    /// [`poll_timeout`](Self::poll_timeout) says.
    fn letters(&mut self, now: Instant, most: usize, out: &mut Vec<Letter>);

    /// When to call [`letters`](Self::letters) again.
    fn poll_timeout(&self) -> Option<Instant>;
}

type Make = fn() -> Box<dyn Attendant>;

static ATTENDANT: OnceLock<Make> = OnceLock::new();

/// Says who attends to services of this process from now on. The first word counts.
pub fn set_attendant(make: Make) {
    let _ = ATTENDANT.set(make);
}

/// A new one, if anybody has named himself.
pub(super) fn attendant() -> Option<Box<dyn Attendant>> {
    ATTENDANT.get().map(|make| make())
}
