//! The requests of one direction: operations, retransmissions with their reasons, and missing packets.

use super::{
    marks::Marks,
    order::{self, Corrupted, Latest},
    stats::{Durations, OverTime},
};
use rxe_core::{
    num::Psn,
    wire::{Class, Head, Service},
};
use std::collections::{BTreeMap, VecDeque};

/// Most unanswered requests and packets of one queue pair that are kept.
const MOST_OPEN: usize = 1 << 16;
/// Most acknowledged packets of one queue pair that are kept.
const MOST_PAST: usize = 1 << 10;
/// Most rounds of retransmission that are listed.
const MOST_ROUNDS: usize = 64;
/// Most ranges of missing packets that are remembered.
const MOST_HOLES: usize = 256;
/// An acknowledged packet that comes more than this, in nanoseconds, after it was missed was sent again. Before that, it was only
/// recorded behind its acknowledgement, because requesters wait longer for that.
const LATEST: u64 = 1_000_000;
/// The smallest path MTU. If the MTU is unknown, a READ has at most as many response packets as with this one.
const LEAST_MTU: u32 = 256;

/// A packet's place in the capture: frame, and part of the frame.
pub type Place = (u64, u16);

/// A requested operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) kind: &'static str,
    pub(super) last: Psn,
    pub(super) bytes: u64,
    /// The time when its first packet was sent.
    began: u64,
    /// The time when its last packet was first sent.
    pub(super) sent: u64,
    /// Whether a packet of it was sent again. Its duration is then not a round trip.
    pub(super) again: bool,
    pub(super) place: Place,
}

/// Why packets were sent again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// A NAK has requested it: packets were lost before this PSN.
    Nak(Psn),
    /// The receiver was not ready.
    Rnr(Psn),
    /// A READ response, or another one, was missing or corrupted, as the word says.
    MissingAnswer(Psn, &'static str),
}

impl Cause {
    /// Whether it is no cause any more, as everything before `end` is acknowledged. Later responses acknowledge a missing one,
    /// too, before the requester asks for it again. So a missing one is kept for longer.
    fn is_over(&self, end: Psn) -> bool {
        match self {
            Self::Nak(psn) | Self::Rnr(psn) => psn.is_before(end),
            Self::MissingAnswer(psn, _) => psn.plus(MOST_OPEN as u32).is_before(end),
        }
    }
}

/// A packet, when it was sent last.
#[derive(Clone, Copy, Debug)]
struct Sent {
    psn: Psn,
    place: Place,
    time: u64,
}

/// One round of retransmission.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Round {
    /// Its time, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The first PSN that was sent again.
    pub psn: u32,
    /// Number of packets.
    pub packets: u64,
    /// The reason.
    pub why: String,
}

/// The result of handling a request packet.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) marks: Marks,
    pub(super) why: Option<String>,
    /// Packets that turn out to be lost.
    pub(super) lost: Vec<(Place, String)>,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The first PSN in the capture.
    pub(super) first: Option<Psn>,
    /// The PSN after the highest that was sent.
    pub(super) next: Option<Psn>,
    /// After a READ with an unknown MTU the next PSN may be higher by this.
    flexible: u32,
    /// The last READ: its first PSN and its length.
    last_read: Option<(Psn, u32)>,
    /// Unanswered operations, in the order of their last PSNs.
    pub(super) open: VecDeque<Operation>,
    /// Unanswered packets, in the order of their PSNs.
    sent: VecDeque<Sent>,
    /// The latest acknowledged packets, in the order of their PSNs.
    past: VecDeque<Sent>,
    /// Packets that were missed: the first one, their number, and the time.
    holes: VecDeque<(Psn, u32, u64)>,
    corrupted: Corrupted,
    message: Option<Operation>,
    /// Number and bytes of operations, by kind.
    pub(super) asked: BTreeMap<&'static str, (u64, u64)>,
    pub(super) completed: u64,
    pub(super) completed_bytes: u64,
    /// Operations that the responder has refused for good.
    pub(super) refused: u64,
    pub(super) retransmitted: u64,
    pub(super) rounds: Vec<Round>,
    pub(super) round_count: u64,
    going_back: Option<Psn>,
    pub(super) cause: Option<Cause>,
    pub(super) missing: u64,
    pub(super) late: u64,
    pub(super) latency: Durations,
    pub(super) goodput: OverTime,
    pub(super) mtu: Option<u32>,
    /// The highest acknowledged PSN, and the packet that acknowledged it.
    pub(super) answered: Option<(Psn, Place)>,
    /// The latest READ responses, in case that they are requested again.
    responses: Latest<Place>,
    /// The times of the last request and of the last answer.
    last_time: u64,
    last_answer: u64,
}

impl Requests {
    /// Whether an answer to this PSN may belong to these requests.
    pub(super) fn awaits(&self, psn: Psn) -> bool {
        let first = self.sent.front().map(|sent| sent.psn);
        let (Some(first), Some(next)) = (first, self.next) else { return false };
        let end = next.plus(self.flexible);
        !psn.is_before(first) && psn.is_before(end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next.is_none()
    }

    /// Handles a request packet that is not a copy of an earlier one.
    pub(super) fn take(&mut self, head: &Head, time: u64, place: Place) -> Outcome {
        let psn = head.bth.psn;
        let mut outcome = Outcome::default();
        self.first.get_or_insert(psn);
        self.learn_mtu(head);
        let next = self.next.unwrap_or(psn);
        let ahead = psn.distance(next);
        if ahead < 0 {
            self.again(head, time, place, &mut outcome);
        } else {
            let corrupted = self.corrupted.take(next, psn);
            if ahead as u32 > self.flexible {
                self.gap(next, ahead as u32, &corrupted, time, &mut outcome);
            }
            self.forward(head, time, place);
        }
        self.last_time = time;
        outcome
    }

    /// A packet whose ICRC is wrong.
    pub(super) fn corrupted(&mut self, psn: Psn) {
        self.corrupted.put(psn, self.next);
    }

    /// The `count` packets from `first` on were not taken: they are missing or `corrupted`.
    fn gap(&mut self, first: Psn, count: u32, corrupted: &[Psn], time: u64, outcome: &mut Outcome) {
        outcome.why = Some(order::fate("packet", first, count, corrupted.len() as u32));
        if corrupted.len() as u32 == count {
            return;
        }
        self.missing += u64::from(count - corrupted.len() as u32);
        if self.holes.len() == MOST_HOLES {
            self.holes.pop_front();
        }
        self.holes.push_back((first, count, time));
        // Those that were there come only if they are sent again.
        for psn in corrupted {
            self.fills_hole(*psn, time);
        }
        // A message with missing packets is counted when its last packet is seen.
        outcome.marks |= Marks::GAP;
    }

    /// A packet that was not sent before.
    fn forward(&mut self, head: &Head, time: u64, place: Place) {
        let psn = head.bth.psn;
        self.going_back = None;
        let length = head.ext.reth.len;
        let packets = match head.info.class {
            Class::ReadRequest => length.div_ceil(self.mtu.unwrap_or(u32::MAX)).max(1),
            _ => 1,
        };
        if head.info.class == Class::ReadRequest {
            self.last_read = Some((psn, length));
        }
        self.flexible = match (head.info.class, self.mtu) {
            (Class::ReadRequest, None) => length.div_ceil(LEAST_MTU).max(1) - 1,
            _ => 0,
        };
        let last = psn.plus(packets - 1);
        self.next = Some(last.next());
        order::forget_far(&mut self.holes, psn, |hole| hole.0);
        if head.info.service != Service::Uc {
            self.responses.forget_far(psn);
            if self.sent.len() == MOST_OPEN {
                self.sent.pop_front();
            }
            order::forget_far(&mut self.sent, psn, |sent| sent.psn);
            self.sent.push_back(Sent { psn, place, time });
        }
        let bytes = match head.info.class {
            Class::ReadRequest => u64::from(length),
            Class::CompareSwap | Class::FetchAdd => 8,
            _ => head.payload_len as u64,
        };
        let start =
            Operation { kind: kind(head), last, bytes: 0, began: time, sent: time, again: false, place };
        let mut operation =
            if head.info.position.is_start() { start } else { self.message.take().unwrap_or(start) };
        (operation.last, operation.sent, operation.place) = (last, time, place);
        operation.bytes += bytes;
        if !head.info.position.is_end() {
            self.message = Some(operation);
            return;
        }
        let (count, sum) = self.asked.entry(operation.kind).or_default();
        *count += 1;
        *sum += operation.bytes;
        if head.info.service == Service::Uc {
            self.completed += 1;
            self.completed_bytes += operation.bytes;
            self.goodput.add(operation.began, time, operation.bytes);
        } else {
            if self.open.len() == MOST_OPEN {
                self.open.pop_front();
            }
            order::forget_far(&mut self.open, last, |operation| operation.last);
            self.open.push_back(operation);
        }
    }

    /// A packet whose PSN is not new.
    fn again(&mut self, head: &Head, time: u64, place: Place, outcome: &mut Outcome) {
        let psn = head.bth.psn;
        if let Some(Cause::MissingAnswer(missing, _)) = self.cause
            && psn.is_after(missing)
        {
            // The requester starts after that packet, so it has another reason.
            self.cause = None;
        }
        if self.fills_hole(psn, time) && self.cause.is_none() && self.going_back.is_none() {
            self.late += 1;
            self.missing = self.missing.saturating_sub(1);
            outcome.marks |= Marks::LATE;
            outcome.why = Some("came after later ones: reordered on its way".to_owned());
            return;
        }
        self.retransmitted += 1;
        outcome.marks |= Marks::RETRANSMITTED;
        let from = order::position(&self.open, psn, |operation| operation.last);
        for operation in self.open.range_mut(from..) {
            order::steps::count();
            if operation.again {
                break;
            }
            operation.again = true;
        }
        let is_new_round = self.cause.is_some() || self.going_back.is_none_or(|last| !psn.is_after(last));
        self.going_back = Some(psn);
        if !is_new_round {
            if let Some(round) = self.rounds.last_mut().filter(|_| self.round_count <= MOST_ROUNDS as u64) {
                round.packets += 1;
                outcome.why = Some(round.why.clone());
            }
            self.sent_again(psn, place, time);
            return;
        }
        let why = self.reason(psn, time, outcome);
        self.round_count += 1;
        if self.rounds.len() < MOST_ROUNDS {
            self.rounds.push(Round { time_ns: time, psn: psn.value(), packets: 1, why: why.clone() });
        }
        outcome.why = Some(why);
        self.sent_again(psn, place, time);
    }

    /// From here on, this is the packet that may be lost next.
    fn sent_again(&mut self, psn: Psn, place: Place, time: u64) {
        for list in [&mut self.sent, &mut self.past] {
            let at = order::position(list, psn, |sent| sent.psn);
            if let Some(sent) = list.get_mut(at).filter(|sent| sent.psn == psn) {
                (sent.place, sent.time) = (place, time);
            }
        }
    }

    /// The latest packet with this PSN, in one of the two lists.
    fn find(list: &VecDeque<Sent>, psn: Psn) -> Option<Sent> {
        let at = order::position(list, psn, |sent| sent.psn);
        list.get(at).filter(|sent| sent.psn == psn).copied()
    }

    /// Why the requester goes back to this PSN, and the packet that was lost.
    fn reason(&mut self, psn: Psn, time: u64, outcome: &mut Outcome) -> String {
        let request = Self::find(&self.sent, psn);
        let sent = request.or_else(|| Self::find(&self.past, psn)).map_or(self.last_time, |sent| sent.time);
        let (request, response) = (request.map(|sent| sent.place), self.responses.get(psn));
        match self.cause.take() {
            Some(Cause::Nak(asked)) => {
                if let Some(place) = request.filter(|_| asked == psn) {
                    outcome.lost.push((place, "the receiver asked for it again".to_owned()));
                }
                "a NAK asked for it".to_owned()
            }
            Some(Cause::Rnr(_)) => "the receiver had not been ready (RNR NAK)".to_owned(),
            Some(Cause::MissingAnswer(missing, what)) => {
                if let Some(place) = response {
                    outcome.lost.push((place, "the requester asked for it again".to_owned()));
                }
                format!("the answer with psn {missing} was {what}")
            }
            None => {
                let answered = self.answered.filter(|(last, _)| !last.is_before(psn)).map(|(_, place)| place);
                if let Some(place) = response.or(answered) {
                    outcome
                        .lost
                        .push((place, "the requester sent the request again, so it had not come".to_owned()));
                    let silence = rxe_ladder::duration(time.saturating_sub(sent));
                    return format!("its answer did not arrive: no news for {silence}");
                }
                let silence = rxe_ladder::duration(time.saturating_sub(sent.max(self.last_answer)));
                if let Some(place) = request {
                    let why =
                        format!("it was sent again after {silence} of silence: it or its answer was lost");
                    outcome.lost.push((place, why));
                }
                format!("no answer for {silence}")
            }
        }
    }

    fn fills_hole(&mut self, psn: Psn, time: u64) -> bool {
        let found = self.holes.iter().position(|(start, len, _)| psn.since(*start) < *len);
        let Some(at) = found else { return false };
        let (start, len, missed) = self.holes[at];
        let before = psn.since(start);
        self.holes.remove(at);
        for (start, len) in [(start, before), (psn.next(), len - before - 1)] {
            if len > 0 && self.holes.len() < MOST_HOLES {
                self.holes.push_back((start, len, missed));
            }
        }
        time.saturating_sub(missed) <= LATEST || self.answered.is_none_or(|(last, _)| last.is_before(psn))
    }

    /// The packet at `by` acknowledges everything before `end`.
    pub(super) fn answer(&mut self, end: Psn, time: u64, by: Place) -> u64 {
        let mut count = 0;
        let last = end.minus(1);
        self.last_answer = time;
        self.cause.take_if(|cause| cause.is_over(end));
        while self.sent.front().is_some_and(|sent| sent.psn.is_before(end))
            && let Some(sent) = self.sent.pop_front()
        {
            if self.past.len() == MOST_PAST {
                self.past.pop_front();
            }
            order::forget_far(&mut self.past, sent.psn, |past| past.psn);
            self.past.push_back(sent);
        }
        while let Some(operation) = self.open.front().filter(|operation| operation.last.is_before(end)) {
            count += 1;
            self.completed += 1;
            self.completed_bytes += operation.bytes;
            self.goodput.add(operation.began, time, operation.bytes);
            if !operation.again {
                self.latency.add(time.saturating_sub(operation.sent));
            }
            self.open.pop_front();
        }
        if self.answered.is_none_or(|(before, _)| last.is_after(before)) {
            self.answered = Some((last, by));
        }
        count
    }

    /// The responder has refused the operation with this PSN. Everything before it is acknowledged.
    pub(super) fn refuse(&mut self, psn: Psn) {
        if self.open.front().is_some_and(|operation| !operation.last.is_before(psn)) {
            self.open.pop_front();
            self.refused += 1;
        }
    }

    /// A response of a READ or atomic was seen.
    pub(super) fn response(&mut self, psn: Psn, place: Place) {
        self.responses.put(psn, place);
    }

    /// A packet that is not the last of its message has a payload of the path MTU. From this the number of PSNs of a READ
    /// follows.
    pub(super) fn learn_mtu(&mut self, head: &Head) {
        if !head.info.position.is_end() && head.info.payload {
            self.know_mtu(head.payload_len as u32);
        }
    }

    /// The path's MTU is known, from packets or from the connection manager.
    pub(super) fn know_mtu(&mut self, mtu: u32) {
        if mtu < LEAST_MTU {
            return;
        }
        if self.mtu.replace(mtu).is_some() {
            return;
        }
        // Without an MTU, READs were taken to have one response packet.
        let packets = |length: u64| length.div_ceil(mtu.into()).max(1) as u32;
        for read in self.open.iter_mut().filter(|operation| operation.kind == "READ") {
            read.last = read.last.plus(packets(read.bytes) - 1);
        }
        if let Some((first, length)) = self.last_read.filter(|_| self.flexible > 0) {
            self.flexible = 0;
            self.next = Some(first.plus(packets(length.into())));
        }
    }
}

/// An operation's name.
fn kind(head: &Head) -> &'static str {
    match head.info.class {
        Class::Send => "SEND",
        Class::Write => "WRITE",
        Class::ReadRequest => "READ",
        Class::CompareSwap => "CMP_SWAP",
        Class::FetchAdd => "FETCH_ADD",
        Class::Flush => "FLUSH",
        Class::AtomicWrite => "ATOMIC_WRITE",
        Class::ReadResponse | Class::Acknowledge | Class::AtomicAcknowledge | Class::Congestion => "answer",
    }
}
