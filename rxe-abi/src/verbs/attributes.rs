//! The attributes of a device: ibv_query_device and related functions.

use super::wq;
use crate::{
    border::{Result, code, given, write_sized},
    c::{
        attr::ValuesEx,
        context::ContextPtr,
        device::{
            CqModerationCaps, DeviceAttr, DeviceAttrEx, OdpCaps, PacketPacingCaps, PciAtomicCaps, RssCaps,
            TsoCaps,
        },
        value as v,
    },
    convert::text,
    object::Context,
};
use core::ffi::{c_int, c_uint, c_void};
use nix::time::{ClockId, clock_gettime};
use rxe_verbs::{VENDOR_ID, VENDOR_PART_ID, hash_fields, limits};

/// The ibv_device_cap_flags of our devices.
const FLAGS: u32 = v::DEVICE_BAD_PKEY_CNTR
    | v::DEVICE_BAD_QKEY_CNTR
    | v::DEVICE_CURR_QP_STATE_MOD
    | v::DEVICE_PORT_ACTIVE_EVENT
    | v::DEVICE_SYS_IMAGE_GUID
    | v::DEVICE_RC_RNR_NAK_GEN
    | v::DEVICE_SRQ_RESIZE
    | v::DEVICE_MEM_WINDOW
    | v::DEVICE_XRC
    | v::DEVICE_MEM_MGT_EXTENSIONS
    | v::DEVICE_MEM_WINDOW_TYPE_2B;

/// All flags: `device_cap_flags_ex` has room for those above the 32nd bit.
const FLAGS_EX: u64 =
    FLAGS as u64 | v::DEVICE_FLUSH_GLOBAL | v::DEVICE_FLUSH_PERSISTENT | v::DEVICE_ATOMIC_WRITE;

/// A limit in the header's type.
fn int(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

fn device_attr(context: &Context) -> DeviceAttr {
    let guid = context.context.device().guid();
    let rd_atomic = limits::MAX_RD_ATOMIC.into();
    DeviceAttr {
        fw_ver: text(env!("CARGO_PKG_VERSION")),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: limits::MAX_MR_SIZE,
        // Any power of two from a page on: the size of pages makes no difference to us.
        page_size_cap: !0xfff,
        vendor_id: VENDOR_ID,
        vendor_part_id: VENDOR_PART_ID,
        hw_ver: 0,
        max_qp: int(limits::MAX_QP),
        max_qp_wr: int(limits::MAX_QP_WR),
        device_cap_flags: FLAGS,
        max_sge: int(limits::MAX_SGE),
        max_sge_rd: int(limits::MAX_SGE),
        max_cq: int(limits::MAX_CQ),
        max_cqe: int(limits::MAX_CQE),
        max_mr: int(limits::MAX_MR),
        max_pd: int(limits::MAX_PD),
        max_qp_rd_atom: rd_atomic,
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(limits::MAX_QP).saturating_mul(rd_atomic),
        max_qp_init_rd_atom: rd_atomic,
        max_ee_init_rd_atom: 0,
        atomic_cap: v::ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(limits::MAX_MR),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(limits::MAX_MCAST_GRP),
        max_mcast_qp_attach: int(limits::MAX_QP),
        max_total_mcast_qp_attach: int(limits::MAX_MCAST_GRP).saturating_mul(int(limits::MAX_QP)),
        max_ah: int(limits::MAX_AH),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(limits::MAX_SRQ),
        max_srq_wr: int(limits::MAX_QP_WR),
        max_srq_sge: int(limits::MAX_SGE),
        max_pkeys: u16::try_from(context.context.pkeys().len()).unwrap_or(u16::MAX),
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        _padding: 0,
    }
}

/// On-demand paging. We pin no memory, so all memory is pageable.
const ODP: OdpCaps = OdpCaps {
    general_caps: v::ODP_SUPPORT | v::ODP_SUPPORT_IMPLICIT,
    rc_odp_caps: v::ODP_SEND
        | v::ODP_RECV
        | v::ODP_WRITE
        | v::ODP_READ
        | v::ODP_ATOMIC
        | v::ODP_SRQ_RECV
        | v::ODP_FLUSH
        | v::ODP_ATOMIC_WRITE,
    uc_odp_caps: v::ODP_SEND | v::ODP_RECV | v::ODP_WRITE | v::ODP_SRQ_RECV,
    ud_odp_caps: v::ODP_SEND | v::ODP_RECV | v::ODP_SRQ_RECV,
    _padding: 0,
};

fn device_attr_ex(context: &Context) -> DeviceAttrEx {
    let orig_attr = device_attr(context);
    DeviceAttrEx {
        orig_attr,
        comp_mask: 0,
        _padding: 0,
        odp_caps: ODP,
        // Timestamps are nanoseconds.
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: 1_000_000,
        device_cap_flags_ex: FLAGS_EX,
        tso_caps: TsoCaps::default(),
        // For queue pairs of raw packets, which spread frames by a hash.
        rss_caps: RssCaps {
            supported_qpts: 1 << v::QPT_RAW_PACKET,
            max_rwq_indirection_tables: limits::MAX_QP,
            max_rwq_indirection_table_size: 1 << wq::MOST_LOG,
            rx_hash_fields_mask: hash_fields::ALL,
            rx_hash_function: 1,
            ..RssCaps::default()
        },
        max_wq_type_rq: limits::MAX_QP,
        packet_pacing_caps: PacketPacingCaps::default(),
        raw_packet_caps: 0,
        tm_caps: super::tags::CAPS,
        cq_mod_caps: CqModerationCaps::default(),
        _padding_of_moderation: 0,
        max_dm_size: super::dm::MOST as u64,
        pci_atomic_caps: PciAtomicCaps::default(),
        _padding_of_atomics: 0,
        xrc_odp_caps: ODP.rc_odp_caps,
        phys_port_cnt_ex: 1,
    }
}

/// ibv_query_device(3). A forked child may ask: nothing of this changes.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(context: ContextPtr, out: *mut c_void) -> c_int {
    code(|| write_sized(out, size_of::<DeviceAttr>(), &device_attr(Context::of_anybody(context)?)))
}

/// ibv_query_device_ex(3), called with the size that the program knows. A forked child may ask, too.
pub(super) extern "C" fn query_device_ex(
    context: ContextPtr,
    _input: *const c_uint,
    out: *mut c_void,
    size: usize,
) -> c_int {
    code(|| write_sized(out, size, &device_attr_ex(Context::of_anybody(context)?)))
}

/// The clock of timestamps: CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn clock() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned())
}

/// ibv_query_rt_values_ex(3).
pub(super) extern "C" fn query_rt_values(context: ContextPtr, values: Option<&mut ValuesEx>) -> c_int {
    code(|| {
        Context::of(context)?;
        fill_values(given(values)?)
    })
}

fn fill_values(values: &mut ValuesEx) -> Result<()> {
    if values.comp_mask & v::VALUES_MASK_RAW_CLOCK != 0 {
        let now = clock();
        values.raw_clock.tv_sec = (now / 1_000_000_000).cast_signed();
        values.raw_clock.tv_nsec = (now % 1_000_000_000).cast_signed();
    }
    values.comp_mask &= v::VALUES_MASK_RAW_CLOCK;
    Ok(())
}
