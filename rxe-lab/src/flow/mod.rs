//! Relations between packets: which belong to one connection, and what was requested, answered, lost and repeated.
//!
//! An [`Analyzer`] gets packets one by one, and returns what is remarkable about each. Some findings are only known later, for
//! example that a packet was lost, which shows when it is repeated: [`Analyzer::hindsight`]. At the end [`Analyzer::finish`]
//! returns the summary.
//!
//! A packet contains its destination queue pair, but not its source queue pair. So all packets from one address to one queue
//! pair at another address are a *stream*. Two streams are a connection if the connection manager's messages say so, or if the
//! responses in one have PSNs of requests in the other.

mod answers;
mod cm;
mod marks;
mod order;
mod requests;
mod stats;
mod stream;
mod summary;

pub use cm::{Conversation, Said};
pub use marks::{Marks, WORDS};
pub use requests::{Place, Round};
pub use stats::{Goodput, Spread};
pub use summary::{Connection, Datagrams, Direction, Summary, Totals};

use crate::{
    frame::Other,
    icrc::Icrc,
    packet::{Mad, Packet},
};
use cm::{Conversations, Ends};
use requests::Outcome;
use rxe_core::{
    num::{Psn, Qpn},
    wire::{Class, Head, Service},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};
use stream::{Recent, Stream};

/// Most streams that are followed. Packets of others are only counted.
const MOST_STREAMS: usize = 1 << 16;
/// Most ends of connections that are kept from messages of the connection manager, because each message of a conversation may
/// name others.
const MOST_KNOWN: usize = 2 * MOST_STREAMS;
/// Most streams between two addresses that are searched for the other direction of a stream.
const MOST_CANDIDATES: usize = 256;
/// After this many responses that match several streams, the stream that was active last is chosen.
const PATIENCE: u8 = 16;

/// A stream's number.
pub type StreamId = usize;

type Key = (IpAddr, IpAddr, Qpn);

/// What is remarkable about one packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Remark {
    /// In marks.
    pub marks: Marks,
    /// As text, if marks are not enough.
    pub why: Option<String>,
    /// The stream it belongs to, if it is of a connected service.
    pub stream: Option<StreamId>,
}

/// Follows the packets of a capture.
#[derive(Debug, Default)]
pub struct Analyzer {
    streams: Vec<Stream>,
    by_key: HashMap<Key, StreamId>,
    /// Streams whose other direction is unknown, by source and destination.
    lonely: HashMap<(IpAddr, IpAddr), BTreeSet<StreamId>>,
    /// The last stream, which is often also the next one.
    last: Option<(Key, StreamId)>,
    /// The latest datagrams of all senders.
    recent: Recent,
    datagrams: BTreeMap<(IpAddr, Qpn, IpAddr, Qpn), (u64, u64)>,
    conversations: Conversations,
    /// The pairs of streams that an earlier pass has found.
    known: HashMap<Key, Key>,
    /// Path MTUs from messages of the connection manager, or from an earlier pass.
    mtus: HashMap<Key, u32>,
    hindsight: Vec<(Place, Marks, String)>,
    totals: Totals,
}

impl Analyzer {
    /// A new analyzer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An analyzer for a second pass over the same capture. It knows from the first packet on which streams are one connection,
    /// and their MTUs.
    #[must_use]
    pub fn again(first: &Self) -> Self {
        let (mut known, mut mtus) = (HashMap::new(), HashMap::new());
        for stream in &first.streams {
            if let Some(mtu) = stream.requests.mtu {
                mtus.insert(stream.key, mtu);
            }
            if let Some(peer) = stream.peer {
                known.insert(stream.key, first.streams[peer].key);
            }
        }
        Self { known, mtus, ..Self::default() }
    }

    /// Handles a frame without a packet.
    pub fn other(&mut self, what: Other, time: u64) {
        self.totals.frame(time);
        self.totals.other(what);
    }

    /// Handles the next packet.
    pub fn packet(&mut self, packet: &Packet<'_>) -> Remark {
        self.totals.packet(packet);
        let mut remark = Remark { marks: self.own_marks(packet), ..Remark::default() };
        let Ok(head) = &packet.head else {
            remark.marks |= Marks::UNREADABLE;
            return remark;
        };
        match head.info.service {
            Service::Ud => self.datagram(packet, head, &mut remark),
            Service::Cnp => self.notification(packet, head, &mut remark),
            Service::Rc | Service::Uc | Service::Xrc => self.connected(packet, head, &mut remark),
        }
        remark
    }

    /// Later findings about earlier packets since the last call, for example that they were lost.
    pub fn hindsight(&mut self) -> Vec<(Place, Marks, String)> {
        std::mem::take(&mut self.hindsight)
    }

    /// Whether a packet's stream has this queue pair at one of its ends.
    #[must_use]
    pub fn is_of_qp(&self, packet: &Packet<'_>, remark: &Remark, qp: Qpn) -> bool {
        let Ok(head) = &packet.head else { return false };
        let peer = remark.stream.and_then(|stream| self.streams[stream].peer);
        head.bth.dest_qp == qp
            || (head.info.service == Service::Ud && head.ext.deth.src_qp == qp)
            || peer.is_some_and(|peer| self.streams[peer].key.2 == qp)
            || self.known_peer(remark.stream).is_some_and(|(_, _, known)| known == qp)
    }

    /// The queue pair that sent a packet. A datagram contains it; otherwise it is that of the connection's other end.
    #[must_use]
    pub fn source_qp(&self, packet: &Packet<'_>, remark: &Remark) -> Option<Qpn> {
        let head = packet.head.as_ref().ok()?;
        if head.info.service == Service::Ud {
            return Some(head.ext.deth.src_qp);
        }
        let peer =
            remark.stream.and_then(|stream| self.streams[stream].peer).map(|peer| self.streams[peer].key.2);
        peer.or_else(|| self.known_peer(remark.stream).map(|known| known.2))
    }

    fn known_peer(&self, stream: Option<StreamId>) -> Option<Key> {
        self.known.get(&self.streams.get(stream?)?.key).copied()
    }

    fn own_marks(&mut self, packet: &Packet<'_>) -> Marks {
        let mut marks = Marks::empty();
        match packet.icrc {
            Icrc::Wrong { .. } => marks |= Marks::BAD_ICRC,
            Icrc::Cut { .. } => marks |= Marks::CUT,
            Icrc::Right | Icrc::RightTwice => {}
        }
        if packet.frame.net.is_marked() {
            marks |= Marks::MARKED;
        }
        marks
    }

    fn datagram(&mut self, packet: &Packet<'_>, head: &Head, remark: &mut Remark) {
        let (src, dst) = packet.addresses();
        let mad = packet.mad();
        if matches!(mad, Some(Mad::Cm(_))) {
            remark.marks |= Marks::CM;
        }
        // The ICRC covers the addresses. Without it, datagrams of two senders may look the same.
        let is_cut = matches!(packet.icrc, Icrc::Cut { .. });
        if !is_cut && self.recent.is_copy(packet, head) {
            remark.marks |= Marks::COPY;
            return;
        }
        if let Some(mad) = mad {
            if let Mad::Cm(datagram) = mad {
                self.totals.cm += 1;
                if !packet.icrc.is_wrong()
                    && let Some(ends) = self.conversations.take(src, dst, &datagram, packet.time)
                {
                    self.introduce(ends);
                }
            }
            return;
        }
        let key = (src, head.ext.deth.src_qp, dst, head.bth.dest_qp);
        if self.datagrams.len() < MOST_STREAMS || self.datagrams.contains_key(&key) {
            let (count, bytes) = self.datagrams.entry(key).or_default();
            *count += 1;
            *bytes += head.payload_len as u64;
        } else {
            self.totals.unfollowed += 1;
        }
    }

    fn notification(&mut self, packet: &Packet<'_>, head: &Head, remark: &mut Remark) {
        remark.marks |= Marks::CNP;
        let Some(id) = self.stream(packet, head) else { return };
        remark.stream = Some(id);
        let stream = &mut self.streams[id];
        if stream.recent.is_copy(packet, head) {
            remark.marks |= Marks::COPY;
            stream.copies += 1;
        } else {
            stream.cnps += 1;
        }
    }

    fn connected(&mut self, packet: &Packet<'_>, head: &Head, remark: &mut Remark) {
        let Some(id) = self.stream(packet, head) else {
            self.totals.unfollowed += 1;
            return;
        };
        remark.stream = Some(id);
        let stream = &mut self.streams[id];
        if stream.service == Service::Cnp {
            // The first packet was a notification, which does not show the service.
            stream.service = head.info.service;
        }
        stream.count(packet, head);
        if stream.recent.is_copy(packet, head) {
            remark.marks |= Marks::COPY;
            stream.copies += 1;
            return;
        }
        if stream.is_rewritten(packet.icrc) {
            remark.marks = (remark.marks - Marks::BAD_ICRC) | Marks::REWRITTEN;
        } else if packet.icrc.is_wrong() {
            // The receiver drops it, so it has no effect.
            if head.info.is_request() {
                stream.requests.corrupted(head.bth.psn);
            } else if head.info.class == Class::ReadResponse {
                stream.answers.corrupted(head.bth.psn);
            }
            remark.why = Some("its receiver drops it".to_owned());
            return;
        }
        let place = (packet.number, packet.part);
        let outcome = if head.info.is_request() {
            stream.requests.take(head, packet.time, place)
        } else {
            self.answer(id, head, packet.time, place)
        };
        self.note(outcome, remark);
    }

    fn note(&mut self, outcome: Outcome, remark: &mut Remark) {
        remark.marks |= outcome.marks;
        remark.why = outcome.why.or_else(|| remark.why.take());
        for (place, why) in outcome.lost {
            self.totals.lost += 1;
            self.hindsight.push((place, Marks::LOST, why));
        }
    }

    fn answer(&mut self, id: StreamId, head: &Head, time: u64, place: Place) -> Outcome {
        if self.streams[id].peer.is_none() {
            self.find_peer(id, head.bth.psn);
        }
        let peer = self.streams[id].peer;
        // The responses and their requests are in two streams, and both are changed.
        let mut answers = std::mem::take(&mut self.streams[id].answers);
        let requests = peer.map(|peer| &mut self.streams[peer].requests);
        let outcome = answers.take(head, time, place, requests);
        self.streams[id].answers = answers;
        outcome
    }

    /// The stream of a packet; `None` if there are too many.
    fn stream(&mut self, packet: &Packet<'_>, head: &Head) -> Option<StreamId> {
        let (src, dst) = packet.addresses();
        let key = (src, dst, head.bth.dest_qp);
        if let Some((last, id)) = self.last
            && last == key
        {
            return Some(id);
        }
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None if self.streams.len() == MOST_STREAMS => return None,
            None => self.begin(key, head.info.service, packet.time),
        };
        self.last = Some((key, id));
        Some(id)
    }

    fn begin(&mut self, key: Key, service: Service, time: u64) -> StreamId {
        let id = self.streams.len();
        self.streams.push(Stream::new(key, service, time));
        if let Some(mtu) = self.mtus.get(&key) {
            self.streams[id].requests.know_mtu(*mtu);
        }
        self.by_key.insert(key, id);
        self.lonely.entry((key.0, key.1)).or_default().insert(id);
        let peer = self.known.get(&key).and_then(|peer| self.by_key.get(peer)).copied();
        if let Some(peer) = peer.filter(|peer| self.streams[*peer].peer.is_none()) {
            self.join(id, peer);
        }
        id
    }

    /// Stores two ends of a connection, from a message of the connection manager.
    fn introduce(&mut self, ends: Ends) {
        let ([(asker, asker_qp), (asked, asked_qp)], mtu) = ends;
        let (to, from) = ((asker, asked, asked_qp), (asked, asker, asker_qp));
        // Numbers may be used again. The latest message applies to streams that begin after it.
        for (key, peer) in [(to, from), (from, to)] {
            if self.known.len() < MOST_KNOWN || self.known.contains_key(&key) {
                self.known.insert(key, peer);
            }
            if let Some(mtu) = mtu
                && (self.mtus.len() < MOST_KNOWN || self.mtus.contains_key(&key))
            {
                self.mtus.insert(key, mtu);
            }
        }
        if let (Some(&to), Some(&from)) = (self.by_key.get(&to), self.by_key.get(&from))
            && self.streams[to].peer.is_none()
            && self.streams[from].peer.is_none()
        {
            self.join(to, from);
        }
    }

    fn join(&mut self, one: StreamId, other: StreamId) {
        self.streams[one].peer = Some(other);
        self.streams[other].peer = Some(one);
        for id in [one, other] {
            let (src, dst, _) = self.streams[id].key;
            if let Some(list) = self.lonely.get_mut(&(src, dst)) {
                list.remove(&id);
            }
        }
    }

    /// Finds the stream with the requests that this one answers.
    fn find_peer(&mut self, id: StreamId, psn: Psn) {
        let (src, dst, _) = self.streams[id].key;
        let Some(list) = self.lonely.get(&(dst, src)) else { return };
        let service = self.streams[id].service;
        let fits = |other: &&StreamId| {
            order::steps::count();
            let stream = &self.streams[**other];
            **other != id && stream.service == service && stream.requests.awaits(psn)
        };
        let mut found = list.iter().rev().take(MOST_CANDIDATES).filter(fits);
        let (first, second) = (found.next().copied(), found.next());
        let Some(first) = first else { return };
        let only = second.is_none();
        self.streams[id].ambiguous = self.streams[id].ambiguous.saturating_add(1);
        if only || self.streams[id].ambiguous >= PATIENCE {
            self.join(id, first);
        }
    }
}

#[cfg(test)]
mod tests;
