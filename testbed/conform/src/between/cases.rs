//! The cases for a tester between two hosts.

use super::{Act, Fault};
use crate::{
    case::Level,
    wire::{
        Packet,
        cm::{Kind, Message},
        op,
    },
};
use std::time::Duration;

/// A case.
#[derive(Clone, Copy, Debug)]
pub struct Between {
    /// Its name.
    pub id: &'static str,
    /// How strongly its rule binds.
    pub level: Level,
    /// The rule.
    pub rule: &'static str,
    /// The source of the rule.
    pub source: &'static str,
    /// The fault that the bridge applies.
    pub fault: Option<Fault>,
}

const RELIABLE: u8 = 0xe0;

/// Whether this is a packet of a reliable connection with one of these operations.
fn is(packet: &Packet, codes: &[u8]) -> bool {
    packet.opcode.is_some_and(|code| code & RELIABLE == 0 && codes.contains(&(code & 0x1f)))
}

fn request(packet: &Packet) -> bool {
    packet.opcode.is_some_and(|code| code & RELIABLE == 0 && !crate::wire::is_response(code))
}

fn sends_or_writes(packet: &Packet) -> bool {
    request(packet) && !reads(packet)
}

fn answers(packet: &Packet) -> bool {
    is(packet, &[op::ACK])
}

fn reads(packet: &Packet) -> bool {
    is(packet, &[op::READ_REQUEST])
}

fn read_answers(packet: &Packet) -> bool {
    is(packet, &[op::READ_FIRST, op::READ_MIDDLE, op::READ_LAST, op::READ_ONLY])
}

fn lasts(packet: &Packet) -> bool {
    is(packet, &[op::SEND_LAST, op::WRITE_LAST])
}

fn reliable(packet: &Packet) -> bool {
    packet.opcode.is_some_and(|code| code & RELIABLE == 0)
}

fn says(packet: &Packet, kind: Kind) -> bool {
    Message::of(packet).and_then(|message| message.kind()) == Some(kind)
}

const fn once(act: Act, picks: fn(&Packet) -> bool) -> Option<Fault> {
    Some(Fault { act, picks, count: 1, every: 1 })
}

const fn each(act: Act, picks: fn(&Packet) -> bool, every: usize) -> Option<Fault> {
    Some(Fault { act, picks, count: 100_000, every })
}

const fn must(id: &'static str, rule: &'static str, source: &'static str, fault: Option<Fault>) -> Between {
    Between { id, level: Level::Must, rule, source, fault }
}

const LATE: Duration = Duration::from_millis(50);

const ALL: &[Between] = &[
    must("BETWEEN.PASS.1", "With nothing in the way the programs succeed", "the programs' own", None),
    must(
        "BETWEEN.DROP.SEND",
        "A SEND or WRITE that is lost is sent again",
        "IBTA 9.7.5.1, 9.7.6",
        once(Act::Drop, sends_or_writes),
    ),
    must(
        "BETWEEN.DROP.LAST",
        "The last packet of a message that is lost is sent again",
        "IBTA 9.7.6",
        once(Act::Drop, lasts),
    ),
    must(
        "BETWEEN.DROP.ACK",
        "An acknowledgement that is lost does not stop the connection",
        "IBTA 9.7.5.1, 9.7.6",
        once(Act::Drop, answers),
    ),
    must(
        "BETWEEN.DROP.READ",
        "A READ request that is lost is sent again",
        "IBTA 9.7.6",
        once(Act::Drop, reads),
    ),
    must(
        "BETWEEN.DROP.READ.DATA",
        "A READ response that is lost is asked for again",
        "IBTA 9.7.5.2, 9.7.6",
        once(Act::Drop, read_answers),
    ),
    must(
        "BETWEEN.DROP.MANY",
        "One packet of twenty that is lost slows down, and ends nothing",
        "IBTA 9.7.6",
        each(Act::Drop, reliable, 20),
    ),
    must(
        "BETWEEN.TWICE.SEND",
        "Requests that arrive twice are executed once",
        "IBTA 9.7.5.1.1",
        each(Act::Twice, request, 1),
    ),
    must(
        "BETWEEN.TWICE.ACK",
        "Answers that arrive twice count once",
        "IBTA 9.7.6.2",
        each(Act::Twice, |packet| reliable(packet) && !request(packet), 1),
    ),
    must(
        "BETWEEN.SWAP.SEND",
        "A request that is overtaken is not lost",
        "IBTA 9.7.5.2.3",
        each(Act::Swap, request, 10),
    ),
    must(
        "BETWEEN.SWAP.ACK",
        "An answer that is overtaken does no harm",
        "IBTA 9.7.6.2",
        each(Act::Swap, |packet| reliable(packet) && !request(packet), 10),
    ),
    must(
        "BETWEEN.DELAY.1",
        "A packet that is late, with all behind it, does no harm",
        "IBTA 9.7.6.1",
        each(Act::Delay(LATE), reliable, 50),
    ),
    must(
        "BETWEEN.DAMAGE.SEND",
        "A SEND or WRITE with a wrong bit is dropped by its ICRC, and sent again",
        "IBTA A17.3.3, 9.7.6",
        each(Act::Damage, sends_or_writes, 10),
    ),
    must(
        "BETWEEN.DAMAGE.READ",
        "A READ response with a wrong bit is dropped by its ICRC, and asked for again",
        "IBTA A17.3.3, 9.7.6",
        each(Act::Damage, read_answers, 10),
    ),
    must(
        "BETWEEN.DAMAGE.ACK",
        "An acknowledgement with a wrong bit is dropped by its ICRC",
        "IBTA A17.3.3",
        once(Act::Damage, answers),
    ),
    must(
        "BETWEEN.ROUTE.1",
        "Packets from behind a router are taken: the hop limit does not count",
        "IBTA A17.3.3",
        each(Act::Route, |_| true, 1),
    ),
    must(
        "BETWEEN.MARK.1",
        "Packets that are marked, congestion experienced, are taken",
        "IBTA A17.9; RFC 3168",
        each(Act::Mark, reliable, 1),
    ),
    must(
        "BETWEEN.CM.REQ",
        "A REQ that is lost is sent again",
        "IBTA 12.9.8.5",
        once(Act::Drop, |packet| says(packet, Kind::Req)),
    ),
    must(
        "BETWEEN.CM.REP",
        "A REP that is lost is sent again",
        "IBTA 12.9.8.7",
        once(Act::Drop, |packet| says(packet, Kind::Rep)),
    ),
    must(
        "BETWEEN.CM.RTU",
        "An RTU that is lost does not stop the connection",
        "IBTA 12.9.8.7",
        once(Act::Drop, |packet| says(packet, Kind::Rtu)),
    ),
    must(
        "BETWEEN.CM.DREQ",
        "A DREQ that is lost does not stop the end",
        "IBTA 12.9.8.4",
        once(Act::Drop, |packet| says(packet, Kind::Dreq)),
    ),
    must(
        "BETWEEN.CM.TWICE",
        "Messages of the connection manager that arrive twice count once",
        "IBTA 12.9.8",
        each(Act::Twice, |packet| Message::of(packet).is_some(), 1),
    ),
];

/// All cases.
#[must_use]
pub const fn all() -> &'static [Between] {
    ALL
}
