//! SIDR_REQ and SIDR_REP: which datagram queue pair serves a service ID.

use crate::proto::{
    CommId, PrivateData, ServiceId, SidrStatus,
    layout::{Apart, Area, Field, message},
};
use rxe_core::num::{Pkey, Qkey, Qpn};

message! {
    /// SIDR_REQ, "service ID resolution request". 216 bytes of private data, of which an IP CM header takes 36.
    SidrReq {
        /// The sender's number for the request.
        request_id: CommId = Field::bytes(0..4),
        /// Partition.
        pkey: Pkey = Field::bytes(4..6),
        /// What is asked for: port space and port.
        service_id: ServiceId = Field::bytes(8..16),
        /// Private data; on RoCE it starts with a [`CmaHeader`](crate::proto::CmaHeader).
        private_data: PrivateData<216> = Area(16),
    }
}

message! {
    /// SIDR_REP, "service ID resolution response". 136 bytes of private data.
    SidrRep {
        /// The requester's number for the request.
        request_id: CommId = Field::bytes(0..4),
        /// Whether there is such a service.
        status: SidrStatus = Field::bytes(4..5),
        /// Bytes of `info` that are valid.
        info_len: u8 = Field::bytes(5..6),
        /// Vendor of the enhanced connection establishment options, 24 bits; 0 for none.
        vendor_id: u32 = Apart([6, 7, 11]),
        /// The queue pair that serves it.
        qpn: Qpn = Field::bytes(8..11),
        /// What was asked for.
        service_id: ServiceId = Field::bytes(12..20),
        /// The Q_Key of that queue pair.
        qkey: Qkey = Field::bytes(20..24),
        /// More about the status.
        info: PrivateData<72> = Area(24),
        /// Private data.
        private_data: PrivateData<136> = Area(96),
    }
}
