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

/// An event that the program receives (rdma_cm_event).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CmEvent {
    /// As in rdma_cm_event_type, without RDMA_CM_EVENT_.
    pub event: String,
    /// The status: 0, the reason of a REJ, the status of a SIDR_REP, or a negative errno.
    pub status: i32,
    /// The peer's private data as hexadecimal digits: the whole field of its message.
    #[serde(rename = "data")]
    pub private: String,
    /// The id that the event is about. A CONNECT_REQUEST brings a new id.
    pub id: Option<Handle>,
}

/// The calls of a connection manager. Ids have no queue pair: the queue pair numbers in their messages are chosen by the
/// suite.
pub trait Cm {
    /// Creates an event channel.
    ///
    /// # Errors
    /// The error that the device reports; likewise for the other calls.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn channel(&mut self) -> Answer<Handle>;

    /// Creates an id.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn id(&mut self, channel: Handle, space: Space) -> Answer<Handle>;

    /// Binds an id to the device's address and a port, and listens.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn listen(&mut self, id: Handle, address: IpAddr, port: u16) -> Answer<()>;

    /// Resolves address and route to a port of the peer, from the device's own address. Consumes the two events.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn resolve(&mut self, id: Handle, from: IpAddr, to: IpAddr, port: u16) -> Answer<()>;

    /// Requests a connection, or a datagram service.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn connect(&mut self, id: Handle, qpn: u32, private: &[u8]) -> Answer<()>;

    /// Accepts the request of a CONNECT_REQUEST event.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn accept(&mut self, id: Handle, qpn: u32, private: &[u8]) -> Answer<()>;

    /// Rejects the request of a CONNECT_REQUEST event.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn reject(&mut self, id: Handle, private: &[u8]) -> Answer<()>;

    /// Reports that the own end is ready, after a CONNECT_RESPONSE.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn establish(&mut self, id: Handle) -> Answer<()>;

    /// Disconnects, or agrees to the peer's disconnection.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn disconnect(&mut self, id: Handle) -> Answer<()>;

    /// The next event of a channel, if there is one now.
    #[allow(clippy::missing_errors_doc, reason = "as the first says")]
    fn event(&mut self, channel: Handle) -> Answer<Option<CmEvent>>;
}
