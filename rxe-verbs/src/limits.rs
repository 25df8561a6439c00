//! Limits of the device (ibv_device_attr). They are large, because an object costs memory only when it is made.

use crate::error::CreateError;

/// Queue pairs of a process. If it has several threads (`RXE_THREADS`), queue pairs of each thread's slot.
pub const MAX_QP: u32 = rxe_core::endpoint::MAX_QPS;
/// Requests in a queue.
pub const MAX_QP_WR: u32 = 1 << 20;
/// Elements of a request.
pub const MAX_SGE: u32 = 32;
/// Inline bytes of a send request.
pub const MAX_INLINE: u32 = 4096;
/// Completion queues.
pub const MAX_CQ: u32 = 1 << 20;
/// Entries of a completion queue.
pub const MAX_CQE: u32 = 1 << 22;
/// Regions and windows together.
pub const MAX_MR: u32 = (1 << 24) - 1;
/// Bytes of a region.
pub const MAX_MR_SIZE: u64 = u64::MAX;
/// Protection domains.
pub const MAX_PD: u32 = 1 << 20;
/// Shared receive queues.
pub const MAX_SRQ: u32 = rxe_core::endpoint::MAX_SRQS;
/// Address handles. Only memory limits them.
pub const MAX_AH: u32 = i32::MAX as u32;
/// Multicast groups.
pub const MAX_MCAST_GRP: u32 = 8192;
/// Bytes of a message.
pub const MAX_MESSAGE: u32 = 1 << 31;
/// Outstanding READs and atomics of a queue pair, in each direction.
pub const MAX_RD_ATOMIC: u8 = rxe_core::qp::MAX_RD_ATOMIC;

/// Checks that `value` is within bounds. `what` names it in the error.
pub(crate) const fn check(what: &'static str, value: u64, least: u64, most: u64) -> Result<(), CreateError> {
    if value < least || value > most {
        return Err(CreateError::Limit { what, value, least, most });
    }
    Ok(())
}
