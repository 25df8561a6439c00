//! The structures of `<rdma/rdma_cma.h>`. Those that programs read while the library may change them have atomic fields.

use super::{Gid, Pointer, attr::AhAttr, context::Context, object};
use core::{
    ffi::{c_char, c_int, c_void},
    mem::offset_of,
    ptr,
    sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU64, Ordering},
};
use libc::{sockaddr, socklen_t};

/// struct sockaddr_storage: 128 bytes, by words.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Storage([AtomicU64; 16]);

impl Storage {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 16])
    }

    pub(crate) fn set(&self, bytes: &[u8]) {
        for (place, chunk) in self.0.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// The port, where every family has it.
    pub(crate) fn port(&self) -> u16 {
        let word = self.0[0].load(Ordering::Relaxed).to_ne_bytes();
        u16::from_ne_bytes([word[2], word[3]])
    }
}

/// struct rdma_ib_addr.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct IbAddr {
    pub(crate) sgid: [AtomicU64; 2],
    pub(crate) dgid: [AtomicU64; 2],
    pub(crate) pkey: AtomicU16,
}

/// struct rdma_route.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Route {
    pub(crate) src: Storage,
    pub(crate) dst: Storage,
    pub(crate) ib: IbAddr,
    pub(crate) path_rec: Pointer<PathRec>,
    pub(crate) num_paths: AtomicI32,
}

/// struct ibv_sa_path_rec.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PathRec {
    pub(crate) dgid: Gid,
    pub(crate) sgid: Gid,
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: c_int,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reversible: c_int,
    pub(crate) numb_path: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) mtu: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

/// struct rdma_event_channel.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EventChannel {
    pub(crate) fd: c_int,
}

/// struct rdma_cm_id.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CmId {
    pub(crate) verbs: Pointer<Context>,
    pub(crate) channel: Pointer<EventChannel>,
    pub(crate) context: Pointer<c_void>,
    pub(crate) qp: Pointer<object::Qp>,
    pub(crate) route: Route,
    pub(crate) ps: c_int,
    pub(crate) port_num: AtomicU8,
    pub(crate) event: Pointer<CmEvent>,
    pub(crate) send_cq_channel: Pointer<object::CompChannel>,
    pub(crate) send_cq: Pointer<object::Cq>,
    pub(crate) recv_cq_channel: Pointer<object::CompChannel>,
    pub(crate) recv_cq: Pointer<object::Cq>,
    pub(crate) srq: Pointer<object::Srq>,
    pub(crate) pd: Pointer<object::Pd>,
    pub(crate) qp_type: AtomicI32,
}

/// struct rdma_conn_param.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ConnParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// struct ibv_ece.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Ece {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
    pub(crate) comp_mask: u32,
}

/// struct rdma_ud_param.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct UdParam {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: AhAttr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// The union in struct rdma_cm_event.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Param {
    pub(crate) conn: ConnParam,
    pub(crate) ud: UdParam,
    pub(crate) arg: u64,
}

/// struct rdma_cm_event.
#[repr(C)]
pub(crate) struct CmEvent {
    pub(crate) id: *const crate::rdma::Id,
    pub(crate) listen_id: *const crate::rdma::Id,
    pub(crate) event: c_int,
    pub(crate) status: c_int,
    pub(crate) param: Param,
}

/// struct rdma_addrinfo.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AddrInfo {
    pub(crate) ai_flags: c_int,
    pub(crate) ai_family: c_int,
    pub(crate) ai_qp_type: c_int,
    pub(crate) ai_port_space: c_int,
    pub(crate) ai_src_len: socklen_t,
    pub(crate) ai_dst_len: socklen_t,
    pub(crate) ai_src_addr: *mut sockaddr,
    pub(crate) ai_dst_addr: *mut sockaddr,
    pub(crate) ai_src_canonname: *mut c_char,
    pub(crate) ai_dst_canonname: *mut c_char,
    pub(crate) ai_route_len: usize,
    pub(crate) ai_route: *mut c_void,
    pub(crate) ai_connect_len: usize,
    pub(crate) ai_connect: *mut c_void,
    pub(crate) ai_next: *mut Self,
}

impl Default for AddrInfo {
    fn default() -> Self {
        Self {
            ai_flags: 0,
            ai_family: 0,
            ai_qp_type: 0,
            ai_port_space: 0,
            ai_src_len: 0,
            ai_dst_len: 0,
            ai_src_addr: ptr::null_mut(),
            ai_dst_addr: ptr::null_mut(),
            ai_src_canonname: ptr::null_mut(),
            ai_dst_canonname: ptr::null_mut(),
            ai_route_len: 0,
            ai_route: ptr::null_mut(),
            ai_connect_len: 0,
            ai_connect: ptr::null_mut(),
            ai_next: ptr::null_mut(),
        }
    }
}

/// struct rdma_cm_join_mc_attr_ex.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct JoinAttr {
    pub(crate) comp_mask: u32,
    pub(crate) join_flags: u32,
    pub(crate) addr: crate::border::Address,
}

// The header's unions begin where their members do.
const _: () = assert!(offset_of!(Route, dst) == 128);

pub(crate) const OPTION_ID: c_int = 0;
pub(crate) const OPTION_IB: c_int = 1;
pub(crate) const OPTION_IB_PATH: c_int = 1;
pub(crate) const OPTION_ID_TOS: c_int = 0;
pub(crate) const OPTION_ID_REUSEADDR: c_int = 1;
pub(crate) const OPTION_ID_AFONLY: c_int = 2;
pub(crate) const OPTION_ID_ACK_TIMEOUT: c_int = 3;

pub(crate) const RAI_PASSIVE: c_int = 1;
pub(crate) const RAI_NUMERICHOST: c_int = 2;
pub(crate) const RAI_FAMILY: c_int = 8;
pub(crate) const RAI_SA: c_int = 0x10;

/// What RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH are: as many as possible.
pub(crate) const MAX_DEPTH: u8 = 0xff;
