//! The queue pair of an id, and the completion queues made with it.

use super::{Id, opened_for, show};
use crate::{
    border::{INVALID, Owned, Result, given, object, quietly, value},
    c::{
        Pointer,
        attr::{QpAttr, QpInitAttr, QpInitAttrEx, SrqInitAttr, SrqInitAttrEx},
        context::ContextPtr,
        value as v,
    },
    convert::{qp_attr_of, qp_state_number, qp_type, state_of},
    object::{CompChannel, Context, Pd, Qp, Srq, Xrcd},
    verbs::{cq, qp, srq},
    wr::Batch,
};
use core::{
    ffi::c_int,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};
use rxe_verbs::{QpChange, QpState, QpType};

pub(super) fn kind_of(id: &Id) -> QpType {
    qp_type(id.c.qp_type.load(Ordering::Relaxed)).unwrap_or(QpType::Rc)
}

/// The id's queue pair, if the program has made one with it.
pub(super) fn of(id: &Id) -> Option<&Qp> {
    object(&id.c.qp)
}

/// Moves the id's queue pair to a state. `depth`, if the program gives it, is how many READs may be outstanding: of the peer (Rtr) or of
/// ours (Rts). `retries` is how often the peer may try again when there is no receive.
pub(super) fn change(id: &Id, state: QpState, depth: Option<u8>, retries: Option<u8>) -> Result<()> {
    let qp = given(of(id))?;
    if state == QpState::Rtr && kind_of(id) != QpType::Ud {
        // Only now it is known what the peer may do.
        apply(qp, &id.cm.qp_change(QpState::Init)?)?;
    }
    let mut change = id.cm.qp_change(state)?;
    if depth.is_some() {
        match state {
            QpState::Rtr => change.max_dest_rd_atomic = change.max_dest_rd_atomic.and(depth),
            _ => change.max_rd_atomic = change.max_rd_atomic.and(depth),
        }
    }
    if let Some(retries) = retries {
        change.min_rnr_timer = change.min_rnr_timer.map(|_| rxe_cm::min_rnr_timer(retries));
    }
    apply(qp, &change)
}

pub(super) fn apply(qp: &Qp, change: &QpChange) -> Result<()> {
    qp.qp.modify(change)?;
    if let Some(state) = change.state {
        qp.c.qp_base.state.store(qp_state_number(state), Ordering::Relaxed);
    }
    Ok(())
}

/// There is no connection: the requests of the id's queue pair, if it has one, are flushed.
pub(super) fn fail(id: &Id) {
    if let Some(qp) = of(id) {
        let _ = apply(qp, &QpChange { state: Some(QpState::Error), ..QpChange::default() });
    }
}

/// rdma_create_qp(3). As with librdmacm, the attributes then name the queues that were used, also those that were made for the id.
#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_create_qp(
    id: Option<&Id>,
    pd: Option<&Pd>,
    init: Option<&mut QpInitAttr<'_>>,
) -> c_int {
    value(|| {
        let init = given(init)?;
        *init = create(given(id)?, pd, *init, (None, None))?;
        Ok(0)
    })
}

/// rdma_create_qp_ex(3). If no protection domain is given, that of the id is used.
#[unsafe(no_mangle)]
extern "C" fn rdma_create_qp_ex(id: Option<&Id>, init: Option<&mut QpInitAttrEx<'_>>) -> c_int {
    value(|| {
        let (id, init) = (given(id)?, given(init)?);
        let pd = init.pd.filter(|_| init.comp_mask & v::QP_INIT_ATTR_PD != 0);
        let xrcd = init.xrcd.filter(|_| init.comp_mask & v::QP_INIT_ATTR_XRCD != 0);
        let made = create(id, pd, init.base(), (xrcd, qp::batch_of(init)?))?;
        (init.send_cq, init.recv_cq, init.srq, init.cap) = (made.send_cq, made.recv_cq, made.srq, made.cap);
        init.pd = object(&id.c.pd);
        init.comp_mask |= v::QP_INIT_ATTR_PD;
        Ok(0)
    })
}

/// Makes the queue pair, and returns what it was made of with the sizes that it has. An XRC target is made in `xrcd`, else in the
/// device's domain for ids. A queue pair of another type has the functions ibv_wr_* if there is a batch.
pub(super) fn create<'a>(
    id: &Id,
    pd: Option<&Pd>,
    init: QpInitAttr<'a>,
    (xrcd, batch): (Option<&Xrcd>, Option<Batch>),
) -> Result<QpInitAttr<'a>> {
    let pd = pd.or_else(|| object(&id.c.pd)).ok_or(INVALID)?;
    let context: ContextPtr = id.c.verbs.load(Ordering::Acquire).cast_const();
    if context.is_null() || of(id).is_some() || !ptr::eq(context, Context::as_c(&raw const *pd.context)) {
        return Err(INVALID);
    }
    if qp_type(init.qp_type)? != kind_of(id) {
        return Err(INVALID);
    }
    show(&id.c.pd, pd);
    let mut init = with_queues(id, context, init).inspect_err(|_| end_queues(id))?;
    let made = match kind_of(id) {
        QpType::XrcTarget => domain(id, xrcd).and_then(|xrcd| qp::make_target(xrcd, init.qp_context)),
        _ => qp::make(pd, &mut init, batch),
    };
    let made = made.inspect_err(|_| end_queues(id))?;
    show(&id.c.qp, made.cast_const());
    // It has none, whatever the attributes say.
    id.more().ece.local = rxe_cm::Ece::default();
    let ready = if kind_of(id) == QpType::Ud {
        [QpState::Init, QpState::Rtr, QpState::Rts]
            .iter()
            .try_for_each(|state| change(id, *state, None, None))
    } else {
        id.cm.qp_change(QpState::Init).map_err(Into::into).and_then(|change| apply(given(of(id))?, &change))
    };
    ready.inspect_err(|_| end(id))?;
    Ok(init)
}

/// The XRC domain that the program gives, else that of ids.
fn domain<'a>(id: &Id, named: Option<&'a Xrcd>) -> Result<&'a Xrcd> {
    match named {
        Some(named) => Ok(named),
        None => opened_for(&id.cm.context().ok_or(INVALID)?)?.xrcd(),
    }
}

/// Makes a completion queue with a channel for each side that has none, unless the program gives one. An XRC target
/// has no completions itself, and an initiator receives nothing.
fn with_queues<'a>(id: &Id, context: ContextPtr, mut init: QpInitAttr<'a>) -> Result<QpInitAttr<'a>> {
    let kind = kind_of(id);
    if init.send_cq.is_none() && kind != QpType::XrcTarget {
        own_queue(id, context, SEND, init.cap.max_send_wr)?;
        init.send_cq = object(&id.c.send_cq);
    }
    if init.recv_cq.is_none() && !matches!(kind, QpType::XrcTarget | QpType::XrcInitiator) {
        own_queue(id, context, RECV, init.cap.max_recv_wr)?;
        init.recv_cq = object(&id.c.recv_cq);
    }
    if init.srq.is_none() {
        init.srq = object::<_, Srq>(&id.c.srq);
    }
    Ok(init)
}

type CChannel = Pointer<crate::c::object::CompChannel>;
type CCq = Pointer<crate::c::object::Cq>;

/// Sides of an id, as indices of `More::made`.
const SEND: usize = 0;
const RECV: usize = 1;

const fn side(id: &Id, side: usize) -> (&CCq, &CChannel) {
    match side {
        SEND => (&id.c.send_cq, &id.c.send_cq_channel),
        _ => (&id.c.recv_cq, &id.c.recv_cq_channel),
    }
}

/// The id's completion queue for a side. It is made if there is none.
fn own_queue(id: &Id, context: ContextPtr, which: usize, entries: u32) -> Result<()> {
    let (queue, channel) = side(id, which);
    if !queue.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let errno = || crate::border::Errno(nix::errno::Errno::last_raw());
    let entries = c_int::try_from(entries.max(1)).map_err(|_| INVALID)?;
    let new_channel = cq::ibv_create_comp_channel(context);
    if new_channel.is_null() {
        return Err(errno());
    }
    show(channel, new_channel.cast_const());
    // Its context is the id: programs that wait for its events check that (rdma_get_send_comp in the header).
    let own = ptr::from_ref(id).cast_mut().cast();
    let made = cq::ibv_create_cq(context, entries, own, object::<_, CompChannel>(channel), 0);
    if made.is_null() {
        let error = errno();
        cq::ibv_destroy_comp_channel(take::<_, CompChannel>(channel));
        return Err(error);
    }
    show(queue, made.cast_const());
    id.more().made[which] = true;
    Ok(())
}

fn take<T, U>(place: &AtomicPtr<T>) -> Owned<U> {
    Owned::ours(place.swap(ptr::null_mut(), Ordering::AcqRel).cast())
}

/// Destroys the completion queues that were made for the id, except one that a queue pair or a shared receive queue still uses.
fn end_queues(id: &Id) {
    for which in [SEND, RECV] {
        let (queue, channel) = side(id, which);
        let (old_queue, old_channel) = (queue.load(Ordering::Acquire), channel.load(Ordering::Acquire));
        if id.more().made[which] && cq::ibv_destroy_cq(Owned::ours(old_queue.cast())) == 0 {
            queue.store(ptr::null_mut(), Ordering::Release);
            channel.store(ptr::null_mut(), Ordering::Release);
            id.more().made[which] = false;
            cq::ibv_destroy_comp_channel(Owned::ours(old_channel.cast()));
        }
    }
}

fn end(id: &Id) {
    if of(id).is_some() {
        qp::ibv_destroy_qp(take::<_, Qp>(&id.c.qp));
    }
    end_queues(id);
}

/// rdma_destroy_qp(3).
#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_destroy_qp(id: Option<&Id>) {
    quietly(|| {
        if let Some(id) = id {
            end(id);
        }
    });
}

/// rdma_create_srq(3). For an id of XRC targets it is an XRC shared receive queue.
#[unsafe(no_mangle)]
extern "C" fn rdma_create_srq(id: Option<&Id>, pd: Option<&Pd>, init: Option<&SrqInitAttr>) -> c_int {
    value(|| {
        let (id, init) = (given(id)?, given(init)?);
        let kind = if kind_of(id) == QpType::XrcTarget { v::SRQT_XRC } else { v::SRQT_BASIC };
        let mut all = SrqInitAttrEx {
            srq_context: init.srq_context,
            attr: init.attr,
            comp_mask: v::SRQ_INIT_ATTR_TYPE,
            srq_type: kind,
            pd,
            xrcd: None,
            cq: None,
            tm_cap: [0; 2],
        };
        create_srq(id, &mut all)?;
        Ok(0)
    })
}

/// rdma_create_srq_ex(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_create_srq_ex<'a>(id: Option<&'a Id>, init: Option<&mut SrqInitAttrEx<'a>>) -> c_int {
    value(|| {
        create_srq(given(id)?, given(init)?)?;
        Ok(0)
    })
}

/// Makes the shared receive queue. What the program does not give is that of the id: the protection domain, and for XRC the XRC domain
/// and the completion queue.
fn create_srq<'a>(id: &'a Id, init: &mut SrqInitAttrEx<'a>) -> Result<()> {
    // Fields that the mask does not name may hold anything.
    let named = |bit: u32| init.comp_mask & bit != 0;
    let (pd, xrcd, cq) = (
        init.pd.filter(|_| named(v::SRQ_INIT_ATTR_PD)),
        init.xrcd.filter(|_| named(v::SRQ_INIT_ATTR_XRCD)),
        init.cq.filter(|_| named(v::SRQ_INIT_ATTR_CQ)),
    );
    (init.xrcd, init.cq) = (xrcd, cq);
    let pd = pd.or_else(|| object(&id.c.pd)).ok_or(INVALID)?;
    if !id.c.srq.load(Ordering::Acquire).is_null() {
        return Err(INVALID);
    }
    init.pd = Some(pd);
    init.comp_mask |= v::SRQ_INIT_ATTR_PD;
    if init.comp_mask & v::SRQ_INIT_ATTR_TYPE != 0 && init.srq_type == v::SRQT_XRC {
        init.xrcd = Some(domain(id, init.xrcd)?);
        if init.cq.is_none() {
            own_queue(id, id.c.verbs.load(Ordering::Acquire).cast_const(), RECV, init.attr.max_wr)?;
            init.cq = object(&id.c.recv_cq);
        }
        init.comp_mask |= v::SRQ_INIT_ATTR_XRCD | v::SRQ_INIT_ATTR_CQ;
    }
    let made = srq::make_ex(init).inspect_err(|_| end_queues(id))?;
    show(&id.c.srq, made.cast_const());
    show(&id.c.pd, pd);
    Ok(())
}

/// rdma_destroy_srq(3).
#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_destroy_srq(id: Option<&Id>) {
    quietly(|| {
        if let Some(id) = id.filter(|id| !id.c.srq.load(Ordering::Acquire).is_null()) {
            srq::ibv_destroy_srq(take::<_, Srq>(&id.c.srq));
            end_queues(id);
        }
    });
}

/// rdma_init_qp_attr(3): the attributes that a queue pair of the program needs for the state that is given.
#[unsafe(no_mangle)]
extern "C" fn rdma_init_qp_attr(
    id: Option<&Id>,
    attr: Option<&mut QpAttr>,
    mask: Option<&mut c_int>,
) -> c_int {
    value(|| {
        let (id, attr, mask) = (given(id)?, given(attr)?, given(mask)?);
        let change = id.cm.qp_change(state_of(attr.qp_state)?)?;
        (*attr, *mask) = qp_attr_of(&change);
        Ok(0)
    })
}
