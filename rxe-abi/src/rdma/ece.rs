//! Enhanced connection establishment: options of a vendor, which the connection manager carries. Our queue pairs have no such options, as
//! those of kernel rxe. Programs that bring their own queue pairs may send and receive some.

use super::{Id, qp};
use crate::{
    border::{INVALID, Out, Result, given, value},
    c::rdma::Ece,
};
use core::ffi::c_int;

/// Options of both ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Both {
    pub(super) local: rxe_cm::Ece,
    pub(super) remote: rxe_cm::Ece,
}

/// Checks that the id has no queue pair. If it has one, librdmacm asks that for its options.
fn without_pair(id: Option<&Id>) -> Result<&Id> {
    given(id.filter(|id| qp::of(id).is_none()))
}

/// rdma_set_local_ece(3).
#[unsafe(no_mangle)]
extern "C" fn rdma_set_local_ece(id: Option<&Id>, ece: Option<&Ece>) -> c_int {
    value(|| {
        let (id, ece) = (without_pair(id)?, given(ece)?);
        if ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(INVALID);
        }
        id.more().ece.local = rxe_cm::Ece { vendor_id: ece.vendor_id, options: ece.options };
        Ok(0)
    })
}

/// rdma_get_remote_ece(3): the options in the peer's request or reply.
#[unsafe(no_mangle)]
extern "C" fn rdma_get_remote_ece(id: Option<&Id>, ece: Out<'_, Ece>) -> c_int {
    value(|| {
        let remote = without_pair(id)?.more().ece.remote;
        given(ece)?.write(Ece { vendor_id: remote.vendor_id, options: remote.options, comp_mask: 0 });
        Ok(0)
    })
}
