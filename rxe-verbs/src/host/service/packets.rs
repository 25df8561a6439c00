//! Packets that reach the service: connection requests, packets of other slots, and probes of its own steering.

use super::{Port, Service};
use crate::{
    engine::now,
    host::{
        group::{Family, PROBES, parse_probe},
        message::{FURTHER, Packet},
        slots::Slot,
    },
    net::Link,
};
use rxe_core::{
    endpoint::RunMeta,
    num::Qpn,
    wire::{MAD_HEADER_LEN, MadHeader, Packet as Decoded, Verdict, icrc::RouteCrc},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
};

/// Most peers whose IPv4 IDs are remembered.
const MAX_TRACKERS: usize = 4096;
/// Most receives for one event. Then it is the clients' turn.
const RECEIVES: usize = 8;
/// Connection request and service ID resolution request (IBTA vol. 1, 12.6).
const REQUESTS: [u16; 2] = [0x10, 0x17];
/// The offset of the service ID in both, behind the MAD's header.
const SERVICE_ID: core::ops::Range<usize> = MAD_HEADER_LEN + 8..MAD_HEADER_LEN + 16;
/// Disconnect request, and the offset of the first byte of the receiver's communication ID, which is the slot of the process that chose
/// that ID (IBTA vol. 1, 12.6.10).
const DREQ: u16 = 0x15;
const DREQ_SLOT: usize = MAD_HEADER_LEN + 4;
/// Reject (IBTA vol. 1, 12.6.7), and the reason of a peer that has given up (12.6.7.2).
const REJ: u16 = 0x12;
const TIMEOUT: u16 = 4;
/// Most connection requests whose listeners are remembered.
pub(super) const MAX_ASKERS: usize = 4096;

/// What identifies a connection until the passive side has told its own communication ID: channel adapter and
/// communication ID of the active side.
pub(super) type Asker = (u64, u32);

/// The identity of the side that sends a connection request.
pub(super) fn asker_of_req(payload: &[u8]) -> Option<Asker> {
    let comm_id = payload.get(MAD_HEADER_LEN..)?.first_chunk()?;
    let guid = payload.get(MAD_HEADER_LEN + 16..)?.first_chunk()?;
    let is_req = MadHeader::parse(payload.first_chunk()?).attribute == REQUESTS[0];
    is_req.then(|| (u64::from_be_bytes(*guid), u32::from_be_bytes(*comm_id)))
}

/// The identity of the side that has given up by a reject without the receiver's communication ID. The additional information names
/// the adapter.
fn asker_of_rej(payload: &[u8]) -> Option<Asker> {
    let [comm_id, remote] = *payload.get(MAD_HEADER_LEN..)?.as_chunks::<4>().0.first_chunk()?;
    let reason = payload.get(MAD_HEADER_LEN + 10..)?.first_chunk()?;
    let guid = payload.get(MAD_HEADER_LEN + 12..)?.first_chunk()?;
    let is_rej = MadHeader::parse(payload.first_chunk()?).attribute == REJ;
    let given_up = is_rej && remote == [0; 4] && u16::from_be_bytes(*reason) == TIMEOUT;
    given_up.then(|| (u64::from_be_bytes(*guid), u32::from_be_bytes(comm_id)))
}

/// Probes under way.
#[derive(Debug, Default)]
pub(super) struct Probes {
    nonce: u64,
    /// Probes of this round that arrived at slot 0's socket, as they should.
    home: usize,
    /// Rounds in a row in which some did not.
    bad_rounds: u32,
    /// Whether packets have arrived at the wrong process since the last check.
    pub(super) suspicious: bool,
    /// The slots at which the probes for each number have arrived in this round.
    found: BTreeMap<(Family, u16), Found>,
}

/// The slot that was found under a number of the group.
#[derive(Debug)]
struct Found {
    slot: u8,
    probes: usize,
    /// Whether other slots got some, too. Then the group has no such number, and the kernel decided by a hash of the addresses.
    others: bool,
}

/// Where a packet that the service received has to go.
enum Fate {
    Dispatch(u64),
    /// For the client that got the request which its sender gives up now, if that client is known.
    GivenUp(Option<u8>),
    HandOn(u8),
    /// For a multicast group. Linux 6.18 gives the only copy to one member of the reuseport group, whichever member has joined.
    /// Older kernels give a copy to each member that has joined, and none to us.
    Multicast,
    /// A management datagram that is not the connection manager's.
    Management,
    /// The end of a connection that no process has. It is confirmed, so that the peer need not ask again.
    Ended,
    Drop,
}

impl Service {
    /// Reads the packets that have arrived at slot 0's sockets.
    pub(super) fn receive(&mut self) {
        let Some(mut arrivals) = self.arrivals.take() else { return };
        let malformed = arrivals.malformed();
        for _ in 0..RECEIVES {
            let Some(Port { link, .. }) = &mut self.port else { break };
            // Earlier work may have taken long, and the descriptor may be the program's by now.
            if !link.is_intact() || !matches!(link.recv(&mut arrivals), Ok(1..)) {
                break;
            }
            for run in arrivals.iter() {
                let meta = run.meta();
                for bytes in run.packets() {
                    self.handle_packet(&meta, bytes);
                }
            }
        }
        self.counters.corrupt += arrivals.malformed() - malformed;
        self.arrivals = Some(arrivals);
    }

    fn handle_packet(&mut self, meta: &RunMeta, bytes: &[u8]) {
        if let Some((number, nonce)) = parse_probe(bytes) {
            self.handle_probe(Family::of(meta.dst), 0, number, nonce);
            return;
        }
        match self.fate(bytes) {
            Some(Fate::Dispatch(service_id)) => self.handle_request(meta, bytes, service_id),
            Some(Fate::GivenUp(slot)) => {
                if let Some(verdict) = self.judge(meta, bytes) {
                    let packet = Packet::new(meta, verdict.ident(), bytes);
                    match slot {
                        Some(slot) => _ = self.dispatch(slot, packet),
                        None => self.give_up_direct(&packet),
                    }
                }
            }
            Some(Fate::HandOn(slot)) => {
                self.probes.suspicious = true;
                self.exchanged_with(0).strayed += 1;
                let handed = self.deliver(slot, Packet::new(meta, None, bytes));
                *(if handed { &mut self.counters.handed_on } else { &mut self.counters.dropped }) += 1;
            }
            Some(Fate::Multicast) => self.give_to_all(meta, bytes),
            Some(Fate::Management) => self.manage(meta, bytes),
            Some(Fate::Ended) => {
                if let Ok(packet) = Decoded::decode(bytes)
                    && !meta.dst.is_multicast()
                    && self.judge(meta, bytes).is_some()
                {
                    self.refuse(meta, &packet);
                }
            }
            Some(Fate::Drop) => self.counters.dropped += 1,
            None => self.counters.corrupt += 1,
        }
    }

    /// Gives a packet to every client. A client that is no member drops it. One packet becomes many messages, so it has to be intact,
    /// and its destination has to be a group's address.
    fn give_to_all(&mut self, meta: &RunMeta, bytes: &[u8]) {
        if !meta.dst.is_multicast() {
            self.counters.dropped += 1;
            return;
        }
        let Some(verdict) = self.judge(meta, bytes) else { return };
        let packet = Packet::new(meta, verdict.ident(), bytes);
        let first = |key: usize| self.clients.get(key).is_some_and(|client| client.features & FURTHER == 0);
        let connected = self.presences.connected();
        let slots: Vec<u8> = connected.filter(|(_, key)| first(*key)).map(|(slot, _)| slot).collect();
        for slot in slots {
            self.counters.multicast += u64::from(self.deliver(slot, packet.clone()));
        }
    }

    fn fate(&self, bytes: &[u8]) -> Option<Fate> {
        let packet = Decoded::decode(bytes).ok()?;
        let dest = packet.bth.dest_qp;
        if dest == Qpn::MULTICAST {
            return Some(Fate::Multicast);
        }
        if dest != Qpn::GSI {
            let held = matches!(self.slots.get(dest.slot()), Slot::Held(_));
            return Some(if held { Fate::HandOn(dest.slot()) } else { Fate::Drop });
        }
        let header = MadHeader::parse(packet.payload.first_chunk()?);
        let service_id = packet.payload.get(SERVICE_ID)?.try_into().ok()?;
        if !header.is_cm() {
            let is_ours =
                header.base_version == MadHeader::BASE_VERSION && header.class != MadHeader::CLASS_CM;
            return Some(if is_ours { Fate::Management } else { Fate::Drop });
        }
        if REQUESTS.contains(&header.attribute) {
            return Some(Fate::Dispatch(u64::from_be_bytes(service_id)));
        }
        if header.attribute == DREQ {
            // It is for a process that exists. That process gets it.
            let slot = *packet.payload.get(DREQ_SLOT)?;
            let held = matches!(self.slots.get(slot), Slot::Held(_));
            return Some(if held { Fate::HandOn(slot) } else { Fate::Ended });
        }
        let asker = asker_of_rej(packet.payload);
        Some(asker.map_or(Fate::Drop, |asker| Fate::GivenUp(self.askers.get(&asker).copied())))
    }

    /// A management datagram, if it is intact and sent to an address of ours.
    fn manage(&mut self, meta: &RunMeta, bytes: &[u8]) {
        let Ok(packet) = Decoded::decode(bytes) else { return };
        if !meta.dst.is_multicast() && self.judge(meta, bytes).is_some() {
            self.habits.note(meta.src, meta.src_port, &packet);
            self.handle_mad(meta, &packet);
        }
    }

    /// Whether a packet is intact, as far as can be known.
    fn judge(&mut self, meta: &RunMeta, bytes: &[u8]) -> Option<Verdict> {
        if self.trackers.len() >= MAX_TRACKERS && !self.trackers.contains_key(&meta.src) {
            self.trackers.clear();
        }
        let crc = RouteCrc::new(&meta.route());
        let tracker = self.trackers.entry(meta.src).or_default();
        let verdict = tracker.judge(now(), &crc, meta.seen, bytes);
        self.counters.corrupt += u64::from(!verdict.is_whole());
        verdict.is_whole().then_some(verdict)
    }

    /// Gives a client a packet that the steering did not bring to it. False if the client does not exist, or does not read.
    pub(super) fn dispatch(&mut self, slot: u8, packet: Packet) -> bool {
        let delivered = self.deliver(slot, packet);
        *(if delivered { &mut self.counters.dispatched } else { &mut self.counters.dropped }) += 1;
        delivered
    }

    /// Gives a connection request to the process that listens for it, or keeps it for a moment if none does yet.
    fn handle_request(&mut self, meta: &RunMeta, bytes: &[u8], service_id: u64) {
        let Some(verdict) = self.judge(meta, bytes) else { return };
        if let Ok(packet) = Decoded::decode(bytes) {
            self.habits.note(meta.src, meta.src_port, &packet);
        }
        // The listener's process sees only some of the peer's packets, and could not follow its IDs.
        let packet = Packet::new(meta, verdict.ident(), bytes);
        self.take_request(service_id, packet);
    }

    /// A client received a packet that is not for it.
    pub(super) fn handle_stray(&mut self, from: u8, packet: &Packet) {
        if let Some((number, nonce)) = parse_probe(&packet.bytes) {
            self.handle_probe(Family::of(packet.meta().dst), from, number, nonce);
            return;
        }
        self.probes.suspicious = true;
        self.exchanged_with(from).strayed += 1;
        let slot = Decoded::decode(&packet.bytes).ok().map(|decoded| decoded.bth.dest_qp.slot());
        let handed = match slot {
            // A packet for the client itself would come back to it for ever.
            Some(slot) if slot != from && slot != 0 => self.deliver(slot, packet.clone()),
            _ => false,
        };
        *(if handed { &mut self.counters.handed_on } else { &mut self.counters.dropped }) += 1;
    }

    /// A probe for member `number` has arrived at `slot`'s socket.
    fn handle_probe(&mut self, family: Family, slot: u8, number: u16, nonce: u64) {
        let Some(port) = &self.port else { return };
        if nonce != self.probes.nonce {
            return;
        }
        let found =
            self.probes.found.entry((family, number)).or_insert(Found { slot, probes: 0, others: false });
        found.probes += 1;
        found.others |= found.slot != slot;
        if port.group.is_at(family, 0, number) {
            self.probes.home += usize::from(slot == 0);
            // If none arrives here, that proves nothing. If one arrives at another slot, that does.
            self.probes.suspicious |= slot != 0;
        }
    }

    /// Called if attaching the program did not help: members have changed their numbers, and probes have shown where they are.
    fn learn(&mut self) {
        let found = core::mem::take(&mut self.probes.found);
        if self.probes.bad_rounds < 2 {
            return;
        }
        let (mut learnt, mut placed) = (Vec::new(), BTreeSet::new());
        let Some(port) = &mut self.port else { return };
        for ((family, number), Found { slot, probes, others }) in found {
            // Some probes may be lost. But if only a few arrived, they may agree by chance.
            let is_sure = !others && probes > PROBES / 2;
            // Numbers that do not exist in the group are the highest. So if two numbers seem to be one slot's, the lower one is.
            if is_sure && placed.insert((family, slot)) && !port.group.is_at(family, slot, number) {
                port.group.learn(family, slot, number);
                learnt.push(format!("slot {slot} is number {number} of the group now ({family:?})"));
            }
        }
        self.counters.mended += learnt.len() as u64;
        for text in learnt {
            self.journal.note_seldom(&text);
        }
    }

    /// Checks whether packets still go to the right sockets, and attaches the program again.
    pub(super) fn examine(&mut self) {
        if self.slots.known().next().is_none() {
            return;
        }
        self.learn();
        let Some(port) = &mut self.port else { return };
        // If every number is probed, more probes arrive here.
        let whole = self.probes.home >= port.group.probes();
        let asked = self.probes.nonce != 0;
        let strange = core::mem::take(&mut self.probes.suspicious);
        // If the loopback interface is down, no probe arrives at all.
        let broken = asked && (strange || self.probes.home > 0 && !whole);
        self.probes.bad_rounds = if broken { self.probes.bad_rounds + 1 } else { 0 };
        self.probes.home = 0;
        self.probes.nonce = RandomState::new().hash_one(self.probes.nonce) | 1;
        // The probes are sent first. They are steered when they are sent, so they show what the present program does.
        port.group.probe_slot(0, self.probes.nonce);
        let steered = port.group.steer();
        if self.probes.bad_rounds > 1 {
            for number in 0..port.group.len() as u16 {
                port.group.probe(number, self.probes.nonce);
            }
        }
        if broken {
            self.counters.mended += u64::from(!whole);
            let how = steered.map_or_else(|error| error.to_string(), |()| "put back".to_owned());
            self.journal.note_seldom(&format!("packets went astray: the steering program was {how}"));
        }
    }
}
