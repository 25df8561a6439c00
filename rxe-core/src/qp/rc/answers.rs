//! The answers that a responder still has to send, in PSN order. Positive acknowledgements are merged. An answer with data makes
//! the acknowledgement before it unnecessary. The length of the queue is bounded, whatever the peer asks for.

use crate::{
    num::{Key, Msn, Psn},
    wire::{NakCode, Opcode, Position, Reth, Syndrome},
    work::PdId,
};
use alloc::collections::VecDeque;

/// Answers to repeated requests in the queue at most. Further repeated requests are dropped, as if they were lost.
const MAX_REPLAYS: usize = 256;

/// An answer that was not sent, or not completely.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// PSN of its next packet.
    pub psn: Psn,
    /// The MSN when the answer was made.
    pub msn: Msn,
    /// Whether it answers a repeated request.
    pub replay: bool,
    pub kind: Kind,
}

/// The kind of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A positive acknowledgement. Unless it is `urgent` it may wait for other packets to share a batch with.
    Ack { urgent: bool },
    /// The rest of a READ response.
    Read(ReadRest),
    /// The original value of CmpSwap or FetchAdd.
    Atomic(u64),
    /// ATOMIC WRITE was done.
    Written,
    /// FLUSH was done.
    Flushed,
    /// An RNR NAK or PSN sequence NAK: the peer sends again.
    Retry(Syndrome),
    /// A NAK that ends the connection.
    Refusal(NakCode),
}

/// The rest of a READ response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadRest {
    /// Address of the next byte.
    pub addr: u64,
    pub rkey: Key,
    /// The protection domain of the region.
    pub pd: PdId,
    /// Bytes left.
    pub left: u32,
    /// Whether a packet of the response was sent.
    pub started: bool,
}

impl ReadRest {
    /// The whole response to a READ.
    pub(super) const fn new(Reth { addr, rkey, len }: Reth, pd: PdId) -> Self {
        Self { addr, rkey, pd, left: len, started: false }
    }
}

impl Pending {
    /// Opcode and payload bytes of its next packet.
    pub(super) fn packet(&self, mtu: u32) -> (Opcode, usize) {
        match &self.kind {
            Kind::Read(stream) => {
                let position = Position::new(!stream.started, stream.left <= mtu);
                (Opcode::read_response(position), stream.left.min(mtu) as usize)
            }
            Kind::Atomic(_) => (Opcode::RC_ATOMIC_ACKNOWLEDGE, 0),
            Kind::Written | Kind::Flushed => (Opcode::RC_READ_RESPONSE_ONLY, 0),
            Kind::Ack { .. } | Kind::Retry(_) | Kind::Refusal(_) => (Opcode::RC_ACKNOWLEDGE, 0),
        }
    }

    /// Whether it is more than an ACK or NAK.
    const fn is_reply(&self) -> bool {
        matches!(self.kind, Kind::Read(_) | Kind::Atomic(_) | Kind::Written | Kind::Flushed)
    }

    const fn is_ack(&self) -> bool {
        matches!(self.kind, Kind::Ack { .. })
    }

    /// Number of packets that are still to be sent.
    const fn psns(&self, mtu: u32) -> u32 {
        match &self.kind {
            Kind::Read(stream) => super::replay::read_psns(stream.left, mtu),
            _ => 1,
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Answers {
    queue: VecDeque<Pending>,
    /// The counts over `queue`, updated with each change.
    outstanding: Outstanding,
}

/// Counts of replies that were not sent. Answers to repeated requests do not count.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Outstanding {
    /// To FLUSHes.
    pub flushes: usize,
    /// To other requests with a reply: READs, atomics, ATOMIC WRITEs.
    pub others: usize,
}

impl Outstanding {
    /// Counts `answer`, if it is such a reply.
    const fn add(&mut self, answer: &Pending) {
        match answer.kind {
            _ if !answer.is_reply() || answer.replay => {}
            Kind::Flushed => self.flushes += 1,
            _ => self.others += 1,
        }
    }
}

impl Answers {
    /// Counts anew. Not called when an answer is only added at the end or removed at the front: a request may come while a
    /// hundred answers wait.
    fn recount(&mut self) {
        self.outstanding = Outstanding::default();
        self.queue.iter().for_each(|answer| self.outstanding.add(answer));
    }

    /// Removes the front answer: it was sent, or is given up.
    pub(super) fn pop_front(&mut self) {
        let mut less = Outstanding::default();
        if let Some(front) = self.queue.pop_front() {
            less.add(&front);
        }
        if self.queue.is_empty() {
            // Then the next answer is stored at the start of the ring again, where the memory is still cached.
            self.queue.clear();
        }
        self.outstanding.flushes -= less.flushes;
        self.outstanding.others -= less.others;
    }

    pub(super) fn front(&self) -> Option<&Pending> {
        self.queue.front()
    }

    /// Whether the only answer is an acknowledgement that may wait.
    pub(super) fn may_wait(&self) -> bool {
        self.queue.len() == 1 && matches!(self.queue[0].kind, Kind::Ack { urgent: false })
    }

    /// Counts of replies that were not sent.
    pub(super) const fn outstanding(&self) -> Outstanding {
        self.outstanding
    }

    /// Acknowledges everything up to `psn`.
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: Msn, urgent: bool) {
        if let Some(last) = self.queue.back_mut()
            && let Kind::Ack { urgent: was } = last.kind
        {
            (last.psn, last.msn) = (psn, msn);
            last.kind = Kind::Ack { urgent: urgent || was };
            return;
        }
        self.queue.push_back(Pending { psn, msn, replay: false, kind: Kind::Ack { urgent } });
    }

    /// Acknowledges again, unless a later answer in the queue implies that.
    pub(super) fn acknowledge_again(&mut self, psn: Psn, msn: Msn) {
        let implied =
            self.queue.iter().any(|answer| answer.psn.is_after(psn) || answer.psn == psn && !answer.is_ack());
        match self.queue.back_mut() {
            // The requester already repeats requests, so the answers are sent now.
            Some(last) if implied => {
                if let Kind::Ack { urgent } = &mut last.kind {
                    *urgent = true;
                }
            }
            _ => self.acknowledge(psn, msn, true),
        }
    }

    /// Answers a request in sequence with a reply.
    pub(super) fn reply(&mut self, answer: Pending) {
        if self.queue.back().is_some_and(Pending::is_ack) {
            self.queue.pop_back();
        }
        self.outstanding.add(&answer);
        self.queue.push_back(answer);
    }

    /// Answers a repeated request. Replaces what is left of earlier answers to the same PSNs.
    pub(super) fn replay(&mut self, answer: Pending, mtu: u32) {
        let (start, psns) = (answer.psn, answer.psns(mtu));
        let mut at = 0;
        while at < self.queue.len() {
            let old = &self.queue[at];
            let apart = old.psn.since(start) >= psns && start.since(old.psn) >= old.psns(mtu);
            if old.is_reply() && !apart {
                self.remove(at);
            } else {
                at += 1;
            }
        }
        if self.queue.iter().filter(|answer| answer.replay).count() < MAX_REPLAYS {
            let at = self.queue.iter().position(|old| !old.psn.is_before(start));
            self.queue.insert(at.unwrap_or(self.queue.len()), answer);
        }
        self.recount();
    }

    /// Asks the peer to send again. Replaces an earlier such answer that was not sent.
    pub(super) fn ask_retry(&mut self, psn: Psn, msn: Msn, syndrome: Syndrome) {
        if let Some(at) = self.queue.iter().position(|old| matches!(old.kind, Kind::Retry(_))) {
            self.remove(at);
        }
        self.queue.push_back(Pending { psn, msn, replay: false, kind: Kind::Retry(syndrome) });
    }

    /// Refuses a request for good. This is the last answer of the connection.
    pub(super) fn refuse(&mut self, psn: Psn, msn: Msn, code: NakCode) {
        self.queue.push_back(Pending { psn, msn, replay: false, kind: Kind::Refusal(code) });
    }

    /// The front packet was sent: goes on to the next one.
    pub(super) fn advance(&mut self, mtu: u32) {
        let Some(front) = self.queue.front_mut() else { return };
        match &mut front.kind {
            Kind::Read(stream) if stream.left > mtu => {
                front.psn = front.psn.next();
                stream.addr = stream.addr.wrapping_add(u64::from(mtu));
                stream.left -= mtu;
                stream.started = true;
            }
            _ => self.pop_front(),
        }
    }

    /// Replaces the front answer by one of this `kind`.
    pub(super) fn replace_front(&mut self, kind: Kind) {
        if let Some(front) = self.queue.front_mut() {
            front.kind = kind;
        }
        self.recount();
    }

    /// Removes all answers behind the front one.
    pub(super) fn keep_front(&mut self) {
        self.queue.truncate(1);
        self.recount();
    }

    /// The queue pair is in error. If a refusal is queued, everything that was executed before it is still answered. Otherwise
    /// memory is not read any more, and nothing may be answered from the first READ on.
    pub(super) fn flush(&mut self) {
        if self.queue.back().is_some_and(|last| matches!(last.kind, Kind::Refusal(_))) {
            return;
        }
        if let Some(at) = self.queue.iter().position(|answer| matches!(answer.kind, Kind::Read(_))) {
            self.queue.truncate(at);
        }
        self.queue.retain(|answer| !matches!(answer.kind, Kind::Retry(_)));
        self.recount();
    }

    /// Removes an answer. Acknowledgements that become neighbours are merged.
    fn remove(&mut self, at: usize) {
        self.queue.remove(at);
        if at > 0
            && let (Some(before), Some(after)) = (self.queue.get(at - 1), self.queue.get(at))
            && let (Kind::Ack { urgent: one }, Kind::Ack { urgent: other }) = (before.kind, after.kind)
        {
            self.queue[at].kind = Kind::Ack { urgent: one || other };
            self.queue.remove(at - 1);
        }
    }
}

#[cfg(test)]
mod tests;
