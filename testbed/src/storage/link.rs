//! A reliable connection, set up by the connection manager. It has a queue pair, and one completion queue for both
//! directions.

use core::{fmt, time::Duration};
use rxe_cm::{
    CmError, CmEvent, CmId, CmOptions, ConnParams, EventChannel, EventKind, Manager, proto::PortSpace,
};
use rxe_verbs::{
    CompChannel, Completion, Context, Cq, CreateError, EventError, MrError, Pd, PollError, PostError, Qp,
    QpInit, QpType, RegisterError, WcStatus,
};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

/// The longest sleep before checking whether the connection has ended. The end of a connection does not wake a thread that
/// waits for completions.
const GLANCE: Duration = Duration::from_millis(100);
/// The acknowledgement timeout, 4.096 us << 18 = 1.1 s. Emulated machines stall now and then, and the time of all retries
/// together has to be longer than that.
const ACK_TIMEOUT: u8 = 18;

/// Why there is no answer, or no usable one.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection could not be made.
    #[error("no connection to {peer}: {source}")]
    Connect {
        /// The peer's address.
        peer: SocketAddr,
        /// The reason.
        source: CmError,
    },
    /// A call of the connection manager failed.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// The peer has ended the connection, or is no longer there.
    #[error("the peer has ended the connection")]
    Ended,
    /// The peer has not answered for this time.
    #[error("the peer has not answered for {0:?}")]
    Silent(Duration),
    /// A work request failed.
    #[error("a work request ended with {status:?} (wr_id {wr_id:#x})")]
    Work {
        /// The status of the completion.
        status: WcStatus,
        /// The ID of the work request.
        wr_id: u64,
    },
    /// A message from the peer violates the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer refused a request with a status of the protocol.
    #[error("{what}: the peer answers {status}")]
    Refused {
        /// The operation that was requested.
        what: &'static str,
        /// The peer's status.
        status: String,
    },
    /// An object could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Registered memory could not be read or written.
    #[error(transparent)]
    Memory(#[from] MrError),
    /// A work request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The completion queue has lost completions.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// Waiting for a completion failed.
    #[error(transparent)]
    Event(#[from] EventError),
}

impl LinkError {
    /// A protocol error with this description.
    pub fn protocol(text: impl Into<String>) -> Self {
        Self::Protocol(text.into())
    }
}

/// The maximum number of outstanding work requests of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Sends, READs and WRITEs.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
}

/// A connection. Dropping it disconnects.
pub struct Link {
    id: CmId,
    /// The channel for the id's events, unless they go to another channel.
    channel: EventChannel,
    qp: Arc<Qp>,
    cq: Cq,
    wakes: CompChannel,
    pd: Pd,
    /// The private data that the peer's program sent when the connection was set up.
    private_data: Box<[u8]>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("id", &self.id).field("qpn", &self.qp.qpn()).finish_non_exhaustive()
    }
}

/// A connection request of a peer. Accept it with [`Link::accept`], or drop it to refuse.
#[derive(Debug)]
pub struct Caller(CmEvent);

impl Caller {
    /// The private data of its program: the whole field, with zeros behind the bytes that the program set.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.0.private_data
    }

    /// The opened device at which the request arrived.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        self.0.id.context()
    }

    /// Refuses the request, with private data for the peer's program, 148 bytes at most.
    ///
    /// # Errors
    /// [`CmError`] of [`CmId::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), CmError> {
        self.0.id.reject(private_data)
    }
}

/// A listener for connection requests.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    channel: EventChannel,
}

impl Listener {
    /// Listens at an address and port of ours; port 0 takes any.
    ///
    /// # Errors
    /// As [`CmId::bind`] and [`CmId::listen`].
    pub fn new(manager: &Manager, at: SocketAddr) -> Result<Self, CmError> {
        let channel = EventChannel::new()?;
        let id = manager.create_id(&channel, PortSpace::Tcp)?;
        id.bind(at)?;
        id.listen(0)?;
        Ok(Self { id, channel })
    }

    /// The address at which it listens.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// The opened device of its address; none if it listens at all addresses.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        self.id.context()
    }

    /// The next connection request; `None` if none arrives within `patience`.
    ///
    /// # Errors
    /// As [`EventChannel::get_event`].
    pub fn next(&self, patience: Duration) -> Result<Option<Caller>, CmError> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.channel.get_event(Some(left)) {
                Ok(event) if matches!(event.kind, EventKind::ConnectRequest(_)) => {
                    return Ok(Some(Caller(event)));
                }
                // An event of a connection that ended before it was accepted.
                Ok(_) => {}
                Err(CmError::Empty | CmError::Interrupted) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Link {
    /// Connects to `to`, from our address `from` if it is given. `prepare` posts the first receives, before the peer can
    /// send.
    ///
    /// # Errors
    /// [`LinkError::Connect`] with the reason of the failure.
    pub fn connect<T>(
        manager: &Manager,
        from: Option<IpAddr>,
        to: SocketAddr,
        depth: Depth,
        private_data: &[u8],
        patience: Duration,
        prepare: impl FnOnce(&Self) -> Result<T, LinkError>,
    ) -> Result<(Self, T), LinkError> {
        let failed = |source| LinkError::Connect { peer: to, source };
        let id = manager.create_sync_id(PortSpace::Tcp)?;
        id.set_options(CmOptions { ack_timeout: Some(ACK_TIMEOUT), ..CmOptions::default() })?;
        id.resolve(from.map(|ip| SocketAddr::new(ip, 0)), to).map_err(failed)?;
        let context = id.context().ok_or(CmError::NoQueuePair)?;
        let channel = id.own_channel().ok_or(CmError::NoQueuePair)?.clone();
        let mut link = Self::equip(id, channel, &context.alloc_pd()?, depth)?;
        let prepared = prepare(&link)?;
        let params = ConnParams { private_data, ..ConnParams::default() };
        let event = link.id.connect_wait(&params, Some(patience)).map_err(failed)?;
        link.private_data = event.private_data;
        Ok((link, prepared))
    }

    /// Accepts a peer's connection, with objects of `pd`. `prepare` posts the first receives.
    ///
    /// # Errors
    /// [`LinkError`]; the peer is told that it was refused.
    pub fn accept<T>(
        caller: Caller,
        pd: &Pd,
        depth: Depth,
        private_data: &[u8],
        patience: Duration,
        prepare: impl FnOnce(&Self) -> Result<T, LinkError>,
    ) -> Result<(Self, T), LinkError> {
        let event = caller.0;
        let channel = EventChannel::new()?;
        event.id.migrate(&channel)?;
        event.id.set_options(CmOptions { ack_timeout: Some(ACK_TIMEOUT), ..event.id.options() })?;
        let mut link = Self::equip(event.id, channel, pd, depth)?;
        link.private_data = event.private_data;
        let prepared = prepare(&link)?;
        link.id.accept(&ConnParams { private_data, ..ConnParams::default() })?;
        match link.channel.get_event(Some(patience))?.kind {
            EventKind::Established(_) => Ok((link, prepared)),
            other => Err(CmError::Failed { what: other.words(), errno: libc::ECONNABORTED }.into()),
        }
    }

    fn equip(id: CmId, channel: EventChannel, pd: &Pd, depth: Depth) -> Result<Self, LinkError> {
        let context = pd.context();
        let wakes = context.create_comp_channel()?;
        let cq = context.create_cq(depth.sends + depth.receives, Some(&wakes))?;
        let mut init = QpInit::new(QpType::Rc, &cq);
        init.caps.max_send_wr = depth.sends;
        init.caps.max_recv_wr = depth.receives;
        let qp = id.create_qp(pd, &init)?;
        Ok(Self { id, channel, qp, cq, wakes, pd: pd.clone(), private_data: Box::default() })
    }

    /// The queue pair.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// The protection domain, for registering memory.
    #[must_use]
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The private data that the peer's program sent when the connection was set up: the whole field, with zeros behind the
    /// bytes that the program set.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The next completion, which must be successful.
    ///
    /// # Errors
    /// [`LinkError::Work`] for a failed work request, [`LinkError::Ended`] if the connection has ended,
    /// [`LinkError::Silent`] if none arrives within `patience`.
    pub fn next(&self, patience: Duration) -> Result<Completion, LinkError> {
        let end = Instant::now() + patience;
        let mut one = [Completion::default()];
        loop {
            if self.cq.poll(&mut one)? == 1 {
                return checked(one[0]);
            }
            while let Some(event) = self.channel.try_get_event() {
                if matches!(event.kind, EventKind::Disconnected { .. } | EventKind::DeviceRemoval) {
                    return Err(LinkError::Ended);
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::Silent(patience));
            }
            // A completion that arrived before the queue was armed raises no event, so the queue is polled once more.
            self.cq.req_notify(false);
            if self.cq.poll(&mut one)? == 1 {
                return checked(one[0]);
            }
            match self.wakes.get_event_within(left.min(GLANCE)) {
                Ok(cq) => cq.ack_events(1),
                Err(EventError::Empty | EventError::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Fails if the connection has already ended.
        let _ = self.id.disconnect();
    }
}

fn checked(completion: Completion) -> Result<Completion, LinkError> {
    match completion.status {
        WcStatus::Success => Ok(completion),
        status => Err(LinkError::Work { status, wr_id: completion.wr_id }),
    }
}
