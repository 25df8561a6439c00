//! The types of the verbs, in the form of the agent's protocol.

use super::Handle;
use crate::wire::Roce;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, net::IpAddr};

/// Features that not every device has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// Extended reliable connections.
    Xrc,
    /// Memory windows of type 2 and SEND with invalidate.
    Windows,
    /// Shared receive queues.
    Srq,
    /// Unreliable connections.
    Uc,
    /// The link shows the IP header of received packets, and can set that of sent ones.
    IpHeader,
    /// Time is simulated: waits cost nothing and are exact.
    ExactTime,
    /// A case about fairness between several queue pairs to the same peer can be run within real time.
    ManyQps,
    /// Send requests with an address that is wrong on purpose can be posted.
    Unchecked,
    /// A connection manager.
    Cm,
    /// Packets have IP and UDP headers: RoCEv2.
    Udp,
    /// The link carries whole Ethernet frames.
    Ethernet,
    /// Completion queues have a fixed size, and can overflow.
    BoundedCq,
    /// Datagram queue pairs can be attached to multicast groups, and the link carries the packets of these groups.
    Multicast,
}

impl Feature {
    /// The features of a device with the usual verbs, over any kind of link.
    pub const VERBS: [Self; 9] = [
        Self::AtomicWrite,
        Self::Flush,
        Self::Windows,
        Self::Srq,
        Self::Uc,
        Self::ManyQps,
        Self::Unchecked,
        Self::Cm,
        Self::BoundedCq,
    ];
}

/// A device, and how to reach it.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// Its name in reports: `core`, `udp`, `kernel-6.12`.
    pub name: String,
    /// Its own description: release, driver, firmware.
    pub version: String,
    /// Its address on the tested link.
    pub address: IpAddr,
    /// Which of the optional features it has.
    pub features: BTreeSet<Feature>,
    /// The current maximum path MTU of its port in bytes (`active_mtu`); `None` if the device did not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
}

/// Access rights of memory, windows and queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "ibv_access_flags")]
pub enum Access {
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
    MwBind,
    FlushGlobal,
    FlushPersistent,
}

impl Access {
    /// Rights that every device supports.
    pub const COMMON: [Self; 4] = [Self::LocalWrite, Self::RemoteWrite, Self::RemoteRead, Self::RemoteAtomic];
}

/// A registered region.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Mr {
    /// Its handle.
    pub handle: Handle,
    /// Address of its first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: usize,
    /// L_Key.
    pub lkey: u32,
    /// R_Key.
    pub rkey: u32,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Qp {
    /// Its handle.
    pub handle: Handle,
    /// Its queue pair number.
    pub qpn: u32,
    /// For XRC targets: the number of their shared receive queue.
    #[serde(default)]
    pub srq_number: u32,
}

/// Transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection, receiving end (XRC target).
    #[serde(rename = "XRC_TARGET")]
    XrcTarget,
}

/// State of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "ibv_qp_state")]
pub enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Sqe,
    Err,
}

/// The attributes with which a queue pair is created.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpSpec {
    /// Protection domain.
    pub pd: Handle,
    /// Service.
    #[serde(rename = "type")]
    pub service: Service,
    /// Completion queue for sends.
    pub send_cq: Handle,
    /// Completion queue for receives.
    pub recv_cq: Handle,
    /// Shared receive queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub srq: Option<Handle>,
    /// Whether every send request produces a completion.
    #[serde(default)]
    pub sig_all: bool,
}

/// The path to a peer (attributes of an address handle).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Av {
    /// The peer's address.
    pub dgid: IpAddr,
    /// The device's own address.
    pub sgid: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// The RoCE version of the device's GID.
    #[serde(default, rename = "gid_type", skip_serializing_if = "is_usual")]
    pub roce: Roce,
}

fn is_usual(roce: &Roce) -> bool {
    *roce == Roce::V2
}

/// Attributes of a modify call. An attribute that is `None` is not in the attribute mask.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "ibv_qp_attr")]
pub struct Attrs {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pkey_index: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<Vec<Access>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkey: Option<u32>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dest_qpn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rq_psn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sq_psn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_dest_rd_atomic: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rd_atomic: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_rnr_timer: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_cnt: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rnr_retry: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub en_sqd_async_notify: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub av: Option<Av>,
}

/// A modify call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Change {
    /// The new state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The other attributes.
    #[serde(default)]
    pub attrs: Attrs,
}

impl Change {
    /// Changes only the state.
    #[must_use]
    pub fn to(state: State) -> Self {
        Self { state: Some(state), attrs: Attrs::default() }
    }
}

/// A scatter/gather entry: a piece of registered memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// L_Key.
    pub lkey: u32,
}

/// A receive request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RecvWr {
    /// The ID that the completion returns.
    pub wr_id: u64,
    /// Memory for the message.
    pub sge: Vec<Sge>,
}

/// Flags of a send request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "ibv_send_flags")]
pub enum Flag {
    Signaled,
    Fence,
    Solicited,
}

/// The operation of a send request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "opcode", rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "ibv_wr_opcode")]
pub enum WrOp {
    Send,
    SendWithImm { imm: u32 },
    SendWithInv { invalidate_rkey: u32 },
    RdmaWrite { remote_addr: u64, rkey: u32 },
    RdmaWriteWithImm { remote_addr: u64, rkey: u32, imm: u32 },
    RdmaRead { remote_addr: u64, rkey: u32 },
    AtomicCmpAndSwp { remote_addr: u64, rkey: u32, compare: u64, swap: u64 },
    AtomicFetchAndAdd { remote_addr: u64, rkey: u32, add: u64 },
    AtomicWrite { remote_addr: u64, rkey: u32, value: u64 },
    Flush { remote_addr: u64, rkey: u32, length: u32, r#type: u8, level: u8 },
    LocalInv { invalidate_rkey: u32 },
}

/// A send request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SendWr {
    /// The ID that the completion returns.
    pub wr_id: u64,
    /// Local data.
    pub sge: Vec<Sge>,
    /// Flags.
    pub flags: Vec<Flag>,
    /// The operation.
    #[serde(flatten)]
    pub op: WrOp,
    /// For datagrams: path, queue pair and queue key of the receiver.
    #[serde(skip)]
    pub dest: Option<(Av, u32, u32)>,
}

/// The queue that a completion belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// A send request.
    Send,
    /// A receive.
    Recv,
}

/// A completion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wc {
    /// The ID of the request.
    pub wr_id: u64,
    /// As in ibv_wc_status, without IBV_WC_: `SUCCESS`, `REM_ACCESS_ERR`.
    pub status: String,
    /// As in ibv_wc_opcode, without IBV_WC_. It has no meaning if the status is an error.
    pub opcode: String,
    /// Bytes received.
    pub byte_len: u32,
    /// The number of the device's queue pair.
    pub qp_num: u32,
    /// For datagrams: the number of the sender's queue pair.
    pub src_qp: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key that the message invalidated.
    pub invalidated_rkey: Option<u32>,
    /// As in ibv_wc_flags, without IBV_WC_. Only some devices report it.
    pub wc_flags: Option<Vec<String>>,
}
