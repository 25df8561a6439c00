//! Work requests and completions.

use super::Gid;
use crate::{
    border::{Bytes, List},
    object::{Ah, Mr, Mw},
};
use core::{
    ffi::{c_int, c_uint},
    mem::MaybeUninit,
    sync::atomic::AtomicU32,
};

/// struct ibv_sge.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// struct ibv_data_buf.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DataBuf {
    pub(crate) addr: Bytes,
    pub(crate) length: usize,
}

/// struct ibv_mw_bind_info.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MwBindInfo<'a> {
    pub(crate) mr: Option<&'a Mr>,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

/// struct ibv_mw_bind.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MwBind<'a> {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: MwBindInfo<'a>,
}

/// The `wr` union of a send request. Which one it is the opcode and the queue pair's kind say.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Target<'a> {
    pub(crate) rdma: Rdma,
    pub(crate) atomic: AtomicOperands,
    pub(crate) ud: UdTarget<'a>,
}

/// Remote memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// Operands of an atomic.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AtomicOperands {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct UdTarget<'a> {
    pub(crate) ah: Option<&'a Ah>,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The last union of a send request; its other member (TSO) is smaller. Only requests that bind a window have filled
/// it in, as only datagrams have an address handle in the union before.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BindMw<'a> {
    pub(crate) mw: Option<&'a Mw>,
    pub(crate) rkey: u32,
    pub(crate) bind_info: MwBindInfo<'a>,
}

/// struct ibv_send_wr.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SendWr<'a> {
    pub(crate) wr_id: u64,
    pub(crate) next: Option<&'a Self>,
    pub(crate) sg_list: List<Sge>,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// In network order, or the R_Key to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: Target<'a>,
    pub(crate) remote_srqn: u32,
    pub(crate) bind_mw: MaybeUninit<BindMw<'a>>,
}

/// struct ibv_recv_wr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RecvWr<'a> {
    pub(crate) wr_id: u64,
    pub(crate) next: Option<&'a Self>,
    pub(crate) sg_list: List<Sge>,
    pub(crate) num_sge: c_int,
}

/// struct ibv_ops_wr, with `tm` and `add` flattened into it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct OpsWr<'a> {
    pub(crate) wr_id: u64,
    pub(crate) next: Option<&'a Self>,
    pub(crate) opcode: c_int,
    pub(crate) flags: c_int,
    pub(crate) unexpected_cnt: u32,
    /// Written where an entry is added.
    pub(crate) handle: AtomicU32,
    pub(crate) recv_wr_id: u64,
    pub(crate) sg_list: List<Sge>,
    pub(crate) num_sge: c_int,
    pub(crate) tag: u64,
    pub(crate) mask: u64,
}

/// struct ibv_wc_tm_info.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct WcTmInfo {
    pub(crate) tag: u64,
    pub(crate) app_ctx: u32,
}

/// struct ibv_wc.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// In network order, or the invalidated R_Key.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// struct ibv_grh: the 40 bytes before a datagram. Over IPv4 the last 20 are the IPv4 header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Grh {
    pub(crate) version_tclass_flow: [u8; 4],
    pub(crate) paylen: [u8; 2],
    pub(crate) next_hdr: u8,
    pub(crate) hop_limit: u8,
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
}

impl Grh {
    /// As they are in memory.
    pub(crate) fn bytes(&self) -> [u8; 40] {
        let mut out = [0; 40];
        out[..4].copy_from_slice(&self.version_tclass_flow);
        out[4..6].copy_from_slice(&self.paylen);
        (out[6], out[7]) = (self.next_hdr, self.hop_limit);
        out[8..24].copy_from_slice(&self.sgid.0);
        out[24..].copy_from_slice(&self.dgid.0);
        out
    }
}
