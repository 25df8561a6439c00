//! The asking half. A fresh connection's first packet asks for an acknowledgement and is waited for; SENDs beyond the
//! peer's credits go one packet at a time (IBTA vol. 1, 9.7.7.2); what is lost is sent again from there on.

use super::{
    CREDITS, Card, Findings, Numbers, ahead, circle,
    wire::{self, Packet, Reth, op},
};
use std::time::{Duration, Instant};

/// A message to be sent.
#[derive(Clone, Debug)]
pub enum Ask {
    /// SEND, with immediate data or not.
    Send(Vec<u8>, Option<[u8; 4]>),
    /// WRITE to an address with a key, with immediate data or not.
    Write(u64, u32, Vec<u8>, Option<[u8; 4]>),
    /// READ of so many bytes at an address with a key.
    Read(u64, u32, u32),
}

/// An acknowledgement that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Request packets since the start of the connection that it covers: up to this one, the first being 0.
    pub packet: u64,
    /// Syndrome.
    pub syndrome: u8,
    /// Messages completed, as the peer counts.
    pub msn: u32,
}

/// A request packet, sent or not. PSNs are counted from 0 here and never wrap.
#[derive(Clone, Debug)]
struct Planned {
    at: u64,
    psns: u64,
    packet: Packet,
    /// Its message, the first being 0.
    message: u64,
    start: bool,
    end: bool,
    takes_receive: bool,
    /// Which READ it is.
    read: Option<usize>,
}

/// The asking half of a queue pair.
#[derive(Debug)]
pub struct Requester {
    numbers: Numbers,
    planned: Vec<Planned>,
    next: u64,
    una: u64,
    /// Index of the next packet to leave.
    cursor: usize,
    /// PSNs that have been used so far.
    sent: u64,
    messages: u64,
    /// Message number up to which receives are promised; none known before the first acknowledgement.
    limit: Option<u64>,
    rnr_until: Option<Instant>,
    /// Where data was missing when it last went back for that.
    gap: Option<u64>,
    last_progress: Instant,
    /// How long to wait for an answer before all is sent again; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// Acknowledgements and NAKs that came, in order.
    pub answers: Vec<Answer>,
    /// What READs brought, in the order of asking.
    pub reads: Vec<Vec<u8>>,
    /// Times it went back to send again.
    pub went_back: u32,
    /// The NAK that ended the connection.
    pub refused: Option<u8>,
}

impl Requester {
    pub(super) fn new(numbers: Numbers) -> Self {
        Self {
            numbers,
            planned: Vec::new(),
            next: 0,
            una: 0,
            cursor: 0,
            sent: 0,
            messages: 0,
            limit: None,
            rnr_until: None,
            gap: None,
            last_progress: Instant::now(),
            timeout: None,
            answers: Vec::new(),
            reads: Vec::new(),
            went_back: 0,
            refused: None,
        }
    }

    const fn psn(&self, at: u64) -> u32 {
        circle((self.numbers.own_psn as u64 + at) as u32)
    }

    /// Where a PSN of an answer lies, counted from 0: the place nearest to what is unanswered.
    fn place(&self, psn: u32) -> i64 {
        self.una as i64 + i64::from(ahead(self.psn(self.una), psn))
    }

    /// Queues a message.
    pub fn post(&mut self, ask: Ask) {
        let takes_receive = matches!(ask, Ask::Send(..) | Ask::Write(_, _, _, Some(_)));
        match ask {
            Ask::Send(data, imm) => {
                let ops = [op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST, op::SEND_ONLY];
                self.plan(ops, &data, None, imm, takes_receive);
            }
            Ask::Write(addr, rkey, data, imm) => {
                let reth = Reth { addr, rkey, len: data.len() as u32 };
                let ops = [op::WRITE_FIRST, op::WRITE_MIDDLE, op::WRITE_LAST, op::WRITE_ONLY];
                self.plan(ops, &data, Some(reth), imm, takes_receive);
            }
            Ask::Read(addr, rkey, len) => {
                let psns = u64::from(len).div_ceil(self.numbers.mtu as u64).max(1);
                let reth = Some(Reth { addr, rkey, len });
                let packet = Packet { reth, ack: 0x80, ..self.packet(op::READ_REQUEST) };
                let read = Some(self.reads.len());
                self.reads.push(Vec::new());
                self.push(Planned {
                    at: self.next,
                    psns,
                    packet,
                    message: self.messages,
                    start: true,
                    end: true,
                    takes_receive,
                    read,
                });
            }
        }
        self.messages += 1;
    }

    fn packet(&self, opcode: u8) -> Packet {
        let sport = wire::source_port(self.numbers.own_qpn, self.numbers.peer_qpn);
        Packet::new(opcode, self.numbers.peer_qpn, self.psn(self.next), sport)
    }

    fn push(&mut self, planned: Planned) {
        self.next += planned.psns;
        self.planned.push(planned);
    }

    fn plan(&mut self, ops: [u8; 4], data: &[u8], reth: Option<Reth>, imm: Option<[u8; 4]>, takes: bool) {
        let mtu = self.numbers.mtu;
        let count = data.len().div_ceil(mtu).max(1);
        for number in 0..count {
            let (start, end) = (number == 0, number + 1 == count);
            let opcode = match (start, end) {
                (true, true) => ops[3],
                (true, false) => ops[0],
                (false, false) => ops[1],
                (false, true) => ops[2],
            };
            let with_imm = imm.filter(|_| end);
            let packet = Packet {
                reth: reth.filter(|_| start),
                imm: with_imm,
                // The very first packet of a connection asks, even inside a message.
                ack: if end || self.next == 0 { 0x80 } else { 0 },
                payload: data[number * mtu..data.len().min((number + 1) * mtu)].to_vec(),
                ..self.packet(opcode + u8::from(with_imm.is_some()))
            };
            let (at, message) = (self.next, self.messages);
            self.push(Planned { at, psns: 1, packet, message, start, end, takes_receive: takes, read: None });
        }
    }

    /// Whether all asked is answered.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.una == self.next
    }

    /// Messages whose requests lie wholly before `upto`: what the peer counts there. A READ counts when it is asked.
    fn completed(&self, upto: u64) -> u64 {
        self.planned.iter().filter(|planned| planned.end && planned.at < upto).count() as u64
    }

    /// Sends what may leave.
    pub(super) fn transmit(&mut self, card: &mut Card) {
        let now = Instant::now();
        if self.refused.is_some() || self.rnr_until.is_some_and(|until| now < until) {
            return;
        }
        if self.rnr_until.take().is_some() {
            self.last_progress = now;
        }
        let waits = self.una < self.sent;
        if waits && self.timeout.is_some_and(|timeout| self.last_progress.elapsed() > timeout) {
            self.go_back();
        }
        while let Some(next) = self.planned.get(self.cursor) {
            let fresh = self.una == 0 && self.cursor > 0;
            let beyond = |planned: &Planned| {
                planned.takes_receive && self.limit.is_some_and(|limit| planned.message >= limit)
            };
            // Beyond the credits one packet leaves, and asks; the rest follows when that one is acknowledged.
            let probing = self.cursor > 0 && {
                let last = &self.planned[self.cursor - 1];
                last.start && last.at >= self.una && beyond(last)
            };
            if fresh || probing {
                return;
            }
            let mut packet = next.packet.clone();
            if next.start && beyond(next) {
                packet.ack = 0x80;
            }
            if self.una == self.sent {
                self.last_progress = now;
            }
            self.sent = self.sent.max(next.at + next.psns);
            self.cursor += 1;
            card.send(&packet);
        }
    }

    /// Goes on from the first unanswered PSN; inside a READ with a new request for the rest.
    fn go_back(&mut self) {
        self.went_back += 1;
        self.last_progress = Instant::now();
        let una = self.una;
        let at = self.planned.iter().position(|planned| planned.at + planned.psns > una);
        self.cursor = at.unwrap_or(self.planned.len());
        let (psn, mtu) = (self.psn(una), self.numbers.mtu as u64);
        if let Some(planned) = self.planned.get_mut(self.cursor)
            && let Some(reth) = &mut planned.packet.reth
            && planned.read.is_some()
        {
            let (done, bytes) = (una - planned.at, (una - planned.at) * mtu);
            (planned.at, planned.psns) = (una, planned.psns - done);
            (reth.addr, reth.len) = (reth.addr + bytes, reth.len - bytes as u32);
            planned.packet.psn = psn;
        }
    }

    /// Judges an answer by its place among the requests.
    pub(super) fn judge(&self, findings: &mut Findings, packet: &Packet) {
        let place = self.place(packet.psn);
        let detail = || format!("{packet:?}, unanswered from {:#x}", self.psn(self.una));
        let asked = place >= 0 && (place as u64) < self.sent;
        findings.check("answers: PSN was asked", asked, detail);
        findings.check("answers: AckReq 0, SE 0", !packet.asks() && packet.flags & 0x80 == 0, detail);
        let Some(aeth) = packet.aeth.filter(|_| asked) else { return };
        let place = place as u64;
        let is_nak = packet.opcode == op::ACK && aeth.syndrome >= 0x20;
        // A NAK names the packet that was not executed.
        let upto = if is_nak { place } else { place + 1 };
        // An answer to a packet sent again is about the present, which lies between.
        let (least, most) =
            (self.completed(upto), self.completed(if self.went_back > 0 { self.sent } else { upto }));
        let msn = (least..=most).contains(&u64::from(aeth.msn));
        findings.check("answers: MSN counts the completed messages", msn, || {
            format!("{packet:?}, but {least} to {most} are completed")
        });
        let kind = aeth.syndrome;
        let known = kind < 0x40 || (0x60..=0x63).contains(&kind);
        findings.check("answers: syndrome is a defined one", known, detail);
        if packet.opcode != op::ACK {
            findings.check("READ responses: positive syndrome", kind < 0x20, detail);
        }
    }

    /// Takes an answer.
    pub(super) fn handle(&mut self, card: &mut Card, packet: &Packet) {
        let place = self.place(packet.psn);
        if place < self.una as i64 || place >= self.sent as i64 {
            return;
        }
        let place = place as u64;
        if packet.opcode != op::ACK {
            self.on_read_data(&mut card.findings, place, packet);
            return;
        }
        let Some(aeth) = packet.aeth else { return };
        self.answers.push(Answer { packet: place, syndrome: aeth.syndrome, msn: aeth.msn });
        let upto = if aeth.syndrome < 0x20 { place + 1 } else { place };
        let over_read =
            self.planned.iter().any(|p| p.read.is_some() && p.at < upto && p.at + p.psns > self.una);
        card.findings.check("answers: no acknowledgement past an unanswered READ", !over_read, || {
            format!("{packet:?}")
        });
        self.progress(upto);
        match aeth.syndrome {
            code @ 0..=0x1f => {
                self.limit = CREDITS.get(usize::from(code)).map(|&credits| u64::from(aeth.msn + credits));
            }
            code @ 0x20..=0x3f => {
                self.go_back();
                self.rnr_until = Some(Instant::now() + rnr_delay(code & 0x1f));
            }
            0x60 => self.go_back(),
            code => self.refused = Some(code),
        }
    }

    fn progress(&mut self, to: u64) {
        if to > self.una {
            self.una = to;
            self.last_progress = Instant::now();
        }
    }

    fn on_read_data(&mut self, findings: &mut Findings, place: u64, packet: &Packet) {
        let found = self.planned.iter().position(|p| p.at <= place && place < p.at + p.psns);
        let Some((index, number)) = found.and_then(|at| Some((at, self.planned[at].read?))) else {
            findings.check("READ responses: to a READ", false, || format!("{packet:?}"));
            return;
        };
        let planned = &self.planned[index];
        let unanswered_read = |p: &Planned| p.read.is_some() && p.at < place && p.at + p.psns > self.una;
        let first_missing = self.una.max(planned.at);
        if self.planned.iter().take(index).any(unanswered_read) || place > first_missing {
            // Data is missing before it: asked for again, once.
            if self.gap.replace(self.una) != Some(self.una) {
                self.go_back();
            }
            return;
        }
        let (start, end) = (place == planned.at, place + 1 == planned.at + planned.psns);
        let opcode = match (start, end) {
            (true, true) => op::READ_ONLY,
            (true, false) => op::READ_FIRST,
            (false, false) => op::READ_MIDDLE,
            (false, true) => op::READ_LAST,
        };
        findings.check("READ responses: FIRST, MIDDLE, LAST, ONLY in order", packet.opcode == opcode, || {
            format!("{packet:?}, {opcode:#x} was due")
        });
        let asked = planned.packet.reth.map_or(0, |reth| reth.len as usize);
        let due = (asked - (place - planned.at) as usize * self.numbers.mtu).min(self.numbers.mtu);
        let right = packet.payload.len() == due;
        findings
            .check("READ responses: as many bytes as due", right, || format!("{packet:?}, {due} were due"));
        self.reads[number].extend(&packet.payload);
        self.progress(place + 1);
    }
}

/// How long an RNR NAK asks to wait (IBTA vol. 1, table 45), rounded up generously: only the shortest codes are used here.
fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(match code {
        1..=14 => 1300,
        15..=21 => 16_000,
        _ => 700_000,
    })
}
