//! The opcodes (IBTA vol. 1, table 38, with annexes A14 XRC, A17 CNP, A19 FLUSH and ATOMIC WRITE) and the headers behind each.

/// A header behind the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// XRC extended transport header: a shared receive queue's number, 4 bytes.
    Xrceth,
    /// Datagram extended transport header, 8 bytes.
    Deth,
    /// FLUSH extended transport header, 4 bytes.
    Feth,
    /// RDMA extended transport header, 16 bytes.
    Reth,
    /// Atomic extended transport header, 28 bytes.
    AtomicEth,
    /// Acknowledge extended transport header, 4 bytes.
    Aeth,
    /// Atomic acknowledge extended transport header, 8 bytes.
    AtomicAckEth,
    /// Immediate data, 4 bytes.
    Imm,
    /// Invalidate extended transport header, 4 bytes.
    Ieth,
}

/// The low five bits of a connected service's opcode.
#[allow(missing_docs, reason = "named as in the table")]
pub mod op {
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_LAST_IMM: u8 = 0x03;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMM: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_LAST_IMM: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMM: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_FIRST: u8 = 0x0d;
    pub const READ_MIDDLE: u8 = 0x0e;
    pub const READ_LAST: u8 = 0x0f;
    pub const READ_ONLY: u8 = 0x10;
    pub const ACK: u8 = 0x11;
    pub const ATOMIC_ACK: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    pub const SEND_LAST_INV: u8 = 0x16;
    pub const SEND_ONLY_INV: u8 = 0x17;
    pub const FLUSH: u8 = 0x1c;
    pub const ATOMIC_WRITE: u8 = 0x1d;
    /// The opcode of a READ response packet, which depends on whether it is the first and whether it is the last of its
    /// READ.
    #[must_use]
    pub const fn read_response(first: bool, last: bool) -> u8 {
        match (first, last) {
            (true, true) => READ_ONLY,
            (true, false) => READ_FIRST,
            (false, true) => READ_LAST,
            (false, false) => READ_MIDDLE,
        }
    }

    pub const UD_SEND_ONLY: u8 = 0x64;
    pub const UD_SEND_ONLY_IMM: u8 = 0x65;
    pub const CNP: u8 = 0x81;
}

/// What is added to the low five bits for each service.
pub mod service {
    /// Reliable connection.
    pub const RC: u8 = 0x00;
    /// Unreliable connection.
    pub const UC: u8 = 0x20;
    /// Unreliable datagram.
    pub const UD: u8 = 0x60;
    /// Extended reliable connection.
    pub const XRC: u8 = 0xa0;
}

const NAMES: [&str; 32] = [
    "SEND first",
    "SEND middle",
    "SEND last",
    "SEND last imm",
    "SEND only",
    "SEND only imm",
    "WRITE first",
    "WRITE middle",
    "WRITE last",
    "WRITE last imm",
    "WRITE only",
    "WRITE only imm",
    "READ request",
    "READ response first",
    "READ response middle",
    "READ response last",
    "READ response only",
    "ACK",
    "ATOMIC ACK",
    "COMPARE SWAP",
    "FETCH ADD",
    "0x15",
    "SEND last inv",
    "SEND only inv",
    "0x18",
    "0x19",
    "0x1a",
    "0x1b",
    "FLUSH",
    "ATOMIC WRITE",
    "0x1e",
    "0x1f",
];

/// The opcode in words, with its service.
#[must_use]
pub fn name(opcode: u8) -> String {
    let service = match opcode & 0xe0 {
        service::RC => "RC",
        service::UC => "UC",
        0x40 => "RD",
        service::UD => "UD",
        service::XRC => "XRC",
        0x80 if opcode == op::CNP => return "CNP".to_owned(),
        _ => return format!("opcode {opcode:#04x}"),
    };
    format!("{service} {}", NAMES[usize::from(opcode & 0x1f)])
}

const fn connected(code: u8) -> Option<&'static [Header]> {
    use Header::{Aeth, AtomicAckEth, AtomicEth, Feth, Ieth, Imm, Reth};
    Some(match code {
        op::WRITE_FIRST | op::WRITE_ONLY | op::READ_REQUEST | op::ATOMIC_WRITE => &[Reth],
        op::WRITE_ONLY_IMM => &[Reth, Imm],
        op::SEND_LAST_IMM | op::SEND_ONLY_IMM | op::WRITE_LAST_IMM => &[Imm],
        op::READ_FIRST | op::READ_LAST | op::READ_ONLY | op::ACK => &[Aeth],
        op::ATOMIC_ACK => &[Aeth, AtomicAckEth],
        op::COMPARE_SWAP | op::FETCH_ADD => &[AtomicEth],
        op::SEND_LAST_INV | op::SEND_ONLY_INV => &[Ieth],
        op::FLUSH => &[Feth, Reth],
        0x00..=op::WRITE_LAST | op::READ_MIDDLE => &[],
        _ => return None,
    })
}

/// Whether the opcode (without its service) travels from responder to requester.
#[must_use]
pub const fn is_response(code: u8) -> bool {
    matches!(code & 0x1f, op::READ_FIRST..=op::ATOMIC_ACK)
}

/// The headers behind the BTH, in order; `None` for an undefined opcode.
#[must_use]
pub fn headers(opcode: u8) -> Option<Vec<Header>> {
    let code = opcode & 0x1f;
    match (opcode & 0xe0, opcode) {
        (service::RC | service::UC, _) => connected(code).map(<[Header]>::to_vec),
        (service::XRC, _) => connected(code).map(|behind| {
            let front = if is_response(code) { None } else { Some(Header::Xrceth) };
            front.into_iter().chain(behind.iter().copied()).collect()
        }),
        (_, op::UD_SEND_ONLY) => Some(vec![Header::Deth]),
        (_, op::UD_SEND_ONLY_IMM) => Some(vec![Header::Deth, Header::Imm]),
        (_, op::CNP) => Some(Vec::new()),
        _ => None,
    }
}
