//! The answering half: memory, receives, true credits, one acknowledgement for many; and the laws by which the peer's
//! requests are judged.

use super::{
    CREDITS, Card, Findings, Numbers, ahead, circle,
    wire::{self, Aeth, Packet, Reth, op},
};
use std::collections::{BTreeMap, VecDeque};

const fn is_start(opcode: u8) -> bool {
    matches!(
        opcode,
        op::SEND_FIRST
            | op::SEND_ONLY
            | op::SEND_ONLY_IMM
            | op::WRITE_FIRST
            | op::WRITE_ONLY
            | op::WRITE_ONLY_IMM
            | op::READ_REQUEST
    )
}

const fn is_end(opcode: u8) -> bool {
    !matches!(opcode, op::SEND_FIRST | op::SEND_MIDDLE | op::WRITE_FIRST | op::WRITE_MIDDLE)
}

/// What a packet was when it was first sent.
type Print = (u8, Option<[u8; 4]>, Vec<u8>);

/// The laws of a sender, judged on all its request packets, also on those that get lost afterwards.
#[derive(Debug)]
pub struct SenderLaws {
    mtu: usize,
    start: u32,
    /// PSNs used so far, counted from the start.
    pub(super) used: i64,
    /// The open message: whether it is a SEND, bytes so far, bytes announced.
    open: Option<(bool, usize, Option<usize>)>,
    seen: BTreeMap<i64, Print>,
    /// Messages started that take a receive.
    takers: u64,
    /// Whether the peer has heard of credits, so that it is to heed them.
    pub(super) heeds: bool,
}

impl SenderLaws {
    pub(super) const fn new(numbers: Numbers) -> Self {
        Self {
            mtu: numbers.mtu,
            start: numbers.peer_psn,
            used: 0,
            open: None,
            seen: BTreeMap::new(),
            takers: 0,
            heeds: false,
        }
    }

    /// Judges a request packet of a peer that was promised so many receives since the start.
    pub(super) fn judge(&mut self, findings: &mut Findings, packet: &Packet, promised: u64) {
        let detail = || format!("{packet:?}");
        let next = circle((i64::from(self.start) + self.used) as u32);
        let place = self.used + i64::from(ahead(next, packet.psn));
        findings.check("requests: PSNs without a gap", (0..=self.used).contains(&place), || {
            format!("{packet:?}, {next:#x} was due")
        });
        let (start, end) = (is_start(packet.opcode), is_end(packet.opcode));
        let len = packet.payload.len();
        // A full WRITE may be a part of one that goes on.
        let part = packet.opcode == op::WRITE_ONLY && len == self.mtu;
        if end && !part {
            findings.check("requests: LAST, ONLY and READ ask for an acknowledgement", packet.asks(), detail);
        }
        let lengths = match (start, end) {
            (_, false) => len == self.mtu,
            (false, true) => (1..=self.mtu).contains(&len),
            (true, true) => len <= self.mtu && (packet.opcode != op::READ_REQUEST || len == 0),
        };
        findings.check("requests: FIRST and MIDDLE full, LAST not empty", lengths, detail);
        let print = (packet.opcode, packet.imm, packet.payload.clone());
        if place != self.used {
            // Sent again. A READ may ask for what is left; anything else is what it was.
            if packet.opcode != op::READ_REQUEST {
                let same = self.seen.get(&place) == Some(&print);
                findings.check("requests: sent again unchanged", same, detail);
            }
            return;
        }
        self.seen.insert(place, print);
        let is_send = packet.opcode <= op::SEND_ONLY_IMM;
        if self.heeds && is_send && start {
            findings.check("requests: at most one SEND beyond the credits", self.takers <= promised, || {
                format!("{packet:?}, {promised} receives were promised, {} are taken", self.takers)
            });
        }
        self.takers += u64::from(if is_send { start } else { packet.imm.is_some() });
        self.judge_order(findings, packet, start, end);
        let psns = match packet.reth {
            Some(reth) if packet.opcode == op::READ_REQUEST => (reth.len as usize).div_ceil(self.mtu).max(1),
            _ => 1,
        };
        self.used += psns as i64;
    }

    fn judge_order(&mut self, findings: &mut Findings, packet: &Packet, start: bool, end: bool) {
        let detail = || format!("{packet:?}");
        let is_send = packet.opcode <= op::SEND_ONLY_IMM;
        let order = match self.open {
            None => start,
            Some((open_send, ..)) => !start && open_send == is_send,
        };
        findings.check("requests: FIRST, MIDDLE, LAST, ONLY in order", order, detail);
        if packet.opcode == op::READ_REQUEST {
            return;
        }
        let announced = packet.reth.map(|reth| reth.len as usize);
        let (_, bytes, announced) = self.open.unwrap_or((is_send, 0, announced));
        let bytes = bytes + packet.payload.len();
        if end {
            self.open = None;
            if let Some(announced) = announced {
                findings.check("requests: WRITE as long as announced", bytes == announced, detail);
            }
        } else {
            self.open = Some((is_send, bytes, announced));
        }
    }
}

/// The answering half of a queue pair.
#[derive(Debug)]
pub struct Responder {
    numbers: Numbers,
    expected: u32,
    msn: u32,
    /// A NAK asked for the expected packet; silence until it comes.
    asked: bool,
    /// Data of the open SEND.
    inbox_open: Vec<u8>,
    /// Where the open WRITE goes on.
    write_at: usize,
    /// Lengths of posted receives.
    receives: VecDeque<usize>,
    holds_receive: bool,
    /// Messages completed that took a receive.
    taken: u64,
    /// Receives that the peer was promised since the start, those it has taken included.
    pub(super) promised: u64,
    /// Requests that asked since the last acknowledgement.
    owed: u32,
    /// Virtual address of the memory.
    pub base: u64,
    /// Key of the memory.
    pub rkey: u32,
    /// The memory that the peer may write and read.
    pub memory: Vec<u8>,
    /// Messages received, with their immediate data.
    pub inbox: Vec<(Vec<u8>, Option<[u8; 4]>)>,
    /// How many requests each acknowledgement to come is for; one each when this is used up.
    pub steps: VecDeque<u32>,
    /// Acknowledgements and NAKs sent: PSN and syndrome.
    pub said: Vec<(u32, u8)>,
    /// Whether its MSN stands still, which no card should do.
    pub miscounts: bool,
    /// Timer code of its RNR NAKs.
    pub rnr_code: u8,
    /// Request packets that came again after they had been executed.
    pub duplicates: u32,
    /// WRITEs and READs refused because of key, range or length.
    pub refused: u32,
}

impl Responder {
    pub(super) const fn new(numbers: Numbers) -> Self {
        Self {
            numbers,
            expected: numbers.peer_psn,
            msn: 0,
            asked: false,
            inbox_open: Vec::new(),
            write_at: 0,
            receives: VecDeque::new(),
            holds_receive: false,
            taken: 0,
            promised: 0,
            owed: 0,
            base: 0x7f00_1234_5000,
            rkey: 0x0018_0b2a,
            memory: Vec::new(),
            inbox: Vec::new(),
            steps: VecDeque::new(),
            said: Vec::new(),
            miscounts: false,
            rnr_code: 12,
            duplicates: 0,
            refused: 0,
        }
    }

    /// Posts a receive of this length.
    pub fn post_receive(&mut self, len: usize) {
        self.receives.push_back(len);
    }

    /// The true number of receives as a credit code, rounded down.
    fn credits(&self) -> u8 {
        let left = self.receives.len() + usize::from(self.holds_receive);
        CREDITS.iter().rposition(|&count| count as usize <= left).unwrap_or(0) as u8
    }

    fn say(&mut self, card: &mut Card, psn: u32, syndrome: u8) {
        self.said.push((psn, syndrome));
        if let Some(&credits) = CREDITS.get(usize::from(syndrome)) {
            self.promised = self.promised.max(self.taken + u64::from(credits));
        }
        self.send(card, op::ACK, psn, Some(syndrome), &[]);
    }

    /// Acknowledges the last packet once more, to tell of receives posted since.
    pub(super) fn advertise(&mut self, card: &mut Card) {
        let credits = self.credits();
        self.say(card, circle(self.expected.wrapping_sub(1)), credits);
    }

    fn send(&self, card: &mut Card, opcode: u8, psn: u32, syndrome: Option<u8>, payload: &[u8]) {
        let sport = wire::source_port(self.numbers.own_qpn, self.numbers.peer_qpn);
        let aeth = syndrome.map(|syndrome| Aeth { syndrome, msn: if self.miscounts { 0 } else { self.msn } });
        let packet = Packet::new(opcode, self.numbers.peer_qpn, psn, sport);
        card.send(&Packet { aeth, payload: payload.to_vec(), ..packet });
    }

    /// Takes a request.
    pub(super) fn handle(&mut self, card: &mut Card, packet: &Packet) {
        match ahead(self.expected, packet.psn) {
            0 => self.execute(card, packet),
            behind if behind < 0 => self.repeat(card, packet),
            _ if self.asked => {}
            _ => {
                self.asked = true;
                self.say(card, self.expected, 0x60);
            }
        }
    }

    fn execute(&mut self, card: &mut Card, packet: &Packet) {
        let takes = matches!(packet.opcode, op::SEND_FIRST | op::SEND_ONLY | op::SEND_ONLY_IMM)
            || matches!(packet.opcode, op::WRITE_LAST_IMM | op::WRITE_ONLY_IMM);
        if takes && self.receives.is_empty() {
            self.asked = true;
            self.say(card, packet.psn, 0x20 | self.rnr_code);
            return;
        }
        let done = match packet.reth {
            Some(reth) => self.range(reth),
            None => Some(self.write_at),
        };
        let Some(at) = done else {
            self.refused += 1;
            self.asked = true;
            self.say(card, packet.psn, 0x62);
            return;
        };
        self.asked = false;
        if takes {
            self.receives.pop_front();
            self.holds_receive = true;
        }
        if packet.opcode == op::READ_REQUEST {
            let len = packet.reth.map_or(0, |reth| reth.len as usize);
            self.msn = circle(self.msn + 1);
            self.expected = circle(self.expected + len.div_ceil(self.numbers.mtu).max(1) as u32);
            self.owed = 0;
            self.respond(card, packet.psn, at, len);
            return;
        }
        self.expected = circle(self.expected + 1);
        self.place(packet, at);
        if packet.asks() {
            self.owed += 1;
            let step = self.steps.front().copied().unwrap_or(1);
            if self.owed >= step {
                self.steps.pop_front();
                self.owed = 0;
                let credits = self.credits();
                self.say(card, packet.psn, credits);
            }
        }
    }

    /// Puts the payload where it belongs, and ends the message if it ends there.
    fn place(&mut self, packet: &Packet, at: usize) {
        let end = is_end(packet.opcode);
        if packet.opcode <= op::SEND_ONLY_IMM {
            self.inbox_open.extend(&packet.payload);
            if end {
                self.inbox.push((std::mem::take(&mut self.inbox_open), packet.imm));
            }
        } else {
            let to = at + packet.payload.len();
            if let Some(place) = self.memory.get_mut(at..to) {
                place.copy_from_slice(&packet.payload);
            }
            self.write_at = to;
            if packet.imm.is_some() {
                self.inbox.push((Vec::new(), packet.imm));
            }
        }
        if end {
            self.taken += u64::from(self.holds_receive);
            self.holds_receive = false;
            self.msn = circle(self.msn + 1);
        }
    }

    /// Where in the memory a request's range starts; `None` if it may not be accessed.
    fn range(&self, reth: Reth) -> Option<usize> {
        if reth.len == 0 {
            return Some(0);
        }
        let at = usize::try_from(reth.addr.checked_sub(self.base)?).ok()?;
        (reth.rkey == self.rkey && at + reth.len as usize <= self.memory.len()).then_some(at)
    }

    /// READ responses; the acknowledge syndrome says 0x00 there, whatever the credits are.
    fn respond(&self, card: &mut Card, psn: u32, at: usize, len: usize) {
        let mtu = self.numbers.mtu;
        let count = len.div_ceil(mtu).max(1);
        for number in 0..count {
            let (opcode, syndrome) = match (number == 0, number + 1 == count) {
                (true, true) => (op::READ_ONLY, Some(0)),
                (true, false) => (op::READ_FIRST, Some(0)),
                (false, false) => (op::READ_MIDDLE, None),
                (false, true) => (op::READ_LAST, Some(0)),
            };
            let to = len.min((number + 1) * mtu);
            let payload = &self.memory[at + number * mtu..at + to];
            self.send(card, opcode, circle(psn + number as u32), syndrome, payload);
        }
    }

    /// A request that was executed already.
    fn repeat(&mut self, card: &mut Card, packet: &Packet) {
        self.duplicates += 1;
        if packet.opcode == op::READ_REQUEST {
            if let Some((reth, at)) = packet.reth.and_then(|reth| Some((reth, self.range(reth)?))) {
                self.respond(card, packet.psn, at, reth.len as usize);
            }
        } else if packet.asks() {
            self.owed = 0;
            self.advertise(card);
        }
    }
}
