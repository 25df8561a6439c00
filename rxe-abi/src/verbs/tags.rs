//! Tag matching queues: what they can do, and operations on their matching lists.

use super::qp::tell_culprit;
use crate::{
    border::{INVALID, Result, code, given},
    c::{device::TmCaps, value as v, work::OpsWr},
    object::Srq,
    wr::{elements as count, sges},
};
use core::{ffi::c_int, sync::atomic::Ordering};
use rxe_verbs::{MAX_RENDEZVOUS_HEADER, MAX_TAGS, Sge, TagAction, TagOp, limits};
use smallvec::SmallVec;

/// Most operations at once. Each is done when the call returns, so any number would be right.
pub(super) const MAX_OPS: u32 = 1 << 16;

/// The capabilities for ibv_query_device_ex(3).
pub(super) const CAPS: TmCaps = TmCaps {
    max_rndv_hdr_size: MAX_RENDEZVOUS_HEADER,
    max_num_tags: MAX_TAGS,
    flags: v::TM_CAP_RC,
    max_ops: MAX_OPS,
    max_sge: limits::MAX_SGE,
};

/// ibv_post_srq_ops(3).
pub(super) extern "C" fn post_srq_ops<'a>(
    srq: Option<&Srq>,
    wr: Option<&'a OpsWr<'a>>,
    bad: Option<&mut *const OpsWr<'a>>,
) -> c_int {
    let mut culprit = wr;
    let errno = code(|| {
        let srq = given(srq)?;
        while let Some(wr) = culprit {
            post(srq, wr)?;
            culprit = wr.next;
        }
        Ok(())
    });
    tell_culprit(errno, bad, culprit)
}

fn post(srq: &Srq, wr: &OpsWr<'_>) -> Result<()> {
    if wr.flags & !(v::OPS_SIGNALED | v::OPS_TM_SYNC) != 0 {
        return Err(INVALID);
    }
    let elements: SmallVec<[Sge; 8]>;
    let action = match wr.opcode {
        v::WR_TAG_ADD => {
            elements = sges(&wr.sg_list, count(wr.num_sge)?);
            TagAction::Add { recv_wr_id: wr.recv_wr_id, sges: &elements, tag: wr.tag, mask: wr.mask }
        }
        v::WR_TAG_DEL => TagAction::Remove(wr.handle.load(Ordering::Relaxed)),
        v::WR_TAG_SYNC => TagAction::Sync,
        _ => return Err(INVALID),
    };
    let tells = wr.opcode == v::WR_TAG_SYNC || wr.flags & v::OPS_TM_SYNC != 0;
    let handle = srq.srq.post_tag_op(&TagOp {
        wr_id: wr.wr_id,
        action,
        signaled: wr.flags & v::OPS_SIGNALED != 0,
        handled: tells.then_some(wr.unexpected_cnt),
    })?;
    if let Some(handle) = handle {
        wr.handle.store(handle, Ordering::Relaxed);
    }
    Ok(())
}
