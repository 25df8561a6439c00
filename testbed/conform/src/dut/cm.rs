//! The connection manager of a device, as programs use it (rdma_cm).

use super::{Answer, Handle};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Port space of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Space {
    /// Reliable connections (RDMA_PS_TCP).
    Tcp,
    /// Datagram services (RDMA_PS_UDP).
    Udp,
}

/// What the program is told (rdma_cm_event).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CmEvent {
    /// As in rdma_cm_event_type, without RDMA_CM_EVENT_.
    pub event: String,
    /// 0, the reason of a reject, the status of a SIDR_REP, or a negative errno.
    pub status: i32,
    /// The peer's private data in hexadecimal digits: the whole field of its message.
    #[serde(rename = "data")]
    pub private: String,
    /// The id that it is about. That of a CONNECT_REQUEST is new.
    pub id: Option<Handle>,
}

/// The calls of a connection manager. Ids have no queue pair: the numbers that they name in their messages are the
/// suite's.
pub trait Cm {
    /// Makes a channel for events.
    ///
    /// # Errors
    /// What the device says; so for the rest.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn channel(&mut self) -> Answer<Handle>;

    /// Makes an id.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn id(&mut self, channel: Handle, space: Space) -> Answer<Handle>;

    /// Binds an id to the device's address and a port, and listens.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn listen(&mut self, id: Handle, address: IpAddr, port: u16) -> Answer<()>;

    /// Resolves address and route to a port of the peer, from the device's own address; takes the two events.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn resolve(&mut self, id: Handle, from: IpAddr, to: IpAddr, port: u16) -> Answer<()>;

    /// Asks for a connection, or for a datagram service.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn connect(&mut self, id: Handle, qpn: u32, private: &[u8]) -> Answer<()>;

    /// Accepts what a CONNECT_REQUEST asked for.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn accept(&mut self, id: Handle, qpn: u32, private: &[u8]) -> Answer<()>;

    /// Refuses what a CONNECT_REQUEST asked for.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn reject(&mut self, id: Handle, private: &[u8]) -> Answer<()>;

    /// Says that the own end is ready, after a CONNECT_RESPONSE.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn establish(&mut self, id: Handle) -> Answer<()>;

    /// Ends a connection, or agrees to its end.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn disconnect(&mut self, id: Handle) -> Answer<()>;

    /// The next event of a channel, if there is one now.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn event(&mut self, channel: Handle) -> Answer<Option<CmEvent>>;
}
