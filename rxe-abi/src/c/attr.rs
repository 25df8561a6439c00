//! Attributes that programs hand in or get back when they make, change or ask about objects.

use super::{Gid, Pointer};
use crate::{
    border::List,
    object::{Buf, CompChannel, Cq, Dmah, Pd, Qp, Srq, Td, Wq, Xrcd},
};
use core::ffi::{c_int, c_uint, c_void};

/// struct ibv_global_route.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct GlobalRoute {
    pub(crate) dgid: Gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// struct ibv_ah_attr.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AhAttr {
    pub(crate) grh: GlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// struct ibv_srq_attr.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// struct ibv_srq_init_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

/// struct ibv_srq_init_attr_ex.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SrqInitAttrEx<'a> {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: c_int,
    pub(crate) pd: Option<&'a Pd>,
    pub(crate) xrcd: Option<&'a Xrcd>,
    pub(crate) cq: Option<&'a Cq>,
    pub(crate) tm_cap: [u32; 2],
}

/// struct ibv_qp_cap.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// struct ibv_qp_init_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct QpInitAttr<'a> {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: Option<&'a Cq>,
    pub(crate) recv_cq: Option<&'a Cq>,
    pub(crate) srq: Option<&'a Srq>,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// struct ibv_qp_init_attr_ex: begins as `ibv_qp_init_attr` does, without the padding at its end.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct QpInitAttrEx<'a> {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: Option<&'a Cq>,
    pub(crate) recv_cq: Option<&'a Cq>,
    pub(crate) srq: Option<&'a Srq>,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: Option<&'a Pd>,
    pub(crate) xrcd: Option<&'a Xrcd>,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_function: u8,
    pub(crate) rx_hash_key_len: u8,
    pub(crate) rx_hash_key: *mut u8,
    pub(crate) rx_hash_fields_mask: u64,
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

impl<'a> QpInitAttrEx<'a> {
    /// What the plain structure has of it.
    pub(crate) const fn base(&self) -> QpInitAttr<'a> {
        QpInitAttr {
            qp_context: self.qp_context,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            cap: self.cap,
            qp_type: self.qp_type,
            sq_sig_all: self.sq_sig_all,
        }
    }
}

/// struct ibv_qp_open_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct QpOpenAttr<'a> {
    pub(crate) comp_mask: u32,
    pub(crate) qp_num: u32,
    pub(crate) xrcd: Option<&'a Xrcd>,
    pub(crate) qp_context: *mut c_void,
    pub(crate) qp_type: c_int,
}

/// struct ibv_qp_attr as it was before `rate_limit` was added at its end. Programs from that time have no room behind it. And
/// nobody needs that field: the device paces no queue pair by the program's wish, and libibverbs never writes it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
}

/// struct ibv_cq_init_attr_ex.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CqInitAttrEx<'a> {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: Option<&'a CompChannel>,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: Option<&'a Pd>,
}

/// The union in struct ibv_async_event.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union EventElement {
    pub(crate) cq: *const Cq,
    pub(crate) qp: *const Qp,
    pub(crate) srq: *const Srq,
    pub(crate) port_num: c_int,
}

/// struct ibv_async_event.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: EventElement,
    pub(crate) event_type: c_int,
}

/// struct ibv_values_ex.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ValuesEx {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: libc::timespec,
}

/// struct ibv_parent_domain_init_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ParentDomainInitAttr<'a> {
    pub(crate) pd: Option<&'a Pd>,
    pub(crate) td: Option<&'a Td>,
    pub(crate) comp_mask: u32,
    pub(crate) alloc: usize,
    pub(crate) free: usize,
    pub(crate) pd_context: *mut c_void,
}

/// struct ibv_mr_init_attr. Of its last fields only those that the mask names mean something; older programs' structures
/// end before `buf`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MrInitAttr {
    pub(crate) length: usize,
    pub(crate) access: c_int,
    pub(crate) comp_mask: u64,
    pub(crate) iova: u64,
    pub(crate) addr: Pointer<c_void>,
    pub(crate) fd: c_int,
    pub(crate) fd_offset: u64,
    pub(crate) dmah: Pointer<Dmah>,
    pub(crate) buf: Pointer<Buf>,
}

/// struct ibv_dmah_init_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DmahInitAttr {
    pub(crate) comp_mask: u32,
    pub(crate) cpu_id: u32,
    pub(crate) ph: u8,
    pub(crate) tph_mem_type: u8,
}

/// struct ibv_xrcd_init_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct XrcdInitAttr {
    pub(crate) comp_mask: u32,
    pub(crate) fd: c_int,
    pub(crate) oflags: c_int,
}

/// struct ibv_alloc_dm_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocDmAttr {
    pub(crate) length: usize,
    pub(crate) log_align_req: u32,
    pub(crate) comp_mask: u32,
}

/// struct ibv_modify_cq_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ModifyCqAttr {
    pub(crate) attr_mask: u32,
    pub(crate) cq_count: u16,
    pub(crate) cq_period: u16,
}

/// struct ibv_flow_attr; the rules follow behind it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FlowAttr {
    pub(crate) comp_mask: u32,
    pub(crate) kind: c_int,
    pub(crate) size: u16,
    pub(crate) priority: u16,
    pub(crate) num_of_specs: u8,
    pub(crate) port: u8,
    pub(crate) flags: u32,
}

/// struct ibv_wq_init_attr.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WqInitAttr<'a> {
    pub(crate) wq_context: *mut c_void,
    pub(crate) wq_type: c_int,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) pd: Option<&'a Pd>,
    pub(crate) cq: Option<&'a Cq>,
    pub(crate) comp_mask: u32,
    pub(crate) create_flags: u32,
}

/// struct ibv_wq_attr.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WqAttr {
    pub(crate) attr_mask: u32,
    pub(crate) wq_state: c_int,
    pub(crate) curr_wq_state: c_int,
    pub(crate) flags: u32,
    pub(crate) flags_mask: u32,
}

/// struct ibv_rwq_ind_table_init_attr.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RwqTableInitAttr<'a> {
    pub(crate) log_ind_tbl_size: u32,
    pub(crate) ind_tbl: List<Option<&'a Wq>>,
    pub(crate) comp_mask: u32,
}
