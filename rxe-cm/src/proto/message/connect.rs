//! REP, RTU and MRA: the rest of the handshake that REQ starts.

use crate::proto::{
    CommId, Concerns, Guid, PrivateData,
    layout::{Apart, Area, Field, message},
};
use rxe_core::num::{Psn, Qkey, Qpn};

message! {
    /// REP, "reply to request for communication": the passive side accepts. 196 bytes of private data.
    Rep {
        /// The sender's number for the connection.
        local_comm_id: CommId = Field::bytes(0..4),
        /// The receiver's number for the connection.
        remote_comm_id: CommId = Field::bytes(4..8),
        /// Datagram services only; 0.
        local_qkey: Qkey = Field::bytes(8..12),
        /// The sender's queue pair; 0 for an XRC target, see [`Rep::qpn`].
        local_qpn: Qpn = Field::bytes(12..15),
        /// Vendor of the enhanced connection establishment options, 24 bits; 0 for none.
        vendor_id: u32 = Apart([15, 19, 23]),
        /// An XRC target's number, as kernels send it (their cm_format_rep); otherwise 0.
        local_eecn: u32 = Field::bytes(16..19),
        /// The PSN that the **receiver** of this message must start sending with.
        starting_psn: Psn = Field::bytes(20..23),
        /// READs and atomics that the sender can take at a time: the peer's initiator depth.
        responder_resources: u8 = Field::bytes(24..25),
        /// READs and atomics that the sender wants to issue at a time: the peer's responder resources.
        initiator_depth: u8 = Field::bytes(25..26),
        /// How long the sender takes to acknowledge a packet, 4.096 us << code.
        target_ack_delay: u8 = Field::bits(26, 7, 3),
        /// What the sender did with the alternate path, 2 bits. 0: accepted it.
        failover_accepted: u8 = Field::bits(26, 2, 1),
        /// Whether the sender's receive queue grants end-to-end credits.
        flow_control: bool = Field::bits(26, 0, 0),
        /// Retries after RNR NAKs that the receiver is to make, 0 to 7.
        rnr_retry_count: u8 = Field::bits(27, 7, 5),
        /// Whether the sender's queue pair uses a shared receive queue.
        srq: bool = Field::bits(27, 4, 4),
        /// The sender's channel adapter.
        local_ca_guid: Guid = Field::bytes(28..36),
        /// Private data.
        private_data: PrivateData<196> = Area(36),
    }
}

impl Rep {
    /// The sender's queue pair. An XRC target puts it into the field for end-to-end contexts.
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        if self.local_qpn.value() == 0 { Qpn::new(self.local_eecn) } else { self.local_qpn }
    }
}

message! {
    /// RTU, "ready to use": the active side has seen the REP. 224 bytes of private data.
    Rtu {
        /// The sender's number for the connection.
        local_comm_id: CommId = Field::bytes(0..4),
        /// The receiver's number for the connection.
        remote_comm_id: CommId = Field::bytes(4..8),
        /// Private data.
        private_data: PrivateData<224> = Area(8),
    }
}

message! {
    /// MRA, "message receipt acknowledgement": the answer will take a while. 222 bytes of private data.
    Mra {
        /// The sender's number for the connection; 0 if it has none yet.
        local_comm_id: CommId = Field::bytes(0..4),
        /// The receiver's number for the connection.
        remote_comm_id: CommId = Field::bytes(4..8),
        /// Which message was received.
        message: Concerns = Field::bits(8, 7, 6),
        /// How much longer the answer may take, 4.096 us << code.
        service_timeout: u8 = Field::bits(9, 7, 3),
        /// Private data.
        private_data: PrivateData<222> = Area(10),
    }
}
