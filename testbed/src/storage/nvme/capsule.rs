//! The encoding of commands, responses, and the data of the commands that set up a connection. All numbers are
//! little-endian.

use crate::storage::link::LinkError;

/// Size of a command without data, in bytes (Base, 3.3.3, "submission queue entry").
pub(crate) const COMMAND: usize = 64;
/// Size of a response, in bytes (Base, 3.3.3, "completion queue entry").
pub(crate) const RESPONSE: usize = 16;
/// The name of the discovery subsystem, which lists the other subsystems (Base, 3.1.2.3).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The number of the discovery log page (Base, 5.16.1.23).
pub(crate) const DISCOVERY_LOG: u8 = 0x70;
/// Size of its header, and of each of its entries, in bytes.
pub(crate) const DISCOVERY_ENTRY: usize = 1024;
/// Size of the data of Connect, in bytes (Base, 6.3, figure "Connect data").
pub(crate) const CONNECT_DATA: usize = 1024;
/// Size of a data structure that Identify returns, in bytes (Base, 5.17).
pub(crate) const IDENTIFY: usize = 4096;
/// Maximum number of entries of a target's admin queue: the value that Linux uses.
pub(crate) const ADMIN_ENTRIES: u16 = 32;
/// The controller ID that stands for any controller (Base, 6.3).
pub(crate) const ANY_CONTROLLER: u16 = 0xffff;

/// The opcode of a command.
pub type Opcode = u8;

/// Opcodes of the admin queue's commands (Base, 5).
pub mod admin {
    #![allow(missing_docs, reason = "they are the specification's names")]
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const SET_FEATURES: u8 = 0x09;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of the I/O queues' commands (NVM, 3.2).
pub mod io {
    #![allow(missing_docs, reason = "they are the specification's names")]
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
}

/// The opcode of fabrics commands, and their types, which are in the fifth byte (Base, 6).
pub mod fabrics {
    #![allow(missing_docs, reason = "they are the specification's names")]
    pub const OPCODE: u8 = 0x7f;
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
}

/// The structures that Identify can return (Base, 5.17, CNS).
pub(crate) mod cns {
    pub(crate) const NAMESPACE: u8 = 0x00;
    pub(crate) const CONTROLLER: u8 = 0x01;
    pub(crate) const NAMESPACES: u8 = 0x02;
}

/// Properties of a controller by their offsets (Base, 3.1.3).
pub(crate) mod property {
    /// Its capabilities, 8 bytes.
    pub(crate) const CAP: u32 = 0x00;
    /// Version.
    pub(crate) const VS: u32 = 0x08;
    /// Configuration: bit 0 enables the controller, bits 15:14 shut it down.
    pub(crate) const CC: u32 = 0x14;
    /// Status: bit 0 is set if it is ready, bits 3:2 are the shutdown status (2: completed).
    pub(crate) const CSTS: u32 = 0x1c;
}

/// The status field of a response without its phase bit (Base, 3.3.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Status(pub u16);

#[allow(missing_docs, reason = "they are the specification's names")]
impl Status {
    pub const SUCCESS: Self = Self(0);
    pub const INVALID_OPCODE: Self = Self(0x01);
    pub const INVALID_FIELD: Self = Self(0x02);
    pub const INVALID_NAMESPACE: Self = Self(0x0b);
    pub const SEQUENCE_ERROR: Self = Self(0x0c);
    pub const DATA_LENGTH_INVALID: Self = Self(0x0f);
    pub const SGL_TYPE_INVALID: Self = Self(0x11);
    pub const OUT_OF_RANGE: Self = Self(0x80);
    pub const TOO_MANY_EVENT_REQUESTS: Self = Self(0x105);
    pub const CONNECT_INVALID_FORMAT: Self = Self(0x180);
    pub const CONNECT_INVALID_PARAMETERS: Self = Self(0x182);
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Bits 7:0 are the code, bits 10:8 its type. Bit 14 means that a retry is useless.
        let (code, kind) = (self.0 & 0xff, self.0 >> 8 & 7);
        write!(f, "status type {kind} code {code:#04x}")
    }
}

/// Where a command's data are (Base, 4.1.2; RDMA, 2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sgl {
    /// In the initiator's memory: a keyed data block descriptor.
    Keyed {
        /// Address of the first byte in that memory.
        addr: u64,
        /// Length in bytes, below 2^24.
        len: u32,
        /// The R_Key of that memory.
        key: u32,
        /// Whether the target shall invalidate the key with its response.
        invalidate: bool,
    },
    /// Behind the command in the same message: a data block descriptor with an offset.
    InCapsule {
        /// Offset from the end of the command's 64 bytes.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Another descriptor, with this type byte.
    Other(u8),
}

impl Sgl {
    /// No data.
    pub const NONE: Self = Self::Keyed { addr: 0, len: 0, key: 0, invalidate: false };

    fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        match self {
            Self::Keyed { addr, len, key, invalidate } => {
                out[..8].copy_from_slice(&addr.to_le_bytes());
                out[8..11].copy_from_slice(&len.to_le_bytes()[..3]);
                out[11..15].copy_from_slice(&key.to_le_bytes());
                out[15] = 0x40 | if invalidate { 0x0f } else { 0 };
            }
            Self::InCapsule { offset, len } => {
                out[..8].copy_from_slice(&offset.to_le_bytes());
                out[8..12].copy_from_slice(&len.to_le_bytes());
                out[15] = 0x01;
            }
            Self::Other(kind) => out[15] = kind,
        }
        out
    }

    fn decode(bytes: &[u8]) -> Self {
        let (addr, kind) = (u64_at(bytes, 0), bytes[15]);
        match kind {
            0x40 | 0x4f => Self::Keyed {
                addr,
                len: u32_at(bytes, 8) & 0xff_ffff,
                key: u32_at(bytes, 11),
                invalidate: kind == 0x4f,
            },
            0x01 => Self::InCapsule { offset: addr, len: u32_at(bytes, 8) },
            other => Self::Other(other),
        }
    }
}

/// A command (Base, 3.3.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The opcode.
    pub opcode: Opcode,
    /// The command ID that the response returns.
    pub id: u16,
    /// The namespace; for a fabrics command its type.
    pub nsid: u32,
    /// The place of the data.
    pub sgl: Sgl,
    /// Command dwords 10 to 15: the parameters of the command.
    pub dwords: [u32; 6],
}

impl Command {
    /// A command without data.
    #[must_use]
    pub const fn new(opcode: Opcode, nsid: u32, dwords: [u32; 6]) -> Self {
        Self { opcode, id: 0, nsid, sgl: Sgl::NONE, dwords }
    }

    /// Encodes the command. Data are always described by an SGL (flags 0x40), as required by RDMA, 2.4.
    #[must_use]
    pub fn encode(&self) -> [u8; COMMAND] {
        let mut out = [0; COMMAND];
        out[0] = self.opcode;
        out[1] = 0x40;
        out[2..4].copy_from_slice(&self.id.to_le_bytes());
        out[4..8].copy_from_slice(&self.nsid.to_le_bytes());
        out[24..40].copy_from_slice(&self.sgl.encode());
        for (place, dword) in out[40..].chunks_exact_mut(4).zip(self.dwords) {
            place.copy_from_slice(&dword.to_le_bytes());
        }
        out
    }

    /// Decodes a command.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] if there are not 64 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, LinkError> {
        if bytes.len() < COMMAND {
            return Err(LinkError::protocol(format!("a command of {} bytes", bytes.len())));
        }
        let mut dwords = [0; 6];
        for (dword, place) in dwords.iter_mut().zip((40..COMMAND).step_by(4)) {
            *dword = u32_at(bytes, place);
        }
        let sgl = Sgl::decode(&bytes[24..40]);
        Ok(Self { opcode: bytes[0], id: u16_at(bytes, 2), nsid: u32_at(bytes, 4), sgl, dwords })
    }
}

/// A response (Base, 3.3.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response {
    /// The result, if it is a number.
    pub result: u64,
    /// How many commands the target has taken from the queue, modulo the queue's size.
    pub taken: u16,
    /// The ID of the command.
    pub id: u16,
    /// The status.
    pub status: Status,
}

impl Response {
    /// Encodes the response.
    #[must_use]
    pub fn encode(&self) -> [u8; RESPONSE] {
        let mut out = [0; RESPONSE];
        out[..8].copy_from_slice(&self.result.to_le_bytes());
        out[8..10].copy_from_slice(&self.taken.to_le_bytes());
        out[12..14].copy_from_slice(&self.id.to_le_bytes());
        out[14..].copy_from_slice(&(self.status.0 << 1).to_le_bytes());
        out
    }

    /// Decodes a response.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] if there are not 16 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, LinkError> {
        if bytes.len() != RESPONSE {
            return Err(LinkError::protocol(format!("a response of {} bytes", bytes.len())));
        }
        Ok(Self {
            result: u64_at(bytes, 0),
            taken: u16_at(bytes, 8),
            id: u16_at(bytes, 12),
            status: Status(u16_at(bytes, 14) >> 1),
        })
    }
}

/// The data of Connect, which identify both ends (Base, 6.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectData {
    /// The host identifier.
    pub host_id: [u8; 16],
    /// The controller ID; on the admin queue 0xffff, which stands for any.
    pub controller: u16,
    /// The subsystem's name.
    pub subsystem: String,
    /// The host's name.
    pub host: String,
}

impl ConnectData {
    /// Encodes the data.
    #[must_use]
    pub fn encode(&self) -> [u8; CONNECT_DATA] {
        let mut out = [0; CONNECT_DATA];
        out[..16].copy_from_slice(&self.host_id);
        out[16..18].copy_from_slice(&self.controller.to_le_bytes());
        put_text(&mut out[256..512], &self.subsystem);
        put_text(&mut out[512..768], &self.host);
        out
    }

    /// Decodes the data; `None` if a name is not terminated, or is not valid text.
    #[must_use]
    pub fn decode(bytes: &[u8; CONNECT_DATA]) -> Option<Self> {
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&bytes[..16]);
        let (subsystem, host) = (name(&bytes[256..512])?, name(&bytes[512..768])?);
        Some(Self { host_id, controller: u16_at(bytes, 16), subsystem, host })
    }
}

/// The private data that the initiator and the target exchange when an RDMA connection is set up (RDMA, 2.2): 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueOffer {
    /// The queue ID; 0 for the admin queue.
    pub(crate) queue: u16,
    /// Number of responses that the initiator has posted receives for.
    pub(crate) responses: u16,
    /// Number of commands that the initiator has outstanding at most.
    pub(crate) commands: u16,
}

impl QueueOffer {
    pub(crate) fn encode(self) -> [u8; 32] {
        let mut out = [0; 32];
        out[2..4].copy_from_slice(&self.queue.to_le_bytes());
        out[4..6].copy_from_slice(&self.responses.to_le_bytes());
        // This number is counted from 0.
        out[6..8].copy_from_slice(&(self.commands - 1).to_le_bytes());
        out
    }

    /// Decodes the data of a connection request; `None` if the format is not 0.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < 32 || u16_at(bytes, 0) != 0 {
            return None;
        }
        let commands = u16_at(bytes, 6).checked_add(1)?;
        Some(Self { queue: u16_at(bytes, 2), responses: u16_at(bytes, 4), commands })
    }
}

/// The target's answer: how many commands it has posted receives for.
pub(crate) fn queue_answer(commands: u16) -> [u8; 32] {
    let mut out = [0; 32];
    out[2..4].copy_from_slice(&commands.to_le_bytes());
    out
}

/// A subsystem as it is listed by discovery (Base, 5.16.1.23).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryEntry {
    /// The transport: 1 is RDMA.
    pub transport: u8,
    /// 1 IPv4, 2 IPv6.
    pub family: u8,
    /// The port, as text.
    pub service: String,
    /// Its name.
    pub subsystem: String,
    /// The address, as text.
    pub address: String,
}

impl DiscoveryEntry {
    pub(crate) fn encode(&self) -> [u8; DISCOVERY_ENTRY] {
        let mut out = [0; DISCOVERY_ENTRY];
        (out[0], out[1]) = (self.transport, self.family);
        // An NVM subsystem, whose controllers are allocated dynamically.
        out[2] = 2;
        out[4..6].copy_from_slice(&1_u16.to_le_bytes());
        out[6..8].copy_from_slice(&ANY_CONTROLLER.to_le_bytes());
        out[8..10].copy_from_slice(&ADMIN_ENTRIES.to_le_bytes());
        put_text(&mut out[32..64], &self.service);
        put_text(&mut out[256..512], &self.subsystem);
        put_text(&mut out[512..768], &self.address);
        // Reliable connections of RoCE v2, set up by rdma_cm (RDMA, 2.1).
        (out[768], out[769], out[770]) = (1, 4, 1);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            transport: bytes[0],
            family: bytes[1],
            service: text(&bytes[32..64]),
            subsystem: name(&bytes[256..512])?,
            address: text(&bytes[512..768]),
        })
    }
}

/// A name that is terminated within its field.
fn name(field: &[u8]) -> Option<String> {
    let end = field.iter().position(|byte| *byte == 0)?;
    Some(core::str::from_utf8(&field[..end]).ok()?.to_owned())
}

/// Text that is padded with spaces or zeros.
pub(crate) fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches(['\0', ' ']).to_owned()
}

/// Writes text to the start of a field, cut off if it is too long.
fn put_text(field: &mut [u8], text: &str) {
    let len = text.len().min(field.len() - 1);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}

/// Writes text to a field, padded with spaces (Base, 5.17.2.1).
pub(crate) fn put_padded(field: &mut [u8], text: &str) {
    field.fill(b' ');
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
