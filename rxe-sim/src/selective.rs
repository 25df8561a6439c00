//! Selective repeat as IRN has it (Mittal et al., SIGCOMM 2018, section 3): a layer of the simulated adapter between network
//! and queue pair. The receiving half keeps what comes out of sequence and tells of each such packet by a negative
//! acknowledgement with two numbers, what it expects and what came. The sending half keeps a copy of what is under way (of
//! its headers: there is no payload) and sends again what is missing. Queue pairs see every packet in sequence, and their own
//! acknowledgements are the cumulative ones.

use crate::packet::Packet;
use std::collections::VecDeque;

/// Packets in flight up to which the short timeout counts (N).
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
    /// Copies that were looked at already.
    looked: usize,
    /// When something is sent again although nothing was said.
    pub deadline: u64,
    /// Whether the deadline has an event.
    pub armed: bool,
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

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Everything before `psn` has arrived. Whether that is news.
    pub fn acknowledged_before(&mut self, psn: u32) -> bool {
        let count = distance(self.base, psn) as usize;
        if count == 0 || count > self.copies.len() {
            return false;
        }
        self.copies.drain(..count);
        self.base = psn & PSN_MASK;
        self.suspect = self.suspect.saturating_sub(count);
        self.looked = self.looked.saturating_sub(count);
        true
    }

    /// A negative acknowledgement: `expected` is missing, `came` is there.
    pub fn missing(&mut self, expected: u32, came: u32) {
        self.acknowledged_before(expected);
        let place = distance(self.base, came) as usize;
        if expected != self.base || place >= self.copies.len() {
            return;
        }
        self.copies[place].there = true;
        self.suspect = self.suspect.max(place);
    }

    /// Nothing was heard for the timeout: the first packet is taken for lost, and all that was sent again for lost once more.
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

    /// How long silence may last now.
    #[must_use]
    pub fn timeout(&self, short: u64, long: u64) -> u64 {
        if self.copies.len() <= FEW { short } else { long }
    }
}

/// What to do with a packet that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It is the next one, or one that was there before: the queue pair takes it.
    Take,
    /// It was kept; what comes before is to be asked for.
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

    /// A packet comes.
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

    /// The next packet of those that were kept, if it is its turn.
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
        assert!(sender.acknowledged_before(psn(10)) && sender.is_empty());
    }

    #[test]
    fn silence_sends_the_first_one_again() {
        let mut sender = Sender::default();
        (0..4).for_each(|at| sender.sent(&packet(at)));
        assert_eq!(sender.timeout(1, 2), 2);
        sender.timed_out();
        assert_eq!(sender.next_lost().map(|packet| packet.psn()), Some(0));
        assert!(sender.next_lost().is_none());
        sender.acknowledged_before(1);
        assert_eq!(sender.timeout(1, 2), 1);
    }
}
