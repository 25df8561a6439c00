//! The partial packet.

use super::opcode;
use std::fmt::{self, Debug};

/// A field whose value differs from the expected one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The field's name.
    pub field: &'static str,
    /// The expected value.
    pub expected: String,
    /// The received value.
    pub got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.field, self.got, self.expected)
    }
}

fn shown<T: Debug>(value: &Option<T>, hex: bool) -> String {
    match value {
        None => "absent".to_owned(),
        Some(value) if hex => format!("{value:#x?}").replace(['\n', ' '], "").replace(",]", "]"),
        Some(value) => format!("{value:?}"),
    }
}

macro_rules! packet {
    ($($(#[$doc:meta])* $field:ident: $kind:ty = $hex:literal),* $(,)?) => {
        /// A packet of which some fields are set.
        #[derive(Clone, PartialEq, Eq, Default)]
        pub struct Packet {
            $($(#[$doc])* pub $field: Option<$kind>,)*
        }

        impl Packet {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $field(mut self, value: $kind) -> Self {
                    self.$field = Some(value);
                    self
                }
            )*

            /// Fields set here that `seen` has otherwise.
            #[must_use]
            pub fn mismatches(&self, seen: &Self) -> Vec<Mismatch> {
                let mut found = Vec::new();
                $(
                    if self.$field.is_some() && self.$field != seen.$field {
                        found.push(Mismatch {
                            field: stringify!($field),
                            expected: abbreviated(shown(&self.$field, $hex)),
                            got: abbreviated(shown(&seen.$field, $hex)),
                        });
                    }
                )*
                found
            }

            /// Name and value of every field that is set.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, String)> {
                let mut found = Vec::new();
                $(
                    if self.$field.is_some() {
                        found.push((stringify!($field), abbreviated(shown(&self.$field, $hex))));
                    }
                )*
                found
            }

            /// This packet, with what it leaves open taken from `other`.
            #[must_use]
            pub fn or(self, other: Self) -> Self {
                Self { $($field: self.$field.or(other.$field),)* }
            }
        }
    };
}

packet! {
    /// Tag control information of a VLAN tag (raw links only).
    vlan: u16 = true,
    /// IPv4 identification. Hidden by a UDP socket.
    ident: u16 = true,
    /// IPv4 flags and fragment offset.
    fragment: u16 = true,
    /// IPv4 total length or IPv6 payload length.
    ip_len: u16 = false,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    tos: u8 = true,
    /// TTL or hop limit.
    ttl: u8 = false,
    /// IPv6 flow label.
    flow: u32 = true,
    /// UDP source port.
    sport: u16 = false,
    /// UDP destination port.
    dport: u16 = false,
    /// UDP length.
    udp_len: u16 = false,
    /// UDP checksum. Unset it is 0 when sent, as every NIC sends it.
    udp_sum: u16 = true,
    /// BTH opcode, service included.
    opcode: u8 = true,
    /// BTH solicited event.
    solicited: bool = false,
    /// BTH MigReq.
    migreq: bool = false,
    /// BTH pad count.
    pad: u8 = false,
    /// BTH transport version.
    tver: u8 = false,
    /// BTH partition key.
    pkey: u16 = true,
    /// BTH forward congestion bit.
    fecn: bool = false,
    /// BTH backward congestion bit.
    becn: bool = false,
    /// BTH reserved bits beside FECN and BECN, 6 bits.
    resv6: u8 = true,
    /// BTH destination queue pair.
    dest_qp: u32 = true,
    /// BTH acknowledge request.
    ack_req: bool = false,
    /// BTH reserved bits beside AckReq, 7 bits.
    resv7: u8 = true,
    /// BTH packet sequence number.
    psn: u32 = true,
    /// RETH or AtomicETH virtual address.
    va: u64 = true,
    /// RETH or AtomicETH R_Key.
    rkey: u32 = true,
    /// RETH DMA length.
    dma_len: u32 = false,
    /// AtomicETH swap or add value.
    swap_add: u64 = true,
    /// AtomicETH compare value.
    compare: u64 = true,
    /// AETH syndrome.
    syndrome: u8 = true,
    /// AETH message sequence number.
    msn: u32 = false,
    /// AtomicAckETH original value.
    original: u64 = true,
    /// DETH queue key.
    qkey: u32 = true,
    /// DETH source queue pair.
    src_qp: u32 = true,
    /// Immediate data.
    imm: u32 = true,
    /// IETH R_Key to invalidate.
    inv_rkey: u32 = true,
    /// FETH as one number: placement in bits 3:0, selectivity in bits 5:4.
    feth: u32 = true,
    /// XRCETH shared receive queue number.
    xrc_srq: u32 = true,
    /// Payload without pad.
    data: Vec<u8> = true,
    /// Bytes between payload and ICRC.
    pad_bytes: Vec<u8> = true,
    /// Sending only: what the right ICRC is falsified with.
    icrc_xor: u32 = true,
    /// Sending only: bytes cut off the end of the UDP payload, after the ICRC was put there.
    cut: u16 = false,
    /// Sending only: the byte of the UDP payload that is damaged after the ICRC was put there.
    damaged: u16 = false,
}

fn abbreviated(mut text: String) -> String {
    const MOST: usize = 96;
    if text.len() > MOST {
        let at = (0..=MOST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(at);
        text.push_str("...");
    }
    text
}

impl Packet {
    /// A packet with this opcode.
    #[must_use]
    pub fn of(code: u8) -> Self {
        Self::default().opcode(code)
    }

    /// Requests an acknowledgement.
    #[must_use]
    pub fn ask(self) -> Self {
        self.ack_req(true)
    }

    /// Sets address, R_Key and length of remote memory.
    #[must_use]
    pub fn reth(self, va: u64, rkey: u32, len: u32) -> Self {
        self.va(va).rkey(rkey).dma_len(len)
    }

    /// Payload length.
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.data.as_ref().map_or(0, Vec::len)
    }

    /// One line: opcode, PSN and the most important fields.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = self.opcode.map_or_else(|| "any opcode".to_owned(), opcode::name);
        let mut add = |what: String| {
            text.push(' ');
            text.push_str(&what);
        };
        if let Some(psn) = self.psn {
            add(format!("psn {psn:#x}"));
        }
        if self.ack_req == Some(true) {
            add("asks".into());
        }
        if let Some(syndrome) = self.syndrome {
            add(syndrome_in_words(syndrome));
        }
        if let Some(msn) = self.msn {
            add(format!("msn {msn}"));
        }
        if let Some(len) = self.dma_len {
            add(format!("len {len}"));
        }
        if let Some(data) = self.data.as_ref().filter(|data| !data.is_empty()) {
            add(format!("{} bytes", data.len()));
        }
        text
    }
}

/// An AETH's syndrome in words (IBTA vol. 1, tables 44 to 46).
fn syndrome_in_words(syndrome: u8) -> String {
    match syndrome {
        0x00..=0x1f => format!("ack credits {syndrome}"),
        0x20..=0x3f => format!("RNR NAK timer {}", syndrome & 0x1f),
        0x60 => "NAK PSN sequence".into(),
        0x61 => "NAK invalid request".into(),
        0x62 => "NAK remote access".into(),
        0x63 => "NAK remote operation".into(),
        0x64 => "NAK invalid RD request".into(),
        _ => format!("reserved syndrome {syndrome:#x}"),
    }
}

impl Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: Vec<_> = self.fields().into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        write!(f, "{}", text.join(", "))
    }
}
