//! Endpoints: an id with address, route and queue pair in one call.

use super::{
    Id, Template,
    event::{CONNECT_REQUEST, Event, acknowledge_own, next, rdma_ack_cm_event},
    id::{
        create, rdma_bind_addr, rdma_destroy_id, rdma_migrate_id, rdma_resolve_addr, rdma_resolve_route,
        space_of,
    },
    qp::{self, rdma_destroy_qp, rdma_destroy_srq},
    show,
};
use crate::{
    border::{Address, Bytes, Errno, INVALID, Out, Owned, Result, given, object, quietly, waiting_value},
    c::{
        attr::QpInitAttr,
        rdma::{AddrInfo, RAI_PASSIVE},
    },
    convert::{qp_type, qp_type_number},
    object::Pd,
};
use core::{
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

fn failed(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Errno(nix::errno::Errno::last_raw())) }
}

/// rdma_create_ep(3). The id is synchronous. The call waits for address and route.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_create_ep(
    id: Out<'_, *mut Id>,
    info: Option<&AddrInfo>,
    pd: Option<&Pd>,
    init: Option<&mut QpInitAttr<'_>>,
) -> c_int {
    waiting_value(|| {
        let (place, info) = (given(id)?, given(info)?);
        let made = create(None, ptr::null_mut(), space_of(info.ai_port_space)?, qp_type(info.ai_qp_type)?)?;
        let owned = Owned::ours(made);
        let ready = prepare(owned.get()?, info, pd, init);
        if let Err(errno) = ready {
            rdma_destroy_id(owned);
            return Err(errno);
        }
        place.write(made);
        Ok(0)
    })
}

fn prepare(id: &Id, info: &AddrInfo, pd: Option<&Pd>, init: Option<&mut QpInitAttr<'_>>) -> Result<()> {
    let (from, to) = (Address::new(info.ai_src_addr), Address::new(info.ai_dst_addr));
    if info.ai_flags & RAI_PASSIVE != 0 {
        failed(rdma_bind_addr(Some(id), from))?;
        if let Some(pd) = pd {
            show(&id.c.pd, pd);
        }
        id.more().template = init.map(|init| Template {
            context: init.qp_context.into(),
            send_cq: address(init.send_cq),
            recv_cq: address(init.recv_cq),
            srq: address(init.srq),
            cap: init.cap,
            sq_sig_all: init.sq_sig_all,
        });
        return Ok(());
    }
    failed(rdma_resolve_addr(Some(id), from, to, 0))?;
    failed(rdma_resolve_route(Some(id), 0))?;
    if let Some(init) = init {
        init.qp_type = info.ai_qp_type;
        failed(qp::rdma_create_qp(Some(id), pd, Some(init)))?;
    }
    id.more().connect = Bytes::new(info.ai_connect).read(info.ai_connect_len.min(256));
    Ok(())
}

fn address<T>(object: Option<&T>) -> AtomicPtr<T> {
    object.map_or(ptr::null_mut(), |object| ptr::from_ref(object).cast_mut()).into()
}

/// rdma_destroy_ep(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_destroy_ep(id: Owned<Id>) {
    quietly(|| {
        if let Ok(this) = id.get() {
            rdma_destroy_qp(Some(this));
            rdma_destroy_srq(Some(this));
            rdma_destroy_id(id);
        }
    });
}

/// rdma_get_request(3): waits for a request to a synchronous id.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_get_request(listener: Option<&Id>, out: Out<'_, *const Id>) -> c_int {
    waiting_value(|| {
        let listener = given(listener)?;
        if !listener.more().sync {
            return Err(INVALID);
        }
        acknowledge_own(listener);
        let event = next(listener.channel()?)?;
        let owned = Owned::ours(event);
        let (number, id): (c_int, *const Id) = (owned.get()?.number(), owned.get()?.id());
        if number != CONNECT_REQUEST {
            rdma_ack_cm_event(owned);
            return Err(INVALID);
        }
        let request = Owned::ours(id.cast_mut());
        let ready = take_request(listener, request.get()?, event);
        if let Err(errno) = ready {
            acknowledge_own(request.get()?);
            rdma_destroy_id(request);
            return Err(errno);
        }
        given(out)?.write(id);
        Ok(0)
    })
}

fn take_request(listener: &Id, id: &Id, event: *mut Event) -> Result<()> {
    let migrated = failed(rdma_migrate_id(Some(id), None));
    id.c.event.store(event.cast(), Ordering::Release);
    migrated?;
    let more = listener.more();
    let Some(template) = &more.template else { return Ok(()) };
    let init = QpInitAttr {
        qp_context: template.context.load(Ordering::Relaxed),
        send_cq: object(&template.send_cq),
        recv_cq: object(&template.recv_cq),
        srq: object(&template.srq).or_else(|| object(&listener.c.srq)),
        cap: template.cap,
        qp_type: qp_type_number(qp::kind_of(id)),
        sq_sig_all: template.sq_sig_all,
    };
    drop(more);
    qp::create(id, object(&listener.c.pd), init, (None, None))?;
    Ok(())
}
