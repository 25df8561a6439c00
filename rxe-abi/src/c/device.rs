//! Devices, ports and what can be asked about them.

use super::Gid;
use core::ffi::{c_char, c_int, c_uint};

/// struct ibv_device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Device {
    pub(crate) _ops: [usize; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// struct ibv_device_attr. The GUIDs are in network order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: [u8; 8],
    pub(crate) sys_image_guid: [u8; 8],
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
    /// Padding is named here: what is copied to the program says nothing of our memory.
    pub(crate) _padding: u32,
}

/// struct ibv_odp_caps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct OdpCaps {
    pub(crate) general_caps: u64,
    pub(crate) rc_odp_caps: u32,
    pub(crate) uc_odp_caps: u32,
    pub(crate) ud_odp_caps: u32,
    pub(crate) _padding: u32,
}

/// struct ibv_tso_caps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct TsoCaps {
    pub(crate) max_tso: u32,
    pub(crate) supported_qpts: u32,
}

/// struct ibv_rss_caps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RssCaps {
    pub(crate) supported_qpts: u32,
    pub(crate) max_rwq_indirection_tables: u32,
    pub(crate) max_rwq_indirection_table_size: u32,
    pub(crate) _padding: u32,
    pub(crate) rx_hash_fields_mask: u64,
    pub(crate) rx_hash_function: u8,
    pub(crate) _padding_behind: [u8; 7],
}

/// struct ibv_packet_pacing_caps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PacketPacingCaps {
    pub(crate) qp_rate_limit_min: u32,
    pub(crate) qp_rate_limit_max: u32,
    pub(crate) supported_qpts: u32,
}

/// struct ibv_tm_caps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct TmCaps {
    pub(crate) max_rndv_hdr_size: u32,
    pub(crate) max_num_tags: u32,
    pub(crate) flags: u32,
    pub(crate) max_ops: u32,
    pub(crate) max_sge: u32,
}

/// struct ibv_cq_moderation_caps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CqModerationCaps {
    pub(crate) max_cq_count: u16,
    pub(crate) max_cq_period: u16,
}

/// struct ibv_pci_atomic_caps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PciAtomicCaps {
    pub(crate) fetch_add: u16,
    pub(crate) swap: u16,
    pub(crate) compare_swap: u16,
}

/// struct ibv_device_attr_ex.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DeviceAttrEx {
    pub(crate) orig_attr: DeviceAttr,
    pub(crate) comp_mask: u32,
    pub(crate) _padding: u32,
    pub(crate) odp_caps: OdpCaps,
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) tso_caps: TsoCaps,
    pub(crate) rss_caps: RssCaps,
    pub(crate) max_wq_type_rq: u32,
    pub(crate) packet_pacing_caps: PacketPacingCaps,
    pub(crate) raw_packet_caps: u32,
    pub(crate) tm_caps: TmCaps,
    pub(crate) cq_mod_caps: CqModerationCaps,
    pub(crate) _padding_of_moderation: u32,
    pub(crate) max_dm_size: u64,
    pub(crate) pci_atomic_caps: PciAtomicCaps,
    pub(crate) _padding_of_atomics: u16,
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}

/// struct ibv_port_attr.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

/// struct ibv_gid_entry.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}
