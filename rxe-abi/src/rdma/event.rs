//! Events.

use super::{
    Channel, Id,
    id::enter,
    ids,
    multicast::{Join, attach},
    qp,
};
use crate::{
    border::{Errno, INVALID, Out, Owned, Result, given, object, value, waiting_value},
    c::rdma::{CmEvent, ConnParam, Param, UdParam},
    convert::ah_attr,
    object::Events,
    signals::restarting,
    verbs::context::is_non_blocking,
};
use core::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::atomic::Ordering,
};
use rxe_cm::{ConnTerms, DatagramTerms, EventKind, Offer};
use rxe_verbs::QpState;
use std::{os::fd::AsFd, sync::Arc};

/// An event that was given to a program.
#[repr(C)]
pub(super) struct Event {
    c: CmEvent,
    /// The bytes that the structure points to.
    _private_data: Box<[u8]>,
    /// The events of the id whose destruction waits for the acknowledgement.
    events: Arc<Events>,
}

impl core::fmt::Debug for Event {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Event")
            .field("event", &self.c.event)
            .field("status", &self.c.status)
            .finish_non_exhaustive()
    }
}

impl Event {
    pub(super) const fn number(&self) -> c_int {
        self.c.event
    }

    pub(super) const fn id(&self) -> *const Id {
        self.c.id
    }
}

/// rdma_get_cm_event(3). It waits unless the descriptor was made non-blocking.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_get_cm_event(channel: Option<&Channel>, out: Out<'_, *mut Event>) -> c_int {
    waiting_value(|| {
        let event = next(given(channel)?)?;
        given(out)?.write(event);
        Ok(0)
    })
}

/// The next event of a channel.
pub(super) fn next(channel: &Channel) -> Result<*mut Event> {
    let events = &channel.channel;
    events.check_owner()?;
    loop {
        let event = match events.try_get_event() {
            Some(event) => event,
            None if is_non_blocking(events.as_fd()) => return Err(Errno(libc::EAGAIN)),
            None => restarting(|| Ok(events.get_event(None)?))?,
        };
        // Events of ids that were destroyed are dropped, and so is what the peer says of a connection that failed here.
        if let Some(event) = to_c(event, channel) {
            return Ok(event);
        }
    }
}

/// rdma_ack_cm_event(3).
#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_ack_cm_event(event: Owned<Event>) -> c_int {
    value(|| {
        let events = Arc::clone(&event.get()?.events);
        event.free();
        events.acknowledge();
        Ok(0)
    })
}

/// The event that a synchronous id holds.
pub(super) fn acknowledge_own(id: &Id) {
    let event = id.c.event.swap(ptr::null_mut(), Ordering::AcqRel).cast::<Event>();
    if !event.is_null() {
        let _ = rdma_ack_cm_event(Owned::ours(event));
    }
}

/// The end of a synchronous call: waits for its event, which the id holds until the next call.
pub(super) fn wait_if_sync(id: &Id) -> Result<c_int> {
    if !id.more().sync {
        return Ok(0);
    }
    acknowledge_own(id);
    let event = next(id.channel()?)?;
    id.c.event.store(event.cast(), Ordering::Release);
    let Some(event) = object::<_, Event>(&id.c.event) else { return Ok(0) };
    match event.c.status {
        0 => Ok(0),
        _ if event.c.event == REJECTED => Err(Errno(libc::ECONNREFUSED)),
        status if status < 0 => Err(Errno(-status)),
        _ => Err(Errno(libc::EIO)),
    }
}

const REJECTED: c_int = 8;
pub(super) const CONNECT_REQUEST: c_int = 4;
const CONNECT_ERROR: c_int = 6;
const ESTABLISHED: c_int = 9;
const MULTICAST_ERROR: c_int = 13;
const USER: c_int = 18;

/// RDMA_CM_EVENT_*.
const fn number(kind: &EventKind) -> c_int {
    match kind {
        EventKind::AddrResolved => 0,
        EventKind::AddrError(_) => 1,
        EventKind::RouteResolved => 2,
        EventKind::RouteError(_) => 3,
        EventKind::ConnectRequest(_) => CONNECT_REQUEST,
        EventKind::ConnectResponse(_) => 5,
        EventKind::ConnectError(_) => CONNECT_ERROR,
        EventKind::Unreachable(_) | EventKind::NoService(_) => 7,
        EventKind::Rejected(_) => REJECTED,
        EventKind::Established(_) => ESTABLISHED,
        EventKind::Disconnected { .. } => 10,
        EventKind::DeviceRemoval => 11,
        EventKind::MulticastJoin(_) => 12,
        EventKind::MulticastError(_) => MULTICAST_ERROR,
        EventKind::TimewaitExit => 15,
        EventKind::AddrInfoResolved => 16,
        EventKind::User { .. } => USER,
        EventKind::AddrChange => 14,
        // RDMA_CM_EVENT_INTERNAL, which no program sees. So far there is no other kind.
        _ => 19,
    }
}

/// An event that was fetched from `channel`, which is that of a request's id, too.
fn to_c(event: rxe_cm::CmEvent, channel: &Channel) -> Option<*mut Event> {
    let (mut name, mut status) = (number(&event.kind), event.status());
    let private_data = event.private_data;
    let mut param = param(&event.kind, &private_data);
    let mut events = None;
    let (id, listen_id) = if let Some(listener) = event.listener {
        let mut context = ptr::null_mut();
        let mut kind = rxe_verbs::QpType::Rc;
        let about = listener.number();
        let listen_id = ids().find(&about, |id| {
            context = id.c.context.load(Ordering::Relaxed);
            kind = qp::kind_of(id);
            id.events.give();
            events = Some(Arc::clone(&id.events));
        })?;
        let space = event.id.port_space()?;
        let id = enter(event.id, channel, context, space, kind);
        // If this fails, the program sees that the fields are empty.
        let _ = Owned::ours(id).get().map(|id| {
            hear_options(id, &event.kind);
            id.refresh()
        });
        (id.cast_const(), listen_id)
    } else {
        let about = event.id.number();
        let ends = matches!(event.kind, EventKind::Rejected(_) | EventKind::Disconnected { .. });
        let id = ids().find(&about, |id| {
            if ends && id.more().failed {
                return;
            }
            if let EventKind::MulticastJoin(terms) = &event.kind {
                // Another thread may have left the group since the event was fetched.
                let Some((context, receives)) = Join::tell(&mut id.more().groups, terms.av.dst) else {
                    return;
                };
                param = Param { ud: UdParam { private_data: context, ..ud(Some(terms), &[]) } };
                if receives && let Err(errno) = attach(id, terms.av.dst) {
                    (name, status) = (MULTICAST_ERROR, -errno.0);
                }
            }
            id.events.give();
            events = Some(Arc::clone(&id.events));
            if name == REJECTED {
                qp::fail(id);
            }
            hear_options(id, &event.kind);
            let _ = id.refresh();
            if let EventKind::ConnectResponse(_) = event.kind
                && !id.c.qp.load(Ordering::Acquire).is_null()
            {
                (name, status) = match confirm(id) {
                    Ok(()) => (ESTABLISHED, 0),
                    Err(errno) => {
                        qp::fail(id);
                        id.more().failed = true;
                        (CONNECT_ERROR, -errno.0)
                    }
                };
            }
        })?;
        (id, ptr::null())
    };
    let events = events?;
    let c = CmEvent { id, listen_id, event: name, status, param };
    Some(Box::into_raw(Box::new(Event { c, _private_data: private_data, events })))
}

/// Keeps the options of the peer's vendor.
fn hear_options(id: &Id, kind: &EventKind) {
    if let EventKind::ConnectRequest(Offer::Connection(terms)) | EventKind::ConnectResponse(terms) = kind {
        id.more().ece.remote = terms.ece;
    }
}

/// The peer has accepted: makes the queue pair ready, and tells the peer.
fn confirm(id: &Id) -> Result<()> {
    qp::change(id, QpState::Rtr, None, None)?;
    qp::change(id, QpState::Rts, None, None)?;
    Ok(id.cm.establish()?)
}

/// What an event says beside its kind and status. That the peer of an accepted connection is ready (RTU), and that a connection ends
/// (DREQ, DREP), is all that a kernel tells then, although these messages have room for data. An id that connects hears
/// the peer's terms by its response.
fn param(kind: &EventKind, private_data: &[u8]) -> Param {
    match kind {
        EventKind::ConnectRequest(Offer::Connection(terms)) | EventKind::ConnectResponse(terms) => {
            Param { conn: conn(Some(terms), private_data) }
        }
        EventKind::Established(Offer::Connection(_)) | EventKind::Disconnected { .. } => {
            Param { conn: conn(None, &[]) }
        }
        EventKind::ConnectRequest(Offer::Datagram(terms))
        | EventKind::Established(Offer::Datagram(terms)) => Param { ud: ud(terms.as_ref(), private_data) },
        EventKind::User { arg, .. } => Param { arg: *arg },
        _ => Param { conn: conn(None, private_data) },
    }
}

fn data(private_data: &[u8]) -> (*const c_void, u8) {
    let start = if private_data.is_empty() { ptr::null() } else { private_data.as_ptr().cast() };
    (start, private_data.len() as u8)
}

fn conn(terms: Option<&ConnTerms>, private_data: &[u8]) -> ConnParam {
    let (private_data, private_data_len) = data(private_data);
    let number = |read: fn(&ConnTerms) -> u8| terms.map_or(0, read);
    ConnParam {
        private_data,
        private_data_len,
        responder_resources: number(|terms| terms.responder_resources),
        initiator_depth: number(|terms| terms.initiator_depth),
        flow_control: number(|terms| terms.flow_control.into()),
        retry_count: number(|terms| terms.retry_count),
        rnr_retry_count: number(|terms| terms.rnr_retry_count),
        srq: number(|terms| terms.srq.into()),
        qp_num: terms.map_or(0, |terms| terms.qpn.value()),
    }
}

fn ud(terms: Option<&DatagramTerms>, private_data: &[u8]) -> UdParam {
    let (private_data, private_data_len) = data(private_data);
    UdParam {
        private_data,
        private_data_len,
        ah_attr: terms.map(|terms| ah_attr(&terms.av)).unwrap_or_default(),
        qp_num: terms.map_or(0, |terms| terms.qpn.value()),
        qkey: terms.map_or(0, |terms| terms.qkey.0),
    }
}

/// rdma_write_cm_event(3): an event of the program's own.
#[unsafe(no_mangle)]
extern "C" fn rdma_write_cm_event(id: Option<&Id>, event: c_int, status: c_int, arg: u64) -> c_int {
    value(|| {
        let id = given(id)?;
        if event != USER {
            return Err(INVALID);
        }
        id.cm.tell(EventKind::User { status, arg })?;
        Ok(0)
    })
}

/// rdma_event_str(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        c"RDMA_CM_EVENT_USER",
        c"RDMA_CM_EVENT_INTERNAL",
    ];
    let name = usize::try_from(event).ok().and_then(|event| NAMES.get(event));
    name.map_or(c"UNKNOWN EVENT", |name| *name).as_ptr()
}
