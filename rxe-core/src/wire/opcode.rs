//! The opcode table: which headers a packet has, what it does, and which part of its message it is (IBTA vol. 1, 9.2; annex A14 for XRC,
//! A19 for ATOMIC WRITE and FLUSH). All other code asks this table what an opcode means.

use core::fmt;

/// A BTH opcode: the service in the top three bits, the operation in the low five. Unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// The transport service a packet belongs to: the opcode's top three bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification (RoCEv2 annex A17).
    Cnp,
}

/// What a packet does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// SEND in any form.
    Send,
    /// RDMA WRITE in any form.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response. Also the response to FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// Acknowledge, positive or negative.
    Acknowledge,
    /// Response to CmpSwap and FetchAdd, with the value before the operation.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// FLUSH.
    Flush,
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite,
    /// Congestion notification.
    Congestion,
}

/// A packet's place in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// Whether a message starts here.
    #[must_use]
    pub const fn is_start(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }

    /// The position of a packet that starts its message if `start`, and ends it if `end`.
    #[must_use]
    pub const fn new(start: bool, end: bool) -> Self {
        match (start, end) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }
}

bitflags::bitflags! {
    /// The extension headers behind a BTH. On the wire they are in the order of the bits, lowest first.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Extensions: u16 {
        /// Datagram extended transport header, 8 bytes.
        const DETH = 1;
        /// XRC extended transport header, 4 bytes.
        const XRCETH = 1 << 1;
        /// FLUSH extended transport header, 4 bytes.
        const FETH = 1 << 2;
        /// RDMA extended transport header, 16 bytes.
        const RETH = 1 << 3;
        /// Atomic extended transport header, 28 bytes.
        const ATOMIC_ETH = 1 << 4;
        /// Acknowledge extended transport header, 4 bytes.
        const AETH = 1 << 5;
        /// Atomic acknowledge extended transport header, 8 bytes.
        const ATOMIC_ACK_ETH = 1 << 6;
        /// Immediate data, 4 bytes.
        const IMMDT = 1 << 7;
        /// Invalidate extended transport header, 4 bytes.
        const IETH = 1 << 8;
    }
}

impl Extensions {
    /// Bytes that these headers take together.
    #[must_use]
    pub const fn wire_len(self) -> usize {
        // In the order of the bits.
        const SIZES: [usize; 9] = [8, 4, 4, 16, 28, 4, 8, 4, 4];
        let mut total = 0;
        let mut i = 0;
        while i < SIZES.len() {
            total += SIZES[i] * (self.bits() >> i & 1) as usize;
            i += 1;
        }
        total
    }
}

/// One row of the opcode table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// The transport service.
    pub service: Service,
    /// What the packet does.
    pub class: Class,
    /// Its place in the message.
    pub position: Position,
    /// Its extension headers.
    pub extensions: Extensions,
    /// Whether it may carry payload.
    pub payload: bool,
    /// Bytes from the start of the BTH to the payload.
    pub header_len: usize,
}

impl OpcodeInfo {
    /// Whether the packet travels from requester to responder.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        is_request(self.class)
    }

    /// Whether the packet carries immediate data.
    #[must_use]
    pub const fn has_immediate(&self) -> bool {
        self.extensions.contains(Extensions::IMMDT)
    }

    /// Whether the responder consumes a receive work request for this packet: the first packet of a SEND, the last of a WRITE with
    /// immediate.
    #[must_use]
    pub const fn takes_receive(&self) -> bool {
        match self.class {
            Class::Send => self.position.is_start(),
            Class::Write => self.has_immediate(),
            _ => false,
        }
    }
}

/// Size of the base transport header, bytes.
pub const BTH_LEN: usize = 12;

const fn row(
    service: Service,
    class: Class,
    position: Position,
    extensions: Extensions,
) -> Option<OpcodeInfo> {
    let base = match service {
        Service::Ud => extensions.union(Extensions::DETH),
        Service::Xrc if is_request(class) => extensions.union(Extensions::XRCETH),
        _ => extensions,
    };
    let payload = matches!(
        class,
        Class::Send | Class::Write | Class::ReadResponse | Class::AtomicWrite | Class::Congestion
    );
    Some(OpcodeInfo {
        service,
        class,
        position,
        extensions: base,
        payload,
        header_len: BTH_LEN + base.wire_len(),
    })
}

const fn is_request(class: Class) -> bool {
    !matches!(class, Class::ReadResponse | Class::Acknowledge | Class::AtomicAcknowledge | Class::Congestion)
}

const fn connected(service: Service, op: u8) -> Option<OpcodeInfo> {
    use Class::*;
    use Position::*;
    const NONE: Extensions = Extensions::empty();
    const IMM: Extensions = Extensions::IMMDT;
    const RETH: Extensions = Extensions::RETH;
    const AETH: Extensions = Extensions::AETH;
    const INV: Extensions = Extensions::IETH;
    let reliable = matches!(service, Service::Rc | Service::Xrc);
    match op {
        0x00 => row(service, Send, First, NONE),
        0x01 => row(service, Send, Middle, NONE),
        0x02 => row(service, Send, Last, NONE),
        0x03 => row(service, Send, Last, IMM),
        0x04 => row(service, Send, Only, NONE),
        0x05 => row(service, Send, Only, IMM),
        0x06 => row(service, Write, First, RETH),
        0x07 => row(service, Write, Middle, NONE),
        0x08 => row(service, Write, Last, NONE),
        0x09 => row(service, Write, Last, IMM),
        0x0a => row(service, Write, Only, RETH),
        0x0b => row(service, Write, Only, RETH.union(IMM)),
        0x0c if reliable => row(service, ReadRequest, Only, RETH),
        0x0d if reliable => row(service, ReadResponse, First, AETH),
        0x0e if reliable => row(service, ReadResponse, Middle, NONE),
        0x0f if reliable => row(service, ReadResponse, Last, AETH),
        0x10 if reliable => row(service, ReadResponse, Only, AETH),
        0x11 if reliable => row(service, Acknowledge, Only, AETH),
        0x12 if reliable => row(service, AtomicAcknowledge, Only, AETH.union(Extensions::ATOMIC_ACK_ETH)),
        0x13 if reliable => row(service, CompareSwap, Only, Extensions::ATOMIC_ETH),
        0x14 if reliable => row(service, FetchAdd, Only, Extensions::ATOMIC_ETH),
        0x16 if reliable => row(service, Send, Last, INV),
        0x17 if reliable => row(service, Send, Only, INV),
        0x1c if reliable => row(service, Flush, Only, Extensions::FETH.union(RETH)),
        0x1d if reliable => row(service, AtomicWrite, Only, RETH),
        _ => None,
    }
}

const fn build() -> [Option<OpcodeInfo>; 256] {
    let mut table = [None; 256];
    let mut i = 0;
    while i < 256 {
        let (service, op) = (i as u8 & 0xe0, i as u8 & 0x1f);
        table[i] = match (service, op) {
            (0x00, _) => connected(Service::Rc, op),
            (0x20, _) => connected(Service::Uc, op),
            (0x60, 0x04) => row(Service::Ud, Class::Send, Position::Only, Extensions::empty()),
            (0x60, 0x05) => row(Service::Ud, Class::Send, Position::Only, Extensions::IMMDT),
            (0x80, 0x01) => row(Service::Cnp, Class::Congestion, Position::Only, Extensions::empty()),
            (0xa0, _) => connected(Service::Xrc, op),
            _ => None,
        };
        i += 1;
    }
    table
}

static TABLE: [Option<OpcodeInfo>; 256] = build();

impl Opcode {
    /// RC acknowledge.
    pub const RC_ACKNOWLEDGE: Self = Self(0x11);
    /// RC atomic acknowledge.
    pub const RC_ATOMIC_ACKNOWLEDGE: Self = Self(0x12);
    /// RC RDMA READ request.
    pub const RC_READ_REQUEST: Self = Self(0x0c);
    /// RC compare and swap.
    pub const RC_COMPARE_SWAP: Self = Self(0x13);
    /// RC fetch and add.
    pub const RC_FETCH_ADD: Self = Self(0x14);
    /// RC FLUSH.
    pub const RC_FLUSH: Self = Self(0x1c);
    /// RC ATOMIC WRITE.
    pub const RC_ATOMIC_WRITE: Self = Self(0x1d);
    /// RC RDMA READ response, only packet.
    pub const RC_READ_RESPONSE_ONLY: Self = Self(0x10);
    /// The `base` for XRC in [`Self::on`].
    pub const XRC: u8 = 0xa0;
    /// UD SEND.
    pub const UD_SEND_ONLY: Self = Self(0x64);
    /// Congestion notification packet.
    pub const CNP: Self = Self(0x81);

    /// The opcode's row of the table. `None` if this implementation does not know the opcode.
    #[must_use]
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        TABLE[self.0 as usize].as_ref()
    }

    /// The same operation on another connected service: `base` is 0x00 (RC), 0x20 (UC) or 0xa0 (XRC).
    #[must_use]
    pub const fn on(self, base: u8) -> Self {
        Self(self.0 & 0x1f | base)
    }

    /// The RC SEND opcode of a packet at `position`. `immediate` and `invalidate` are ignored before the end of the message.
    #[must_use]
    pub const fn send(position: Position, immediate: bool, invalidate: bool) -> Self {
        Self(match (position, immediate, invalidate) {
            (Position::First, ..) => 0x00,
            (Position::Middle, ..) => 0x01,
            (Position::Last, true, _) => 0x03,
            (Position::Last, _, true) => 0x16,
            (Position::Last, ..) => 0x02,
            (Position::Only, true, _) => 0x05,
            (Position::Only, _, true) => 0x17,
            (Position::Only, ..) => 0x04,
        })
    }

    /// The RC RDMA WRITE opcode of a packet at `position`. `immediate` is ignored before the end of the message.
    #[must_use]
    pub const fn write(position: Position, immediate: bool) -> Self {
        Self(match (position, immediate) {
            (Position::First, _) => 0x06,
            (Position::Middle, _) => 0x07,
            (Position::Last, false) => 0x08,
            (Position::Last, true) => 0x09,
            (Position::Only, false) => 0x0a,
            (Position::Only, true) => 0x0b,
        })
    }

    /// The RC RDMA READ response opcode of a packet at `position`.
    #[must_use]
    pub const fn read_response(position: Position) -> Self {
        Self(match position {
            Position::First => 0x0d,
            Position::Middle => 0x0e,
            Position::Last => 0x0f,
            Position::Only => 0x10,
        })
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}
