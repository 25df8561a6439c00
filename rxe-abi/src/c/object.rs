//! The objects that C programs hold.

use super::{
    Pointer,
    context::Context,
    work::{DataBuf, MwBindInfo, RecvWr, Sge, WcTmInfo},
};
use crate::{
    border::{Bytes, List, Out},
    object,
};
use core::{
    ffi::{c_int, c_void},
    sync::atomic::{AtomicI32, AtomicU32, AtomicU64},
};
use libc::{pthread_cond_t, pthread_mutex_t};

/// The lock that objects carry for libibverbs' own use; ours have others.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Lock {
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
}

impl Lock {
    pub(crate) const NEW: Self =
        Self { mutex: libc::PTHREAD_MUTEX_INITIALIZER, cond: libc::PTHREAD_COND_INITIALIZER };
}

/// struct ibv_pd.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: Pointer<Context>,
    pub(crate) handle: u32,
}

/// struct ibv_mr.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) context: Pointer<Context>,
    pub(crate) pd: Pointer<Pd>,
    pub(crate) addr: Pointer<c_void>,
    pub(crate) length: AtomicU64,
    pub(crate) handle: u32,
    pub(crate) lkey: AtomicU32,
    pub(crate) rkey: AtomicU32,
}

/// struct ibv_mw.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Mw {
    pub(crate) context: Pointer<Context>,
    pub(crate) pd: Pointer<Pd>,
    pub(crate) rkey: AtomicU32,
    pub(crate) handle: u32,
    pub(crate) kind: c_int,
}

/// struct ibv_ah.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) context: Pointer<Context>,
    pub(crate) pd: Pointer<Pd>,
    pub(crate) handle: u32,
}

/// struct ibv_comp_channel.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) context: Pointer<Context>,
    pub(crate) fd: c_int,
    pub(crate) refcnt: AtomicI32,
}

/// struct ibv_xrcd.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Xrcd {
    pub(crate) context: Pointer<Context>,
}

/// struct ibv_srq.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: Pointer<Context>,
    pub(crate) srq_context: Pointer<c_void>,
    pub(crate) pd: Pointer<Pd>,
    pub(crate) handle: u32,
    pub(crate) lock: Lock,
    pub(crate) events_completed: AtomicU32,
}

/// struct ibv_qp.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: Pointer<Context>,
    pub(crate) qp_context: Pointer<c_void>,
    pub(crate) pd: Pointer<Pd>,
    pub(crate) send_cq: Pointer<Cq>,
    pub(crate) recv_cq: Pointer<Cq>,
    pub(crate) srq: Pointer<Srq>,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: AtomicI32,
    pub(crate) qp_type: c_int,
    pub(crate) lock: Lock,
    pub(crate) events_completed: AtomicU32,
}

/// struct ibv_qp_ex: the functions behind ibv_wr_*.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QpEx {
    pub(crate) qp_base: Qp,
    pub(crate) comp_mask: u64,
    /// The program stores these two before each request.
    pub(crate) wr_id: AtomicU64,
    pub(crate) wr_flags: AtomicU32,
    pub(crate) functions: WrFunctions,
}

/// struct ibv_cq.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: Pointer<Context>,
    pub(crate) channel: Pointer<CompChannel>,
    pub(crate) cq_context: Pointer<c_void>,
    pub(crate) handle: u32,
    pub(crate) cqe: AtomicI32,
    pub(crate) lock: Lock,
    pub(crate) comp_events_completed: AtomicU32,
    pub(crate) async_events_completed: AtomicU32,
}

/// struct ibv_cq_ex.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CqEx {
    pub(crate) base: Cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: AtomicI32,
    pub(crate) wr_id: AtomicU64,
    pub(crate) functions: PollFunctions,
}

/// struct ibv_td.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Td {
    pub(crate) context: Pointer<Context>,
}

/// struct ibv_dmah.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Dmah {
    pub(crate) context: Pointer<Context>,
}

/// struct ibv_dm.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Dm {
    pub(crate) context: Pointer<Context>,
    pub(crate) memcpy_to_dm: unsafe extern "C" fn(Option<&object::Dm>, u64, Bytes, usize) -> c_int,
    pub(crate) memcpy_from_dm: unsafe extern "C" fn(*mut c_void, Option<&object::Dm>, u64, usize) -> c_int,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

/// The functions of struct ibv_qp_ex. Immediate data is in network order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct WrFunctions {
    pub(crate) wr_atomic_cmp_swp: unsafe extern "C" fn(&object::Qp, u32, u64, u64, u64),
    pub(crate) wr_atomic_fetch_add: unsafe extern "C" fn(&object::Qp, u32, u64, u64),
    pub(crate) wr_bind_mw:
        unsafe extern "C" fn(&object::Qp, Option<&object::Mw>, u32, Option<&MwBindInfo<'_>>),
    pub(crate) wr_local_inv: unsafe extern "C" fn(&object::Qp, u32),
    pub(crate) wr_rdma_read: unsafe extern "C" fn(&object::Qp, u32, u64),
    pub(crate) wr_rdma_write: unsafe extern "C" fn(&object::Qp, u32, u64),
    pub(crate) wr_rdma_write_imm: unsafe extern "C" fn(&object::Qp, u32, u64, u32),
    pub(crate) wr_send: unsafe extern "C" fn(&object::Qp),
    pub(crate) wr_send_imm: unsafe extern "C" fn(&object::Qp, u32),
    pub(crate) wr_send_inv: unsafe extern "C" fn(&object::Qp, u32),
    pub(crate) wr_send_tso: unsafe extern "C" fn(&object::Qp, Bytes, u16, u16),
    pub(crate) wr_set_ud_addr: unsafe extern "C" fn(&object::Qp, Option<&object::Ah>, u32, u32),
    pub(crate) wr_set_xrc_srqn: unsafe extern "C" fn(&object::Qp, u32),
    pub(crate) wr_set_inline_data: unsafe extern "C" fn(&object::Qp, Bytes, usize),
    pub(crate) wr_set_inline_data_list: unsafe extern "C" fn(&object::Qp, usize, List<DataBuf>),
    pub(crate) wr_set_sge: unsafe extern "C" fn(&object::Qp, u32, u64, u32),
    pub(crate) wr_set_sge_list: unsafe extern "C" fn(&object::Qp, usize, List<Sge>),
    pub(crate) wr_start: unsafe extern "C" fn(&object::Qp),
    pub(crate) wr_complete: unsafe extern "C" fn(&object::Qp) -> c_int,
    pub(crate) wr_abort: unsafe extern "C" fn(&object::Qp),
    pub(crate) wr_atomic_write: unsafe extern "C" fn(&object::Qp, u32, u64, Bytes),
    /// Since rdma-core 45; older headers end before it.
    pub(crate) wr_flush: unsafe extern "C" fn(&object::Qp, u32, u64, usize, u8, u8),
}

/// The functions of struct ibv_cq_ex.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PollFunctions {
    pub(crate) start_poll: unsafe extern "C" fn(&object::Cq, Option<&u32>) -> c_int,
    pub(crate) next_poll: unsafe extern "C" fn(&object::Cq) -> c_int,
    pub(crate) end_poll: unsafe extern "C" fn(&object::Cq),
    pub(crate) read_opcode: unsafe extern "C" fn(&object::Cq) -> c_int,
    pub(crate) read_vendor_err: unsafe extern "C" fn(&object::Cq) -> u32,
    pub(crate) read_byte_len: unsafe extern "C" fn(&object::Cq) -> u32,
    pub(crate) read_imm_data: unsafe extern "C" fn(&object::Cq) -> u32,
    pub(crate) read_qp_num: unsafe extern "C" fn(&object::Cq) -> u32,
    pub(crate) read_src_qp: unsafe extern "C" fn(&object::Cq) -> u32,
    pub(crate) read_wc_flags: unsafe extern "C" fn(&object::Cq) -> u32,
    pub(crate) read_slid: unsafe extern "C" fn(&object::Cq) -> u32,
    pub(crate) read_sl: unsafe extern "C" fn(&object::Cq) -> u8,
    pub(crate) read_dlid_path_bits: unsafe extern "C" fn(&object::Cq) -> u8,
    pub(crate) read_completion_ts: unsafe extern "C" fn(&object::Cq) -> u64,
    pub(crate) read_cvlan: unsafe extern "C" fn(&object::Cq) -> u16,
    pub(crate) read_flow_tag: unsafe extern "C" fn(&object::Cq) -> u32,
    pub(crate) read_tm_info: unsafe extern "C" fn(&object::Cq, Out<'_, WcTmInfo>),
    pub(crate) read_completion_wallclock_ns: unsafe extern "C" fn(&object::Cq) -> u64,
}

/// struct ibv_flow.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Flow {
    pub(crate) comp_mask: u32,
    pub(crate) context: Pointer<Context>,
    pub(crate) handle: u32,
}

/// struct ibv_wq. The header makes mutex and condition itself.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Wq {
    pub(crate) context: Pointer<Context>,
    pub(crate) wq_context: Pointer<c_void>,
    pub(crate) pd: Pointer<Pd>,
    pub(crate) cq: Pointer<Cq>,
    pub(crate) wq_num: u32,
    pub(crate) handle: u32,
    pub(crate) state: AtomicI32,
    pub(crate) wq_type: c_int,
    pub(crate) post_recv: Option<PostWqRecvFn>,
    pub(crate) lock: Lock,
    pub(crate) events_completed: u32,
    pub(crate) comp_mask: u32,
}

pub(crate) type PostWqRecvFn = for<'a> extern "C" fn(
    Option<&object::Wq>,
    Option<&'a RecvWr<'a>>,
    Option<&mut *const RecvWr<'a>>,
) -> c_int;

/// struct ibv_rwq_ind_table.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RwqTable {
    pub(crate) context: Pointer<Context>,
    pub(crate) ind_tbl_handle: c_int,
    pub(crate) ind_tbl_num: c_int,
    pub(crate) comp_mask: u32,
}
