//! Synchronous ids: an id with a channel of its own, and calls that wait for their events. (In librdmacm this is an id made without a
//! channel.)

use super::{CmId, ConnParams};
use crate::{
    channel::EventChannel,
    error::CmError,
    event::{CmEvent, EventKind},
};
use core::time::Duration;
use std::net::SocketAddr;

impl CmId {
    /// Its own channel. `None` if it was made with a channel of the program.
    #[must_use]
    pub fn own_channel(&self) -> Option<&EventChannel> {
        self.own.as_ref()
    }

    /// Waits for the id's next event. Without a timeout it waits for ever.
    ///
    /// # Errors
    /// [`CmError::State`] if it has no channel of its own; as [`EventChannel::get_event`].
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<CmEvent, CmError> {
        let channel = self.own.as_ref();
        let none = CmError::State { action: "wait", state: "has no channel of its own" };
        channel.ok_or(none)?.get_event(timeout)
    }

    /// Waits for an event that `hoped` accepts. Another event is an error.
    fn await_event(
        &self,
        timeout: Option<Duration>,
        hoped: impl Fn(&EventKind) -> bool,
    ) -> Result<CmEvent, CmError> {
        let event = self.next_event(timeout)?;
        if hoped(&event.kind) {
            return Ok(event);
        }
        let errno = match event.status() {
            status if status < 0 => -status,
            _ if matches!(event.kind, EventKind::Rejected(_)) => libc::ECONNREFUSED,
            _ => libc::EIO,
        };
        Err(CmError::Failed { what: event.kind.words(), errno })
    }

    /// Resolves address and route of a peer.
    ///
    /// # Errors
    /// As [`Self::resolve_addr`] and [`Self::resolve_route`].
    pub fn resolve(&self, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), CmError> {
        self.resolve_addr(from, to)?;
        self.await_event(None, |kind| matches!(kind, EventKind::AddrResolved))?;
        self.resolve_route()?;
        self.await_event(None, |kind| matches!(kind, EventKind::RouteResolved))?;
        Ok(())
    }

    /// Connects, and waits until the connection is established or the datagram service is known.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`CmError::Failed`] if the peer refuses or does not answer.
    pub fn connect_wait(
        &self,
        params: &ConnParams<'_>,
        timeout: Option<Duration>,
    ) -> Result<CmEvent, CmError> {
        self.connect(params)?;
        self.await_event(timeout, |kind| {
            matches!(kind, EventKind::Established(_) | EventKind::ConnectResponse(_))
        })
    }

    /// Waits for a request (rdma_get_request). Its id is synchronous, too.
    ///
    /// # Errors
    /// As [`Self::next_event`].
    pub fn get_request(&self, timeout: Option<Duration>) -> Result<(Self, CmEvent), CmError> {
        let event = self.await_event(timeout, |kind| matches!(kind, EventKind::ConnectRequest(_)))?;
        let channel = EventChannel::new()?;
        event.id.migrate(&channel)?;
        let id = Self { inner: event.id.inner.clone(), own: Some(channel) };
        Ok((id, event))
    }

    /// Accepts, and waits until the connection is established.
    ///
    /// # Errors
    /// As [`Self::accept`]; [`CmError::Failed`] if the peer gives up.
    pub fn accept_wait(&self, params: &ConnParams<'_>, timeout: Option<Duration>) -> Result<(), CmError> {
        self.accept(params)?;
        self.await_event(timeout, |kind| matches!(kind, EventKind::Established(_)))?;
        Ok(())
    }

    /// Ends the connection, and waits until the peer has confirmed or does not answer.
    ///
    /// # Errors
    /// As [`Self::disconnect`].
    pub fn disconnect_wait(&self, timeout: Option<Duration>) -> Result<(), CmError> {
        let ends = self.end()?;
        let timeout = if ends { timeout } else { Some(Duration::ZERO) };
        loop {
            match self.next_event(timeout).map(|event| event.kind) {
                Ok(EventKind::Disconnected { .. } | EventKind::TimewaitExit | EventKind::DeviceRemoval) => {
                    return Ok(());
                }
                Err(CmError::Empty) if !ends => return Ok(()),
                other => _ = other?,
            }
        }
    }
}
