//! Contexts and their tables of functions: what the header's inline functions call.

use super::{
    Absent, Pointer,
    attr::{
        AllocDmAttr, CqInitAttrEx, FlowAttr, ModifyCqAttr, ParentDomainInitAttr, QpInitAttrEx, QpOpenAttr,
        RwqTableInitAttr, SrqInitAttrEx, ValuesEx, WqAttr, WqInitAttr, XrcdInitAttr,
    },
    device::Device,
    work::{MwBind, OpsWr, RecvWr, SendWr, Sge, Wc},
};
use crate::{
    border::{List, OutList, Owned},
    object::{Cq, Dm, Flow, Mr, Mw, Pd, Qp, RwqTable, Srq, Td, Wq, Xrcd},
};
use core::ffi::{c_int, c_uint, c_void};
use libc::pthread_mutex_t;

/// What C programs hand in as `struct ibv_context *`; [`crate::object::Context::of`] finds the whole behind it.
pub(crate) type ContextPtr = *const Context;

/// struct ibv_context_ops. The places between are those of functions that old programs called here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ContextOps {
    pub(crate) _compat_query_device: [Absent; 7],
    pub(crate) alloc_mw: Option<unsafe extern "C" fn(Option<&Pd>, c_int) -> *mut Mw>,
    pub(crate) bind_mw: Option<BindMwFn>,
    pub(crate) dealloc_mw: Option<unsafe extern "C" fn(Owned<Mw>) -> c_int>,
    pub(crate) _compat_create_cq: Absent,
    pub(crate) poll_cq: Option<unsafe extern "C" fn(Option<&Cq>, c_int, OutList<Wc>) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(Option<&Cq>, c_int) -> c_int>,
    pub(crate) _compat_cq_event: [Absent; 7],
    pub(crate) post_srq_recv: Option<PostSrqRecvFn>,
    pub(crate) _compat_create_qp: [Absent; 4],
    pub(crate) post_send: Option<PostSendFn>,
    pub(crate) post_recv: Option<PostRecvFn>,
    pub(crate) _compat_create_ah: [Absent; 5],
}

type BindMwFn = unsafe extern "C" fn(Option<&Qp>, Option<&Mw>, Option<&MwBind<'_>>) -> c_int;
type PostSendFn = for<'a> unsafe extern "C" fn(
    Option<&Qp>,
    Option<&'a SendWr<'a>>,
    Option<&mut *const SendWr<'a>>,
) -> c_int;
type PostRecvFn = for<'a> unsafe extern "C" fn(
    Option<&Qp>,
    Option<&'a RecvWr<'a>>,
    Option<&mut *const RecvWr<'a>>,
) -> c_int;
type PostSrqRecvFn = for<'a> unsafe extern "C" fn(
    Option<&Srq>,
    Option<&'a RecvWr<'a>>,
    Option<&mut *const RecvWr<'a>>,
) -> c_int;

type PostSrqOpsFn =
    for<'a> unsafe extern "C" fn(Option<&Srq>, Option<&'a OpsWr<'a>>, Option<&mut *const OpsWr<'a>>) -> c_int;

/// struct ibv_context.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: Pointer<Device>,
    pub(crate) ops: ContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: pthread_mutex_t,
    /// All ones: a `verbs_context` is around it.
    pub(crate) abi_compat: usize,
}

/// struct verbs_context. It grows at its beginning; `sz` says how far this one goes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct VerbsContext {
    pub(crate) query_port: Option<QueryPortFn>,
    pub(crate) advise_mr: Option<AdviseMrFn>,
    pub(crate) alloc_null_mr: Option<unsafe extern "C" fn(Option<&Pd>) -> *mut Mr>,
    pub(crate) read_counters: [Absent; 4],
    pub(crate) reg_dm_mr: Option<RegDmMrFn>,
    pub(crate) alloc_dm: Option<unsafe extern "C" fn(ContextPtr, Option<&AllocDmAttr>) -> *mut Dm>,
    pub(crate) free_dm: Option<unsafe extern "C" fn(Owned<Dm>) -> c_int>,
    pub(crate) modify_flow_action_esp: [Absent; 4],
    pub(crate) alloc_parent_domain:
        Option<unsafe extern "C" fn(ContextPtr, Option<&ParentDomainInitAttr<'_>>) -> *mut Pd>,
    pub(crate) dealloc_td: Option<unsafe extern "C" fn(Owned<Td>) -> c_int>,
    pub(crate) alloc_td: Option<unsafe extern "C" fn(ContextPtr, Option<&u32>) -> *mut Td>,
    pub(crate) modify_cq: Option<unsafe extern "C" fn(Option<&Cq>, Option<&ModifyCqAttr>) -> c_int>,
    pub(crate) post_srq_ops: Option<PostSrqOpsFn>,
    pub(crate) destroy_rwq_ind_table: Option<unsafe extern "C" fn(Owned<RwqTable>) -> c_int>,
    pub(crate) create_rwq_ind_table:
        Option<unsafe extern "C" fn(ContextPtr, Option<&RwqTableInitAttr<'_>>) -> *mut RwqTable>,
    pub(crate) destroy_wq: Option<unsafe extern "C" fn(Owned<Wq>) -> c_int>,
    pub(crate) modify_wq: Option<unsafe extern "C" fn(Option<&Wq>, Option<&WqAttr>) -> c_int>,
    pub(crate) create_wq: Option<unsafe extern "C" fn(ContextPtr, Option<&WqInitAttr<'_>>) -> *mut Wq>,
    pub(crate) query_rt_values: Option<unsafe extern "C" fn(ContextPtr, Option<&mut ValuesEx>) -> c_int>,
    pub(crate) create_cq_ex: Option<unsafe extern "C" fn(ContextPtr, Option<&CqInitAttrEx<'_>>) -> *mut Cq>,
    pub(crate) private: Pointer<c_void>,
    pub(crate) query_device_ex: Option<QueryDeviceExFn>,
    pub(crate) destroy_flow: Option<unsafe extern "C" fn(Owned<Flow>) -> c_int>,
    pub(crate) _placeholder_2: Absent,
    pub(crate) create_flow: Option<unsafe extern "C" fn(Option<&Qp>, Option<&FlowAttr>) -> *mut Flow>,
    pub(crate) _placeholder_1: Absent,
    pub(crate) open_qp: Option<extern "C" fn(ContextPtr, Option<&QpOpenAttr<'_>>) -> *mut Qp>,
    pub(crate) create_qp_ex:
        Option<unsafe extern "C" fn(ContextPtr, Option<&mut QpInitAttrEx<'_>>) -> *mut Qp>,
    pub(crate) get_srq_num: Option<unsafe extern "C" fn(Option<&Srq>, Option<&mut u32>) -> c_int>,
    pub(crate) create_srq_ex:
        Option<unsafe extern "C" fn(ContextPtr, Option<&mut SrqInitAttrEx<'_>>) -> *mut Srq>,
    pub(crate) open_xrcd: Option<unsafe extern "C" fn(ContextPtr, Option<&XrcdInitAttr>) -> *mut Xrcd>,
    pub(crate) close_xrcd: Option<unsafe extern "C" fn(Owned<Xrcd>) -> c_int>,
    pub(crate) _placeholder: u64,
    pub(crate) sz: usize,
    pub(crate) context: Context,
}

type RegDmMrFn = unsafe extern "C" fn(Option<&Pd>, Option<&Dm>, u64, usize, u32) -> *mut Mr;
type QueryPortFn = unsafe extern "C" fn(ContextPtr, u8, *mut c_void, usize) -> c_int;
type AdviseMrFn = unsafe extern "C" fn(Option<&Pd>, c_int, u32, List<Sge>, u32) -> c_int;
type QueryDeviceExFn = unsafe extern "C" fn(ContextPtr, *const c_uint, *mut c_void, usize) -> c_int;
