//! A RoCEv2 peer that fills fields and asks for acknowledgements as captured ConnectX cards do. It shares no code with rxe:
//! whole frames from a packet socket, headers and ICRC of its own, and every packet of its peer judged by [`Findings`].
//!
//! What is copied from captures (ConnectX-4 Lx, 5, 6; IPv4): IP IDs from one counter of the card, DF, TTL 64, ECT(0), UDP
//! checksum 0, source port by the drivers' formula, MigReq 1; the first packet of a fresh connection asks for an
//! acknowledgement and the sender waits for it, even inside a message; later only LAST, ONLY and READ requests ask; one
//! acknowledgement for many requests; true receive credits, 0x00 in READ responses; CNP with source port 0. No capture
//! shows IPv6, NAKs or a READ response of several packets from a card: there the persona keeps to the specification.

mod card;
mod findings;
mod requester;
mod responder;
pub mod wire;

pub use card::{Arrival, Card, Direction, mac};
pub use findings::Findings;
pub use requester::{Answer, Ask, Requester};
pub use responder::{Responder, SenderLaws};

use std::time::{Duration, Instant};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The numbers of one connection, as the persona sees them.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Own queue pair.
    pub own_qpn: u32,
    /// The peer's queue pair.
    pub peer_qpn: u32,
    /// PSN of the first request to the peer.
    pub own_psn: u32,
    /// PSN of the first request from the peer.
    pub peer_psn: u32,
    /// Path MTU.
    pub mtu: usize,
}

/// A PSN or MSN of 24 bits.
const fn circle(value: u32) -> u32 {
    value & 0xff_ffff
}

/// How far `to` lies behind `from`, in the 24-bit circle of PSNs.
const fn ahead(from: u32, to: u32) -> i32 {
    ((to.wrapping_sub(from) << 8) as i32) >> 8
}

/// Number of receives that each credit code stands for (IBTA vol. 1, table 46); 31 means that none are counted.
pub const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// One queue pair of the persona: both halves.
#[derive(Debug)]
pub struct Pair {
    /// The asking half.
    pub requester: Requester,
    /// The answering half.
    pub responder: Responder,
    laws: SenderLaws,
    numbers: Numbers,
}

impl Pair {
    /// From now on the peer is to heed the credits: it has heard of some.
    pub const fn expect_credits_heeded(&mut self) {
        self.laws.heeds = true;
    }

    /// PSNs that the peer's requests have taken, each counted once.
    #[must_use]
    pub const fn psns_seen(&self) -> i64 {
        self.laws.used
    }
}

/// The persona: a card and its queue pairs.
#[derive(Debug)]
pub struct Persona {
    /// The card.
    pub card: Card,
    /// The queue pairs.
    pub pairs: Vec<Pair>,
}

impl Persona {
    /// A persona without queue pairs.
    #[must_use]
    pub const fn new(card: Card) -> Self {
        Self { card, pairs: Vec::new() }
    }

    /// Adds a connected queue pair; gives its index.
    pub fn connect(&mut self, numbers: Numbers) -> usize {
        self.pairs.push(Pair {
            requester: Requester::new(numbers),
            responder: Responder::new(numbers),
            laws: SenderLaws::new(numbers),
            numbers,
        });
        self.pairs.len() - 1
    }

    /// Sends a congestion notification to the peer of a queue pair.
    pub fn notify_congestion(&mut self, pair: usize) {
        self.card.send(&wire::Packet::cnp(self.pairs[pair].numbers.peer_qpn));
    }

    /// Tells the peer of a queue pair of receives posted since the last acknowledgement.
    pub fn advertise(&mut self, pair: usize) {
        self.pairs[pair].responder.advertise(&mut self.card);
    }

    /// Takes what came, and sends what is due.
    pub fn step(&mut self) {
        for pair in &mut self.pairs {
            pair.requester.transmit(&mut self.card);
        }
        let Some(Arrival { packet, lost }) = self.card.receive() else { return };
        let pair = self.pairs.iter_mut().find(|pair| pair.numbers.own_qpn == packet.qpn);
        self.card.findings.check("destination QP is ours", pair.is_some(), || format!("{packet:?}"));
        let Some(pair) = pair else { return };
        let is_answer = matches!(packet.opcode, wire::op::READ_FIRST..=wire::op::ACK);
        if is_answer {
            pair.requester.judge(&mut self.card.findings, &packet);
        } else {
            pair.laws.judge(&mut self.card.findings, &packet, pair.responder.promised);
        }
        if lost {
            return;
        }
        if is_answer {
            pair.requester.handle(&mut self.card, &packet);
        } else {
            pair.responder.handle(&mut self.card, &packet);
        }
    }

    /// Goes on until `done` says so.
    ///
    /// # Panics
    ///
    /// If that takes too long, with the last packets.
    pub fn run(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < PATIENCE,
                "the persona waits in vain: {what}\n{}{}{:?}",
                self.card.trace(),
                self.card.findings,
                self.card.findings.broken()
            );
            self.step();
        }
    }

    /// Goes on until all asked is answered.
    pub fn finish(&mut self) {
        self.run("its requests to be answered", |persona| {
            persona.pairs.iter().all(|pair| pair.requester.is_done())
        });
    }

    /// Goes on until nothing has come for `quiet` milliseconds.
    ///
    /// # Panics
    ///
    /// If the peer does not fall silent.
    pub fn settle(&mut self, quiet: u64) {
        let (start, mut last) = (Instant::now(), Instant::now());
        let mut before = self.card.findings.count("ICRC right");
        while last.elapsed() < Duration::from_millis(quiet) {
            assert!(start.elapsed() < PATIENCE, "the peer does not fall silent\n{}", self.card.trace());
            self.step();
            let now = self.card.findings.count("ICRC right");
            if now != before {
                (before, last) = (now, Instant::now());
            }
        }
    }
}
