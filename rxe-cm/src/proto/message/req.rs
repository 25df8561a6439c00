//! REQ: the active side asks for a connection.

use super::path::{Path, ReqPath};
use crate::proto::{
    CommId, Guid, PrivateData, ServiceId, Transport,
    layout::{Area, Field, message},
};
use rxe_core::{
    num::{Pkey, Psn, Qkey, Qpn},
    qp::Mtu,
};

message! {
    /// REQ, "request for communication". 92 bytes of private data, of which an IP CM header takes 36.
    Req {
        /// The sender's number for the connection.
        local_comm_id: CommId = Field::bytes(0..4),
        /// Vendor of the enhanced connection establishment options, 24 bits; 0 for none.
        vendor_id: u32 = Field::bytes(5..8),
        /// What is asked for: port space and port.
        service_id: ServiceId = Field::bytes(8..16),
        /// The sender's channel adapter. With comm ID and with QPN it must be unique.
        local_ca_guid: Guid = Field::bytes(16..24),
        /// Datagram services only; 0.
        local_qkey: Qkey = Field::bytes(28..32),
        /// The sender's queue pair.
        local_qpn: Qpn = Field::bytes(32..35),
        /// READs and atomics that the sender can take at a time: the peer's initiator depth.
        responder_resources: u8 = Field::bytes(35..36),
        /// Reliable datagrams only; 0.
        local_eecn: u32 = Field::bytes(36..39),
        /// READs and atomics that the sender wants to issue at a time: the peer's responder resources.
        initiator_depth: u8 = Field::bytes(39..40),
        /// Reliable datagrams only; 0.
        remote_eecn: u32 = Field::bytes(40..43),
        /// How long the receiver may take to answer, 4.096 us << code.
        remote_cm_response_timeout: u8 = Field::bits(43, 7, 3),
        /// The service wanted.
        transport: Transport = Field::bits(43, 2, 1),
        /// Whether the sender's receive queue grants end-to-end credits.
        flow_control: bool = Field::bits(43, 0, 0),
        /// The PSN that the **receiver** of this message must start sending with.
        starting_psn: Psn = Field::bytes(44..47),
        /// How long the sender may take to answer, 4.096 us << code.
        local_cm_response_timeout: u8 = Field::bits(47, 7, 3),
        /// Retries after timeouts and sequence NAKs that the receiver is to make, 0 to 7.
        retry_count: u8 = Field::bits(47, 2, 0),
        /// Partition.
        pkey: Pkey = Field::bytes(48..50),
        /// Path MTU as [`Mtu::code`]: 1 to 5 are defined.
        path_mtu: u8 = Field::bits(50, 7, 4),
        /// Reliable datagrams only; false.
        rdc_exists: bool = Field::bits(50, 3, 3),
        /// Retries after RNR NAKs that the receiver is to make, 0 to 7.
        rnr_retry_count: u8 = Field::bits(50, 2, 0),
        /// How often the sender repeats its messages.
        max_cm_retries: u8 = Field::bits(51, 7, 4),
        /// Whether the sender's queue pair uses a shared receive queue.
        srq: bool = Field::bits(51, 3, 3),
        /// 1 for XRC, where `transport` says extended.
        extended_transport: u8 = Field::bits(51, 2, 0),
        /// The way between the two.
        primary: Path = ReqPath(52),
        /// Another one to fall back to; all zero for none.
        alternate: Path = ReqPath(96),
        /// Whether the sender can suspend and resume the alternate path.
        sap_supported: bool = Field::bits(139, 2, 2),
        /// Private data; on RoCE it starts with a [`CmaHeader`](crate::proto::CmaHeader).
        private_data: PrivateData<92> = Area(140),
    }
}

impl Req {
    /// The path MTU, if it is a defined one.
    #[must_use]
    pub const fn mtu(&self) -> Option<Mtu> {
        Mtu::from_code(self.path_mtu)
    }
}
