//! Asynchronous events.

use super::context::is_non_blocking;
use crate::{
    border::{Errno, Out, Result, given, quietly, waiting_value},
    c::{
        attr::{AsyncEvent, EventElement},
        context::ContextPtr,
        value as v,
    },
    object::{Context, Cq, Events, Qp, Srq},
    signals::restarting,
};
use core::{
    ffi::c_int,
    sync::atomic::{AtomicU32, Ordering},
};
use rxe_verbs::{AsyncEvent as Event, Qpn, work::AsyncEvent as Q};

/// ibv_get_async_event(3). It waits unless the descriptor was made non-blocking.
#[unsafe(no_mangle)]
extern "C-unwind" fn ibv_get_async_event(context: ContextPtr, out: Out<'_, AsyncEvent>) -> c_int {
    waiting_value(|| {
        let context = Context::of(context)?;
        let event = next_event(context)?;
        given(out)?.write(event);
        Ok(0)
    })
}

fn next_event(context: &Context) -> Result<AsyncEvent> {
    loop {
        let event = match context.context.try_get_async_event() {
            Some(event) => event,
            None if is_non_blocking(context.context.async_fd()) => return Err(Errno(libc::EAGAIN)),
            None => restarting(|| Ok(context.context.get_async_event(None)?))?,
        };
        // Events of objects that were destroyed are dropped, and so are events for which verbs has no number.
        if let Some(event) = to_c(context, event) {
            return Ok(event);
        }
    }
}

fn to_c(context: &Context, event: Event) -> Option<AsyncEvent> {
    let port = |event_type| Some(AsyncEvent { element: EventElement { port_num: 1 }, event_type });
    match event {
        Event::Queue(Q::SrqLimitReached(number)) => {
            let srq = context.srqs.find(&number, |srq: &Srq| srq.events.give())?;
            Some(AsyncEvent { element: EventElement { srq }, event_type: v::EVENT_SRQ_LIMIT_REACHED })
        }
        Event::Queue(event) => {
            let (number, event_type) = of_qp(event)?;
            let qp = context.qps.find(&number, |qp: &Qp| qp.events.give())?;
            Some(AsyncEvent { element: EventElement { qp }, event_type })
        }
        Event::Heard { event, listener } => {
            let qp = context.targets.find(&listener, |qp: &Qp| qp.events.give())?;
            Some(AsyncEvent { element: EventElement { qp }, event_type: of_qp(event)?.1 })
        }
        Event::CqError(number) => {
            let cq = context.cqs.find(&number, |cq: &Cq| cq.events.give())?;
            Some(AsyncEvent { element: EventElement { cq }, event_type: v::EVENT_CQ_ERR })
        }
        Event::GidChange => port(v::EVENT_GID_CHANGE),
        Event::PkeyChange => port(v::EVENT_PKEY_CHANGE),
        Event::PortActive => port(v::EVENT_PORT_ACTIVE),
        Event::PortError => port(v::EVENT_PORT_ERR),
        Event::DeviceFatal => port(v::EVENT_DEVICE_FATAL),
        _ => None,
    }
}

/// The queue pair of an event, and its number.
const fn of_qp(event: Q) -> Option<(Qpn, c_int)> {
    Some(match event {
        Q::QpFatal(number) => (number, v::EVENT_QP_FATAL),
        Q::QpRequestError(number) => (number, v::EVENT_QP_REQ_ERR),
        Q::QpAccessError(number) => (number, v::EVENT_QP_ACCESS_ERR),
        Q::CommunicationEstablished(number) => (number, v::EVENT_COMM_EST),
        Q::SqDrained(number) => (number, v::EVENT_SQ_DRAINED),
        Q::LastWqeReached(number) => (number, v::EVENT_QP_LAST_WQE_REACHED),
        Q::SrqLimitReached(_) => return None,
    })
}

/// ibv_ack_async_event(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(event: Option<&AsyncEvent>) {
    quietly(|| {
        let Some(event) = event else { return };
        let element = event.element;
        // SAFETY: the type says which kind of object it is. The object exists, because its destruction waits for this call.
        unsafe {
            match event.event_type {
                v::EVENT_CQ_ERR => {
                    element.cq.as_ref().map(|cq| count(&cq.c.base.async_events_completed, &cq.events))
                }
                v::EVENT_SRQ_LIMIT_REACHED => {
                    element.srq.as_ref().map(|srq| count(&srq.c.events_completed, &srq.events))
                }
                v::EVENT_QP_FATAL
                | v::EVENT_QP_REQ_ERR
                | v::EVENT_QP_ACCESS_ERR
                | v::EVENT_COMM_EST
                | v::EVENT_SQ_DRAINED
                | v::EVENT_QP_LAST_WQE_REACHED => {
                    element.qp.as_ref().map(|qp| count(&qp.c.qp_base.events_completed, &qp.events))
                }
                _ => None,
            }
        };
    });
}

/// Notes that an event is acknowledged, first in the object's public field: after that it may be destroyed.
fn count(completed: &AtomicU32, events: &Events) {
    completed.fetch_add(1, Ordering::Relaxed);
    events.acknowledge();
}
