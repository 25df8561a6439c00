//! A queue pair's attributes as in verbs (`ibv_qp_attr`, `ibv_qp_init_attr`).

use crate::{
    num::{Psn, Qkey, Qpn},
    work::{Access, AddressVector, CqId, PdId, SrqId, XrcdId},
};

/// Kind of queue pair (ibv_qp_type).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The sending end of an extended reliable connection.
    XrcInitiator,
    /// The receiving end of an extended reliable connection.
    XrcTarget,
    /// Queue pair 1.
    Gsi,
}

/// State of a queue pair (ibv_qp_state).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum QpState {
    /// New or reset: takes no work.
    #[default]
    Reset,
    /// Takes receives.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained or draining.
    Sqd,
    /// Send queue in error (unreliable services only).
    Sqe,
    /// In error: all work is flushed.
    Error,
}

/// Path MTU in the steps of InfiniBand (ibv_mtu).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub enum Mtu {
    /// 256 bytes.
    #[default]
    M256,
    /// 512 bytes.
    M512,
    /// 1024 bytes.
    M1024,
    /// 2048 bytes.
    M2048,
    /// 4096 bytes.
    M4096,
}

impl Mtu {
    /// All, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// Payload bytes of a full packet.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The verbs enumeration value, 1 to 5.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// From the verbs enumeration value, 1 to 5.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::M256),
            2 => Some(Self::M512),
            3 => Some(Self::M1024),
            4 => Some(Self::M2048),
            5 => Some(Self::M4096),
            _ => None,
        }
    }

    /// From a number of bytes: exactly 256, 512, 1024, 2048 or 4096.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest that fits a network device's MTU with the largest headers in front (80 bytes, as kernel rxe counts).
    #[must_use]
    pub fn fitting(device_mtu: u32) -> Self {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + 80 <= device_mtu).unwrap_or(Self::M256)
    }
}

/// Sizes of a queue pair's queues (ibv_qp_cap).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpCaps {
    /// Send requests outstanding at most.
    pub max_send_wr: u32,
    /// Receive requests outstanding at most.
    pub max_recv_wr: u32,
    /// Elements of a send request at most.
    pub max_send_sge: u32,
    /// Elements of a receive request at most.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request at most.
    pub max_inline: u32,
}

impl QpType {
    /// Whether it belongs to an extended reliable connection.
    #[must_use]
    pub const fn is_xrc(self) -> bool {
        matches!(self, Self::XrcInitiator | Self::XrcTarget)
    }
}

/// What a queue pair is created with (ibv_qp_init_attr).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// Kind.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Where send completions go.
    pub send_cq: CqId,
    /// Where receive completions go.
    pub recv_cq: CqId,
    /// Shared receive queue, if it has no queue of its own.
    pub srq: Option<SrqId>,
    /// XRC targets only: the domain whose shared receive queues the peer may name. An XRC target does not use the protection
    /// domain and the completion queues above. It uses those of the shared receive queue (IBTA vol. 1, A14).
    pub xrcd: Option<XrcdId>,
    /// Queue sizes.
    pub caps: QpCaps,
    /// Whether every send request makes a completion.
    pub signal_all: bool,
}

/// A modify-QP call (ibv_modify_qp). An attribute that is `None` is not in the mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpChange {
    /// IBV_QP_STATE.
    pub state: Option<QpState>,
    /// IBV_QP_CUR_STATE.
    pub current_state: Option<QpState>,
    /// IBV_QP_EN_SQD_ASYNC_NOTIFY.
    pub sqd_notify: Option<bool>,
    /// IBV_QP_ACCESS_FLAGS.
    pub access: Option<Access>,
    /// IBV_QP_PKEY_INDEX.
    pub pkey_index: Option<u16>,
    /// IBV_QP_PORT.
    pub port: Option<u8>,
    /// IBV_QP_QKEY.
    pub qkey: Option<Qkey>,
    /// IBV_QP_AV.
    pub av: Option<AddressVector>,
    /// IBV_QP_PATH_MTU.
    pub path_mtu: Option<Mtu>,
    /// IBV_QP_TIMEOUT, 0 to 31: 4.096 us times 2 to this power. 0 never times out.
    pub timeout: Option<u8>,
    /// IBV_QP_RETRY_CNT: 0 to 7.
    pub retry_count: Option<u8>,
    /// IBV_QP_RNR_RETRY: 0 to 7; 7 is without limit.
    pub rnr_retry: Option<u8>,
    /// IBV_QP_RQ_PSN.
    pub rq_psn: Option<Psn>,
    /// IBV_QP_MAX_QP_RD_ATOMIC: READs and atomics we may have outstanding.
    pub max_rd_atomic: Option<u8>,
    /// IBV_QP_ALT_PATH: stored for queries only, because paths do not migrate.
    pub alternate: Option<AddressVector>,
    /// IBV_QP_MIN_RNR_TIMER: code 0 to 31 of the RNR timer table.
    pub min_rnr_timer: Option<u8>,
    /// IBV_QP_SQ_PSN.
    pub sq_psn: Option<Psn>,
    /// IBV_QP_MAX_DEST_RD_ATOMIC: READs and atomics the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// IBV_QP_PATH_MIG_STATE: 0 migrated, 1 rearm, 2 armed. Stored for queries only.
    pub migration: Option<u8>,
    /// IBV_QP_CAP.
    pub caps: Option<QpCaps>,
    /// IBV_QP_DEST_QPN.
    pub dest_qpn: Option<Qpn>,
}

/// Present attributes of a queue pair (ibv_query_qp); its port is 1.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct QpAttrs {
    /// State.
    pub state: QpState,
    /// Whether a drained send queue raises an event.
    pub sqd_notify: bool,
    /// Rights of the peer.
    pub access: Access,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// Queue key.
    pub qkey: Qkey,
    /// The path to the peer; set from RTR on for connected services.
    pub av: Option<AddressVector>,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Code of the retransmission timeout, see [`QpChange::timeout`].
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics that we may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Timer code for our RNR NAKs.
    pub min_rnr_timer: u8,
    /// Path migration state.
    pub migration: u8,
    /// Alternate path.
    pub alternate: Option<AddressVector>,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
}
