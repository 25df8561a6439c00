//! Links: how packets get to the device and back. All of them carry whole IP packets.

pub mod raw;
pub mod udp;

use crate::wire::Roce;
use std::{net::IpAddr, time::Duration};
use thiserror::Error;

/// An IP packet that came.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Header and all.
    pub ip: Vec<u8>,
    /// Whether its IP header is the one that was on the wire; else it was put together from what a socket tells.
    pub header_seen: bool,
}

/// Why a link does not work (any more).
#[derive(Debug, Error)]
#[error("{0}")]
pub struct LinkError(pub String);

impl LinkError {
    /// `what` failed with `error`.
    #[must_use]
    pub fn new(what: &str, error: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {error}"))
    }
}

/// A way to the device, and the only clock that the suite knows.
pub trait Link {
    /// The suite's own address.
    fn own(&self) -> IpAddr;

    /// The UDP source port that packets have unless a case wants another one.
    fn source_port(&self) -> u16;

    /// How its packets go.
    fn roce(&self) -> Roce {
        Roce::V2
    }

    /// Sends an IP packet as it is.
    ///
    /// # Errors
    /// If the link is down.
    fn send(&mut self, ip: &[u8]) -> Result<(), LinkError>;

    /// The same with a VLAN tag, whose tag control information this is.
    ///
    /// # Errors
    /// If the link is down, or has no Ethernet frames.
    fn send_tagged(&mut self, _ip: &[u8], _tag: u16) -> Result<(), LinkError> {
        Err(LinkError("VLAN tags need whole frames (--raw)".into()))
    }

    /// The next RoCE packet, waiting for it at most `within`. This is how time passes.
    ///
    /// # Errors
    /// If the link is down.
    fn recv(&mut self, within: Duration) -> Result<Option<Arrival>, LinkError>;

    /// The present, since the link was opened.
    fn now(&self) -> Duration;

    /// How long a device on this link may take to answer before it counts as silent.
    fn patience(&self) -> Duration;

    /// How long nothing may come for the link to count as quiet.
    fn calm(&self) -> Duration;
}
