//! Endpoints: an id with address, route and queue pair in one call; and the addresses for it.

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
    border::{
        Address, Bytes, Errno, INVALID, Out, Owned, Result, Text, given, quietly, sockaddr_bytes, value,
        waiting_value,
    },
    c::{
        attr::QpInitAttr,
        rdma::{AddrInfo, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE},
    },
    convert::{qp_type, qp_type_number},
    object::Pd,
};
use core::{ffi::c_int, ptr, sync::atomic::Ordering};
use rxe_cm::proto::PortSpace;
use rxe_verbs::QpType;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

fn failed(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Errno(nix::errno::Errno::last_raw())) }
}

/// rdma_create_ep(3). It is synchronous, and waits for address and route.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_create_ep(
    id: Out<'_, *mut Id>,
    info: Option<&AddrInfo>,
    pd: Option<&Pd>,
    init: Option<&mut QpInitAttr<'_>>,
) -> c_int {
    waiting_value(|| {
        let info = given(info)?;
        let made = create(None, ptr::null_mut(), space_of(info.ai_port_space)?, qp_type(info.ai_qp_type)?)?;
        let owned = Owned::ours(made);
        let ready = prepare(owned.get()?, info, pd, init);
        if let Err(errno) = ready {
            rdma_destroy_id(owned);
            return Err(errno);
        }
        given(id)?.write(made);
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
        id.more().template = init.map(|init| Template { cap: init.cap, sq_sig_all: init.sq_sig_all });
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
    let Some(template) = listener.more().template else { return Ok(()) };
    let pd = crate::border::object(&listener.c.pd);
    let init = QpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: None,
        recv_cq: None,
        srq: crate::border::object(&listener.c.srq),
        cap: template.cap,
        qp_type: qp_type_number(qp::kind_of(id)),
        sq_sig_all: template.sq_sig_all,
    };
    qp::create(id, pd, init, None)?;
    Ok(())
}

/// What rdma_getaddrinfo gives out.
#[derive(Debug)]
#[repr(C)]
struct Info {
    c: AddrInfo,
    _addresses: [Option<Box<[u8]>>; 2],
}

/// rdma_getaddrinfo(3). Services are numbers.
#[unsafe(no_mangle)]
extern "C" fn rdma_getaddrinfo(
    node: Text,
    service: Text,
    hints: Option<&AddrInfo>,
    out: Out<'_, *mut Info>,
) -> c_int {
    value(|| {
        let flags = hints.map_or(0, |hints| hints.ai_flags);
        let family = hints.filter(|_| flags & RAI_FAMILY != 0).map_or(0, |hints| hints.ai_family);
        let (space, kind) = wanted(hints)?;
        let own = hints.map_or(Ok(None), |hints| Address::new(hints.ai_src_addr).read())?;
        let (node, service) = (node.read()?, service.read()?);
        let passive = flags & RAI_PASSIVE != 0;
        let found = match (node, service, hints) {
            (None, None, None) => return Err(INVALID),
            // Nothing is looked up: the hints are what comes out.
            (None, None, Some(hints)) => Address::new(hints.ai_dst_addr).read()?,
            (node, service, _) => Some(find(node, service, passive, flags & RAI_NUMERICHOST != 0, family)?),
        };
        let bytes = |address: SocketAddr| sockaddr_bytes(address).into_vec().into_boxed_slice();
        let (from, to) = if passive && found.is_some() { (found, None) } else { (own, found) };
        let mut addresses = [from.map(bytes), to.map(bytes)];
        let [src, dst] = addresses.each_mut().map(|bytes| {
            bytes
                .as_mut()
                .map_or((ptr::null_mut(), 0), |bytes| (bytes.as_mut_ptr().cast(), bytes.len() as u32))
        });
        let c = AddrInfo {
            ai_flags: flags,
            ai_family: match found {
                Some(found) if found.is_ipv4() => libc::AF_INET,
                Some(_) => libc::AF_INET6,
                None => hints.map_or(0, |hints| hints.ai_family),
            },
            ai_qp_type: qp_type_number(kind),
            ai_port_space: space.number().into(),
            ai_src_len: src.1,
            ai_dst_len: dst.1,
            ai_src_addr: src.0,
            ai_dst_addr: dst.0,
            ai_src_canonname: ptr::null_mut(),
            ai_dst_canonname: ptr::null_mut(),
            ai_route_len: 0,
            ai_route: ptr::null_mut(),
            ai_connect_len: 0,
            ai_connect: ptr::null_mut(),
            ai_next: ptr::null_mut(),
        };
        given(out)?.write(Box::into_raw(Box::new(Info { c, _addresses: addresses })));
        Ok(0)
    })
}

/// Port space and kind of queue pair; each follows from the other where only one is named.
fn wanted(hints: Option<&AddrInfo>) -> Result<(PortSpace, QpType)> {
    let space = hints.map_or(0, |hints| hints.ai_port_space);
    let kind = hints.map_or(0, |hints| hints.ai_qp_type);
    Ok(match (space, kind) {
        (0, 0) => (PortSpace::Tcp, QpType::Rc),
        (0, kind) => match qp_type(kind)? {
            QpType::Ud => (PortSpace::Udp, QpType::Ud),
            kind => (PortSpace::Tcp, kind),
        },
        (space, 0) => match space_of(space)? {
            space @ (PortSpace::Udp | PortSpace::Ipoib) => (space, QpType::Ud),
            space => (space, QpType::Rc),
        },
        (space, kind) => (space_of(space)?, qp_type(kind)?),
    })
}

fn find(
    node: Option<&str>,
    service: Option<&str>,
    passive: bool,
    numeric: bool,
    family: c_int,
) -> Result<SocketAddr> {
    const UNKNOWN: Errno = Errno(libc::ENODATA);
    let port: u16 = service.map_or(Ok(0), |service| service.parse().map_err(|_| UNKNOWN))?;
    let six = family == libc::AF_INET6;
    let Some(node) = node else {
        let address = match (passive, six) {
            (true, true) => "::",
            (true, false) => "0.0.0.0",
            (false, true) => "::1",
            (false, false) => "127.0.0.1",
        };
        return Ok(SocketAddr::new(address.parse().map_err(|_| UNKNOWN)?, port));
    };
    if numeric {
        return Ok(SocketAddr::new(node.parse::<IpAddr>().map_err(|_| UNKNOWN)?, port));
    }
    let mut found = (node, port).to_socket_addrs().map_err(|_| UNKNOWN)?;
    found.find(|found| family == 0 || found.is_ipv6() == six).ok_or(UNKNOWN)
}

/// rdma_freeaddrinfo(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_freeaddrinfo(info: Owned<Info>) {
    quietly(|| info.free());
}
