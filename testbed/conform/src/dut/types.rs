//! The vocabulary of verbs, as the agent's protocol writes it.

use super::Handle;
use crate::wire::Roce;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, net::IpAddr};

/// What not every device has.
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
    /// The link shows and sets the IP header.
    IpHeader,
    /// Time is simulated: waits cost nothing and are exact.
    ExactTime,
    /// More than one queue pair to the same peer may be looked at for fairness within real time.
    ManyQps,
    /// Send requests whose address is wrong on purpose can be posted.
    Unchecked,
    /// A connection manager.
    Cm,
    /// Packets have IP and UDP headers: RoCEv2.
    Udp,
    /// The link has whole Ethernet frames.
    Ethernet,
    /// Completion queues have a size, and overflow.
    BoundedCq,
    /// Datagram queue pairs can be attached to multicast groups, whose packets the link carries.
    Multicast,
}

impl Feature {
    /// What a device with the usual verbs has, whatever leads to it.
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
    /// What it is called in reports: `core`, `udp`, `kernel-6.12`.
    pub name: String,
    /// What it says of itself: release, driver, firmware.
    pub version: String,
    /// Its address on the tested link.
    pub address: IpAddr,
    /// What it has of that which not all have.
    pub features: BTreeSet<Feature>,
    /// Bytes of the longest path MTU that its port has at the moment (`active_mtu`); none: it did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
}

/// Rights of memory, windows and queue pairs.
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
    /// What every device takes.
    pub const COMMON: [Self; 4] = [Self::LocalWrite, Self::RemoteWrite, Self::RemoteRead, Self::RemoteAtomic];
}

/// A registered region.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Mr {
    /// Its name.
    pub handle: Handle,
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes.
    pub length: usize,
    /// L_Key.
    pub lkey: u32,
    /// R_Key.
    pub rkey: u32,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Qp {
    /// Its name.
    pub handle: Handle,
    /// Its number on the wire.
    pub qpn: u32,
    /// XRC targets: the number of their shared receive queue.
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
    /// Extended reliable connection, the end that receives.
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

/// What a queue pair is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpSpec {
    /// Protection domain.
    pub pd: Handle,
    /// Service.
    #[serde(rename = "type")]
    pub service: Service,
    /// Where send completions go.
    pub send_cq: Handle,
    /// Where receive completions go.
    pub recv_cq: Handle,
    /// Shared receive queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub srq: Option<Handle>,
    /// Every send request makes a completion.
    #[serde(default)]
    pub sig_all: bool,
}

/// The way to a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Av {
    /// The peer.
    pub dgid: IpAddr,
    /// The device's own address.
    pub sgid: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// What type the device's GID is of.
    #[serde(default, rename = "gid_type", skip_serializing_if = "is_usual")]
    pub roce: Roce,
}

fn is_usual(roce: &Roce) -> bool {
    *roce == Roce::V2
}

/// Attributes of a modify call; what is absent is not in the mask.
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
    /// The rest.
    #[serde(default)]
    pub attrs: Attrs,
}

impl Change {
    /// Nothing but a new state.
    #[must_use]
    pub fn to(state: State) -> Self {
        Self { state: Some(state), attrs: Attrs::default() }
    }
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// L_Key.
    pub lkey: u32,
}

/// A receive request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
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

/// What a send request does.
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
    /// Returned in the completion.
    pub wr_id: u64,
    /// Local data.
    pub sge: Vec<Sge>,
    /// Flags.
    pub flags: Vec<Flag>,
    /// The operation.
    #[serde(flatten)]
    pub op: WrOp,
    /// Datagrams: way, queue pair and queue key of the receiver.
    #[serde(skip)]
    pub dest: Option<(Av, u32, u32)>,
}

/// Which of the two queues a completion came from.
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
    /// The request's.
    pub wr_id: u64,
    /// As in ibv_wc_status, without IBV_WC_: `SUCCESS`, `REM_ACCESS_ERR`.
    pub status: String,
    /// As in ibv_wc_opcode, without IBV_WC_. Means nothing on an error.
    pub opcode: String,
    /// Bytes received.
    pub byte_len: u32,
    /// The device's queue pair.
    pub qp_num: u32,
    /// Datagrams: the sender's.
    pub src_qp: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key that the message invalidated.
    pub invalidated_rkey: Option<u32>,
    /// As in ibv_wc_flags, without IBV_WC_, from devices that tell them.
    pub wc_flags: Option<Vec<String>>,
}
