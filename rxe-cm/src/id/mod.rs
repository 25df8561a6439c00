//! Ids (rdma_cm_id): one side of a connection, a listener, or a datagram service. Each file
//! has one kind of calls.

mod address;
mod connect;
mod listen;
mod multicast;
mod qp;
mod service;
mod sync;

use crate::{
    agent::{Handle, Id, Manager, State},
    channel::{EventChannel, Queue},
    error::CmError,
    event::EventKind,
    proto::PortSpace,
    route::PathRecord,
};
use rxe_verbs::{Context, Mtu, Pkey, Qkey, Qp, QpType, Qpn};
use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
    io,
    net::SocketAddr,
    sync::{Arc, Weak},
};

pub use address::OwnPath;
pub use connect::ConnParams;

/// The Q_Key that rdma_cm gives datagram queue pairs unless asked for another (RDMA_UDP_QKEY).
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);

/// An id. Clones are the same id. When the last one is dropped the id is destroyed (rdma_destroy_id): an established
/// connection is ended on the wire, a request is refused, a port becomes free, and there are no further events.
#[derive(Clone, Debug)]
pub struct CmId {
    inner: Arc<Inner>,
    /// The own channel of a synchronous id.
    own: Option<EventChannel>,
}

/// The part that the clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    handle: Arc<Handle>,
    key: usize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.handle.agent.abandon(self.key);
    }
}

/// Options of an id (rdma_set_option).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmOptions {
    /// IPv4 TOS or IPv6 traffic class of the connection's packets (RDMA_OPTION_ID_TOS); the lowest two bits (ECN) are 0.
    /// Unless set, the host's rules decide.
    pub tos: Option<u8>,
    /// Whether others may have the same port on other addresses (RDMA_OPTION_ID_REUSEADDR).
    pub reuse_addr: bool,
    /// Whether a listener on all IPv6 addresses excludes IPv4 (RDMA_OPTION_ID_AFONLY).
    pub family_only: bool,
    /// Local ACK timeout, 4.096 us << code, 1 to 31 (RDMA_OPTION_ID_ACK_TIMEOUT). Unless set it follows from the packet
    /// lifetime.
    pub ack_timeout: Option<u8>,
    /// How long the peer's connection manager may take to answer before it is asked again, 4.096 us << code, 0 to 31.
    /// It is asked again 15 times. The default is 18, which is 1.07 s: it takes 26 s to notice that a peer is gone.
    pub response_timeout: Option<u8>,
    /// A path MTU below the port's.
    pub path_mtu: Option<Mtu>,
    /// The partition of the path, which must be in the port's table. Unless set it is chosen as by a subnet manager.
    pub pkey: Option<Pkey>,
}

/// A queue pair that the program makes and changes itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForeignQp {
    /// Its number.
    pub qpn: Qpn,
    /// Whether it has a shared receive queue.
    pub srq: bool,
}

impl Manager {
    /// Makes an id whose events go to `channel` (rdma_create_id): for reliable connections in the port spaces Tcp and Ib,
    /// for datagrams in Udp and Ipoib.
    ///
    /// # Errors
    /// [`CmError::Forked`].
    pub fn create_id(&self, channel: &EventChannel, space: PortSpace) -> Result<CmId, CmError> {
        let qp_type = match space {
            PortSpace::Tcp | PortSpace::Ib => QpType::Rc,
            PortSpace::Udp | PortSpace::Ipoib => QpType::Ud,
        };
        self.create_id_for(channel, space, qp_type)
    }

    /// The same for another transport service: Rc, Uc, Ud; XrcInitiator, which connects, and XrcTarget, which listens.
    ///
    /// # Errors
    /// [`CmError::Argument`] for other kinds of queue pair; [`CmError::Forked`].
    pub fn create_id_for(
        &self,
        channel: &EventChannel,
        space: PortSpace,
        qp_type: QpType,
    ) -> Result<CmId, CmError> {
        if qp_type == QpType::Gsi {
            return Err(CmError::Argument(format!(
                "no connections between {qp_type:?} queue pairs are made"
            )));
        }
        self.0.agent.act(|turn| {
            let queue = Arc::clone(channel.queue());
            Ok(CmId::enter(turn.state, &self.0, |weak| Id::new(weak, queue, space, qp_type)))
        })
    }

    /// Makes a synchronous id, which has a channel of its own.
    ///
    /// # Errors
    /// As [`Self::create_id`], and [`CmError::System`].
    pub fn create_sync_id(&self, space: PortSpace) -> Result<CmId, CmError> {
        let channel = EventChannel::new()?;
        let id = self.create_id(&channel, space)?;
        Ok(CmId { own: Some(channel), ..id })
    }
}

/// Whether both are the same id.
impl PartialEq for CmId {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl Eq for CmId {}

impl Hash for CmId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

impl From<Arc<Inner>> for CmId {
    fn from(inner: Arc<Inner>) -> Self {
        Self { inner, own: None }
    }
}

impl CmId {
    /// Adds a new id to the state.
    pub(crate) fn enter(
        state: &mut State,
        handle: &Arc<Handle>,
        make: impl FnOnce(Weak<Inner>) -> Id,
    ) -> Self {
        let entry = state.ids.vacant_entry();
        let inner = Arc::new(Inner { handle: Arc::clone(handle), key: entry.key() });
        entry.insert(make(Arc::downgrade(&inner)));
        Self::from(inner)
    }

    pub(crate) fn key(&self) -> usize {
        self.inner.key
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.inner.handle
    }

    /// Destroys the id, as dropping its last handle does. But when this returns the peer has been told, even if the process
    /// ends at once (rdma_destroy_id). Its events that wait are dropped, because they have handles of it, and no further ones come, even
    /// if the program still has another clone.
    pub fn destroy(self) {
        let handle = Arc::clone(self.handle());
        // The id is destroyed at the end of this turn, and no event can come before. A forked child sends nothing.
        let _ = handle.agent.act(|turn| {
            if let Some(id) = turn.state.ids.get_mut(self.key()) {
                id.handle = Weak::new();
                id.queue.forget(&self);
            }
            drop(self);
            Ok(())
        });
    }

    /// A number that no other existing id of its manager has.
    #[must_use]
    pub fn number(&self) -> usize {
        self.inner.key
    }

    /// Whether both are the same id.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Calls a function with the id's part of the state.
    fn with<R>(&self, work: impl FnOnce(&mut Id) -> Result<R, CmError>) -> Result<R, CmError> {
        self.inner.handle.agent.act(|turn| {
            let id = turn.state.ids.get_mut(self.key());
            work(id.unwrap_or_else(|| unreachable!("an id is in the state until its last handle is gone")))
        })
    }

    fn read<R>(&self, work: impl FnOnce(&Id) -> Option<R>) -> Option<R> {
        self.with(|id| Ok(work(id))).ok().flatten()
    }

    /// The port space.
    #[must_use]
    pub fn port_space(&self) -> Option<PortSpace> {
        self.read(|id| Some(id.space))
    }

    /// Our address and port, once bound or resolved (rdma_get_local_addr).
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.read(|id| id.local)
    }

    /// The peer's address and port, once resolved, or from the request on (rdma_get_peer_addr).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.read(|id| id.peer)
    }

    /// The opened device, once it is known: protection domains for the id's queue pair come from it (`rdma_cm_id.verbs`).
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        self.read(|id| id.context.clone())
    }

    /// The path to the peer, once resolved (`rdma_cm_id.route`).
    #[must_use]
    pub fn path(&self) -> Option<PathRecord> {
        self.read(|id| id.path)
    }

    /// The queue pair that it manages.
    #[must_use]
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.read(|id| id.qp.clone())
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> CmOptions {
        self.read(|id| Some(id.options)).unwrap_or_default()
    }

    /// Puts an event of the program into the id's channel, behind those that wait there (rdma_write_cm_event).
    ///
    /// # Errors
    /// [`CmError::System`] (ENOBUFS) if a thousand wait.
    pub fn tell(&self, kind: EventKind) -> Result<(), CmError> {
        /// If so many wait, they are probably never fetched.
        const MOST: usize = 1000;
        self.handle().agent.act(|turn| {
            if turn.state.ids.get(self.key()).is_some_and(|id| id.queue.len() >= MOST) {
                let source = io::Error::from_raw_os_error(libc::ENOBUFS);
                return Err(CmError::System { action: "keep another event", source });
            }
            turn.emit(self.key(), kind, &[]);
            Ok(())
        })
    }

    /// Sets options for later calls (rdma_set_option).
    ///
    /// # Errors
    /// [`CmError::Argument`] names the value that is out of range.
    pub fn set_options(&self, options: CmOptions) -> Result<(), CmError> {
        if let Some(tos) = options.tos.filter(|tos| tos & 3 != 0) {
            return Err(CmError::Argument(format!("ToS {tos:#04x} has ECN bits (the two lowest)")));
        }
        if let Some(code) = options.ack_timeout.filter(|code| !(1..=31).contains(code)) {
            return Err(CmError::Argument(format!("ACK timeout code {code} is not within 1 to 31")));
        }
        if let Some(code) = options.response_timeout.filter(|code| *code > 31) {
            return Err(CmError::Argument(format!("response timeout code {code} is not within 0 to 31")));
        }
        self.with(|id| {
            id.options = options;
            Ok(())
        })
    }

    /// Moves the id's events, including those that wait, to another channel (rdma_migrate_id). Requests that wait take their new ids along.
    ///
    /// # Errors
    /// [`CmError::Forked`].
    pub fn migrate(&self, channel: &EventChannel) -> Result<(), CmError> {
        let new: &Arc<Queue> = channel.queue();
        self.handle().agent.act(|turn| {
            let ids = &mut turn.state.ids;
            let Some(old) = ids.get(self.key()).map(|id| Arc::clone(&id.queue)) else { return Ok(()) };
            let children = if Arc::ptr_eq(&old, new) { HashSet::new() } else { old.move_events(self, new) };
            for key in children.into_iter().chain([self.key()]) {
                if let Some(id) = ids.get_mut(key) {
                    id.queue = Arc::clone(new);
                }
            }
            Ok(())
        })
    }
}
