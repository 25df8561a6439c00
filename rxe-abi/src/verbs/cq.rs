//! Completion queues and channels.

use super::{
    context::{blocking, is_non_blocking},
    pd::unused,
};
use crate::{
    border::{
        Errno, INVALID, Out, OutList, Owned, Result, UNSUPPORTED, code, given, pointer, quietly, value,
        waiting_value,
    },
    c::{
        self, Pointer,
        attr::{CqInitAttrEx, ModifyCqAttr},
        context::ContextPtr,
        object::Lock,
        value as v,
        work::Wc,
    },
    convert::{count, wc},
    object::{CompChannel, Context, Cq, Events, Users},
    poll,
    signals::restarting,
    turns::Turns,
};
use core::{
    ffi::{c_int, c_void},
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering},
};
use rxe_verbs::Completion;
use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex},
};

/// ibv_create_comp_channel(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_create_comp_channel(context: ContextPtr) -> *mut CompChannel {
    pointer(|| {
        let context = Context::of(context)?;
        let channel = context.context.create_comp_channel()?;
        let c = c::object::CompChannel {
            context: context.pointer(),
            fd: blocking(channel.as_fd())?,
            refcnt: AtomicI32::new(0),
        };
        let (context, users) = (context.share(), Users::default());
        Ok(Box::into_raw(Box::new(CompChannel {
            c,
            channel,
            context,
            users,
            was_non_blocking: AtomicBool::new(false),
        })))
    })
}

/// ibv_destroy_comp_channel(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_destroy_comp_channel(channel: Owned<CompChannel>) -> c_int {
    code(|| {
        let object = channel.get()?;
        if let Err(busy) = unused(&object.users) {
            // valkey destroys a connection's completion queues before its queue pair. That fails, so they still use the channel.
            object.channel.retire();
            return Err(busy);
        }
        channel.free();
        Ok(())
    })
}

/// ibv_get_cq_event(3). It waits unless the descriptor was made non-blocking.
#[unsafe(no_mangle)]
extern "C-unwind" fn ibv_get_cq_event(
    channel: Option<&CompChannel>,
    cq: Out<'_, *const Cq>,
    context: Out<'_, *mut c_void>,
) -> c_int {
    waiting_value(|| {
        let channel = given(channel)?;
        channel.context.context.check_owner()?;
        let (object, cq_context) = next_event(channel)?;
        given(cq)?.write(object);
        if let Some(place) = context {
            place.write(cq_context);
        }
        Ok(0)
    })
}

/// The next event. Waits for it, unless the program has made the descriptor non-blocking. `None`: there was an event, but another thread
/// took it.
fn take_or_wait(channel: &CompChannel) -> Result<Option<rxe_verbs::Cq>> {
    // If there is an event it makes no difference whether the descriptor blocks. Not asking saves a system call for each event.
    if channel.was_non_blocking.load(Ordering::Relaxed) && channel.channel.has_event() {
        return Ok(channel.channel.try_get_event());
    }
    let non_blocking = is_non_blocking(channel.channel.as_fd());
    channel.was_non_blocking.store(non_blocking, Ordering::Relaxed);
    if non_blocking {
        channel.channel.try_get_event().map(Some).ok_or(Errno(libc::EAGAIN))
    } else {
        restarting(|| Ok(Some(channel.channel.get_event()?)))
    }
}

fn next_event(channel: &CompChannel) -> Result<(*const Cq, *mut c_void)> {
    loop {
        let Some(event) = take_or_wait(channel)? else { continue };
        let mut cq_context = core::ptr::null_mut();
        let found = channel.context.cqs.find(&event.id(), |cq| {
            cq_context = cq.c.base.cq_context.load(Ordering::Relaxed);
        });
        match found {
            Some(cq) => return Ok((cq, cq_context)),
            // The queue is just being destroyed, which waits for this.
            None => event.ack_events(1),
        }
    }
}

/// ibv_ack_cq_events(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: Option<&Cq>, count: u32) {
    quietly(|| {
        if let Some(cq) = cq {
            // Public fields, which programs read. Counted first, because the queue may be destroyed once they are acknowledged.
            cq.c.base.comp_events_completed.fetch_add(count, Ordering::Relaxed);
            cq.cq.ack_events(count);
        }
    });
}

/// ibv_create_cq(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_create_cq(
    context: ContextPtr,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Option<&CompChannel>,
    comp_vector: c_int,
) -> *mut Cq {
    pointer(|| {
        let entries = u32::try_from(cqe).map_err(|_| INVALID)?;
        let vector = u32::try_from(comp_vector).map_err(|_| INVALID)?;
        make(Context::of(context)?, entries, cq_context, channel, (vector, Kind::default()))
    })
}

/// ibv_create_cq_ex(3).
pub(super) extern "C" fn create_cq_ex(context: ContextPtr, attr: Option<&CqInitAttrEx<'_>>) -> *mut Cq {
    const KNOWN_MASK: u32 = 3;
    const SINGLE_THREADED: u32 = 1;
    /// Ignored overruns are a promise of the program, and change nothing.
    const KNOWN_FLAGS: u32 = SINGLE_THREADED | 2;
    pointer(|| {
        let (context, attr) = (Context::of(context)?, given(attr)?);
        let flags = if attr.comp_mask & 1 == 0 { 0 } else { attr.flags };
        if attr.comp_mask & !KNOWN_MASK != 0
            || flags & !KNOWN_FLAGS != 0
            || attr.wc_flags & !v::CQ_WC_FLAGS != 0
        {
            return Err(UNSUPPORTED);
        }
        let kind = Kind {
            tells_tags: attr.wc_flags & v::WC_EX_WITH_TM_INFO != 0,
            single_threaded: flags & SINGLE_THREADED != 0,
        };
        make(context, attr.cqe, attr.cq_context, attr.channel, (attr.comp_vector, kind))
    })
}

/// What an extended queue was made for.
#[derive(Clone, Copy, Default)]
struct Kind {
    tells_tags: bool,
    single_threaded: bool,
}

fn make(
    context: &Context,
    entries: u32,
    cq_context: *mut c_void,
    channel: Option<&CompChannel>,
    (vector, kind): (u32, Kind),
) -> Result<*mut Cq> {
    if vector >= context.c.context.num_comp_vectors.cast_unsigned() {
        return Err(INVALID);
    }
    let cq = context.context.create_cq(entries, channel.map(|channel| &channel.channel))?;
    let id = cq.id();
    let base = c::object::Cq {
        context: context.pointer(),
        channel: Pointer::new(
            channel.map_or(core::ptr::null_mut(), |channel| (&raw const channel.c).cast_mut()),
        ),
        cq_context: Pointer::new(cq_context),
        handle: id.0,
        cqe: AtomicI32::new(c_int::try_from(entries).unwrap_or(c_int::MAX)),
        lock: Lock::NEW,
        comp_events_completed: AtomicU32::new(0),
        async_events_completed: AtomicU32::new(0),
    };
    let c = c::object::CqEx {
        base,
        comp_mask: 0,
        status: AtomicI32::new(0),
        wr_id: AtomicU64::new(0),
        functions: poll::FUNCTIONS,
    };
    let object = Box::into_raw(Box::new(Cq {
        c,
        cq,
        context: context.share(),
        users: Users::default(),
        _channel: channel.map(|channel| Arc::clone(&channel.users)),
        events: Events::default(),
        current: Mutex::default(),
        turns: (!kind.single_threaded).then(Turns::default),
        tells_tags: kind.tells_tags,
    }));
    context.cqs.enter(id, object);
    Ok(object)
}

/// ibv_resize_cq(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(cq: Option<&Cq>, cqe: c_int) -> c_int {
    code(|| {
        let cq = given(cq)?;
        cq.cq.resize(u32::try_from(cqe).map_err(|_| INVALID)?)?;
        cq.c.base.cqe.store(cqe, Ordering::Relaxed);
        Ok(())
    })
}

/// ibv_modify_cq(3). There are no interrupts that could be moderated.
pub(super) extern "C" fn modify_cq(cq: Option<&Cq>, attr: Option<&ModifyCqAttr>) -> c_int {
    code(|| {
        given(cq)?;
        given(attr)?;
        Err(UNSUPPORTED)
    })
}

/// ibv_destroy_cq(3): waits until all events are acknowledged.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_destroy_cq(cq: Owned<Cq>) -> c_int {
    code(|| {
        let object = cq.get()?;
        object.known()?;
        // A thread in ibv_get_cq_event does not count as a user, although it holds the queue for a moment.
        unused(&object.users)?;
        object.context.cqs.remove(&object.cq.id());
        object.cq.wait_acked();
        object.events.wait();
        cq.free();
        Ok(())
    })
}

/// Completions taken at once.
const CHUNK: usize = 16;

/// ibv_poll_cq(3).
pub(super) extern "C" fn poll_cq(cq: Option<&Cq>, entries: c_int, mut out: OutList<Wc>) -> c_int {
    value(|| {
        let cq = given(cq)?;
        let places = out.places(count(entries)?);
        let mut taken = [Completion::default(); CHUNK];
        let mut done = 0;
        for chunk in places.chunks_mut(CHUNK) {
            let wanted = chunk.len();
            let got = match cq.cq.poll(&mut taken[..wanted]) {
                Ok(got) => got,
                // The completions before it are returned now. The next call returns the error.
                Err(_) if done > 0 => break,
                Err(error) => return Err(Errno(error.errno())),
            };
            for (place, completion) in chunk.iter_mut().zip(&taken[..got]) {
                place.write(wc(&cq.cq, completion));
            }
            done += got;
            if got < wanted {
                break;
            }
        }
        c_int::try_from(done).map_err(|_| INVALID)
    })
}

/// ibv_req_notify_cq(3).
pub(super) extern "C" fn req_notify_cq(cq: Option<&Cq>, solicited_only: c_int) -> c_int {
    code(|| {
        let cq = given(cq)?;
        cq.context.context.check_owner()?;
        cq.cq.req_notify(solicited_only != 0);
        Ok(())
    })
}
