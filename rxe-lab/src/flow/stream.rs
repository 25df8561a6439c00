//! All packets from one address to one queue pair at another.

use super::{Key, StreamId, answers::Answers, requests::Requests};
use crate::{icrc::Icrc, packet::Packet};
use rxe_core::wire::{Head, Service};

/// Most packets that are remembered, to distinguish a mirror's copies from retransmissions.
const REMEMBERED: usize = 64;
/// After this time, in nanoseconds, the same packet is not a copy any more.
const COPY_TIME: u64 = 50_000_000;

#[derive(Clone, Copy, Debug)]
struct Remembered {
    icrc: [u8; 4],
    ident: u16,
    psn: u32,
    place: u64,
    hops: u8,
    time: u64,
}

/// The latest packets, among which copies are found.
#[derive(Debug)]
pub(super) struct Recent {
    packets: Vec<Remembered>,
    oldest: usize,
    /// Whether senders give each packet an IPv4 ID of its own.
    numbers: bool,
}

impl Default for Recent {
    fn default() -> Self {
        Self { packets: Vec::new(), oldest: 0, numbers: true }
    }
}

impl Recent {
    /// Whether this packet was seen a short time ago at another place. Otherwise it is remembered. Senders that number their
    /// datagrams use another number for a retransmission. With other senders, or if the numbers begin anew with each batch,
    /// only another place identifies a copy.
    pub(super) fn is_copy(&mut self, packet: &Packet<'_>, head: &Head) -> bool {
        let Some((_, icrc)) = packet.frame.packet.split_last_chunk::<4>() else { return false };
        let (place, hops) = (packet.frame.place, packet.frame.net.hops());
        let (ident, psn) = (packet.frame.net.ident(), head.bth.psn.value());
        let this = Remembered { icrc: *icrc, ident, psn, place, hops, time: packet.time };
        // Notifications are created separately from data, and may have other numbers.
        let is_notification = head.info.service == Service::Cnp;
        if !is_notification
            && (ident == 0 || self.packets.iter().any(|one| one.ident == ident && one.icrc != this.icrc))
        {
            self.numbers = false;
        }
        let is_copy = self.packets.iter().any(|one| {
            (one.icrc, one.ident, one.psn) == (this.icrc, this.ident, this.psn)
                && this.time.saturating_sub(one.time) < COPY_TIME
                && (one.place != place || one.hops != hops || self.numbers)
        });
        if is_copy {
            return true;
        }
        if self.packets.len() < REMEMBERED {
            self.packets.push(this);
        } else {
            self.packets[self.oldest] = this;
            self.oldest = (self.oldest + 1) % REMEMBERED;
        }
        false
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) key: Key,
    pub(super) service: Service,
    pub(super) peer: Option<StreamId>,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) packets: u64,
    pub(super) payload: u64,
    pub(super) marked: u64,
    pub(super) cnps: u64,
    pub(super) bad: u64,
    pub(super) rewritten: u64,
    pub(super) cut: u64,
    pub(super) copies: u64,
    /// Responses that matched several streams.
    pub(super) ambiguous: u8,
    pub(super) requests: Requests,
    pub(super) answers: Answers,
    pub(super) recent: Recent,
    /// The apparent change of the headers on the way.
    difference: Option<[u8; 4]>,
}

impl Stream {
    pub(super) fn new(key: Key, service: Service, time: u64) -> Self {
        Self {
            key,
            service,
            peer: None,
            first: time,
            last: time,
            packets: 0,
            payload: 0,
            marked: 0,
            cnps: 0,
            bad: 0,
            rewritten: 0,
            cut: 0,
            copies: 0,
            ambiguous: 0,
            requests: Requests::default(),
            answers: Answers::default(),
            recent: Recent::default(),
            difference: None,
        }
    }

    pub(super) fn count(&mut self, packet: &Packet<'_>, head: &Head) {
        self.packets += 1;
        self.payload += head.payload_len as u64;
        self.last = self.last.max(packet.time);
        self.marked += u64::from(packet.frame.net.is_marked());
        self.bad += u64::from(packet.icrc.is_wrong());
        self.cut += u64::from(matches!(packet.icrc, Icrc::Cut { .. }));
    }

    /// Whether a wrong ICRC is wrong in the same way as that of another packet of this stream. Corruption differs each time,
    /// but rewritten addresses always have the same effect.
    pub(super) fn is_rewritten(&mut self, icrc: Icrc) -> bool {
        let Icrc::Wrong { rewritten } = icrc else { return false };
        let same = self.difference == Some(rewritten);
        self.difference = Some(rewritten);
        self.rewritten += u64::from(same);
        same
    }
}
