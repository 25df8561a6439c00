//! The summary of a capture.

use super::{Analyzer, Conversation, Goodput, Marks, Round, Spread, StreamId, order::steps};
use crate::{frame::Other, packet::Packet};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

/// Counts over all frames.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Totals {
    /// Frames in the capture.
    pub frames: u64,
    /// RoCE packets in them.
    pub packets: u64,
    /// Bytes of these, BTH to ICRC.
    pub bytes: u64,
    /// When the first frame was seen, nanoseconds since 1970.
    pub first_ns: u64,
    /// When the last one was.
    pub last_ns: u64,
    /// Packets whose ICRC is right.
    pub icrc_right: u64,
    /// Packets whose ICRC is wrong.
    pub icrc_wrong: u64,
    /// Packets that were truncated before their ICRC.
    pub icrc_cut: u64,
    /// Packets without readable headers.
    pub unreadable: u64,
    /// Packets from frames with several packets (segmentation offload).
    pub from_batches: u64,
    /// Packets of RoCEv1.
    pub roce_v1: u64,
    /// Packets that a mirror had put into a tunnel.
    pub mirrored: u64,
    /// Messages of the connection manager, without copies.
    pub cm: u64,
    /// Packets that were lost after the point of capture.
    pub lost: u64,
    /// Frames that are not RoCE.
    pub not_roce: u64,
    /// Frames that were too short to be identified.
    pub cut_short: u64,
    /// Fragments of IP datagrams.
    pub fragments: u64,
    /// Frames of links that are not known.
    pub unknown_link: u64,
    /// Frames whose headers contradict themselves, by what is wrong.
    pub malformed: BTreeMap<&'static str, u64>,
    /// Packets of more queue pairs than are followed.
    pub unfollowed: u64,
    #[serde(skip)]
    last_frame: u64,
}

impl Totals {
    pub(super) fn frame(&mut self, time: u64) {
        if self.frames == 0 {
            self.first_ns = time;
        }
        self.frames += 1;
        self.first_ns = self.first_ns.min(time);
        self.last_ns = self.last_ns.max(time);
    }

    pub(super) fn packet(&mut self, packet: &Packet<'_>) {
        if packet.number != self.last_frame {
            self.last_frame = packet.number;
            self.frame(packet.time);
        }
        self.packets += 1;
        self.bytes += packet.frame.len as u64;
        self.from_batches += u64::from(packet.part > 0);
        self.roce_v1 += u64::from(matches!(packet.frame.net, crate::frame::Net::Grh { .. }));
        self.mirrored += u64::from(packet.frame.tunnel.is_some());
        self.unreadable += u64::from(packet.head.is_err());
        match packet.icrc {
            icrc if icrc.is_right() => self.icrc_right += 1,
            icrc if icrc.is_wrong() => self.icrc_wrong += 1,
            _ => self.icrc_cut += 1,
        }
    }

    pub(super) fn other(&mut self, what: Other) {
        match what {
            Other::NotRoce => self.not_roce += 1,
            Other::Cut => self.cut_short += 1,
            Other::Fragment => self.fragments += 1,
            Other::Link => self.unknown_link += 1,
            Other::Malformed(what) => *self.malformed.entry(what).or_default() += 1,
        }
    }
}

/// Number and bytes of operations of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Asked {
    /// Operations.
    pub count: u64,
    /// Bytes that they transfer.
    pub bytes: u64,
}

/// One direction of a connection: the requests of one side.
#[derive(Clone, Debug, Serialize)]
pub struct Direction {
    /// Address of the requester.
    pub from: IpAddr,
    /// Address of the responder.
    pub to: IpAddr,
    /// Queue pair of the responder.
    pub to_qp: u32,
    /// Packets in this direction, including responses.
    pub packets: u64,
    /// Payload bytes of these.
    pub payload: u64,
    /// Operations by kind.
    pub asked: BTreeMap<&'static str, Asked>,
    /// Acknowledged operations (with UC: sent operations).
    pub completed: u64,
    /// Bytes of these.
    pub completed_bytes: u64,
    /// Operations that the responder has refused, by a NAK other than PSN sequence error.
    pub refused: u64,
    /// Operations that were unanswered at the end of the capture.
    pub unanswered: u64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// How often the sender went back. The first times are in `rounds`.
    pub round_count: u64,
    /// Each round of retransmission, with its reason.
    pub rounds: Vec<Round>,
    /// Packets that are not in the capture.
    pub missing: u64,
    /// Packets that arrived after later ones.
    pub late: u64,
    /// NAKs to these requests, by their reason.
    pub naks: BTreeMap<String, u64>,
    /// Acknowledgements of these requests.
    pub acks: u64,
    /// READ response packets for these requests.
    pub responses: u64,
    /// Smallest and largest end-to-end credit code of the acknowledgements, where credits are used.
    pub credits: Option<(u8, u8)>,
    /// Acknowledgements whose message sequence number does not fit.
    pub msn_mismatches: u64,
    /// Packets in this direction that switches have marked.
    pub marked: u64,
    /// Congestion notifications in this direction.
    pub cnps: u64,
    /// Packets whose ICRC is wrong.
    pub bad_icrc: u64,
    /// Of these, packets whose headers were rewritten on the way, or whose sender computes the ICRC wrongly.
    pub rewritten: u64,
    /// Copies that a mirror made.
    pub copies: u64,
    /// Packets that were cut.
    pub cut: u64,
    /// Time from an operation's last packet to its response.
    pub latency: Option<Spread>,
    /// Acknowledged bytes over time.
    pub goodput: Option<Goodput>,
}

/// A connection. Perhaps only one direction of it was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Connection {
    /// Its number here, from 1 on.
    pub number: usize,
    /// RC, UC or XRC.
    pub service: String,
    /// The ends: address and queue pair. The queue pair is missing if no packet contains it.
    pub ends: [(IpAddr, Option<u32>); 2],
    /// When its first packet was seen, nanoseconds since 1970.
    pub first_ns: u64,
    /// When its last one was.
    pub last_ns: u64,
    /// The path MTU in bytes, if packets show it.
    pub mtu: Option<u32>,
    /// The requests of each end.
    pub directions: Vec<Direction>,
    /// The conversation that set it up, by its place in the list of conversations.
    pub conversation: Option<usize>,
}

/// Datagrams from one queue pair to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Datagrams {
    /// Sender.
    pub from: IpAddr,
    /// Its queue pair.
    pub from_qp: u32,
    /// Receiver, or a group.
    pub to: IpAddr,
    /// Its queue pair.
    pub to_qp: u32,
    /// Number of datagrams, without copies.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The content of a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Over all frames.
    pub totals: Totals,
    /// Connections in the order of their first packets.
    pub connections: Vec<Connection>,
    /// Datagrams.
    pub datagrams: Vec<Datagrams>,
    /// Conversations of the connection manager.
    pub conversations: Vec<Conversation>,
}

/// An address and the number of a queue pair.
type End = (IpAddr, u32);

/// The first conversation of each end, and of each two ends: there may be as many of them as of connections.
#[derive(Debug, Default)]
struct ByEnds {
    one: HashMap<End, usize>,
    both: HashMap<[End; 2], usize>,
}

impl ByEnds {
    fn new(list: &[Conversation]) -> Self {
        let mut found = Self::default();
        for (at, told) in list.iter().enumerate() {
            steps::count();
            let mut ends = [(told.asker, told.asker_qp), (told.asked, told.asked_qp)];
            for end in ends {
                found.one.entry(end).or_insert(at);
            }
            ends.sort_unstable();
            found.both.entry(ends).or_insert(at);
        }
        found
    }

    /// The first conversation about a queue pair, and about its peer where that is known.
    fn find(&self, end: End, peer: Option<End>) -> Option<usize> {
        steps::count();
        let Some(peer) = peer.filter(|peer| *peer != end) else { return self.one.get(&end).copied() };
        let mut ends = [end, peer];
        ends.sort_unstable();
        self.both.get(&ends).copied()
    }
}

impl Analyzer {
    /// Returns the summary. After that, the later findings include unanswered packets.
    pub fn finish(&mut self) -> Summary {
        let mut connections = Vec::new();
        let by_ends = ByEnds::new(&self.conversations.list);
        for id in 0..self.streams.len() {
            let peer = self.streams[id].peer;
            // A stream may be its own peer.
            if peer.is_none_or(|peer| id <= peer) {
                connections.push(self.connection(connections.len() + 1, id, peer, &by_ends));
            }
            let open = self.streams[id].requests.open.iter();
            let unanswered: Vec<_> = open.map(|operation| (operation.place, operation.kind)).collect();
            for (place, kind) in unanswered {
                let why = format!("this {kind} has no answer by the end of the capture");
                self.hindsight.push((place, Marks::UNANSWERED, why));
            }
        }
        let datagrams = self.datagrams.iter().map(|(&(from, from_qp, to, to_qp), &(count, bytes))| {
            Datagrams { from, from_qp: from_qp.value(), to, to_qp: to_qp.value(), count, bytes }
        });
        Summary {
            totals: self.totals.clone(),
            connections,
            datagrams: datagrams.collect(),
            conversations: self.conversations.list.clone(),
        }
    }

    fn connection(
        &self,
        number: usize,
        id: StreamId,
        peer: Option<StreamId>,
        by_ends: &ByEnds,
    ) -> Connection {
        let stream = &self.streams[id];
        let other = peer.map(|peer| &self.streams[peer]);
        let (src, dst, qp) = stream.key;
        let near = other
            .map(|other| other.key.2.value())
            .or_else(|| self.known.get(&stream.key).map(|known| known.2.value()));
        let mut directions = vec![self.direction(id, peer)];
        if let Some(peer) = peer.filter(|peer| *peer != id && !self.streams[*peer].requests.is_empty()) {
            directions.push(self.direction(peer, Some(id)));
        }
        // A side that only responds has no requests. Its packets are counted with the requests of the other side.
        directions.retain(|direction| {
            peer.is_none()
                || direction.completed + direction.refused + direction.unanswered + direction.missing > 0
                || !direction.asked.is_empty()
        });
        if directions.is_empty() {
            directions.push(self.direction(id, peer));
        }
        let mtu = stream.requests.mtu.or_else(|| other.and_then(|other| other.requests.mtu));
        Connection {
            number,
            service: stream.service.to_string(),
            ends: [(src, near), (dst, Some(qp.value()))],
            first_ns: other.map_or(stream.first, |other| stream.first.min(other.first)),
            last_ns: other.map_or(stream.last, |other| stream.last.max(other.last)),
            mtu,
            directions,
            conversation: by_ends.find((dst, qp.value()), near.map(|near| (src, near))),
        }
    }

    fn direction(&self, id: StreamId, peer: Option<StreamId>) -> Direction {
        let stream = &self.streams[id];
        let (from, to, to_qp) = stream.key;
        let requests = &stream.requests;
        // Answers to these requests travel the other way.
        let answers = &peer.map_or(stream, |peer| &self.streams[peer]).answers;
        let asked = requests.asked.iter().map(|(kind, &(count, bytes))| (*kind, Asked { count, bytes }));
        Direction {
            from,
            to,
            to_qp: to_qp.value(),
            packets: stream.packets,
            payload: stream.payload,
            asked: asked.collect(),
            completed: requests.completed,
            completed_bytes: requests.completed_bytes,
            refused: requests.refused,
            unanswered: requests.open.len() as u64,
            retransmitted: requests.retransmitted,
            round_count: requests.round_count,
            rounds: requests.rounds.clone(),
            missing: requests.missing + answers.missing,
            late: requests.late,
            naks: answers.naks.clone(),
            acks: answers.acks,
            responses: answers.responses,
            credits: answers.credits,
            msn_mismatches: answers.msn_mismatches,
            marked: stream.marked,
            cnps: stream.cnps,
            bad_icrc: stream.bad,
            rewritten: stream.rewritten,
            copies: stream.copies,
            cut: stream.cut,
            latency: requests.latency.spread(),
            goodput: requests.goodput.told(),
        }
    }
}
