//! The header of a management datagram, the payload of queue pair 1 (IBTA vol. 1, 13.4).
//!
//! This crate knows only the header. The messages of the connection manager, which follow it, are defined in rxe-cm.

/// Size of a management datagram, bytes.
pub const MAD_LEN: usize = 256;
/// Size of the header in front of every management datagram, bytes.
pub const MAD_HEADER_LEN: usize = 24;

/// A management datagram's header, 24 bytes. Values that arrive are not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MadHeader {
    /// Version of the datagram's format: 1.
    pub base_version: u8,
    /// Management class: 7 is communication management.
    pub class: u8,
    /// Version of the class's format: 2 for communication management.
    pub class_version: u8,
    /// Method: what to do. Bit 0x80 is set in responses.
    pub method: u8,
    /// Status; 0 in requests.
    pub status: u16,
    /// Its meaning depends on the class.
    pub class_specific: u16,
    /// Transaction ID: chosen by the requester and copied into the reply.
    pub transaction: u64,
    /// Attribute ID. For communication management: which message.
    pub attribute: u16,
    /// Attribute modifier: its meaning depends on the attribute.
    pub modifier: u32,
}

impl MadHeader {
    /// The base version of every management datagram.
    pub const BASE_VERSION: u8 = 1;
    /// Management class of the connection manager.
    pub const CLASS_CM: u8 = 0x07;
    /// Class version of the connection manager's messages.
    pub const CM_VERSION: u8 = 2;
    /// Method Send: no response belongs to it.
    pub const METHOD_SEND: u8 = 0x03;

    /// The header of the connection manager message with this attribute ID and transaction ID.
    #[must_use]
    pub const fn cm(attribute: u16, transaction: u64) -> Self {
        Self {
            base_version: Self::BASE_VERSION,
            class: Self::CLASS_CM,
            class_version: Self::CM_VERSION,
            method: Self::METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction,
            attribute,
            modifier: 0,
        }
    }

    /// Whether this is the header of a connection manager message: base version, class, class version and method are right.
    #[must_use]
    pub const fn is_cm(&self) -> bool {
        self.base_version == Self::BASE_VERSION
            && self.class == Self::CLASS_CM
            && self.class_version == Self::CM_VERSION
            && self.method == Self::METHOD_SEND
    }

    /// Reads a header; reserved bytes are ignored.
    #[must_use]
    pub const fn parse(bytes: &[u8; MAD_HEADER_LEN]) -> Self {
        let b = bytes;
        Self {
            base_version: b[0],
            class: b[1],
            class_version: b[2],
            method: b[3],
            status: u16::from_be_bytes([b[4], b[5]]),
            class_specific: u16::from_be_bytes([b[6], b[7]]),
            transaction: u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
            attribute: u16::from_be_bytes([b[16], b[17]]),
            modifier: u32::from_be_bytes([b[20], b[21], b[22], b[23]]),
        }
    }

    /// Writes the header; reserved bytes are zero.
    #[must_use]
    pub fn emit(&self) -> [u8; MAD_HEADER_LEN] {
        let mut out = [0; MAD_HEADER_LEN];
        out[..4].copy_from_slice(&[self.base_version, self.class, self.class_version, self.method]);
        out[4..6].copy_from_slice(&self.status.to_be_bytes());
        out[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        out[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        out[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        out[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        out
    }
}
