//! Addresses for endpoints (rdma_getaddrinfo). Some programs, such as libfabric, take parts out of the result and free them themselves.
//! So all parts are made by malloc.

use super::{Id, event::wait_if_sync, id::space_of};
use crate::{
    border::{
        Address, Errno, INVALID, Out, Result, Text, UNSUPPORTED, allocate, given, look_up, quietly, release,
        sockaddr_bytes, value, waiting_value,
    },
    c::rdma::{AddrInfo, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA},
    convert::{qp_type, qp_type_number},
};
use core::{ffi::c_int, ptr, sync::atomic::AtomicPtr};
use rxe_cm::{EventKind, proto::PortSpace};
use rxe_verbs::QpType;
use std::net::SocketAddr;

/// rdma_getaddrinfo(3): names of hosts and services, and all addresses that they have. For names that
/// getaddrinfo(3) does not know its error is returned.
#[unsafe(no_mangle)]
extern "C" fn rdma_getaddrinfo(
    node: Text,
    service: Text,
    hints: Option<&AddrInfo>,
    out: Out<'_, *mut AddrInfo>,
) -> c_int {
    value(|| match find(node, service, hints)? {
        Ok(first) => {
            given(out)?.write(first);
            Ok(0)
        }
        Err(code) => Ok(code),
    })
}

/// A list of addresses, or getaddrinfo's error number.
fn find(
    node: Text,
    service: Text,
    hints: Option<&AddrInfo>,
) -> Result<core::result::Result<*mut AddrInfo, c_int>> {
    let (space, kind) = wanted(hints)?;
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let own = hints.map_or(Ok(None), |hints| Address::new(hints.ai_src_addr).read())?;
    let blank = AddrInfo {
        ai_flags: flags,
        ai_qp_type: qp_type_number(kind),
        ai_port_space: space.number().into(),
        ..AddrInfo::default()
    };
    let passive = flags & RAI_PASSIVE != 0;
    let (found, place) = match (node.is_null() && service.is_null(), hints) {
        (true, None) => return Err(INVALID),
        // Nothing is looked up: the result is made of the hints.
        (true, Some(hints)) => {
            let to = Address::new(hints.ai_dst_addr).read()?;
            (vec![(to, None)], AddrInfo { ai_family: hints.ai_family, ..blank })
        }
        (false, _) => match look_up(node, service, &ask(hints, space, kind)) {
            Ok(found) => (found.into_iter().map(|(address, name)| (Some(address), name)).collect(), blank),
            Err(code) => return Ok(Err(code)),
        },
    };
    let mut first = ptr::null_mut();
    for (address, name) in found.into_iter().rev() {
        let (from, to) = if passive && address.is_some() { (address, None) } else { (own, address) };
        let mut info = AddrInfo { ai_next: first, ..place };
        if let Some(address) = address {
            info.ai_family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        }
        (info.ai_src_addr, info.ai_src_len) = copy(from);
        (info.ai_dst_addr, info.ai_dst_len) = copy(to);
        let name = name.map_or(ptr::null_mut(), |name| allocate(name.as_bytes_with_nul()).cast());
        *(if passive { &mut info.ai_src_canonname } else { &mut info.ai_dst_canonname }) = name;
        first = allocate(core::slice::from_ref(&info));
        if first.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
    }
    Ok(Ok(first))
}

/// The addresses that were looked up for an id.
#[derive(Debug)]
pub(super) struct Resolved(AtomicPtr<AddrInfo>);

impl Drop for Resolved {
    fn drop(&mut self) {
        rdma_freeaddrinfo(*self.0.get_mut());
    }
}

/// rdma_resolve_addrinfo(3): as rdma_getaddrinfo, and an event tells that it is done. Names of a subnet manager are not looked
/// up, because there is none.
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_resolve_addrinfo(
    id: Option<&Id>,
    node: Text,
    service: Text,
    hints: Option<&AddrInfo>,
) -> c_int {
    waiting_value(|| {
        let id = given(id)?;
        if hints.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
            return Err(UNSUPPORTED);
        }
        if id.more().resolved.is_some() {
            return Err(Errno(libc::EBUSY));
        }
        let found = find(node, service, hints)?.map_err(|_| Errno(libc::ENODATA))?;
        id.more().resolved = Some(Resolved(found.into()));
        if let Err(error) = id.cm.tell(EventKind::AddrInfoResolved) {
            id.more().resolved = None;
            return Err(error.into());
        }
        wait_if_sync(id)
    })
}

/// rdma_query_addrinfo(3): returns the addresses that were looked up, once.
#[unsafe(no_mangle)]
extern "C" fn rdma_query_addrinfo(id: Option<&Id>, out: Out<'_, *mut AddrInfo>) -> c_int {
    value(|| {
        let (id, out) = (given(id)?, given(out)?);
        let mut resolved = id.more().resolved.take().ok_or(Errno(libc::ENOENT))?;
        out.write(core::mem::replace(resolved.0.get_mut(), ptr::null_mut()));
        Ok(0)
    })
}

fn copy(address: Option<SocketAddr>) -> (*mut libc::sockaddr, libc::socklen_t) {
    address.map_or((ptr::null_mut(), 0), |address| {
        let bytes = sockaddr_bytes(address);
        (allocate(&bytes).cast(), bytes.len() as libc::socklen_t)
    })
}

/// The hints for getaddrinfo(3).
fn ask(hints: Option<&AddrInfo>, space: PortSpace, kind: QpType) -> libc::addrinfo {
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    let flag = |ours: c_int, theirs: c_int| if flags & ours != 0 { theirs } else { 0 };
    let datagrams = kind == QpType::Ud || matches!(space, PortSpace::Udp | PortSpace::Ipoib);
    libc::addrinfo {
        ai_flags: flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST),
        ai_family: hints.filter(|_| flags & RAI_FAMILY != 0).map_or(libc::AF_UNSPEC, |hints| hints.ai_family),
        ai_socktype: if datagrams { libc::SOCK_DGRAM } else { libc::SOCK_STREAM },
        ai_protocol: 0,
        ai_addrlen: 0,
        ai_addr: ptr::null_mut(),
        ai_canonname: ptr::null_mut(),
        ai_next: ptr::null_mut(),
    }
}

/// Port space and type of queue pair. If only one is given, the other follows from it.
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

/// rdma_freeaddrinfo(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_freeaddrinfo(info: *mut AddrInfo) {
    quietly(|| {
        let mut next = info;
        while let Some(info) = release(next) {
            let addresses = [info.ai_src_addr.cast::<u8>(), info.ai_dst_addr.cast()];
            let names = [info.ai_src_canonname.cast(), info.ai_dst_canonname.cast()];
            let others = [info.ai_route.cast(), info.ai_connect.cast()];
            for part in [addresses, names, others].concat() {
                release(part);
            }
            next = info.ai_next;
        }
    });
}
