//! Receive work queues, and tables of them, over which a queue pair for raw packets spreads its frames.

use super::{
    memory::c_pd,
    pd::{BUSY, unused},
    qp::tell_culprit,
};
use crate::{
    border::{INVALID, Owned, Result, UNSUPPORTED, code, given, pointer},
    c::{
        self, Pointer,
        attr::{RwqTableInitAttr, WqAttr, WqInitAttr},
        context::ContextPtr,
        object::Lock,
        work::RecvWr,
    },
    object::{Context, RwqTable, Users, Wq},
    wr::recv_sges,
};
use core::{
    ffi::c_int,
    sync::atomic::{AtomicI32, AtomicU32, Ordering},
};
use rxe_verbs::{Qpn, RawQueue, RawQueueState};
use std::sync::Arc;

/// IBV_WQT_RQ.
const RECEIVE: c_int = 0;
/// Most queues of a table, as a power of two.
pub(super) const MOST_LOG: u32 = 8;

/// ibv_create_wq(3).
pub(super) extern "C" fn create_wq(context: ContextPtr, attr: Option<&WqInitAttr<'_>>) -> *mut Wq {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    pointer(|| {
        let (context, attr) = (Context::of(context)?, given(attr)?);
        if attr.comp_mask != 0 || attr.create_flags != 0 || attr.wq_type != RECEIVE {
            return Err(UNSUPPORTED);
        }
        let (pd, cq) = (given(attr.pd)?, given(attr.cq)?);
        let queue = RawQueue::new(&pd.pd, &cq.cq, attr.max_wr, attr.max_sge)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        let c = c::object::Wq {
            context: context.pointer(),
            wq_context: Pointer::new(attr.wq_context),
            pd: c_pd(pd),
            cq: Pointer::new((&raw const cq.c.base).cast_mut()),
            wq_num: number,
            handle: number,
            state: AtomicI32::new(RawQueueState::Reset as c_int),
            wq_type: RECEIVE,
            post_recv: Some(post_recv),
            lock: Lock::NEW,
            events_completed: 0,
            comp_mask: 0,
        };
        Ok(Box::into_raw(Box::new(Wq {
            c,
            queue: Arc::new(queue),
            cq: cq.cq.clone(),
            cq_users: Users::clone(&cq.users),
            context: context.share(),
            _pd: Users::clone(&pd.users),
            users: Users::default(),
        })))
    })
}

/// ibv_modify_wq(3): changes the state.
pub(super) extern "C" fn modify_wq(wq: Option<&Wq>, attr: Option<&WqAttr>) -> c_int {
    const STATE: u32 = 1;
    const CURRENT: u32 = 2;
    code(|| {
        let (wq, attr) = (given(wq)?, given(attr)?);
        if attr.attr_mask & !(STATE | CURRENT) != 0 {
            return Err(UNSUPPORTED);
        }
        let now = wq.queue.state();
        if attr.attr_mask & CURRENT != 0 && attr.curr_wq_state != now as c_int {
            return Err(INVALID);
        }
        if attr.attr_mask & STATE == 0 {
            return Ok(());
        }
        let wanted = [RawQueueState::Reset, RawQueueState::Ready, RawQueueState::Error];
        let wanted = wanted.into_iter().find(|state| *state as c_int == attr.wq_state).ok_or(INVALID)?;
        // The only way out of the error state is to RESET (as with mlx5).
        if now == RawQueueState::Error && wanted == RawQueueState::Ready {
            return Err(INVALID);
        }
        wq.queue.set_state(wanted, Qpn::new(wq.c.wq_num));
        wq.c.state.store(attr.wq_state, Ordering::Relaxed);
        Ok(())
    })
}

/// ibv_post_wq_recv(3).
extern "C" fn post_recv<'a>(
    wq: Option<&Wq>,
    wr: Option<&'a RecvWr<'a>>,
    bad: Option<&mut *const RecvWr<'a>>,
) -> c_int {
    let mut culprit = wr;
    let errno = code(|| {
        let wq = given(wq)?;
        wq.context.context.check_owner()?;
        while let Some(wr) = culprit {
            let request = rxe_verbs::RecvWr { wr_id: wr.wr_id, sges: &recv_sges(wr)? };
            wq.queue.post_recv(&request, Qpn::new(wq.c.wq_num))?;
            culprit = wr.next;
        }
        Ok(())
    });
    tell_culprit(errno, bad, culprit)
}

/// ibv_destroy_wq(3).
pub(super) extern "C" fn destroy_wq(wq: Owned<Wq>) -> c_int {
    code(|| {
        unused(&wq.get()?.users)?;
        wq.free();
        Ok(())
    })
}

/// ibv_create_rwq_ind_table(3).
pub(super) extern "C" fn create_rwq_ind_table(
    context: ContextPtr,
    attr: Option<&RwqTableInitAttr<'_>>,
) -> *mut RwqTable {
    pointer(|| {
        let (context, attr) = (Context::of(context)?, given(attr)?);
        if attr.comp_mask != 0 || attr.log_ind_tbl_size > MOST_LOG {
            return Err(INVALID);
        }
        let list = attr.ind_tbl.elements(1 << attr.log_ind_tbl_size);
        let list = list.iter().map(|wq| given(*wq)).collect::<Result<Vec<&Wq>>>()?;
        let first = *given(list.first())?;
        let c = c::object::RwqTable {
            context: context.pointer(),
            ind_tbl_handle: 1,
            ind_tbl_num: 1,
            comp_mask: 0,
        };
        Ok(Box::into_raw(Box::new(RwqTable {
            c,
            queues: list.iter().map(|wq| Arc::clone(&wq.queue)).collect(),
            cq: first.cq.clone(),
            _cq_users: Users::clone(&first.cq_users),
            _context: context.share(),
            _queues: list.iter().map(|wq| Users::clone(&wq.users)).collect(),
            users: Users::default(),
        })))
    })
}

/// ibv_destroy_rwq_ind_table(3).
pub(super) extern "C" fn destroy_rwq_ind_table(table: Owned<RwqTable>) -> c_int {
    code(|| {
        if Arc::strong_count(&table.get()?.users) > 1 {
            return Err(BUSY);
        }
        table.free();
        Ok(())
    })
}
