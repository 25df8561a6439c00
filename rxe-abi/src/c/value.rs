//! Numbers of the header that are not an enumeration of rxe-verbs already. Names are the header's without `IBV_`.

use core::ffi::c_int;

pub(crate) const NODE_CA: c_int = 1;
pub(crate) const TRANSPORT_IB: c_int = 0;

pub(crate) const GID_TYPE_ROCE_V1: u32 = 1;
pub(crate) const GID_TYPE_ROCE_V2: u32 = 2;

pub(crate) const PORT_DOWN: c_int = 1;
pub(crate) const PORT_ACTIVE: c_int = 4;
/// IBTA's PortPhysicalState: Disabled, LinkUp.
pub(crate) const PHYS_DISABLED: u8 = 3;
pub(crate) const PHYS_LINK_UP: u8 = 5;
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;
/// Every address vector needs a GRH.
pub(crate) const QPF_GRH_REQUIRED: u8 = 1;
pub(crate) const PORT_CM_SUP: u32 = 1 << 16;
pub(crate) const PORT_IP_BASED_GIDS: u32 = 1 << 26;

pub(crate) const DEVICE_BAD_PKEY_CNTR: u32 = 1 << 1;
pub(crate) const DEVICE_BAD_QKEY_CNTR: u32 = 1 << 2;
pub(crate) const DEVICE_CURR_QP_STATE_MOD: u32 = 1 << 7;
pub(crate) const DEVICE_PORT_ACTIVE_EVENT: u32 = 1 << 10;
pub(crate) const DEVICE_SYS_IMAGE_GUID: u32 = 1 << 11;
pub(crate) const DEVICE_RC_RNR_NAK_GEN: u32 = 1 << 12;
pub(crate) const DEVICE_SRQ_RESIZE: u32 = 1 << 13;
pub(crate) const DEVICE_MEM_WINDOW: u32 = 1 << 17;
pub(crate) const DEVICE_XRC: u32 = 1 << 20;
pub(crate) const DEVICE_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
pub(crate) const DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
pub(crate) const DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
pub(crate) const DEVICE_FLUSH_PERSISTENT: u64 = 1 << 39;
pub(crate) const DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
pub(crate) const ATOMIC_HCA: c_int = 1;

pub(crate) const ODP_SUPPORT: u64 = 1;
pub(crate) const ODP_SUPPORT_IMPLICIT: u64 = 1 << 1;
pub(crate) const ODP_SEND: u32 = 1;
pub(crate) const ODP_RECV: u32 = 1 << 1;
pub(crate) const ODP_WRITE: u32 = 1 << 2;
pub(crate) const ODP_READ: u32 = 1 << 3;
pub(crate) const ODP_ATOMIC: u32 = 1 << 4;
pub(crate) const ODP_SRQ_RECV: u32 = 1 << 5;
pub(crate) const ODP_FLUSH: u32 = 1 << 6;
pub(crate) const ODP_ATOMIC_WRITE: u32 = 1 << 7;

pub(crate) const QPT_RC: c_int = 2;
pub(crate) const QPT_UC: c_int = 3;
pub(crate) const QPT_UD: c_int = 4;
pub(crate) const QPT_RAW_PACKET: c_int = 8;
pub(crate) const QPT_DRIVER: c_int = 0xff;
pub(crate) const QPT_XRC_SEND: c_int = 9;
pub(crate) const QPT_XRC_RECV: c_int = 10;

pub(crate) const QP_STATE: c_int = 1;
pub(crate) const QP_CUR_STATE: c_int = 1 << 1;
pub(crate) const QP_EN_SQD_ASYNC_NOTIFY: c_int = 1 << 2;
pub(crate) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const QP_PORT: c_int = 1 << 5;
pub(crate) const QP_QKEY: c_int = 1 << 6;
pub(crate) const QP_AV: c_int = 1 << 7;
pub(crate) const QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const QP_TIMEOUT: c_int = 1 << 9;
pub(crate) const QP_RETRY_CNT: c_int = 1 << 10;
pub(crate) const QP_RNR_RETRY: c_int = 1 << 11;
pub(crate) const QP_RQ_PSN: c_int = 1 << 12;
pub(crate) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const QP_ALT_PATH: c_int = 1 << 14;
pub(crate) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const QP_SQ_PSN: c_int = 1 << 16;
pub(crate) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const QP_PATH_MIG_STATE: c_int = 1 << 18;
pub(crate) const QP_CAP: c_int = 1 << 19;
pub(crate) const QP_DEST_QPN: c_int = 1 << 20;
/// All of these.
pub(crate) const QP_ATTR_MASK: c_int = (QP_DEST_QPN << 1) - 1;

pub(crate) const QP_INIT_ATTR_PD: u32 = 1;
pub(crate) const QP_INIT_ATTR_XRCD: u32 = 1 << 1;
pub(crate) const QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
pub(crate) const QP_INIT_ATTR_IND_TABLE: u32 = 1 << 4;
pub(crate) const QP_INIT_ATTR_RX_HASH: u32 = 1 << 5;
pub(crate) const QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
pub(crate) const QP_OPEN_ATTR_NUM: u32 = 1;
pub(crate) const QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
pub(crate) const QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
pub(crate) const QP_OPEN_ATTR_TYPE: u32 = 1 << 3;

pub(crate) const SEND_INLINE: u32 = 1 << 3;

pub(crate) const WR_RDMA_WRITE: c_int = 0;
pub(crate) const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(crate) const WR_SEND: c_int = 2;
pub(crate) const WR_SEND_WITH_IMM: c_int = 3;
pub(crate) const WR_RDMA_READ: c_int = 4;
pub(crate) const WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub(crate) const WR_ATOMIC_FETCH_AND_ADD: c_int = 6;
pub(crate) const WR_LOCAL_INV: c_int = 7;
pub(crate) const WR_BIND_MW: c_int = 8;
pub(crate) const WR_SEND_WITH_INV: c_int = 9;

pub(crate) const WC_GRH: u32 = 1;
pub(crate) const WC_WITH_IMM: u32 = 1 << 1;
pub(crate) const WC_WITH_INV: u32 = 1 << 3;
pub(crate) const WC_EX_WITH_TM_INFO: u64 = 1 << 10;

/// What ibv_create_cq_ex can deliver: lengths, immediate data, numbers, local identifiers and levels, both timestamps, tags.
pub(crate) const CQ_WC_FLAGS: u64 = 0x7f | 1 << 7 | WC_EX_WITH_TM_INFO | 1 << 11;

pub(crate) const SRQ_MAX_WR: c_int = 1;
pub(crate) const SRQ_LIMIT: c_int = 1 << 1;
pub(crate) const SRQT_BASIC: c_int = 0;
pub(crate) const SRQT_XRC: c_int = 1;
pub(crate) const SRQT_TM: c_int = 2;
pub(crate) const SRQ_INIT_ATTR_TYPE: u32 = 1;
pub(crate) const SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub(crate) const SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
pub(crate) const SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
pub(crate) const SRQ_INIT_ATTR_TM: u32 = 1 << 4;
pub(crate) const TM_CAP_RC: u32 = 1;
pub(crate) const WR_TAG_ADD: c_int = 0;
pub(crate) const WR_TAG_DEL: c_int = 1;
pub(crate) const WR_TAG_SYNC: c_int = 2;
pub(crate) const OPS_SIGNALED: c_int = 1;
pub(crate) const OPS_TM_SYNC: c_int = 1 << 1;
pub(crate) const XRCD_INIT_ATTR_FD: u32 = 1;
pub(crate) const XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;

pub(crate) const MW_TYPE_1: c_int = 1;
pub(crate) const MW_TYPE_2: c_int = 2;

pub(crate) const REREG_MR_CHANGE_TRANSLATION: c_int = 1;
pub(crate) const REREG_MR_CHANGE_PD: c_int = 1 << 1;
pub(crate) const REREG_MR_CHANGE_ACCESS: c_int = 1 << 2;
pub(crate) const REREG_MR_ERR_INPUT: c_int = -1;
pub(crate) const REREG_MR_ERR_CMD: c_int = -4;

pub(crate) const EVENT_CQ_ERR: c_int = 0;
pub(crate) const EVENT_QP_FATAL: c_int = 1;
pub(crate) const EVENT_QP_REQ_ERR: c_int = 2;
pub(crate) const EVENT_QP_ACCESS_ERR: c_int = 3;
pub(crate) const EVENT_COMM_EST: c_int = 4;
pub(crate) const EVENT_SQ_DRAINED: c_int = 5;
pub(crate) const EVENT_PORT_ACTIVE: c_int = 9;
pub(crate) const EVENT_DEVICE_FATAL: c_int = 8;
pub(crate) const EVENT_PORT_ERR: c_int = 10;
pub(crate) const EVENT_PKEY_CHANGE: c_int = 12;
pub(crate) const EVENT_SRQ_LIMIT_REACHED: c_int = 15;
pub(crate) const EVENT_QP_LAST_WQE_REACHED: c_int = 16;
pub(crate) const EVENT_GID_CHANGE: c_int = 18;

pub(crate) const FORK_UNNEEDED: c_int = 2;

pub(crate) const VALUES_MASK_RAW_CLOCK: u32 = 1;
