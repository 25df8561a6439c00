//! Messages of the connection manager (IBTA vol. 1, 12.6 and 13.4.3). They are datagrams of 256 bytes between queue pairs 1.
//! Every field can be read, and can be set to an invalid value.

use super::{Packet, op};

/// Size of every management datagram, in bytes.
pub const MAD_LEN: usize = 256;
/// Offset of the message, which follows the common header.
const HEADER: usize = 24;
/// The queue pair of connection managers.
pub const GSI: u32 = 1;
/// Its Q_Key (IBTA vol. 1, 3.5.3).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// Management class of connection managers.
pub const CLASS: u64 = 0x07;

/// The kind of a message (IBTA vol. 1, table 99).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the specification's names")]
pub enum Kind {
    Req = 0x10,
    Mra = 0x11,
    Rej = 0x12,
    Rep = 0x13,
    Rtu = 0x14,
    Dreq = 0x15,
    Drep = 0x16,
    SidrReq = 0x17,
    SidrRep = 0x18,
    Lap = 0x19,
    Apr = 0x1a,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
        Self::Lap,
        Self::Apr,
    ];

    /// The name in the specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Req => "REQ",
            Self::Mra => "MRA",
            Self::Rej => "REJ",
            Self::Rep => "REP",
            Self::Rtu => "RTU",
            Self::Dreq => "DREQ",
            Self::Drep => "DREP",
            Self::SidrReq => "SIDR_REQ",
            Self::SidrRep => "SIDR_REP",
            Self::Lap => "LAP",
            Self::Apr => "APR",
        }
    }
}

/// A field of up to 64 bits: its name, its first byte in the datagram, its first bit in that byte (0 is the highest), and
/// its number of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    first: usize,
    bits: usize,
}

/// A field of the common header.
const fn header(name: &'static str, byte: usize, bits: usize) -> Field {
    Field { name, first: byte * 8, bits }
}

/// A field of the message itself.
const fn field(name: &'static str, byte: usize, bit: usize, bits: usize) -> Field {
    Field { name, first: (HEADER + byte) * 8 + bit, bits }
}

/// Fields of the common header (IBTA vol. 1, 13.4.3).
#[allow(missing_docs, reason = "named as the specification does")]
pub mod mad {
    use super::{Field, header};

    pub const BASE_VERSION: Field = header("base_version", 0, 8);
    pub const CLASS: Field = header("class", 1, 8);
    pub const CLASS_VERSION: Field = header("class_version", 2, 8);
    pub const METHOD: Field = header("method", 3, 8);
    pub const STATUS: Field = header("status", 4, 16);
    pub const TRANSACTION: Field = header("transaction", 8, 64);
    pub const ATTRIBUTE: Field = header("attribute", 16, 16);
    pub const MODIFIER: Field = header("modifier", 20, 32);
    pub const ALL: [Field; 8] =
        [BASE_VERSION, CLASS, CLASS_VERSION, METHOD, STATUS, TRANSACTION, ATTRIBUTE, MODIFIER];
}

/// The sender's communication ID; in SIDR messages the request ID.
pub const LOCAL_ID: Field = field("local_id", 0, 0, 32);
/// The receiver's communication ID, in all messages except REQ and SIDR.
pub const REMOTE_ID: Field = field("remote_id", 4, 0, 32);

/// Fields of a REQ (IBTA vol. 1, 12.6.5).
#[allow(missing_docs, reason = "named as the specification does")]
pub mod req {
    use super::{Field, LOCAL_ID, field};

    pub const SERVICE: Field = field("service", 8, 0, 64);
    pub const GUID: Field = field("guid", 16, 0, 64);
    pub const QKEY: Field = field("qkey", 28, 0, 32);
    pub const QPN: Field = field("qpn", 32, 0, 24);
    pub const RESOURCES: Field = field("responder_resources", 35, 0, 8);
    pub const DEPTH: Field = field("initiator_depth", 39, 0, 8);
    pub const REMOTE_TIMEOUT: Field = field("remote_timeout", 43, 0, 5);
    pub const TRANSPORT: Field = field("transport", 43, 5, 2);
    pub const FLOW: Field = field("flow_control", 43, 7, 1);
    pub const PSN: Field = field("psn", 44, 0, 24);
    pub const LOCAL_TIMEOUT: Field = field("local_timeout", 47, 0, 5);
    pub const RETRY: Field = field("retry_count", 47, 5, 3);
    pub const PKEY: Field = field("pkey", 48, 0, 16);
    pub const MTU: Field = field("mtu", 50, 0, 4);
    pub const RNR_RETRY: Field = field("rnr_retry", 50, 5, 3);
    pub const CM_RETRIES: Field = field("cm_retries", 51, 0, 4);
    pub const SRQ: Field = field("srq", 51, 4, 1);
    pub const LOCAL_LID: Field = field("local_lid", 52, 0, 16);
    pub const REMOTE_LID: Field = field("remote_lid", 54, 0, 16);
    /// The upper and the lower half of the GID.
    pub const LOCAL_GID: [Field; 2] = [field("local_gid", 56, 0, 64), field("local_gid_low", 64, 0, 64)];
    pub const REMOTE_GID: [Field; 2] = [field("remote_gid", 72, 0, 64), field("remote_gid_low", 80, 0, 64)];
    pub const RATE: Field = field("rate", 91, 2, 6);
    pub const HOP_LIMIT: Field = field("hop_limit", 93, 0, 8);
    pub const ACK_TIMEOUT: Field = field("ack_timeout", 95, 0, 5);
    pub const ALTERNATE_LID: Field = field("alternate_lid", 96, 0, 16);
    pub const ALL: [Field; 28] = [
        LOCAL_ID,
        SERVICE,
        GUID,
        QKEY,
        QPN,
        RESOURCES,
        DEPTH,
        REMOTE_TIMEOUT,
        TRANSPORT,
        FLOW,
        PSN,
        LOCAL_TIMEOUT,
        RETRY,
        PKEY,
        MTU,
        RNR_RETRY,
        CM_RETRIES,
        SRQ,
        LOCAL_LID,
        REMOTE_LID,
        LOCAL_GID[0],
        LOCAL_GID[1],
        REMOTE_GID[0],
        REMOTE_GID[1],
        RATE,
        HOP_LIMIT,
        ACK_TIMEOUT,
        ALTERNATE_LID,
    ];
}

/// Fields of a REP (IBTA vol. 1, 12.6.8).
#[allow(missing_docs, reason = "named as the specification does")]
pub mod rep {
    use super::{Field, LOCAL_ID, REMOTE_ID, field};

    pub const QKEY: Field = field("qkey", 8, 0, 32);
    pub const QPN: Field = field("qpn", 12, 0, 24);
    pub const PSN: Field = field("psn", 20, 0, 24);
    pub const RESOURCES: Field = field("responder_resources", 24, 0, 8);
    pub const DEPTH: Field = field("initiator_depth", 25, 0, 8);
    pub const ACK_DELAY: Field = field("ack_delay", 26, 0, 5);
    pub const FLOW: Field = field("flow_control", 26, 7, 1);
    pub const RNR_RETRY: Field = field("rnr_retry", 27, 0, 3);
    pub const SRQ: Field = field("srq", 27, 3, 1);
    pub const GUID: Field = field("guid", 28, 0, 64);
    pub const ALL: [Field; 12] =
        [LOCAL_ID, REMOTE_ID, QKEY, QPN, PSN, RESOURCES, DEPTH, ACK_DELAY, FLOW, RNR_RETRY, SRQ, GUID];
}

/// Fields of REJ, MRA, DREQ and LAP (IBTA vol. 1, 12.6.6 to 12.6.10).
#[allow(missing_docs, reason = "named as the specification does")]
pub mod other {
    use super::{Field, field};

    /// REJ and MRA: which message is meant. 0 REQ, 1 REP, 2 none of these or LAP.
    pub const MESSAGE: Field = field("message", 8, 0, 2);
    pub const REASON: Field = field("reason", 10, 0, 16);
    pub const INFO_LEN: Field = field("info_length", 9, 0, 7);
    /// REJ: additional information, of which a GUID takes eight bytes.
    pub const INFO: Field = field("info", 12, 0, 64);
    /// MRA: how long the answer may take, 4.096 us << code.
    pub const SERVICE_TIMEOUT: Field = field("service_timeout", 9, 0, 5);
    pub const DREQ_QPN: Field = field("qpn", 8, 0, 24);
    pub const LAP_QPN: Field = field("qpn", 12, 0, 24);
    pub const APR_STATUS: Field = field("status", 9, 0, 8);
}

/// Fields of SIDR_REQ and SIDR_REP (IBTA vol. 1, 12.11); both have a request ID where others have [`LOCAL_ID`].
#[allow(missing_docs, reason = "named as the specification does")]
pub mod sidr {
    use super::{Field, LOCAL_ID, field};

    pub const PKEY: Field = field("pkey", 4, 0, 16);
    pub const SERVICE: Field = field("service", 8, 0, 64);
    pub const STATUS: Field = field("status", 4, 0, 8);
    pub const QPN: Field = field("qpn", 8, 0, 24);
    pub const REP_SERVICE: Field = field("service", 12, 0, 64);
    pub const QKEY: Field = field("qkey", 20, 0, 32);
    pub const REQ: [Field; 3] = [LOCAL_ID, PKEY, SERVICE];
    pub const REP: [Field; 5] = [LOCAL_ID, STATUS, QPN, REP_SERVICE, QKEY];
}

/// Fields of a message.
const fn fields_of(kind: Kind) -> &'static [Field] {
    use other::{APR_STATUS, DREQ_QPN, INFO, INFO_LEN, LAP_QPN, MESSAGE, REASON, SERVICE_TIMEOUT};
    match kind {
        Kind::Req => &req::ALL,
        Kind::Mra => &[LOCAL_ID, REMOTE_ID, MESSAGE, SERVICE_TIMEOUT],
        Kind::Rej => &[LOCAL_ID, REMOTE_ID, MESSAGE, REASON, INFO_LEN, INFO],
        Kind::Rep => &rep::ALL,
        Kind::Rtu | Kind::Drep => &[LOCAL_ID, REMOTE_ID],
        Kind::Dreq => &[LOCAL_ID, REMOTE_ID, DREQ_QPN],
        Kind::SidrReq => &sidr::REQ,
        Kind::SidrRep => &sidr::REP,
        Kind::Lap => &[LOCAL_ID, REMOTE_ID, LAP_QPN],
        Kind::Apr => &[LOCAL_ID, REMOTE_ID, APR_STATUS],
    }
}

/// Offset and size of the private data of a message, in bytes.
#[must_use]
pub const fn private(kind: Kind) -> (usize, usize) {
    match kind {
        Kind::Req => (140, 92),
        Kind::Mra => (10, 222),
        Kind::Rej | Kind::Apr => (84, 148),
        Kind::Rep => (36, 196),
        Kind::Rtu | Kind::Drep => (8, 224),
        Kind::Dreq => (12, 220),
        Kind::SidrReq => (16, 216),
        Kind::SidrRep => (96, 136),
        Kind::Lap => (64, 168),
    }
}

/// A message.
#[derive(Clone, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    /// A message with a valid header, and zeros behind it.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self(vec![0; MAD_LEN])
            .with(mad::BASE_VERSION, 1)
            .with(mad::CLASS, CLASS)
            .with(mad::CLASS_VERSION, 2)
            .with(mad::METHOD, 3)
            .with(mad::ATTRIBUTE, kind as u64)
    }

    /// The message in a datagram, if the datagram belongs to the connection manager.
    #[must_use]
    pub fn of(packet: &Packet) -> Option<Self> {
        let data = packet.data.as_ref().filter(|data| data.len() == MAD_LEN)?;
        let message = Self(data.clone());
        let ours = packet.dest_qp == Some(GSI)
            && packet.opcode == Some(op::UD_SEND_ONLY)
            && message.get(mad::CLASS) == CLASS;
        ours.then_some(message)
    }

    /// The kind of the message, if the specification defines it.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        let attribute = self.get(mad::ATTRIBUTE);
        Kind::ALL.into_iter().find(|kind| *kind as u64 == attribute)
    }

    /// The value of a field.
    #[must_use]
    pub fn get(&self, field: Field) -> u64 {
        (field.first..field.first + field.bits)
            .fold(0, |value, bit| value << 1 | u64::from(self.0[bit / 8] >> (7 - bit % 8) & 1))
    }

    /// The same message with a different value of a field.
    #[must_use]
    pub fn with(mut self, field: Field, value: u64) -> Self {
        for at in 0..field.bits {
            let bit = field.first + at;
            let mask = 0x80 >> (bit % 8);
            if value >> (field.bits - 1 - at) & 1 == 1 {
                self.0[bit / 8] |= mask;
            } else {
                self.0[bit / 8] &= !mask;
            }
        }
        self
    }

    /// The same message with these bytes at the start of its private data.
    #[must_use]
    pub fn with_private(self, data: &[u8]) -> Self {
        self.with_private_at(0, data)
    }

    /// The same message with these bytes at an offset in its private data. Bytes that do not fit are cut off.
    #[must_use]
    pub fn with_private_at(mut self, at: usize, data: &[u8]) -> Self {
        let (start, len) = private(self.kind().unwrap_or(Kind::Rtu));
        let room = &mut self.0[HEADER + start + at.min(len)..HEADER + start + len];
        let count = data.len().min(room.len());
        room[..count].copy_from_slice(&data[..count]);
        self
    }

    /// Its private data, the whole field.
    #[must_use]
    pub fn private(&self) -> &[u8] {
        let (start, len) = private(self.kind().unwrap_or(Kind::Rtu));
        &self.0[HEADER + start..HEADER + start + len]
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bits that are not 0 although they belong neither to a field nor to the private data, by byte of the datagram.
    #[must_use]
    pub fn strays(&self) -> Vec<usize> {
        let Some(kind) = self.kind() else { return Vec::new() };
        let (start, len) = private(kind);
        let mut rest = self.clone();
        for field in mad::ALL.iter().chain(fields_of(kind)) {
            rest = rest.with(*field, 0);
        }
        rest.0[HEADER + start..HEADER + start + len].fill(0);
        (0..MAD_LEN).filter(|&at| rest.0[at] != 0).collect()
    }

    /// Name and value of every field.
    #[must_use]
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let own = self.kind().map_or(&[][..], fields_of);
        mad::ALL.iter().chain(own).map(|field| (field.name, format!("{:#x}", self.get(*field)))).collect()
    }

    /// The datagram that carries it.
    #[must_use]
    pub fn packet(&self) -> Packet {
        Packet::of(op::UD_SEND_ONLY).dest_qp(GSI).src_qp(GSI).qkey(GSI_QKEY).data(self.0.clone())
    }

    /// Whether it rejects a request because no program listens for the service (REJ 8, SIDR_REP 1).
    #[must_use]
    pub fn refuses_service(&self) -> bool {
        match self.kind() {
            Some(Kind::Rej) => self.get(other::REASON) == 8,
            Some(Kind::SidrRep) => self.get(sidr::STATUS) == 1,
            _ => false,
        }
    }

    /// One line: the kind of the message, and its most important fields.
    #[must_use]
    pub fn summary(&self) -> String {
        let Some(kind) = self.kind() else { return format!("attribute {:#x}", self.get(mad::ATTRIBUTE)) };
        let mut text = format!("{} {:#x}", kind.name(), self.get(LOCAL_ID));
        if !matches!(kind, Kind::Req | Kind::SidrReq | Kind::SidrRep) {
            text += &format!(" to {:#x}", self.get(REMOTE_ID));
        }
        match kind {
            Kind::Rej => text += &format!(" reason {}", self.get(other::REASON)),
            Kind::SidrRep => text += &format!(" status {}", self.get(sidr::STATUS)),
            _ => {}
        }
        text
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.summary())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes counted by hand from the figures of the specification.
    #[test]
    fn fields_are_where_a_known_layout_has_them() {
        let message = Message::new(Kind::Req)
            .with(req::SERVICE, 0x0106_1d2f)
            .with(req::QPN, 0x12_3456)
            .with(req::REMOTE_TIMEOUT, 20)
            .with(req::TRANSPORT, 1)
            .with(req::FLOW, 1)
            .with(req::MTU, 3)
            .with(req::RNR_RETRY, 7);
        let bytes = message.bytes();
        assert_eq!(bytes[..4], [1, 7, 2, 3]);
        assert_eq!(bytes[16..18], [0, 0x10]);
        assert_eq!(bytes[24 + 8..24 + 16], [0, 0, 0, 0, 1, 6, 0x1d, 0x2f]);
        assert_eq!(bytes[24 + 32..24 + 35], [0x12, 0x34, 0x56]);
        assert_eq!((bytes[24 + 43], bytes[24 + 50]), (20 << 3 | 1 << 1 | 1, 3 << 4 | 7));
        assert!(message.strays().is_empty());
        assert_eq!(message.get(req::QPN), 0x12_3456);
    }

    #[test]
    fn no_field_overlaps_another_and_none_the_private_data() {
        for kind in Kind::ALL {
            let (start, len) = private(kind);
            assert!(start + len <= MAD_LEN - HEADER, "{kind:?}");
            let mut taken: Vec<usize> = ((HEADER + start) * 8..(HEADER + start + len) * 8).collect();
            for field in mad::ALL.iter().chain(fields_of(kind)) {
                taken.extend(field.first..field.first + field.bits);
            }
            let count = taken.len();
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), count, "{kind:?}");
        }
    }

    #[test]
    fn only_whole_datagrams_to_queue_pair_1_are_messages() {
        let packet = Message::new(Kind::Rtu).packet();
        assert_eq!(Message::of(&packet).and_then(|message| message.kind()), Some(Kind::Rtu));
        assert!(Message::of(&packet.clone().dest_qp(2)).is_none());
        assert!(Message::of(&packet.data(vec![0; 255])).is_none());
    }
}
