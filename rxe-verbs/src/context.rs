//! Contexts: an opened device (ibv_context).

mod live;

use crate::{
    channel::CompChannel,
    cq::Cq,
    device::{Device, PortAttrs, PortState},
    engine::{
        Binding, Congestion, Follower, LinkReport, Messages, NetworkWatch, Polling, ShardSet, Stack,
        StackConfig, Threads, Wrapping, find_or_open, open_inproc, open_link,
    },
    error::{AddressError, CreateError, Forked, OpenError},
    events::{AsyncEvent, AsyncQueue, EventError},
    gid::{Gid, GidTable},
    host::{Host, LaneTables, Listen, records::SlotRecords},
    net::{Capture, FaultPlan, InprocNet, Link, LinkKind, UdpConfig, interfaces::Interface},
    pd::Pd,
    xrcd::Xrcd,
};
use core::{net::IpAddr, time::Duration};
pub use live::LinkState;
use live::Live;
use rxe_core::{num::Pkey, qp::Mtu, stats::PortStats, work::AddressVector};
use rxe_fabric::Fabric;
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, PoisonError, RwLock},
};

/// An opened device. Clones are the same context. The context lives as long as one of them, or an object made from it.
#[derive(Clone, Debug)]
pub struct Context(pub(crate) Arc<ContextInner>);

#[derive(Debug)]
pub(crate) struct ContextInner {
    pub(crate) stack: Arc<Stack>,
    pub(crate) device: Device,
    port: Arc<Port>,
    pub(crate) events: Arc<AsyncQueue>,
    /// Number of the P_Key table of its device.
    pub(crate) pkey_table: u16,
}

/// The part of a context that follows the network. The background thread holds a reference to it for short times. So it must
/// have no reference to the stack: the stack's drop waits for that thread.
#[derive(Debug)]
struct Port {
    ifindex: u32,
    /// The one address to which the context is restricted, if it is.
    only: Option<IpAddr>,
    live: RwLock<Live>,
    events: Arc<AsyncQueue>,
}

/// How to open a context, where the defaults do not fit.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    config: StackConfig,
    wrapping: Wrapping,
    /// Whether the context may use the stack of another context.
    shared: bool,
    /// Do without the host service ([`Self::alone`]).
    alone: bool,
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self { config: StackConfig::default(), wrapping: Wrapping::default(), shared: true, alone: false }
    }
}

impl ContextOptions {
    /// The defaults: a slot from the host service, and the host's partition table. The environment decides about faults
    /// (`RXE_FAULT`), captures (`RXE_PCAP`), waiting (`RXE_POLL`), the link (`RXE_LINK`), threads (`RXE_THREADS`), the form of
    /// large messages (`RXE_MESSAGES`) and congestion (`RXE_CONGESTION`).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The context has the port of its addresses alone: without a host service, and no other process can use them.
    /// (`RXE_SERVICE=off` does the same for all contexts.)
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Sets the slot (the top byte of the queue pair numbers). It counts where no host service gives one.
    #[must_use]
    pub fn slot(mut self, slot: u8) -> Self {
        (self.config.slot, self.shared) = (slot, false);
        self
    }

    /// Sets the partition table, 1 to 65535 entries. The first is the default. An empty list changes nothing.
    #[must_use]
    pub fn pkeys(mut self, pkeys: Vec<Pkey>) -> Self {
        if !pkeys.is_empty() {
            (self.config.own.pkeys, self.shared) = (Some(pkeys), false);
        }
        self
    }

    /// Sets the lanes, and how they share the link, as the policy of `fabric` has them. They replace the host's.
    #[must_use]
    pub fn lanes(mut self, fabric: &Fabric) -> Self {
        (self.config.own.lanes, self.shared) = (Some(LaneTables::of(fabric)), false);
        self
    }

    /// Disturbs packets (loss, duplicates and so on), for tests.
    #[must_use]
    pub fn faults(mut self, faults: FaultPlan) -> Self {
        (self.wrapping.faults, self.shared) = (Some(faults), false);
        self
    }

    /// Records all packets in `capture`.
    #[must_use]
    pub fn capture(mut self, capture: Capture) -> Self {
        (self.wrapping.capture, self.shared) = (Some(capture), false);
        self
    }

    /// How threads wait for packets.
    #[must_use]
    pub const fn polling(mut self, polling: Polling) -> Self {
        (self.config.polling, self.shared) = (Some(polling), false);
        self
    }

    /// Whether the background thread ticks: it checks once a millisecond on a program that polls, or that has polled lately.
    /// Without ticks nobody notices that such a program has stopped polling. A program that goes on polling is as fast without
    /// ticks as with them. Tests that prove this turn them off.
    #[must_use]
    #[doc(hidden)]
    pub const fn ticks(mut self, ticks: bool) -> Self {
        (self.config.ticks, self.shared) = (ticks, false);
        self
    }

    /// How many threads may work on packets, 1 to 16. Other numbers are brought into that range. Each thread has a slot of the
    /// host and sockets of its own. RC and UC queue pairs without a shared receive queue are spread over the threads; all
    /// others belong to the first. There is only one thread where no host service gives slots. Where service levels are in
    /// several lanes, all queue pairs belong to the first thread, so that it can weigh the lanes.
    #[must_use]
    pub fn threads(mut self, count: u8) -> Self {
        (self.config.threads, self.shared) = (Some(Threads::wished(count)), false);
        self
    }

    /// In what form large WRITEs and READs leave.
    #[must_use]
    pub const fn messages(mut self, messages: Messages) -> Self {
        (self.config.messages, self.shared) = (Some(messages), false);
        self
    }

    /// What reliable connections do about congestion.
    #[must_use]
    pub const fn congestion(mut self, congestion: Congestion) -> Self {
        (self.config.congestion, self.shared) = (Some(congestion), false);
        self
    }

    /// Which link sends and receives the packets.
    #[must_use]
    pub const fn link(mut self, link: LinkKind) -> Self {
        (self.config.link, self.shared) = (Some(link), false);
        self
    }

    /// Opens a device on all of the host's addresses.
    ///
    /// # Errors
    /// [`OpenError`], in words for the user.
    pub fn open(self, device: &Device) -> Result<Context, OpenError> {
        self.open_bound(Binding::Any, device.clone(), None, UdpConfig::default, Mtu::M4096)
    }

    /// Opens the device of one address, and only with that address.
    ///
    /// # Errors
    /// [`OpenError`], in words for the user.
    pub fn open_address(self, address: IpAddr) -> Result<Context, OpenError> {
        let device = Device::of_address(address)?;
        let scope = if is_link_local(address) { device.interface().index } else { 0 };
        let mtu = device.active_mtu();
        let udp = || UdpConfig::only(address, scope);
        // The kernel accepts all of 127.0.0.0/8, but does not list these addresses.
        let listed = device.addresses().any(|ip| ip == address);
        let device = device.restricted_to(address);
        self.open_bound(Binding::Only(address, scope), device, listed.then_some(address), udp, mtu)
    }

    /// Opens a device that exists inside this process only, with these addresses on `net`.
    ///
    /// # Errors
    /// [`OpenError::System`] if the addresses are taken there.
    pub fn open_inproc(self, net: &InprocNet, addresses: &[IpAddr]) -> Result<Context, OpenError> {
        let stack = open_inproc(net, addresses, self.wrapping, self.config)?;
        Ok(Context(Context::inner(stack, Device::virtual_one("rxe_link", addresses), None)?))
    }

    /// Opens a device over the caller's own link, with these addresses.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_link(self, link: impl Link + 'static, addresses: &[IpAddr]) -> Result<Context, OpenError> {
        let stack = open_link(link, self.wrapping, self.config)?;
        Ok(Context(Context::inner(stack, Device::virtual_one("rxe_link", addresses), None)?))
    }

    fn open_bound(
        self,
        binding: Binding,
        device: Device,
        only: Option<IpAddr>,
        udp: impl FnOnce() -> UdpConfig,
        mtu: Mtu,
    ) -> Result<Context, OpenError> {
        let config = StackConfig { port_mtu: mtu.bytes(), ..self.config };
        let stack = find_or_open(binding, udp, self.wrapping, config, self.shared, self.alone)?;
        let follows = only.is_some() || binding == Binding::Any;
        let inner = Context::inner(stack, device, only)?;
        if follows {
            inner.stack.network.follow(&inner.port);
        }
        Ok(Context(inner))
    }
}

impl Context {
    /// Opens a device with the default options.
    ///
    /// # Errors
    /// [`OpenError`], in words for the user.
    pub fn open(device: &Device) -> Result<Self, OpenError> {
        ContextOptions::new().open(device)
    }

    /// Opens the device of one address with the default options; see [`ContextOptions::open_address`].
    ///
    /// # Errors
    /// [`OpenError`], in words for the user.
    pub fn open_address(address: IpAddr) -> Result<Self, OpenError> {
        ContextOptions::new().open_address(address)
    }

    /// Opens a device inside this process; see [`ContextOptions::open_inproc`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_inproc(net: &InprocNet, addresses: &[IpAddr]) -> Result<Self, OpenError> {
        ContextOptions::new().open_inproc(net, addresses)
    }

    fn inner(
        stack: Arc<Stack>,
        device: Device,
        only: Option<IpAddr>,
    ) -> Result<Arc<ContextInner>, OpenError> {
        let events = AsyncQueue::new()
            .map_err(|source| OpenError::System { action: "make an event counter", source })?;
        let events = Arc::new(events);
        let live = RwLock::new(Live::of(&device, stack.carries_v1));
        let ifindex = device.interface().index;
        let port = Arc::new(Port { ifindex, only, live, events: Arc::clone(&events) });
        let pkey_table = stack.settings.follow(device.netdev(), &events);
        Ok(Arc::new(ContextInner { stack, device, port, events, pkey_table }))
    }

    /// The port as it is now, after the kernel's pending network announcements have been read.
    fn live(&self) -> Live {
        if self.check_owner().is_err() {
            return Live { state: PortState::Down, ..Live::of(&self.0.device, self.0.stack.carries_v1) };
        }
        self.0.stack.network.look();
        self.0.port.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks that the context, and so all that was made from it, belongs to this process.
    ///
    /// # Errors
    /// [`Forked`] in a child of the process that opened it.
    pub fn check_owner(&self) -> Result<(), Forked> {
        self.0.stack.check()
    }

    /// The device, as it was when opened.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The GID table (ibv_query_gid).
    #[must_use]
    pub fn gids(&self) -> GidTable {
        self.live().gids
    }

    /// The device's partition table as it is now (ibv_query_pkey). In a forked child: the default key alone.
    #[must_use]
    pub fn pkeys(&self) -> Arc<[Pkey]> {
        // A thread of the parent may have held the lock of the settings at the fork. In the child that lock is never released.
        if self.check_owner().is_err() {
            return Arc::from([Pkey::DEFAULT]);
        }
        self.0.stack.settings.pkeys(self.0.pkey_table)
    }

    /// Port 1 (ibv_query_port).
    #[must_use]
    pub fn port(&self) -> PortAttrs {
        let live = self.live();
        PortAttrs {
            state: live.state,
            max_mtu: Mtu::M4096,
            active_mtu: live.active_mtu,
            gid_table_len: live.gids.len(),
            pkey_table_len: self.pkeys().len(),
        }
    }

    /// The state of the device's network interface now.
    #[must_use]
    pub fn link_state(&self) -> LinkState {
        self.live().interface
    }

    /// Lets a thread wait for changes of the network below this context, and below all others that share its port.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn watch_network(&self) -> std::io::Result<NetworkWatch> {
        self.0.stack.network.watch()
    }

    /// Whether the port works.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.port().state == PortState::Active
    }

    /// The address vector from the GID at `gid_index` to a peer, for queue pairs and datagrams (ibv_ah_attr with a GRH).
    /// Traffic class, hop limit and flow label are 0 (the system's defaults) and may be set afterwards.
    ///
    /// # Errors
    /// [`AddressError`]: no such index, no destination, or source and destination do not go together.
    pub fn address_vector(&self, gid_index: u8, remote: Gid) -> Result<AddressVector, AddressError> {
        let gids = self.live().gids;
        let src = gids.get(gid_index).address();
        let src = src.ok_or(AddressError::Index { index: gid_index, entries: gids.len() })?;
        let dst = remote.address().ok_or(AddressError::NoDestination)?;
        // A GRH carries any GID of 16 bytes, and the groups of RoCE v1 are not mapped IPv4 addresses.
        let group_of_v1 = dst.is_multicast() && gids.gid_type(gid_index) == rxe_core::work::GidType::RoceV1;
        if src.is_ipv4() != dst.is_ipv4() && !group_of_v1 {
            return Err(AddressError::Family { src, dst });
        }
        if is_link_local(src) != is_link_local(dst) && src.is_ipv6() && !dst.is_multicast() {
            return Err(AddressError::Scope { src, dst });
        }
        Ok(AddressVector {
            src,
            dst,
            ifindex: self.interface_to(dst),
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            service_level: 0,
            sgid_index: gid_index,
            gid_type: gids.gid_type(gid_index),
        })
    }

    /// Index of the interface by which packets to `dst` must leave, or 0 if the routing table decides. It is the device's own
    /// interface if the destination is link-local, a group, or in a network of that interface (another interface may be in the
    /// same network). The routing table also decides for the interface's own addresses.
    fn interface_to(&self, dst: IpAddr) -> u32 {
        let interface = self.0.device.interface();
        let own = interface.addresses.iter().any(|address| address.ip == dst);
        let on_link = interface
            .addresses
            .iter()
            .any(|address| address.prefix > 0 && same_network(address.ip, dst, address.prefix));
        let needed = is_link_local(dst) || dst.is_multicast() || (on_link && !own);
        if needed && !interface.loopback { interface.index } else { 0 }
    }

    /// Largest payload of a packet, as of the last announcement that was read.
    pub(crate) fn active_mtu(&self) -> Mtu {
        self.0.port.live.read().unwrap_or_else(PoisonError::into_inner).active_mtu
    }

    /// Makes a protection domain (ibv_alloc_pd).
    ///
    /// # Errors
    /// [`CreateError::Exhausted`].
    pub fn alloc_pd(&self) -> Result<Pd, CreateError> {
        Pd::new(self)
    }

    /// Opens the XRC domain that belongs to a file (ibv_open_xrcd). If there is none, `create` says whether one is made. With
    /// `exclusive` it must be new. Without a file a new domain is always made.
    ///
    /// # Errors
    /// [`CreateError::NoDomain`], [`CreateError::DomainExists`], [`CreateError::Exhausted`].
    pub fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        create: bool,
        exclusive: bool,
    ) -> Result<Xrcd, CreateError> {
        Xrcd::open(self, file, create, exclusive)
    }

    /// Makes a completion queue for `capacity` completions, whose events go to `channel` (ibv_create_cq).
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_cq(&self, capacity: u32, channel: Option<&CompChannel>) -> Result<Cq, CreateError> {
        Cq::new(&self.0.stack, &self.0.events, capacity, channel)
    }

    /// Makes a completion channel (ibv_create_comp_channel).
    ///
    /// # Errors
    /// [`CreateError::System`] if the system has no descriptor left; [`CreateError::Forked`].
    pub fn create_comp_channel(&self) -> Result<CompChannel, CreateError> {
        self.check_owner()?;
        CompChannel::new(&self.0.stack)
            .map_err(|source| CreateError::System { action: "make an event counter", source })
    }

    /// An asynchronous event if there is one.
    #[must_use]
    pub fn try_get_async_event(&self) -> Option<AsyncEvent> {
        self.check_owner().ok()?;
        self.0.events.pop().or_else(|| {
            self.0.stack.network.look();
            self.0.stack.progress(ShardSet::ALL, false);
            self.0.events.pop()
        })
    }

    /// Waits for an asynchronous event (ibv_get_async_event); without a timeout for as long as it takes.
    ///
    /// # Errors
    /// [`EventError`]: a signal arrived, or the time is over, or this is a forked child.
    pub fn get_async_event(&self, timeout: Option<Duration>) -> Result<AsyncEvent, EventError> {
        self.check_owner()?;
        if let Some(event) = self.try_get_async_event() {
            return Ok(event);
        }
        // Without queue pairs no background thread listens to the network yet. If none can be started, events come late.
        let _ = self.0.stack.follow_network();
        self.0.stack.expect_sleep(ShardSet::ALL);
        self.0.events.wait(timeout)
    }

    /// A descriptor that is readable while asynchronous events wait. Programs may poll it, but must not read it.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }

    /// Lets the engine take a turn: send, receive, look at deadlines. Programs that poll or wait do not need this.
    pub fn progress(&self) {
        self.0.stack.progress(ShardSet::ALL, true);
    }

    /// This process's share of the host's port: its slot (the top byte of its queue pair numbers), and the calls by which it asks
    /// for connection requests. `None` where the process has the port alone.
    #[must_use]
    pub fn host_port(&self) -> Option<HostPort<'_>> {
        self.0.stack.host().map(HostPort)
    }

    /// Top byte of its queue pair numbers: the slot that the host service gave, else that of [`ContextOptions::slot`]. A context
    /// with several threads has a slot for each. This is the first of them, which has queue pair 1.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.0.stack.slot
    }

    /// Whether both contexts use the same sockets, and so share the queue pair numbers and queue pair 1.
    #[must_use]
    pub fn shares_port_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.stack, &other.0.stack)
    }

    /// Counters of the port, for this process's packets only.
    #[must_use]
    pub fn port_stats(&self) -> PortStats {
        let each =
            self.0.stack.shards().filter_map(|shard| shard.look(|state| state.endpoint.port_stats()).ok());
        each.fold(PortStats::default(), PortStats::plus)
    }

    /// Counters of the link: what happened to packets between this process and the network.
    #[must_use]
    pub fn link_report(&self) -> LinkReport {
        let each = self.0.stack.shards().filter_map(|shard| shard.look(|state| state.report()).ok());
        each.reduce(LinkReport::and).unwrap_or_default()
    }
}

/// A process's share of the host's port 4791.
#[derive(Clone, Copy, Debug)]
pub struct HostPort<'a>(&'a Host);

impl HostPort<'_> {
    /// The slot.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.0.slot()
    }

    /// Asks for connection requests to a service ID. From now on they come to queue pair 1 of this process, also after another
    /// process has become the host service. Gives a token for [`Self::unlisten`], or `None` if another process listens there.
    #[must_use]
    pub fn listen(&self, listen: Listen) -> Option<u32> {
        self.0.listen(listen)
    }

    /// Gives up what [`Self::listen`] asked for.
    pub fn unlisten(&self, token: u32) {
        self.0.unlisten(token);
    }

    /// Asks the service whether this process is to answer a connection request that it does not accept, and that has come to all
    /// processes (RoCE v1). `request` is the same number in all of them. Does not wait: [`Self::is_ours`] tells the answer.
    pub fn ask_whose(&self, request: u64, service_id: u64, address: IpAddr) {
        self.0.ask_whose(request, service_id, address);
    }

    /// Tells the service that this process answers such a request. No other process is to answer it, even if nobody listens any
    /// more.
    pub fn has_taken(&self, request: u64) {
        self.0.has_taken(request);
    }

    /// Whether the service has said meanwhile that this process is to answer that request. True once; false if called again.
    #[must_use]
    pub fn is_ours(&self, request: u64) -> bool {
        self.0.is_ours(request)
    }

    /// Shared memory in which this process records its live connections, so that the service can end them if it dies.
    #[must_use]
    pub fn records(&self) -> &SlotRecords {
        self.0.records()
    }
}

impl Follower for Port {
    fn network_changed(&self, interfaces: &[Interface]) {
        let own = interfaces.iter().find(|interface| interface.index == self.ifindex);
        let events = self.live.write().unwrap_or_else(PoisonError::into_inner).update(own, self.only);
        for event in events {
            self.events.push(event);
        }
    }
}

/// Whether this is an IPv6 link-local address. Those of IPv4 need no interface, so they do not count.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Whether the first `prefix` bits are the same.
fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let same = |a: u128, b: u128, bits: u32| {
        let rest = bits.saturating_sub(prefix.into());
        (a ^ b).checked_shr(rest).unwrap_or(0) == 0
    };
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}
