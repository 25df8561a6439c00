//! Shared receive queues.

use super::{memory::c_pd, pd::BUSY, qp::tell_culprit, tags};
use crate::{
    border::{INVALID, Out, Owned, Result, UNSUPPORTED, code, given, pointer},
    c::{
        self, Pointer,
        attr::{SrqAttr, SrqInitAttr, SrqInitAttrEx},
        context::ContextPtr,
        object::Lock,
        value as v,
        work::RecvWr,
    },
    object::{Context, Cq, Events, Pd, Srq, Users, Xrcd},
    wr::recv_sges,
};
use core::{
    ffi::{c_int, c_void},
    sync::atomic::AtomicU32,
};
use std::sync::Arc;

/// ibv_create_srq(3).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_create_srq(pd: Option<&Pd>, init: Option<&SrqInitAttr>) -> *mut Srq {
    pointer(|| {
        let init = given(init)?;
        make(given(pd)?, &Kind::Basic, init.srq_context, &init.attr)
    })
}

/// ibv_create_srq_ex(3), where the header does not turn it into the plain call.
pub(super) extern "C" fn create_srq_ex(
    context: ContextPtr,
    init: Option<&mut SrqInitAttrEx<'_>>,
) -> *mut Srq {
    pointer(|| {
        Context::of(context)?;
        make_ex(given(init)?)
    })
}

/// Makes a shared receive queue of the kind that the attributes ask for.
pub(crate) fn make_ex(init: &SrqInitAttrEx<'_>) -> Result<*mut Srq> {
    let has = |bits| init.comp_mask & bits == bits;
    let kind = if has(v::SRQ_INIT_ATTR_TYPE) { init.srq_type } else { v::SRQT_BASIC };
    let own = match kind {
        v::SRQT_BASIC => 0,
        v::SRQT_XRC => v::SRQ_INIT_ATTR_XRCD | v::SRQ_INIT_ATTR_CQ,
        v::SRQT_TM => v::SRQ_INIT_ATTR_CQ | v::SRQ_INIT_ATTR_TM,
        _ => return Err(UNSUPPORTED),
    };
    if init.comp_mask & !(v::SRQ_INIT_ATTR_TYPE | v::SRQ_INIT_ATTR_PD | own) != 0 {
        return Err(UNSUPPORTED);
    }
    if !has(v::SRQ_INIT_ATTR_PD | own) {
        return Err(INVALID);
    }
    let kind = match kind {
        v::SRQT_XRC => Kind::Xrc(given(init.xrcd)?, given(init.cq)?),
        v::SRQT_TM => Kind::Tags(given(init.cq)?, init.tm_cap),
        _ => Kind::Basic,
    };
    make(given(init.pd)?, &kind, init.srq_context, &init.attr)
}

/// The kind of queue, and the attributes of this kind.
enum Kind<'a> {
    Basic,
    Xrc(&'a Xrcd, &'a Cq),
    /// Most tags and most operations. Operations are done at once, so none is ever outstanding.
    Tags(&'a Cq, [u32; 2]),
}

fn make(pd: &Pd, kind: &Kind<'_>, srq_context: *mut c_void, attr: &SrqAttr) -> Result<*mut Srq> {
    pd.known()?;
    let &SrqAttr { max_wr, max_sge, .. } = attr;
    let srq = match *kind {
        Kind::Basic => pd.pd.create_srq(max_wr, max_sge)?,
        Kind::Xrc(xrcd, cq) => xrcd.xrcd.create_srq(&pd.pd, &cq.cq, max_wr, max_sge)?,
        Kind::Tags(_, [_, max_ops]) if max_ops > tags::MAX_OPS => return Err(INVALID),
        Kind::Tags(cq, [max_tags, _]) => pd.pd.create_tag_srq(&cq.cq, max_wr, max_sge, max_tags)?,
    };
    let id = srq.id();
    let c = c::object::Srq {
        context: pd.context.pointer(),
        srq_context: Pointer::new(srq_context),
        pd: c_pd(pd),
        handle: id.0,
        lock: Lock::NEW,
        events_completed: AtomicU32::new(0),
    };
    let object = Box::into_raw(Box::new(Srq {
        c,
        srq,
        context: Arc::clone(&pd.context),
        _pd: Users::clone(&pd.users),
        _xrcd: if let Kind::Xrc(xrcd, _) = kind { Some(Users::clone(&xrcd.users)) } else { None },
        _cq: match kind {
            Kind::Basic => None,
            Kind::Xrc(_, cq) | Kind::Tags(cq, _) => Some(Users::clone(&cq.users)),
        },
        events: Events::default(),
    }));
    pd.context.srqs.enter(id, object);
    Ok(object)
}

/// ibv_modify_srq(3). Unknown bits of the mask are ignored, as by the kernel.
#[unsafe(no_mangle)]
extern "C" fn ibv_modify_srq(srq: Option<&Srq>, attr: Option<&SrqAttr>, mask: c_int) -> c_int {
    code(|| {
        let (srq, attr) = (given(srq)?, given(attr)?);
        let max_wr = (mask & v::SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & v::SRQ_LIMIT != 0).then_some(attr.srq_limit);
        Ok(srq.srq.modify(max_wr, limit)?)
    })
}

/// ibv_query_srq(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_query_srq(srq: Option<&Srq>, attr: Out<'_, SrqAttr>) -> c_int {
    code(|| {
        let srq = given(srq)?;
        srq.context.context.check_owner()?;
        let (max_wr, srq_limit) = srq.srq.query();
        given(attr)?.write(SrqAttr { max_wr, max_sge: srq.srq.max_sge(), srq_limit });
        Ok(())
    })
}

/// ibv_get_srq_num(3). Only queues that peers can name have a number. For others the error is EOPNOTSUPP, as with libibverbs.
pub(super) extern "C" fn get_srq_num(srq: Option<&Srq>, number: Option<&mut u32>) -> c_int {
    code(|| {
        *given(number)? = given(srq)?.srq.number().ok_or(UNSUPPORTED)?;
        Ok(())
    })
}

/// ibv_destroy_srq(3): waits until its events are acknowledged.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_destroy_srq(srq: Owned<Srq>) -> c_int {
    code(|| {
        let object = srq.get()?;
        object.known()?;
        if object.srq.is_shared() {
            return Err(BUSY);
        }
        object.context.srqs.remove(&object.srq.id());
        object.events.wait();
        srq.free();
        Ok(())
    })
}

/// ibv_post_srq_recv(3).
pub(super) extern "C" fn post_srq_recv<'a>(
    srq: Option<&Srq>,
    wr: Option<&'a RecvWr<'a>>,
    bad: Option<&mut *const RecvWr<'a>>,
) -> c_int {
    let mut culprit = wr;
    let errno = code(|| {
        let srq = given(srq)?;
        while let Some(wr) = culprit {
            srq.srq.post_recv(&rxe_verbs::RecvWr { wr_id: wr.wr_id, sges: &recv_sges(wr)? })?;
            culprit = wr.next;
        }
        Ok(())
    });
    tell_culprit(errno, bad, culprit)
}
