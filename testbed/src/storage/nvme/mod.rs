//! NVMe over Fabrics on RDMA, both ends. Section numbers refer to the NVM Express Base Specification 2.0 ("Base"), the NVM
//! Command Set Specification 1.0 ("NVM"), and the RDMA Transport Specification 1.0 ("RDMA").
//!
//! Each connection is one queue. The first is the admin queue, on which the controller is created and identified. Each
//! further one is an I/O queue. The initiator sends a command of 64 bytes, which names its memory by address and key. The
//! target reads or writes that memory by RDMA, then sends a response of 16 bytes.

mod capsule;
mod initiator;
mod target;

pub use capsule::{
    Command, ConnectData, DISCOVERY_NQN, DiscoveryEntry, Opcode, Response, Sgl, Status, admin, fabrics, io,
};
pub use initiator::{Controller, ControllerInfo, Host, IoQueue, NamespaceInfo};
pub use target::{Target, TargetOptions};
