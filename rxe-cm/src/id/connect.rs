//! Connections and datagram services: to ask for one, to answer, and to end it.

use super::{CmId, ForeignQp, UDP_QKEY};
use crate::{
    agent::{Agreed, Exchange, Turn, answers, asks, min_rnr_timer, transaction},
    error::CmError,
    event::Ece,
    proto::{
        CmaHeader, EXTENDED_XRC, Path, PrivateData, RejectReason, Rep, Req, ServiceId, SidrRep, SidrReq,
        SidrStatus, Transport,
        machine::{Connection, Local, Rejection, State, ack_timeout},
    },
    route::{ACK_DELAY, pkey_at},
};
use rxe_core::num::Psn;
use rxe_verbs::{Qkey, QpChange, QpState, QpType, Qpn, limits::MAX_RD_ATOMIC};

/// How long the peer's connection manager may take to answer, and ours: 4.096 us << 18 = 1.07 s. Kernels have 20 (4.3 s). With a
/// shorter time a loss is repaired sooner. A peer that needs longer says so (MRA).
const RESPONSE_TIMEOUT: u8 = 18;
/// Repetitions; the field has four bits.
const MAX_CM_RETRIES: u8 = 15;

/// The program's parameters for its end of a connection (rdma_conn_param).
#[derive(Clone, Copy, Debug)]
pub struct ConnParams<'a> {
    /// Data for the peer's program. At most 56 bytes with connect (92 if the service is named by its ID), 196 with accept, 148 with
    /// reject. For datagram services 180 and 136.
    pub private_data: &'a [u8],
    /// Most READs and atomics that the peer may have outstanding. `None`: as many as possible (connect), or as the peer asks for (accept).
    pub responder_resources: Option<u8>,
    /// Most READs and atomics that we have outstanding. `None` as above.
    pub initiator_depth: Option<u8>,
    /// Whether our receive queue grants credits.
    pub flow_control: bool,
    /// Retries of both sides after timeouts, 0 to 7. For connect only.
    pub retry_count: u8,
    /// Retries of the peer after RNR NAKs, 0 to 7. 7 means without end.
    pub rnr_retry_count: u8,
    /// The queue pair, if the id does not manage one.
    pub qp: Option<ForeignQp>,
    /// Q_Key of a datagram service.
    pub qkey: Option<Qkey>,
    /// Vendor's options of the program's own queue pair.
    pub ece: Ece,
}

impl Default for ConnParams<'_> {
    fn default() -> Self {
        Self {
            private_data: &[],
            responder_resources: None,
            initiator_depth: None,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            qp: None,
            qkey: None,
            ece: Ece::default(),
        }
    }
}

impl CmId {
    /// Asks the peer for a connection, or for its datagram service (rdma_connect). Events:
    /// [`Established`](crate::EventKind::Established),
    /// [`ConnectResponse`](crate::EventKind::ConnectResponse) for queue pairs that the id does not manage,
    /// [`Rejected`](crate::EventKind::Rejected), [`Unreachable`](crate::EventKind::Unreachable) and others.
    ///
    /// # Errors
    /// [`CmError::State`] if the route is not resolved, [`CmError::NoQueuePair`], [`CmError::PrivateData`],
    /// [`CmError::Argument`].
    pub fn connect(&self, params: &ConnParams<'_>) -> Result<(), CmError> {
        check(params)?;
        self.handle().agent.act(|turn| {
            let datagram = turn.state.ids.get(self.key()).is_some_and(|id| id.qp_type == QpType::Ud);
            if datagram { ask_for_service(turn, self.key(), params) } else { ask(turn, self.key(), params) }
        })
    }

    /// Accepts a request (rdma_accept). A connection's queue pair is ready to receive from now on. The connection is established when
    /// [`Established`](crate::EventKind::Established) arrives.
    ///
    /// # Errors
    /// [`CmError::State`] if there is no request, or its peer has given up; [`CmError::NoQueuePair`], [`CmError::PrivateData`],
    /// [`CmError::Modify`].
    pub fn accept(&self, params: &ConnParams<'_>) -> Result<(), CmError> {
        check(params)?;
        self.handle().agent.act(|turn| {
            match turn.state.ids.get(self.key()).map(|id| id.exchange) {
                Some(Exchange::Connection(_)) => grant(turn, self.key(), params),
                Some(Exchange::Answer(..)) => grant_service(turn, self.key(), params),
                _ => Err(wrong_state(turn, self.key(), "accept")),
            }?;
            if let Some(id) = turn.state.ids.get_mut(self.key()) {
                id.unaccepted = false;
            }
            Ok(())
        })
    }

    /// Refuses a request (rdma_reject), with up to 148 bytes for the peer's program.
    ///
    /// # Errors
    /// [`CmError::State`] if there is no request, [`CmError::PrivateData`].
    pub fn reject(&self, private_data: &[u8]) -> Result<(), CmError> {
        self.reject_because(RejectReason::CONSUMER_DEFINED, private_data)
    }

    /// The same with a reason of the caller. Programs use "consumer defined" (28) and, for connection options that they
    /// do not have, "vendor option not supported" (35).
    ///
    /// # Errors
    /// As [`Self::reject`].
    pub fn reject_because(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), CmError> {
        let data = PrivateData::<148>::new(private_data)?;
        self.handle().agent.act(|turn| {
            let now = turn.now;
            match turn.state.ids.get(self.key()).map(|id| id.exchange) {
                Some(Exchange::Connection(comm_id)) => {
                    let why = Rejection { private_data: data, ..Rejection::because(reason) };
                    if let Some((_, side)) = turn.side_of(self.key()) {
                        side.machine.reject(now, why)?;
                    }
                    turn.settle(comm_id);
                    Ok(())
                }
                Some(Exchange::Answer(peer, request_id)) => {
                    let private_data = PrivateData::<136>::new(private_data)?;
                    let rep = SidrRep { status: SidrStatus::REJECT, private_data, ..SidrRep::default() };
                    turn.reply(peer, request_id, &rep);
                    Ok(())
                }
                _ => Err(wrong_state(turn, self.key(), "reject")),
            }
        })
    }

    /// Tells that a queue pair that the program manages is ready to send, so the connection is established (rdma_establish).
    ///
    /// # Errors
    /// [`CmError::State`] or [`CmError::Machine`] if the peer has not accepted.
    pub fn establish(&self) -> Result<(), CmError> {
        self.handle().agent.act(|turn| {
            let Some((comm_id, side)) = turn.side_of(self.key()) else {
                return Err(wrong_state(turn, self.key(), "establish"));
            };
            side.machine.confirm(PrivateData::default())?;
            side.stood = true;
            turn.record(comm_id);
            turn.settle(comm_id);
            Ok(())
        })
    }

    /// Tells that a packet has arrived on the queue pair. So the connection is established even if the peer's last message is late
    /// (rdma_notify with IBV_EVENT_COMM_EST).
    ///
    /// # Errors
    /// [`CmError::State`] if there is no connection.
    pub fn notify_data(&self) -> Result<(), CmError> {
        self.handle().agent.act(|turn| {
            let Some((comm_id, side)) = turn.side_of(self.key()) else {
                return Err(wrong_state(turn, self.key(), "notify"));
            };
            side.machine.handle_data();
            turn.settle(comm_id);
            Ok(())
        })
    }

    /// Ends the connection, or confirms that the peer ends it (rdma_disconnect). A queue pair that the id manages is
    /// put into the error state at once, and its work requests are flushed. [`Disconnected`](crate::EventKind::Disconnected) follows when
    /// the peer has confirmed, or has not answered for long. It is no error if the connection has ended already, or is ending: the
    /// peer may have been quicker. Nor if it is not established yet, as in Linux; then no message is sent. A datagram service has no
    /// connection: nothing but the queue pair is ended, and no event follows.
    ///
    /// # Errors
    /// [`CmError::State`] or [`CmError::Machine`] if there was neither a connection nor a service.
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.end().map(|_| ())
    }

    /// The same. Whether there still is a connection that has not ended yet, so that an event will tell of its end.
    pub(super) fn end(&self) -> Result<bool, CmError> {
        self.handle().agent.act(|turn| {
            let now = turn.now;
            let id = turn.state.ids.get(self.key());
            let was_one = id.is_some_and(|id| {
                (id.agreed.is_some() || id.had_service) && id.exchange != Exchange::Removed
            });
            let qp = id.and_then(|id| id.qp.clone());
            let found = turn.side_of(self.key());
            if found.is_none() && !was_one {
                return Err(wrong_state(turn, self.key(), "disconnect"));
            }
            if let Some(qp) = qp {
                // In any state.
                let _ = qp.modify(&QpChange { state: Some(QpState::Error), ..QpChange::default() });
            }
            let Some((comm_id, side)) = turn.side_of(self.key()) else { return Ok(false) };
            match side.machine.state() {
                State::DreqReceived => side.machine.confirm_disconnect(now, PrivateData::default())?,
                State::Established => side.machine.disconnect(now, PrivateData::default())?,
                // It has ended, or is ending. Or it is not established yet, and the peer learns by its queue pair's silence.
                _ => {}
            }
            turn.settle(comm_id);
            Ok(true)
        })
    }
}

/// The bits of a vendor ID.
const VENDOR: u32 = 0xff_ffff;

fn check(params: &ConnParams<'_>) -> Result<(), CmError> {
    for (what, count) in [("retries", params.retry_count), ("RNR retries", params.rnr_retry_count)] {
        if count > 7 {
            return Err(CmError::Argument(format!("{count} {what} are not within 0 to 7")));
        }
    }
    for count in [params.responder_resources, params.initiator_depth].into_iter().flatten() {
        if count > MAX_RD_ATOMIC {
            return Err(CmError::Argument(format!("{count} READs at a time; {MAX_RD_ATOMIC} are possible")));
        }
    }
    Ok(())
}

fn wrong_state(turn: &Turn<'_>, id: usize, action: &'static str) -> CmError {
    turn.state.ids.get(id).map_or(CmError::State { action, state: "is gone" }, |id| id.refuse(action))
}

/// The queue pair of an id: the one that it manages, or the one in the parameters.
fn queue_pair(turn: &Turn<'_>, id: usize, params: &ConnParams<'_>) -> Result<ForeignQp, CmError> {
    let own = turn.state.ids.get(id).and_then(|id| id.qp.as_ref());
    let own = own.map(|qp| ForeignQp { qpn: qp.qpn(), srq: qp.srq().is_some() });
    own.or(params.qp).ok_or(CmError::NoQueuePair)
}

/// Sends a REQ.
fn ask(turn: &mut Turn<'_>, key: usize, params: &ConnParams<'_>) -> Result<(), CmError> {
    let id = turn.state.ids.get(key).filter(|id| id.exchange == Exchange::None);
    let known = id.and_then(|id| {
        let service = (id.service(id.peer?.port()), id.named.is_some());
        Some((id.path?, id.local?, id.peer?, id.context.clone()?, id.qp_type, service, id.options))
    });
    let Some((path, local, peer, context, qp_type, (service_id, is_named), options)) = known else {
        return Err(wrong_state(turn, key, "connect"));
    };
    let header = CmaHeader { src_port: local.port(), src: local.ip(), dst: peer.ip() };
    let private_data = if is_named {
        PrivateData::new(params.private_data)?
    } else {
        PrivateData::with_header(&header, params.private_data)?
    };
    let qp = queue_pair(turn, key, params)?;
    let starting_psn = Psn::new(turn.agent.random() as u32);
    let timeout = ack_timeout(ACK_DELAY, path.packet_lifetime);
    let most = MAX_RD_ATOMIC;
    let depth = |wanted: Option<u8>, has: bool| if has { wanted.unwrap_or(most) } else { 0 };
    let (responder_resources, initiator_depth) =
        (depth(params.responder_resources, answers(qp_type)), depth(params.initiator_depth, asks(qp_type)));
    let (transport, extended_transport) = match qp_type {
        QpType::Uc => (Transport::Uc, 0),
        QpType::XrcInitiator => (Transport::Extended, EXTENDED_XRC),
        QpType::XrcTarget => {
            return Err(CmError::Argument("an XRC target listens, and does not connect".into()));
        }
        _ => (Transport::Rc, 0),
    };
    let req = Req {
        service_id,
        local_qpn: qp.qpn,
        responder_resources,
        initiator_depth,
        remote_cm_response_timeout: options.response_timeout.unwrap_or(RESPONSE_TIMEOUT),
        local_cm_response_timeout: RESPONSE_TIMEOUT,
        max_cm_retries: MAX_CM_RETRIES,
        transport,
        extended_transport,
        flow_control: params.flow_control && !qp.srq,
        starting_psn,
        retry_count: params.retry_count,
        rnr_retry_count: params.rnr_retry_count,
        pkey: pkey_at(&context, path.pkey_index),
        path_mtu: path.mtu.code(),
        srq: qp.srq,
        primary: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: path.av.src,
            remote_gid: path.av.dst,
            flow_label: path.av.flow_label,
            packet_rate: path.rate,
            traffic_class: path.av.traffic_class,
            hop_limit: path.av.hop_limit,
            service_level: path.av.service_level,
            subnet_local: false,
            ack_timeout: timeout,
        },
        vendor_id: params.ece.vendor_id & VENDOR,
        private_data,
        ..Req::default()
    };
    let comm_id = turn.claim_comm_id().ok_or(CmError::Exhausted)?;
    let ca_guid = turn.agent.guid(&context);
    let transaction = transaction(turn.agent.random(), comm_id.0);
    let local = Local { comm_id, ca_guid, transaction, packet_lifetime: path.packet_lifetime };
    let machine = Connection::connect(turn.now, local, &req, params.ece.options);
    if let Some(id) = turn.state.ids.get_mut(key) {
        let mut agreed = Agreed::asked(&path, starting_psn, responder_resources, timeout);
        agreed.retry_count = params.retry_count;
        agreed.min_rnr_timer = min_rnr_timer(params.rnr_retry_count);
        agreed.own_timeout = options.ack_timeout;
        id.agreed = Some(agreed);
    }
    turn.adopt(machine, path.way(&context), key);
    turn.settle(comm_id);
    Ok(())
}

/// Sends a SIDR_REQ.
fn ask_for_service(turn: &mut Turn<'_>, key: usize, params: &ConnParams<'_>) -> Result<(), CmError> {
    let id = turn.state.ids.get(key).filter(|id| id.exchange == Exchange::None);
    let known = id.and_then(|id| Some((id.path?, id.local?, id.peer?, id.space, id.context.clone()?)));
    let Some((path, local, peer, space, context)) = known else {
        return Err(wrong_state(turn, key, "connect"));
    };
    let header = CmaHeader { src_port: local.port(), src: local.ip(), dst: peer.ip() };
    let private_data = PrivateData::with_header(&header, params.private_data)?;
    let req = SidrReq {
        request_id: turn.new_request_id().ok_or(CmError::Exhausted)?,
        pkey: pkey_at(&context, path.pkey_index),
        service_id: ServiceId::new(space, peer.port()),
        private_data,
    };
    turn.look_up(key, req, path.way(&context));
    Ok(())
}

/// Sends a REP.
fn grant(turn: &mut Turn<'_>, key: usize, params: &ConnParams<'_>) -> Result<(), CmError> {
    let private_data = PrivateData::<196>::new(params.private_data)?;
    let Some(request) = turn.side_of(key).and_then(|(_, side)| side.request.as_deref().copied()) else {
        return Err(wrong_state(turn, key, "accept"));
    };
    let qp = queue_pair(turn, key, params)?;
    let target = request.transport == Transport::Extended;
    let depth = |wanted: Option<u8>, asked: u8, has: bool| {
        if has { wanted.unwrap_or_else(|| asked.min(MAX_RD_ATOMIC)) } else { 0 }
    };
    let Some((path, agreed)) = turn.state.ids.get(key).and_then(|id| Some((id.path?, id.agreed?))) else {
        return Err(wrong_state(turn, key, "accept"));
    };
    let rep = Rep {
        local_qpn: if target { Qpn::default() } else { qp.qpn },
        local_eecn: if target { qp.qpn.value() } else { 0 },
        starting_psn: agreed.rq_psn,
        responder_resources: depth(
            params.responder_resources,
            request.terms.responder_resources,
            request.transport != Transport::Uc,
        ),
        initiator_depth: depth(
            params.initiator_depth,
            request.terms.initiator_depth,
            request.transport == Transport::Rc,
        ),
        target_ack_delay: ACK_DELAY,
        flow_control: params.flow_control && !qp.srq,
        rnr_retry_count: params.rnr_retry_count,
        srq: qp.srq || target,
        vendor_id: params.ece.vendor_id & VENDOR,
        private_data,
        ..Rep::default()
    };
    let mut agreed = Agreed::granted(&path, &request, &rep);
    if let Some(id) = turn.state.ids.get_mut(key) {
        agreed.own_timeout = id.options.ack_timeout;
        id.agreed = Some(agreed);
        if let Some(own) = id.qp.clone() {
            Turn::connect_qp(&own, &agreed)?;
        }
    }
    let now = turn.now;
    let Some((comm_id, side)) = turn.side_of(key) else { return Err(CmError::NoQueuePair) };
    side.machine.accept(now, &rep, params.ece.options)?;
    turn.settle(comm_id);
    Ok(())
}

/// Sends a SIDR_REP.
fn grant_service(turn: &mut Turn<'_>, key: usize, params: &ConnParams<'_>) -> Result<(), CmError> {
    let private_data = PrivateData::<136>::new(params.private_data)?;
    let qp = queue_pair(turn, key, params)?;
    let Some((own, Exchange::Answer(peer, request_id))) =
        turn.state.ids.get(key).map(|id| (id.qkey, id.exchange))
    else {
        return Err(wrong_state(turn, key, "accept"));
    };
    let qkey = params.qkey.or(own).unwrap_or(UDP_QKEY);
    let rep = SidrRep { status: SidrStatus::OK, qpn: qp.qpn, qkey, private_data, ..SidrRep::default() };
    turn.reply(peer, request_id, &rep);
    Ok(())
}
