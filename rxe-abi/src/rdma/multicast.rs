//! Multicast groups.

use super::{Id, event::wait_if_sync, qp};
use crate::{
    border::{Address, Errno, INVALID, Result, UNSUPPORTED, given, value, waiting_value},
    c::rdma::JoinAttr,
};
use core::{
    ffi::{c_int, c_void},
    net::IpAddr,
    sync::atomic::{AtomicPtr, Ordering},
};
use rxe_verbs::Gid;

/// A group that an id has joined.
#[derive(Debug)]
pub(super) struct Join {
    group: IpAddr,
    /// The program's context for the group.
    context: AtomicPtr<c_void>,
    /// Whether its queue pair is attached: not if the id only sends to the group.
    receives: bool,
    /// Whether its event was delivered.
    told: bool,
}

impl Join {
    /// The join that the next event of this group is for: the first one whose event was not delivered. Its context, and whether it
    /// receives. `None` if the program has left the group.
    pub(super) fn tell(joins: &mut [Self], group: IpAddr) -> Option<(*mut c_void, bool)> {
        let next = joins.iter_mut().find(|join| join.group == group && !join.told)?;
        next.told = true;
        Some((next.context.load(Ordering::Relaxed), next.receives))
    }
}

/// The event of a join is fetched: attaches a queue pair that was made since.
pub(super) fn attach(id: &Id, group: IpAddr) -> Result<()> {
    // If it is attached already, this does nothing.
    Ok(qp::of(id).map_or(Ok(()), |qp| qp.qp.attach_multicast(Gid::from(group)))?)
}

fn join(id: &Id, group: IpAddr, receives: bool, context: *mut c_void) -> Result<c_int> {
    let pair = qp::of(id).filter(|_| receives);
    let again = id.more().groups.iter().any(|join| join.group == group && join.receives);
    if let Some(qp) = pair {
        qp.qp.attach_multicast(Gid::from(group))?;
    }
    // This happens before the event can arrive, because the event has the context.
    id.more().groups.push(Join { group, context: AtomicPtr::new(context), receives, told: false });
    if let Err(error) = id.cm.join_multicast(group) {
        forget(id, group)?;
        // An earlier join of the same group stays as it is.
        if let Some(qp) = pair.filter(|_| !again) {
            qp.qp.detach_multicast(Gid::from(group))?;
        }
        return Err(error.into());
    }
    wait_if_sync(id)
}

/// Takes the newest join of a group from the list, as librdmacm does.
fn forget(id: &Id, group: IpAddr) -> Result<Join> {
    let groups = &mut id.more().groups;
    let place = groups.iter().rposition(|join| join.group == group);
    Ok(groups.remove(place.ok_or(Errno(libc::EADDRNOTAVAIL))?))
}

fn leave(id: &Id, group: IpAddr) -> Result<()> {
    let join = forget(id, group)?;
    // As with Linux, the program is not told any more.
    id.cm.forget_join(group);
    if let Some(qp) = qp::of(id).filter(|_| join.receives) {
        // It may not be attached, because another join of the group was left before.
        let _ = qp.qp.detach_multicast(Gid::from(group));
    }
    Ok(())
}

/// rdma_join_multicast(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_join_multicast(id: Option<&Id>, group: Address, context: *mut c_void) -> c_int {
    waiting_value(|| join(given(id)?, given(group.read()?)?.ip(), true, context))
}

/// rdma_join_multicast_ex(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rdma_join_multicast_ex(
    id: Option<&Id>,
    attr: Option<&JoinAttr>,
    context: *mut c_void,
) -> c_int {
    /// RDMA_CM_JOIN_MC_ATTR_ADDRESS, and _JOIN_FLAGS.
    const BOTH: u32 = 3;
    /// RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: the queue pair receives nothing.
    const SEND_ONLY: u32 = 1;
    waiting_value(|| {
        let (id, attr) = (given(id)?, given(attr)?);
        if attr.comp_mask & !BOTH != 0 {
            return Err(UNSUPPORTED);
        }
        if attr.comp_mask != BOTH || attr.join_flags > SEND_ONLY {
            return Err(INVALID);
        }
        join(id, given(attr.addr.read()?)?.ip(), attr.join_flags != SEND_ONLY, context)
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
