//! Laws of form: properties that every packet of a device must have, in any case. Each law is listed as a case in the
//! report, and is decided by all packets of the run.

use crate::{
    case::Level,
    wire::{Packet, Seen, is_response, op},
};
use std::{collections::BTreeMap, time::Duration};

/// The result of checking a law.
#[derive(Clone, Debug, Default)]
pub struct Law {
    /// Number of packets checked.
    pub checked: u64,
    /// Number of packets that broke the law.
    pub broken: u64,
    /// The first packet that broke it.
    pub first: Option<Evidence>,
}

/// A packet that broke a law, and where it was seen.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Its fields.
    pub packet: Packet,
    /// All of its bytes. Empty if they were not kept.
    pub bytes: Vec<u8>,
    /// Its arrival time, measured from when the link was opened.
    pub at: Duration,
    /// The id of the case that was played, if any.
    pub case: String,
}

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sight<'a> {
    /// All of its bytes.
    pub bytes: &'a [u8],
    /// Its arrival time, measured from when the link was opened.
    pub at: Duration,
    /// The id of the case that is played.
    pub case: &'a str,
}

/// All laws.
#[derive(Clone, Debug, Default)]
pub struct Laws {
    found: BTreeMap<&'static str, Law>,
}

/// For each law its text, id, level and source. The text is the key: [`crate::wire`] uses the same text when it checks the
/// law.
pub const LAWS: [(&str, &str, Level, &str); 20] = [
    ("ICRC right", "LAW.ICRC", Level::Must, "IBTA A17.3.3"),
    ("UDP length is the packet's", "LAW.UDP.LENGTH", Level::Must, "RFC 768"),
    ("opcode defined", "LAW.OPCODE", Level::Must, "IBTA table 38"),
    ("transport version 0", "LAW.TVER", Level::Must, "IBTA 9.2.4"),
    ("reserved bits of the BTH 0", "LAW.RESERVED", Level::Must, "IBTA 9.2"),
    ("pad completes four bytes", "LAW.PAD.COUNT", Level::Must, "IBTA 9.2.3"),
    ("pad bytes are zero", "LAW.PAD.ZERO", Level::Should, "IBTA 9.2.3"),
    ("IPv4: do not fragment, no fragment", "LAW.IP.DF", Level::Must, "IBTA A17.4.5"),
    ("IPv4: no options", "LAW.IP.OPTIONS", Level::Must, "IBTA A17.3.1"),
    ("IPv4: total length right", "LAW.IP.LENGTH", Level::Must, "RFC 791"),
    ("IPv4: header checksum right", "LAW.IP.CHECKSUM", Level::Must, "RFC 791"),
    ("IPv6: payload length right", "LAW.IP6.LENGTH", Level::Must, "RFC 8200"),
    ("partition key is the queue pair's", "LAW.PKEY", Level::Must, "IBTA 9.6.1.1.3"),
    ("MigReq 1: migrated", "LAW.MIGREQ", Level::Should, "IBTA 17.2.8; ConnectX"),
    ("responses do not ask for an acknowledgement", "LAW.ACKREQ.RESPONSE", Level::Must, "IBTA 9.2.7"),
    ("responses are not solicited", "LAW.SE.RESPONSE", Level::Must, "IBTA 9.2.3"),
    ("FIRST and MIDDLE packets are not empty", "LAW.MTU.EMPTY", Level::Must, "IBTA 9.7.4.1.6"),
    ("no congestion bits where nothing is congested", "LAW.CONGESTION", Level::Must, "IBTA A17.9"),
    ("hop limit as asked for", "LAW.TTL", Level::Should, "IBTA A17.4"),
    ("source port in the dynamic range", "LAW.SPORT", Level::Should, "IBTA A17.5; RFC 6335"),
];

impl Laws {
    /// Checks one packet, of which no more is kept than its fields.
    pub fn look(&mut self, seen: &Seen) {
        self.look_at(seen, &Sight::default());
    }

    /// Checks one packet.
    pub fn look_at(&mut self, seen: &Seen, sight: &Sight<'_>) {
        let mut judge = |name, holds, packet: &Packet| self.judge(name, holds, packet, sight);
        for (name, holds) in &seen.laws {
            judge(name, *holds, &seen.packet);
        }
        let packet = &seen.packet;
        let opcode = packet.opcode.unwrap_or(0);
        let connected = opcode & 0xe0 != 0x60 && opcode != op::CNP;
        if opcode != op::CNP {
            judge("MigReq 1: migrated", packet.migreq == Some(true), packet);
            let clear = packet.becn == Some(false) && packet.fecn == Some(false);
            judge("no congestion bits where nothing is congested", clear, packet);
            if let Some(port) = packet.sport {
                judge("source port in the dynamic range", port >= 0xc000, packet);
            }
        }
        judge(
            "partition key is the queue pair's",
            packet.pkey.is_some_and(|key| key & 0x7fff == 0x7fff),
            packet,
        );
        if let Some(ttl) = packet.ttl {
            judge("hop limit as asked for", ttl == 64, packet);
        }
        if connected && is_response(opcode) {
            judge("responses do not ask for an acknowledgement", packet.ack_req == Some(false), packet);
            judge("responses are not solicited", packet.solicited == Some(false), packet);
        }
        let inside = [
            op::SEND_FIRST,
            op::SEND_MIDDLE,
            op::WRITE_FIRST,
            op::WRITE_MIDDLE,
            op::READ_FIRST,
            op::READ_MIDDLE,
        ];
        if connected && inside.contains(&(opcode & 0x1f)) {
            judge("FIRST and MIDDLE packets are not empty", packet.data_len() > 0, packet);
        }
    }

    fn judge(&mut self, name: &'static str, holds: bool, packet: &Packet, sight: &Sight<'_>) {
        let law = self.found.entry(name).or_default();
        law.checked += 1;
        if !holds {
            law.broken += 1;
            law.first.get_or_insert_with(|| Evidence {
                packet: packet.clone(),
                bytes: sight.bytes.to_vec(),
                at: sight.at,
                case: sight.case.to_owned(),
            });
        }
    }

    /// The result for the law with this text.
    #[must_use]
    pub fn found(&self, words: &str) -> Law {
        self.found.get(words).cloned().unwrap_or_default()
    }
}
