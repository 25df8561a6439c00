//! Links: the ways in which packets travel to the device and back. All of them carry whole IP packets.

pub mod raw;
pub mod udp;

use crate::wire::Roce;
use nix::errno::Errno;
use std::{io, net::IpAddr, time::Duration};
use thiserror::Error;

/// An IP packet that arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The whole packet, header included.
    pub ip: Vec<u8>,
    /// Whether the IP header is the one that was on the wire. Otherwise it was reconstructed from what the socket reports.
    pub header_seen: bool,
}

/// Why a link does not work, or no longer works.
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

/// Why a packet was not sent.
#[derive(Debug, Error)]
pub enum Unsent {
    /// It is longer than what the suite's own interface sends, so the device has not seen it.
    #[error("{0}")]
    TooLong(String),
    /// The link does not work.
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl Unsent {
    /// `what`, a packet of `len` bytes, was not sent because of `error`.
    #[must_use]
    pub fn new(what: &str, len: usize, error: &io::Error) -> Self {
        if error.raw_os_error() == Some(Errno::EMSGSIZE as i32) {
            return Self::TooLong(format!(
                "{what}: {len} bytes are more than the MTU of the tester's interface allows"
            ));
        }
        LinkError::new(what, error).into()
    }
}

impl From<Unsent> for LinkError {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::TooLong(why) => Self(why),
            Unsent::Link(error) => error,
        }
    }
}

/// A link to the device. It is also the only clock that the suite uses.
pub trait Link {
    /// The suite's own address.
    fn own(&self) -> IpAddr;

    /// The UDP source port of packets, unless a case sets another one.
    fn source_port(&self) -> u16;

    /// The RoCE version of its packets.
    fn roce(&self) -> Roce {
        Roce::V2
    }

    /// Sends an IP packet as it is.
    ///
    /// # Errors
    /// If the link is down, or the packet is too long for it.
    fn send(&mut self, ip: &[u8]) -> Result<(), Unsent>;

    /// The same with a VLAN tag, which has this tag control information.
    ///
    /// # Errors
    /// If the link is down, has no Ethernet frames, or the packet is too long for it.
    fn send_tagged(&mut self, _ip: &[u8], _tag: u16) -> Result<(), Unsent> {
        Err(LinkError("VLAN tags need whole frames (--raw)".into()).into())
    }

    /// The next RoCE packet. Waits for it for at most `within`. This is the only way in which time passes.
    ///
    /// # Errors
    /// If the link is down.
    fn recv(&mut self, within: Duration) -> Result<Option<Arrival>, LinkError>;

    /// The current time, measured from when the link was opened.
    fn now(&self) -> Duration;

    /// How long a device on this link may take to answer before it counts as silent.
    fn patience(&self) -> Duration;

    /// How long no packet may arrive for the link to count as quiet.
    fn calm(&self) -> Duration;
}
