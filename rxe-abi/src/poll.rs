//! Extended completion queues: ibv_start_poll and the functions that read the completion it stands at.
//!
//! One completion is taken at a time, so that nothing is held back from ibv_poll_cq on the same queue.

use crate::{
    border::{UNSUPPORTED, given, quietly},
    c::object::PollFunctions,
    convert::wc_extra,
    object::Cq,
    verbs::clock,
};
use core::{
    ffi::{c_int, c_void},
    sync::atomic::Ordering,
};
use nix::time::{ClockId, clock_gettime};
use rxe_verbs::Completion;
use std::sync::{MutexGuard, PoisonError};

pub(crate) const FUNCTIONS: PollFunctions = PollFunctions {
    start_poll,
    next_poll,
    end_poll,
    read_opcode,
    read_vendor_err,
    read_byte_len,
    read_imm_data,
    read_qp_num,
    read_src_qp,
    read_wc_flags,
    read_slid: nothing_32,
    read_sl,
    read_dlid_path_bits: nothing_8,
    read_completion_ts,
    read_cvlan: nothing_16,
    read_flow_tag: nothing_32,
    read_tm_info,
    read_completion_wallclock_ns,
};

/// The completion it stands at.
fn current(cq: &Cq) -> MutexGuard<'_, Completion> {
    cq.current.lock().unwrap_or_else(PoisonError::into_inner)
}

/// ibv_start_poll: ENOENT if there is none.
extern "C" fn start_poll(cq: &Cq, comp_mask: Option<&u32>) -> c_int {
    if given(comp_mask).is_ok_and(|mask| *mask != 0) {
        return UNSUPPORTED.0;
    }
    next_poll(cq)
}

/// ibv_next_poll: ENOENT if there is none. That is the usual end, so `errno` stays.
extern "C" fn next_poll(cq: &Cq) -> c_int {
    let mut result = libc::EIO;
    quietly(|| {
        let mut one = [Completion::default()];
        result = match cq.cq.poll(&mut one) {
            Ok(0) => libc::ENOENT,
            Ok(_) => {
                cq.c.status.store(one[0].status as c_int, Ordering::Relaxed);
                cq.c.wr_id.store(one[0].wr_id, Ordering::Relaxed);
                *current(cq) = one[0];
                0
            }
            Err(error) => error.errno(),
        };
    });
    result
}

/// ibv_end_poll.
extern "C" fn end_poll(_cq: &Cq) {}

extern "C" fn read_opcode(cq: &Cq) -> c_int {
    current(cq).opcode as c_int
}

extern "C" fn read_vendor_err(cq: &Cq) -> u32 {
    current(cq).vendor_error
}

extern "C" fn read_byte_len(cq: &Cq) -> u32 {
    current(cq).byte_len
}

/// In network order; also the invalidated key.
extern "C" fn read_imm_data(cq: &Cq) -> u32 {
    wc_extra(&current(cq)).1
}

extern "C" fn read_qp_num(cq: &Cq) -> u32 {
    current(cq).qpn.value()
}

extern "C" fn read_src_qp(cq: &Cq) -> u32 {
    current(cq).src_qp.value()
}

extern "C" fn read_wc_flags(cq: &Cq) -> u32 {
    wc_extra(&current(cq)).0
}

extern "C" fn read_sl(cq: &Cq) -> u8 {
    current(cq).sl
}

/// The time now: the completion was there when it was polled for, perhaps a little earlier.
extern "C" fn read_completion_ts(_cq: &Cq) -> u64 {
    clock()
}

extern "C" fn read_completion_wallclock_ns(_cq: &Cq) -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME)
        .map_or(0, |now| now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned())
}

/// Fields that Ethernet does not have, or a queue without the flag for them.
extern "C" fn nothing_8(_cq: &Cq) -> u8 {
    0
}

extern "C" fn nothing_16(_cq: &Cq) -> u16 {
    0
}

extern "C" fn nothing_32(_cq: &Cq) -> u32 {
    0
}

/// There are no tags: creating a queue that reads them is refused.
extern "C" fn read_tm_info(_cq: &Cq, _info: *mut c_void) {}
