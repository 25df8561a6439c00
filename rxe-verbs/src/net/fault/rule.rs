//! Finds the rule of a script that applies to a packet, and rewrites an acknowledgement's syndrome.

use super::{
    plan::WHOLE,
    script::{Action, Kind, Rule, Script},
};
use rxe_core::wire::{Class, ICRC_LEN, MAD_HEADER_LEN, MadHeader, Packet, Service, Syndrome, crc};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A script that is being played on one link.
#[derive(Debug)]
pub(super) struct Player {
    script: Arc<Script>,
    /// For each rule, how many packets met its conditions and how often it acted.
    counts: Vec<(u64, u64)>,
    packets: u64,
    start: Instant,
}

impl Player {
    pub(super) fn new(script: Arc<Script>) -> Self {
        let counts = vec![(0, 0); script.rules.len()];
        Self { script, counts, packets: 0, start: Instant::now() }
    }

    /// The action of the first rule that applies to a packet, and that rule's line. All rules whose conditions the packet meets
    /// count it. `chance` returns random numbers.
    pub(super) fn judge(
        &mut self,
        sending: bool,
        bytes: &[u8],
        now: Instant,
        mut chance: impl FnMut() -> u64,
    ) -> Option<(Action, usize)> {
        self.packets += 1;
        let since = now.saturating_duration_since(self.start);
        let packet = Packet::decode(bytes).ok();
        let mut found = None;
        for (rule, (fitting, acted)) in self.script.rules.iter().zip(&mut self.counts) {
            if !fits(rule, sending, packet.as_ref(), self.packets, since) {
                continue;
            }
            *fitting += 1;
            let is_it = rule.which.contains(fitting) && *fitting % rule.every == 0 && *acted < rule.times;
            // The random number is drawn even if it is not used, so that rules do not change each other's random numbers.
            let happens = rule.chance == WHOLE || chance() % u64::from(WHOLE) < u64::from(rule.chance);
            if is_it && happens && found.is_none() {
                *acted += 1;
                found = Some((rule.action, rule.line));
            }
        }
        found
    }
}

fn fits(rule: &Rule, sending: bool, packet: Option<&Packet<'_>>, count: u64, since: Duration) -> bool {
    rule.sending.is_none_or(|only| only == sending)
        && count > rule.packets
        && since >= rule.after
        && rule.until.is_none_or(|until| since < until)
        && (rule.psn.is_none() && rule.kinds.is_empty()
            || packet.is_some_and(|packet| {
                rule.psn.as_ref().is_none_or(|range| range.contains(&packet.bth.psn.value()))
                    && rule.kinds.iter().all(|kind| is_of(packet, *kind))
            }))
}

fn is_of(packet: &Packet<'_>, kind: Kind) -> bool {
    let (class, syndrome) = (packet.info.class, packet.ext.aeth.syndrome);
    let is_negative = matches!(syndrome, Syndrome::Nak(_) | Syndrome::RnrNak(_));
    match kind {
        Kind::Class(wanted) => class == wanted,
        Kind::Atomic => matches!(class, Class::CompareSwap | Class::FetchAdd),
        Kind::Ack => class == Class::Acknowledge && !is_negative,
        Kind::Nak => class == Class::Acknowledge && is_negative,
        Kind::Service(service) => packet.info.service == service,
        Kind::Cm(message) => {
            cm_message(packet).is_some_and(|found| message.is_none_or(|wanted| wanted == found))
        }
        Kind::Opcode(opcode) => packet.bth.opcode.0 == opcode,
        Kind::Qp(qp) => packet.bth.dest_qp.value() == qp,
    }
}

/// The attribute ID of a connection manager's message.
fn cm_message(packet: &Packet<'_>) -> Option<u16> {
    if packet.info.service != Service::Ud || packet.bth.dest_qp.value() != 1 {
        return None;
    }
    let header = MadHeader::parse(packet.payload.first_chunk::<MAD_HEADER_LEN>()?);
    header.is_cm().then_some(header.attribute)
}

/// Changes an acknowledgement's syndrome and adapts its ICRC. CRCs are linear, so the change of the ICRC depends only on the
/// changed bits. The headers in front of the packet do not matter. A wrong ICRC stays wrong.
pub(super) fn turn(bytes: &mut [u8], syndrome: Syndrome) {
    /// Where the syndrome is: the first byte behind the BTH.
    const SYNDROME: usize = 12;
    let Some((body, icrc)) = bytes.split_last_chunk_mut::<ICRC_LEN>() else { return };
    let Some(byte) = body.get_mut(SYNDROME) else { return };
    let difference = *byte ^ syndrome.bits();
    *byte ^= difference;
    let mut change = vec![0; body.len()];
    let unchanged = crc::update(0, [&change]);
    change[SYNDROME] = difference;
    let change = crc::update(0, [&change]) ^ unchanged;
    *icrc = (u32::from_le_bytes(*icrc) ^ change).to_le_bytes();
}
