//! REJ: a connection is refused, and why.

use crate::proto::{
    CommId, Concerns, PrivateData, RejectReason,
    layout::{Area, Field, message},
};

message! {
    /// REJ, "reject". 148 bytes of private data.
    Rej {
        /// The sender's number for the connection; 0 if it has none.
        local_comm_id: CommId = Field::bytes(0..4),
        /// The receiver's number for the connection; 0 if the sender does not know it.
        remote_comm_id: CommId = Field::bytes(4..8),
        /// Which message is refused.
        message: Concerns = Field::bits(8, 7, 6),
        /// Bytes of `info` that are valid, 0 to 72. Larger values may arrive from the wire.
        info_len: u8 = Field::bits(9, 7, 1),
        /// Why.
        reason: RejectReason = Field::bytes(10..12),
        /// Additional reject information: what the reason asks for, such as a GUID or an index.
        info: PrivateData<72> = Area(12),
        /// Private data.
        private_data: PrivateData<148> = Area(84),
    }
}

impl Rej {
    /// The valid part of the additional information.
    #[must_use]
    pub fn info(&self) -> &[u8] {
        &self.info.0[..usize::from(self.info_len).min(self.info.0.len())]
    }
}
