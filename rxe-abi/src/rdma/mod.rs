//! The functions of librdmacm, over rxe-cm, one file for each topic.
//!
//! Queue pairs belong to the program. As with librdmacm, the library changes their states, with attributes from the
//! connection manager ([`rxe_cm::CmId::qp_change`]). A connection is confirmed when the program fetches its event.

mod addrinfo;
mod connect;
mod ece;
mod endpoint;
mod event;
mod id;
mod multicast;
mod path;
mod qp;

use crate::{
    border::{Errno, Register, Result, given, object},
    c,
    object::{Context, Cq, Events, Pd, Srq, Xrcd},
    verbs::{self, context::blocking, device::devices},
};
use core::{
    ffi::c_void,
    sync::atomic::{AtomicPtr, Ordering},
};
use rxe_cm::{CmId, Manager};
use rxe_verbs::{ContextOptions, PerProcess};
use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// An event channel.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Channel {
    c: c::rdma::EventChannel,
    channel: rxe_cm::EventChannel,
}

impl Channel {
    fn new() -> Result<*mut Self> {
        let channel = rxe_cm::EventChannel::after_accept()?;
        let fd = blocking(channel.as_fd())?;
        Ok(Box::into_raw(Box::new(Self { c: c::rdma::EventChannel { fd }, channel })))
    }
}

/// An id.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Id {
    c: c::rdma::CmId,
    cm: CmId,
    /// Events that were delivered and not acknowledged. The destruction of the id waits for them.
    events: Arc<Events>,
    more: Mutex<More>,
}

/// The part of an id that programs do not see.
#[derive(Debug, Default)]
struct More {
    /// Whether it is synchronous: it has a channel of its own, and its calls wait for their events.
    sync: bool,
    /// The attributes for the queue pairs of its requests.
    template: Option<Template>,
    /// Whether we made the completion queue and channel: for the send side, for the receive side.
    made: [bool; 2],
    /// The groups that it has joined, in the order of the calls.
    groups: Vec<multicast::Join>,
    /// Private data for the next connect.
    connect: Vec<u8>,
    path: Option<Box<c::rdma::PathRec>>,
    /// The result of rdma_resolve_addrinfo, until the program asks for it.
    resolved: Option<addrinfo::Resolved>,
    ece: ece::Both,
    /// Whether the program was told that the connection failed on this side. Later events about its end are dropped.
    failed: bool,
}

/// struct ibv_qp_init_attr of an endpoint that listens. The program owns its objects, and keeps them as long as the endpoint.
#[derive(Debug)]
struct Template {
    context: AtomicPtr<c_void>,
    send_cq: AtomicPtr<Cq>,
    recv_cq: AtomicPtr<Cq>,
    srq: AtomicPtr<Srq>,
    cap: c::attr::QpCap,
    sq_sig_all: i32,
}

impl Id {
    fn more(&self) -> MutexGuard<'_, More> {
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ids that this process has made, by the connection manager's number. A forked child's manager gives its parent's numbers again.
fn ids() -> &'static Register<usize, Id> {
    static IDS: PerProcess<&Register<usize, Id>> = PerProcess::new(|| Box::leak(Box::new(Register::new())));
    *IDS.lock()
}

/// The connection manager of this process. It is started when it is first needed, and then stays.
pub(crate) fn manager() -> Result<Manager> {
    static MANAGER: PerProcess<Option<Manager>> = PerProcess::new(|| None);
    let mut manager = MANAGER.lock();
    if let Some(manager) = &*manager {
        return Ok(manager.clone());
    }
    let made = match devices()?.first().and_then(|device| device.only) {
        Some(address) => Manager::on(&ContextOptions::new().open_address(address)?)?,
        None => Manager::open()?,
    };
    Ok(manager.insert(made).clone())
}

/// A device opened for ids, and the protection domain of ids for which the program gives none. XRC targets and their
/// queues share one XRC domain.
#[derive(Debug)]
struct Opened {
    context: Arc<Context>,
    pd: AtomicPtr<Pd>,
    xrcd: Mutex<AtomicPtr<Xrcd>>,
}

impl Opened {
    /// Whether its interface is still there. One that comes back is another device, even if it has the same name.
    fn is_present(&self) -> bool {
        self.context.context.link_state().present
    }

    /// The XRC domain, made when it is needed first.
    fn xrcd(&self) -> Result<&Xrcd> {
        let place = self.xrcd.lock().unwrap_or_else(PoisonError::into_inner);
        if place.load(Ordering::Acquire).is_null() {
            show(&place, verbs::xrcd::open(&self.context, -1, libc::O_CREAT)?.cast_const());
        }
        given(object(&place))
    }
}

static OPENED: PerProcess<Vec<&'static Opened>> = PerProcess::new(Vec::new);

/// All devices that are there, opened.
fn opened() -> Result<Vec<&'static Opened>> {
    let mut opened = OPENED.lock();
    for device in devices()? {
        if !opened.iter().any(|have| core::ptr::eq(have.context.device, device) && have.is_present()) {
            let context = verbs::context::open(device)?;
            let pd = verbs::pd::make(&context, context.context.alloc_pd()?, None);
            opened.push(Box::leak(Box::new(Opened {
                context,
                pd: AtomicPtr::new(pd),
                xrcd: Mutex::default(),
            })));
        }
    }
    Ok(opened.iter().copied().filter(|have| have.is_present()).collect())
}

/// The device that the connection manager found for an id. The system is asked for devices only if none of the open
/// ones is the right one, because that takes longer than all the rest of a connection.
fn opened_for(context: &rxe_verbs::Context) -> Result<&'static Opened> {
    let name = context.device().name();
    let same = |have: &&Opened| have.context.context.device().name() == name && have.is_present();
    let known = OPENED.lock().iter().copied().find(same);
    match known {
        Some(known) => Ok(known),
        None => opened()?.into_iter().find(same).ok_or(Errno(libc::ENODEV)),
    }
}

/// Stores the address of an object for C to see.
fn show<T, U>(place: &AtomicPtr<U>, object: *const T) {
    place.store(object.cast::<U>().cast_mut(), Ordering::Release);
}
