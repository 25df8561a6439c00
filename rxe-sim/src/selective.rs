//! Selective repeat as in IRN (Mittal et al., SIGCOMM 2018, section 3): a layer of the simulated adapter between network and
//! queue pair. The receiving half keeps packets that arrive out of sequence. For each of them it sends a negative
//! acknowledgement with two numbers: the expected one and the one that arrived. The sending half keeps a copy of each packet
//! under way (only of the headers, as there are no payloads), and sends the missing ones again. Queue pairs see every packet in
//! sequence, and their own acknowledgements are the cumulative ones.

use crate::packet::Packet;
use std::collections::VecDeque;

/// The short timeout is used while at most this many packets are in flight (N).
const FEW: usize = 3;
const PSN_MASK: u32 = 0x00ff_ffff;

const fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & PSN_MASK
}

#[derive(Debug)]
struct Copy {
    packet: Packet,
    /// The receiver has it.
    there: bool,
    /// It was sent again since the last timeout.
    again: bool,
}

/// The sending half of one queue pair.
#[derive(Debug, Default)]
pub struct Sender {
    /// Sequence number of the first copy.
    base: u32,
    copies: VecDeque<Copy>,
    /// Copies before this place may be lost: the receiver has a later one.
    suspect: usize,
    /// Copies that were examined already.
    looked: usize,
    /// The latest of these times: of the last answer, of the last timeout, and when the first packet under way was sent.
    pub since: u64,
    /// The time of the event for the timeout, if there is one.
    pub armed: Option<u64>,
}

impl Sender {
    /// A new packet leaves.
    pub fn sent(&mut self, packet: &Packet) {
        if self.copies.is_empty() {
            self.base = packet.psn();
        }
        if distance(self.base, packet.psn()) as usize == self.copies.len() {
            self.copies.push_back(Copy { packet: *packet, there: false, again: false });
        }
    }

    /// Whether no packet is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Everything before `psn` has arrived.
    pub fn acknowledged_before(&mut self, psn: u32) {
        let count = distance(self.base, psn) as usize;
        if count == 0 || count > self.copies.len() {
            return;
        }
        self.copies.drain(..count);
        self.base = psn & PSN_MASK;
        self.suspect = self.suspect.saturating_sub(count);
        self.looked = self.looked.saturating_sub(count);
    }

    /// A negative acknowledgement arrived: packet `expected` is missing, and packet `came` has arrived.
    pub fn missing(&mut self, expected: u32, came: u32) {
        self.acknowledged_before(expected);
        let place = distance(self.base, came) as usize;
        if expected != self.base || place >= self.copies.len() {
            return;
        }
        self.copies[place].there = true;
        self.suspect = self.suspect.max(place);
    }

    /// The timeout has passed. The first packet counts as lost, and so do all packets that were sent again.
    pub fn timed_out(&mut self) {
        self.copies.iter_mut().for_each(|copy| copy.again = false);
        (self.suspect, self.looked) = (self.suspect.max(1), 0);
    }

    /// The next packet to be sent again.
    pub fn next_lost(&mut self) -> Option<Packet> {
        while self.looked < self.suspect.min(self.copies.len()) {
            let copy = &mut self.copies[self.looked];
            self.looked += 1;
            if !copy.there && !copy.again {
                copy.again = true;
                return Some(copy.packet);
            }
        }
        None
    }

    /// When a packet is sent again without a negative acknowledgement. It depends on how many are under way now.
    #[must_use]
    pub fn deadline(&self, short: u64, long: u64) -> u64 {
        self.since.saturating_add(if self.copies.len() <= FEW { short } else { long })
    }
}

/// What to do with a packet that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It is the expected packet, or an earlier one: the queue pair gets it.
    Take,
    /// It was kept. The packets before it have to be requested.
    Ask {
        /// The packet that is missing.
        expected: u32,
    },
}

/// The receiving half of one queue pair.
#[derive(Debug)]
pub struct Receiver {
    expected: u32,
    /// By distance from `expected`.
    kept: VecDeque<Option<Packet>>,
}

impl Receiver {
    /// Expects `psn` first.
    #[must_use]
    pub const fn new(psn: u32) -> Self {
        Self { expected: psn, kept: VecDeque::new() }
    }

    /// A packet arrives.
    pub fn arrived(&mut self, packet: &Packet) -> Arrival {
        let place = distance(self.expected, packet.psn());
        if place == 0 {
            self.advance();
            return Arrival::Take;
        }
        if place >= 1 << 23 {
            return Arrival::Take;
        }
        let place = place as usize;
        if self.kept.len() <= place {
            self.kept.resize(place + 1, None);
        }
        self.kept[place] = Some(*packet);
        Arrival::Ask { expected: self.expected }
    }

    fn advance(&mut self) {
        self.expected = (self.expected + 1) & PSN_MASK;
        self.kept.pop_front();
    }

    /// The expected packet, if it is among those that were kept.
    pub fn next_kept(&mut self) -> Option<Packet> {
        let packet = self.kept.front_mut()?.take()?;
        self.advance();
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(psn: u32) -> Packet {
        let mut packet = Packet::EMPTY;
        packet.headers[8..12].copy_from_slice(&psn.to_be_bytes());
        packet
    }

    #[test]
    fn only_what_was_lost_is_sent_again_and_once() {
        let start = PSN_MASK - 3;
        let psn = |at: u32| (start + at) & PSN_MASK;
        let (mut sender, mut receiver) = (Sender::default(), Receiver::new(start));
        (0..10).for_each(|at| sender.sent(&packet(psn(at))));
        let mut taken = 0;
        for at in (0..10).filter(|at| ![2, 5].contains(at)) {
            match receiver.arrived(&packet(psn(at))) {
                Arrival::Take => taken += 1,
                Arrival::Ask { expected } => sender.missing(expected, psn(at)),
            }
        }
        assert_eq!(taken, 2);
        let again: Vec<u32> = std::iter::from_fn(|| sender.next_lost()).map(|packet| packet.psn()).collect();
        assert_eq!(again, [psn(2), psn(5)]);
        for lost in again {
            assert_eq!(receiver.arrived(&packet(lost)), Arrival::Take);
            taken += 1 + std::iter::from_fn(|| receiver.next_kept()).count();
        }
        assert_eq!(taken, 10);
        sender.acknowledged_before(psn(10));
        assert!(sender.is_empty());
    }

    #[test]
    fn silence_sends_the_first_one_again() {
        let mut sender = Sender::default();
        (0..4).for_each(|at| sender.sent(&packet(at)));
        assert_eq!(sender.deadline(1, 2), 2);
        sender.timed_out();
        assert_eq!(sender.next_lost().map(|packet| packet.psn()), Some(0));
        assert!(sender.next_lost().is_none());
        sender.acknowledged_before(1);
        assert_eq!(sender.deadline(1, 2), 1);
    }
}
