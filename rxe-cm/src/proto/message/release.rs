//! DREQ and DREP: the end of a connection.

use crate::proto::{
    CommId, PrivateData,
    layout::{Area, Field, message},
};
use rxe_core::num::Qpn;

message! {
    /// DREQ, "request for communication release". 220 bytes of private data.
    Dreq {
        /// The sender's number for the connection.
        local_comm_id: CommId = Field::bytes(0..4),
        /// The receiver's number for the connection.
        remote_comm_id: CommId = Field::bytes(4..8),
        /// The receiver's queue pair. Kernels ignore a message with another number.
        remote_qpn: Qpn = Field::bytes(8..11),
        /// Private data.
        private_data: PrivateData<220> = Area(12),
    }
}

message! {
    /// DREP, "reply to request for communication release". 224 bytes of private data.
    Drep {
        /// The sender's number for the connection.
        local_comm_id: CommId = Field::bytes(0..4),
        /// The receiver's number for the connection.
        remote_comm_id: CommId = Field::bytes(4..8),
        /// Private data.
        private_data: PrivateData<224> = Area(8),
    }
}
