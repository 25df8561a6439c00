//! Extended completion queues: ibv_start_poll, and the functions that read the current completion.
//!
//! One completion is taken at a time, so that nothing is held back from ibv_poll_cq on the same queue.

use crate::{
    border::{Out, UNSUPPORTED, given, quietly},
    c::{object::PollFunctions, value as v, work::WcTmInfo},
    convert::wc_extra,
    object::Cq,
    turns::Turns,
    verbs::clock,
};
use core::{ffi::c_int, sync::atomic::Ordering};
use nix::time::{ClockId, clock_gettime};
use rxe_verbs::{Completion, Qpn, TagInfo};
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

/// The current completion of a queue.
#[derive(Debug, Default)]
pub(crate) struct Current {
    wc: Completion,
    /// Its flags, and its immediate data in network order or the invalidated key.
    extra: (u32, u32),
    /// The tag, if it is a completion of a tag matching queue.
    tag: TagInfo,
}

impl Current {
    /// A completion that was polled from `cq`.
    fn new(cq: &Cq, wc: Completion) -> Self {
        let tag = cq.cq.tag_info(&wc).unwrap_or_default();
        let mut extra = wc_extra(&cq.cq, &wc);
        // Cards do not set IBV_WC_GRH where a queue reports tags, and programs compare all flags (as rdma-core's tests do). Datagrams
        // keep the flag, because their buffers begin with that header.
        if cq.tells_tags && wc.src_qp == Qpn::default() {
            extra.0 &= !v::WC_GRH;
        }
        Self { wc, extra, tag }
    }
}

/// The current completion.
fn current(cq: &Cq) -> MutexGuard<'_, Current> {
    cq.current.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins or ends a turn. Not in a forked child, where the thread whose turn it was does not exist.
fn turn(cq: &Cq, change: fn(&Turns)) {
    if let Some(turns) = &cq.turns
        && cq.context.context.check_owner().is_ok()
    {
        change(turns);
    }
}

/// ibv_start_poll: ENOENT if there is no completion. Waits while another thread is between start and end.
extern "C" fn start_poll(cq: &Cq, comp_mask: Option<&u32>) -> c_int {
    if given(comp_mask).is_ok_and(|mask| *mask != 0) {
        return UNSUPPORTED.0;
    }
    turn(cq, Turns::begin);
    let result = next_poll(cq);
    if result != 0 {
        end_poll(cq);
    }
    result
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
                *current(cq) = Current::new(cq, one[0]);
                0
            }
            Err(error) => error.errno(),
        };
    });
    result
}

/// ibv_end_poll.
extern "C" fn end_poll(cq: &Cq) {
    turn(cq, Turns::end);
}

extern "C" fn read_opcode(cq: &Cq) -> c_int {
    current(cq).wc.opcode as c_int
}

extern "C" fn read_vendor_err(cq: &Cq) -> u32 {
    current(cq).wc.vendor_error
}

extern "C" fn read_byte_len(cq: &Cq) -> u32 {
    current(cq).wc.byte_len
}

/// The immediate data in network order, or the invalidated key.
extern "C" fn read_imm_data(cq: &Cq) -> u32 {
    current(cq).extra.1
}

extern "C" fn read_qp_num(cq: &Cq) -> u32 {
    current(cq).wc.qpn.value()
}

extern "C" fn read_src_qp(cq: &Cq) -> u32 {
    current(cq).wc.src_qp.value()
}

extern "C" fn read_wc_flags(cq: &Cq) -> u32 {
    current(cq).extra.0
}

extern "C" fn read_sl(cq: &Cq) -> u8 {
    current(cq).wc.sl
}

/// The present time, since completions have no time stamp. The completion happened a little earlier.
extern "C" fn read_completion_ts(_cq: &Cq) -> u64 {
    clock()
}

extern "C" fn read_completion_wallclock_ns(_cq: &Cq) -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME)
        .map_or(0, |now| now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned())
}

/// For fields that do not exist on Ethernet, or that the queue was not created with.
extern "C" fn nothing_8(_cq: &Cq) -> u8 {
    0
}

extern "C" fn nothing_16(_cq: &Cq) -> u16 {
    0
}

extern "C" fn nothing_32(_cq: &Cq) -> u32 {
    0
}

/// The tag. All zeroes if the completion has none.
extern "C" fn read_tm_info(cq: &Cq, info: Out<'_, WcTmInfo>) {
    let TagInfo { tag, app_ctx, .. } = current(cq).tag;
    quietly(|| {
        if let Some(info) = info {
            info.write(WcTmInfo { tag, app_ctx });
        }
    });
}
