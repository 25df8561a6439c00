//! Listening.

use super::CmId;
use crate::{
    agent::{Exchange, Listening},
    error::CmError,
};
use std::{
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
};

/// Most requests that wait for the program, whatever it asks for: the default of kernels.
const MOST_WAITING: usize = 1024;

impl CmId {
    /// Accepts requests for connections or for the datagram service from now on (rdma_listen). Each arrives as a
    /// [`ConnectRequest`](crate::EventKind::ConnectRequest). At most `backlog` of them wait for the program. 0, or more than 1024,
    /// means 1024. Others get no answer, and their senders ask again. An id that is not bound gets a free port on all
    /// addresses.
    ///
    /// # Errors
    /// [`CmError::State`] if it has a peer or listens already; as [`Self::bind`].
    pub fn listen(&self, backlog: usize) -> Result<(), CmError> {
        let bound = self.with(|id| match (id.peer, id.exchange, &id.listening) {
            (None, Exchange::None, None) => Ok(id.local.is_some()),
            _ => Err(id.refuse("listen")),
        })?;
        if !bound {
            self.bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))?;
        }
        self.claim_named()?;
        let limit = if backlog == 0 { MOST_WAITING } else { backlog.min(MOST_WAITING) };
        self.with(|id| {
            id.listening = Some(Listening { limit, taken: Arc::default() });
            Ok(())
        })?;
        self.inner.handle.agent.act(|turn| {
            turn.hear_waiting();
            Ok(())
        })
    }
}
