//! Multicast groups.

use super::{Id, event::wait_if_sync, qp};
use crate::{
    border::{Address, Errno, INVALID, Result, UNSUPPORTED, given, value},
    c::rdma::JoinAttr,
};
use core::{
    ffi::{c_int, c_void},
    net::IpAddr,
    sync::atomic::AtomicPtr,
};
use rxe_verbs::Gid;

fn join(id: &Id, group: IpAddr, context: *mut c_void) -> Result<c_int> {
    if let Some(qp) = qp::of(id) {
        qp.qp.attach_multicast(Gid::from(group))?;
    }
    // Before the event, which names the context, can come.
    id.more().groups.push((group, AtomicPtr::new(context)));
    if let Err(error) = id.cm.join_multicast(group) {
        leave(id, group)?;
        return Err(error.into());
    }
    wait_if_sync(id)
}

fn leave(id: &Id, group: IpAddr) -> Result<()> {
    let mut more = id.more();
    let place = more.groups.iter().position(|(have, _)| *have == group);
    more.groups.swap_remove(place.ok_or(Errno(libc::EADDRNOTAVAIL))?);
    drop(more);
    if let Some(qp) = qp::of(id) {
        qp.qp.detach_multicast(Gid::from(group))?;
    }
    Ok(())
}

/// rdma_join_multicast(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_join_multicast(id: Option<&Id>, group: Address, context: *mut c_void) -> c_int {
    value(|| join(given(id)?, given(group.read()?)?.ip(), context))
}

/// rdma_join_multicast_ex(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_join_multicast_ex(
    id: Option<&Id>,
    attr: Option<&JoinAttr>,
    context: *mut c_void,
) -> c_int {
    const BOTH: u32 = 3;
    const MOST_FLAGS: u32 = 1;
    value(|| {
        let (id, attr) = (given(id)?, given(attr)?);
        if attr.comp_mask != BOTH {
            return Err(INVALID);
        }
        if attr.join_flags > MOST_FLAGS {
            return Err(UNSUPPORTED);
        }
        join(id, given(attr.addr.read()?)?.ip(), context)
    })
}

/// rdma_leave_multicast(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_leave_multicast(id: Option<&Id>, group: Address) -> c_int {
    value(|| {
        let (id, group) = (given(id)?, given(group.read()?)?.ip());
        leave(id, group)?;
        Ok(0)
    })
}
