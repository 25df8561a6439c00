//! Queue pairs (ibv_qp).

use crate::{
    context::Context,
    cq::Cq,
    engine::{Shard, State, now},
    error::{AddressError, CreateError, Forked, ModifyQpError, PostListError},
    events::Listener,
    gid::Gid,
    limits,
    mr::Mr,
    mw::Mw,
    pd::Pd,
    regions::View,
    srq::Srq,
    sys::lock,
    tags::SEND_CAPS,
    xrcd::Xrcd,
};
use core::net::IpAddr;
use rxe_core::{
    endpoint::{Acks, ObjectError},
    memory::Asker,
    num::{Key, Psn, Qpn},
    qp::{ModifyError, PostError, QpAttrs, QpCaps, QpChange, QpConfig, QpState, QpType, Reasons},
    region::WindowType,
    stats::QpStats,
    time::Instant,
    work::{Access, AddressVector, BindWindow, CqId, Payload, RecvWr, SendFlags, SendOp, SendWr},
};
use std::sync::{Arc, Mutex, PoisonError};

/// With what a queue pair is made (ibv_qp_init_attr).
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Kind.
    pub qp_type: QpType,
    /// Where send completions go.
    pub send_cq: &'a Cq,
    /// Where receive completions go.
    pub recv_cq: &'a Cq,
    /// Shared receive queue, if the queue pair has no receive queue of its own. If the shared queue matches tags, it also owns
    /// the send queue: the program cannot post to it.
    pub srq: Option<&'a Srq>,
    /// Queue sizes.
    pub caps: QpCaps,
    /// Every send request makes a completion, not only a signaled one.
    pub signal_all: bool,
}

impl<'a> QpInit<'a> {
    /// A queue pair with one completion queue for both sides and queues of a usual size.
    #[must_use]
    pub const fn new(qp_type: QpType, cq: &'a Cq) -> Self {
        let caps =
            QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline: 256 };
        Self { qp_type, send_cq: cq, recv_cq: cq, srq: None, caps, signal_all: false }
    }
}

/// What [`Qp::bind_mw`] binds a window to (ibv_mw_bind).
#[derive(Clone, Copy, Debug)]
pub struct MwBind<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Flags of the request.
    pub flags: SendFlags,
    /// The region.
    pub region: &'a Mr,
    /// First byte, as the region is addressed.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub len: u64,
    /// Remote rights.
    pub access: Access,
}

/// A queue pair. Dropping it destroys it. Outstanding work makes no completions; acknowledgements that are owed are sent.
#[derive(Debug)]
pub struct Qp {
    qpn: Qpn,
    qp_type: QpType,
    shard: Arc<Shard>,
    /// Multicast groups, with the interface each was joined on.
    groups: Mutex<Vec<(IpAddr, u32)>>,
    /// Completion queues of sends and of receives. An XRC target has none.
    cqs: Option<(Cq, Cq)>,
    srq: Option<Srq>,
    pd: Pd,
    /// Its configuration as the core has it.
    made: QpConfig,
    xrcd: Option<Xrcd>,
    /// If its shared receive queue matches tags: the name under which the core completes its work.
    tags: Option<CqId>,
}

/// Bytes of data of a request.
fn length(wr: &SendWr<'_>) -> u64 {
    match wr.payload {
        Payload::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
        Payload::Inline(bytes) => bytes.len() as u64,
    }
}

/// Number of requests in a list, and the bytes of their data.
fn size(list: &[SendWr<'_>]) -> (u32, u64) {
    (u32::try_from(list.len()).unwrap_or(u32::MAX), list.iter().map(length).fold(0, u64::saturating_add))
}

impl Qp {
    pub(crate) fn new(pd: &Pd, init: &QpInit<'_>) -> Result<Self, CreateError> {
        let context = pd.context();
        let stack = &context.0.stack;
        stack.check()?;
        check_caps(&init.caps, init.srq.is_some())?;
        if !init.send_cq.belongs_to(stack) || !init.recv_cq.belongs_to(stack) {
            return Err(CreateError::Stranger("completion queue"));
        }
        // The shared queue may be of another protection domain. Its receives name regions of that domain (IBTA vol. 1, 10.2.9).
        if init.srq.is_some_and(|srq| !Arc::ptr_eq(&srq.pd().context().0.stack, stack)) {
            return Err(CreateError::Stranger("shared receive queue"));
        }
        let tags = init.srq.and_then(Srq::tags);
        if tags.is_some() && init.qp_type != QpType::Rc {
            return Err(CreateError::TagMatching(init.qp_type));
        }
        let config = QpConfig {
            qp_type: init.qp_type,
            pd: pd.id(),
            send_cq: tags.unwrap_or_else(|| init.send_cq.id()),
            recv_cq: tags.unwrap_or_else(|| init.recv_cq.id()),
            srq: init.srq.map(Srq::id),
            xrcd: None,
            caps: if tags.is_some() { SEND_CAPS } else { init.caps },
            signal_all: init.signal_all,
        };
        Self::make(pd, config, Some((init.send_cq.clone(), init.recv_cq.clone())), init.srq.cloned(), None)
    }

    /// An XRC target of a domain.
    pub(crate) fn target(xrcd: &Xrcd) -> Result<Self, CreateError> {
        let nowhere = CqId(u32::MAX);
        let caps = QpCaps { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
        let config = QpConfig {
            qp_type: QpType::XrcTarget,
            pd: xrcd.pd().id(),
            send_cq: nowhere,
            recv_cq: nowhere,
            srq: None,
            xrcd: Some(xrcd.id()),
            caps,
            signal_all: false,
        };
        Self::make(xrcd.pd(), config, None, None, Some(xrcd.clone()))
    }

    fn make(
        pd: &Pd,
        config: QpConfig,
        cqs: Option<(Cq, Cq)>,
        srq: Option<Srq>,
        xrcd: Option<Xrcd>,
    ) -> Result<Self, CreateError> {
        let context = pd.context();
        let stack = &context.0.stack;
        // Checked before the settings are read: if the parent held their lock at the fork, the child would wait for ever.
        stack.check()?;
        let shard = stack
            .shard_for(&config)
            .map_err(|source| CreateError::System { action: "start the background thread", source })?;
        let shard = Arc::clone(shard);
        let (table, settings) = (context.0.pkey_table, &stack.settings);
        let (qpn, made) = shard.act(Acks::Wait, |state, view| {
            let qpn = state.endpoint.create_qp(config)?;
            if state.endpoint.pkey_tables() <= usize::from(table) {
                settings.apply_keys(&mut state.endpoint, now(), view);
            }
            state.endpoint.use_pkeys(qpn, table);
            if let Some(pacing) = stack.congestion.pacing() {
                state.endpoint.pace(qpn, pacing);
            }
            for cq in cqs.iter().flat_map(|(send, recv)| [send, recv]) {
                state.use_queue(cq.ring());
            }
            state.qp_owners.insert(qpn, Arc::clone(&context.0.events));
            let made = state.endpoint.query_qp(qpn).map_or(config, |(_, made)| made);
            Ok::<_, ObjectError>((qpn, made))
        })??;
        let (qp_type, groups) = (config.qp_type, Mutex::default());
        let tags = srq.as_ref().and_then(Srq::tags);
        Ok(Self { qpn, qp_type, shard, groups, cqs, srq, pd: pd.clone(), made, xrcd, tags })
    }

    /// Its number, which the peer has to know.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its kind.
    #[must_use]
    pub const fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn cqs(&self) -> impl Iterator<Item = &Cq> {
        self.cqs.iter().flat_map(|(send, recv)| [send, recv])
    }

    /// The protection domain. An XRC target has an empty one of its own.
    #[must_use]
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.pd.context()
    }

    /// The XRC domain of a target.
    #[must_use]
    pub const fn xrcd(&self) -> Option<&Xrcd> {
        self.xrcd.as_ref()
    }

    /// The shared receive queue.
    #[must_use]
    pub const fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// Changes attributes, and usually the state: RESET to INIT to RTR to RTS (ibv_modify_qp). Going to RESET also drops
    /// completions of the queue pair that were not polled, as adapters do. So later completions are not mixed with them.
    ///
    /// # Errors
    /// [`ModifyQpError`] names what is missing, not allowed or out of range. Nothing was changed then.
    pub fn modify(&self, change: &QpChange) -> Result<(), ModifyQpError> {
        self.shard.check()?;
        if let Some(wanted) = change.path_mtu {
            let active = self.context().port().active_mtu;
            if wanted > active {
                return Err(ModifyQpError::path_mtu(wanted, active, self.context().device().netdev()));
            }
        }
        for AddressVector { src, dst, .. } in change.av.iter().chain(&change.alternate) {
            if src.is_ipv4() != dst.is_ipv4() {
                return Err(AddressError::Family { src: *src, dst: *dst }.into());
            }
        }
        if let (Some(av), Some(peer)) = (&change.av, change.dest_qpn) {
            self.context().0.stack.open_way(&self.shard, av, peer);
        }
        self.shard.act(Acks::Wait, |state, view| {
            if matches!(change.state, Some(QpState::Reset | QpState::Error)) {
                // In these states the endpoint drops the acknowledgements that the queue pair owes.
                state.send_now(view, Acks::Flush);
            }
            if change.state == Some(QpState::Reset)
                && let Some((attrs, _)) = state.endpoint.query_qp(self.qpn)
            {
                // First, because the queue pair loses its work by what follows.
                rxe_core::qp::apply(self.qp_type, &attrs, change)?;
                self.leave_tags(state, view);
            }
            state.endpoint.modify_qp(now(), self.qpn, change, &view)?;
            if change.state == Some(QpState::Reset) {
                state.sort_events();
                for cq in self.cqs() {
                    cq.ring().forget(self.qpn);
                }
            }
            Ok::<_, ModifyError>(())
        })??;
        Ok(())
    }

    /// Gives back what the queue pair holds of its tag matching queue, if it has one. For that it goes to ERROR: what it
    /// holds then comes back as flushed completions.
    fn leave_tags(&self, state: &mut State, view: View<'_>) {
        if let Some(name) = self.tags {
            let error = QpChange { state: Some(QpState::Error), ..QpChange::default() };
            // Cannot fail: every state leads to ERROR.
            let _ = state.endpoint.modify_qp(now(), self.qpn, &error, &view);
            state.sort_events();
            if let Some(tags) = &mut state.tags {
                tags.forget_qp(name, self.qpn);
            }
        }
    }

    /// Its attributes and its configuration (ibv_query_qp). In a forked child the state is ERROR, and the other attributes are
    /// defaults.
    #[must_use]
    pub fn query(&self) -> (QpAttrs, QpConfig) {
        match self.shard.look(|state| state.endpoint.query_qp(self.qpn)) {
            Ok(Some(told)) => told,
            Ok(None) => unreachable!("a queue pair is in its endpoint until it is dropped"),
            Err(Forked) => (QpAttrs { state: QpState::Error, ..QpAttrs::default() }, self.made),
        }
    }

    /// Whether it is in SQD, and requests that were begun are not completed yet (`sq_draining` of ibv_query_qp). Until then it cannot
    /// go back to RTS.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shard.look(|state| state.endpoint.is_draining(self.qpn)).unwrap_or(false)
    }

    /// Accesses memory with the rights of the queue pair.
    pub(crate) fn with_memory<T>(&self, action: impl FnOnce(View<'_>, Asker) -> T) -> Result<T, Forked> {
        let asker = Asker { pd: self.pd.id(), qpn: self.qpn };
        self.shard.with_memory(|memory| action(memory, asker))
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.query().0.state
    }

    /// Makes a listener: every handle of a shared queue pair has one (ibv_open_qp). Each listener gets a copy of the queue pair's
    /// events, by its name, in the event queue of `context` ([`crate::AsyncEvent::Heard`]). From the first listener on, the
    /// context that made the queue pair gets them no more. The kernel also tells all handles
    /// (`__ib_shared_qp_event_handler`).
    ///
    /// # Errors
    /// [`Forked`].
    pub fn listen(&self, context: &Context) -> Result<Listener, Forked> {
        context.check_owner()?;
        Ok(Listener::new(self.qpn, &self.context().0.events, &context.0.events))
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> QpStats {
        self.shard.look(|state| state.endpoint.qp_stats(self.qpn)).ok().flatten().unwrap_or_default()
    }

    /// Bits per second at which it may send now, headers included. `None` if it has no rate of its own
    /// ([`Congestion`](crate::Congestion)), and in a forked child.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        self.shard.look(|state| state.endpoint.pace_of(now(), self.qpn)).ok().flatten()
    }

    /// Why it last refused a request of its peer, and why a request of its own last failed, since it was last reset. None in a
    /// forked child.
    #[must_use]
    pub fn reasons(&self) -> Reasons {
        let found = self.shard.look(|state| state.endpoint.reasons(self.qpn).copied());
        found.ok().flatten().unwrap_or_default()
    }

    /// The PSNs it sends and expects next.
    #[must_use]
    pub fn psns(&self) -> (Psn, Psn) {
        match self.shard.look(|state| state.endpoint.psns(self.qpn)) {
            Ok(Some(told)) => told,
            Ok(None) => unreachable!("a queue pair is in its endpoint until it is dropped"),
            Err(Forked) => Default::default(),
        }
    }

    /// Posts a send request (ibv_post_send) and sends what may leave now. Elements and inline bytes are copied. The memory that
    /// the elements name is read later, until the request completes.
    ///
    /// If earlier requests are unanswered, a small request may wait for the next call of a program that posts and polls in a
    /// row (a millisecond at most). So many requests leave together.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.shard.post(self.qpn, (1, length(wr)), |state, now| self.post_one(state, now, wr))?
    }

    /// Posts several send requests, up to the first that fails. They leave together.
    ///
    /// # Errors
    /// Which request failed, and why. Those before it were posted.
    pub fn post_send_list(&self, list: &[SendWr<'_>]) -> Result<(), PostListError> {
        self.shard.post(self.qpn, size(list), |state, now| {
            list.iter().enumerate().try_for_each(|(index, wr)| {
                self.post_one(state, now, wr).map_err(|reason| PostListError { index, reason })
            })
        })?
    }

    /// Posts all of these send requests, or none if one is refused (ibv_wr_complete). They leave together.
    ///
    /// # Errors
    /// Which request was refused, and why.
    pub fn post_send_all(&self, list: &[SendWr<'_>]) -> Result<(), PostListError> {
        let told = |(index, reason)| PostListError { index, reason };
        self.shard.check()?;
        for (index, wr) in list.iter().enumerate() {
            self.check(wr).map_err(|reason| told((index, reason)))?;
        }
        self.shard.post(self.qpn, size(list), |state, now| {
            state.endpoint.post_send_all(now, self.qpn, list).map_err(told)
        })?
    }

    fn post_one(&self, state: &mut State, now: Instant, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.check(wr)?;
        state.endpoint.post_send(now, self.qpn, wr)
    }

    /// Checks that a datagram fits the present MTU of the network, and that the program may post to the send queue.
    fn check(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.tags.is_some() {
            return Err(PostError::Operation);
        }
        if matches!(self.qp_type, QpType::Ud | QpType::Gsi) {
            let length = length(wr);
            let most = u64::from(self.context().active_mtu().bytes());
            if length > most {
                return Err(PostError::Length(length, most));
            }
        }
        Ok(())
    }

    /// Posts a receive (ibv_post_recv).
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shard.post_receives(|state| state.endpoint.post_recv(self.qpn, wr))?
    }

    /// Posts several receives, up to the first that fails.
    ///
    /// # Errors
    /// Which receive failed, and why. Those before it were posted.
    pub fn post_recv_list(&self, list: &[RecvWr<'_>]) -> Result<(), PostListError> {
        self.shard.post_receives(|state| {
            list.iter().enumerate().try_for_each(|(index, wr)| {
                let posted = state.endpoint.post_recv(self.qpn, wr);
                posted.map_err(|reason| PostListError { index, reason })
            })
        })?
    }

    /// Binds a type 1 window (ibv_bind_mw): posts the request and returns the key that the window will have.
    ///
    /// # Errors
    /// [`PostError::Operation`] for a type 2 window, which is bound by [`SendOp::BindWindow`]. Otherwise as
    /// [`Self::post_send`].
    pub fn bind_mw(&self, mw: &Mw, bind: &MwBind<'_>) -> Result<Key, PostError> {
        let MwBind { region, addr, len, access, .. } = *bind;
        let to = BindWindow { region: region.lkey(), addr, len, access, ..BindWindow::default() };
        self.post_bind(mw, bind.wr_id, bind.flags, to)
    }

    /// Unbinds a type 1 window (ibv_bind_mw with length 0). Otherwise as [`Self::bind_mw`].
    ///
    /// # Errors
    /// As [`Self::bind_mw`].
    pub fn unbind_mw(&self, mw: &Mw, wr_id: u64, flags: SendFlags) -> Result<Key, PostError> {
        self.post_bind(mw, wr_id, flags, BindWindow::default())
    }

    fn post_bind(&self, mw: &Mw, wr_id: u64, flags: SendFlags, to: BindWindow) -> Result<Key, PostError> {
        if mw.kind() != WindowType::One {
            return Err(PostError::Operation);
        }
        self.shard.check()?;
        let mut key = mw.posted();
        let bind = BindWindow { window: *key, new_rkey: key.rotated(), ..to };
        self.post_send(&SendWr { flags, ..SendWr::new(wr_id, SendOp::BindWindow(bind), &[]) })?;
        *key = bind.new_rkey;
        Ok(*key)
    }

    /// Joins a multicast group: the queue pair also receives datagrams to it (ibv_attach_mcast).
    ///
    /// # Errors
    /// [`CreateError::Group`] if the address is no multicast group. [`CreateError::System`] if the group cannot be joined.
    /// [`CreateError::Object`] if the core refuses.
    pub fn attach_multicast(&self, group: Gid) -> Result<(), CreateError> {
        let address = group.address().filter(IpAddr::is_multicast);
        let address = address.ok_or_else(|| CreateError::Group(group.address().unwrap_or(NO_ADDRESS)))?;
        let membership = (address, self.context().device().interface().index);
        self.shard.check()?;
        let mut groups = lock(&self.groups);
        if groups.contains(&membership) {
            return Ok(());
        }
        self.shard.act(Acks::Wait, |state, _| {
            state.endpoint.attach_multicast(self.qpn, address)?;
            let joined = join(state, membership);
            if joined.is_err() {
                // Cannot fail: it was attached just now.
                let _ = state.endpoint.detach_multicast(self.qpn, address);
            }
            joined
        })??;
        groups.push(membership);
        Ok(())
    }

    /// Undoes [`Self::attach_multicast`] (ibv_detach_mcast).
    ///
    /// # Errors
    /// [`CreateError::Group`] if the queue pair is not attached to the group.
    pub fn detach_multicast(&self, group: Gid) -> Result<(), CreateError> {
        let address = group.address().unwrap_or(NO_ADDRESS);
        self.shard.check()?;
        let mut groups = lock(&self.groups);
        let place = groups.iter().position(|(have, _)| *have == address);
        let membership = groups.swap_remove(place.ok_or(CreateError::Group(address))?);
        self.shard.act(Acks::Wait, |state, _| {
            leave(state, membership);
            state.endpoint.detach_multicast(self.qpn, address)
        })??;
        Ok(())
    }
}

/// Stands for "no address" in an error.
const NO_ADDRESS: IpAddr = IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED);

/// Counts a member of a group, and joins the group on the link if it is the first.
fn join(state: &mut State, membership: (IpAddr, u32)) -> Result<(), CreateError> {
    let (group, ifindex) = membership;
    let members = state.groups.entry(membership).or_default();
    if *members == 0
        && let Err(source) = state.link.join(group, ifindex)
    {
        state.groups.remove(&membership);
        return Err(CreateError::System { action: "join the multicast group", source });
    }
    *members += 1;
    Ok(())
}

/// Counts a member of a group out, and leaves the group on the link if it was the last.
fn leave(state: &mut State, membership: (IpAddr, u32)) {
    let Some(members) = state.groups.get_mut(&membership) else { return };
    *members -= 1;
    if *members == 0 {
        state.groups.remove(&membership);
        // Fails if the interface is gone: its memberships have ended with it.
        let _ = state.link.leave(membership.0, membership.1);
    }
}

fn check_caps(caps: &QpCaps, shared: bool) -> Result<(), CreateError> {
    limits::check("send requests", caps.max_send_wr.into(), 0, limits::MAX_QP_WR.into())?;
    limits::check("send elements", caps.max_send_sge.into(), 0, limits::MAX_SGE.into())?;
    limits::check("inline bytes", caps.max_inline.into(), 0, limits::MAX_INLINE.into())?;
    if !shared {
        limits::check("receive requests", caps.max_recv_wr.into(), 0, limits::MAX_QP_WR.into())?;
        limits::check("receive elements", caps.max_recv_sge.into(), 0, limits::MAX_SGE.into())?;
    }
    Ok(())
}

impl Drop for Qp {
    fn drop(&mut self) {
        let groups = core::mem::take(self.groups.get_mut().unwrap_or_else(PoisonError::into_inner));
        // Fails in a forked child: the queue pair belongs to the parent.
        let _ = self.shard.act(Acks::Wait, |state, view| {
            // Destroying it drops the acknowledgements that it owes, so they are sent before.
            state.send_now(view, Acks::Flush);
            for membership in groups {
                let _ = state.endpoint.detach_multicast(self.qpn, membership.0);
                leave(state, membership);
            }
            self.leave_tags(state, view);
            // Cannot fail: only this call removes the queue pair.
            let _ = state.endpoint.destroy_qp(self.qpn);
            state.sort_events();
            for cq in self.cqs() {
                state.leave_queue(cq.id());
            }
            state.qp_owners.remove(&self.qpn);
            self.context().0.events.forget_qp(self.qpn);
        });
    }
}
