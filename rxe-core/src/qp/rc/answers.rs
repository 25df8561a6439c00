//! What a responder still has to say, in PSN order. Positive acknowledgements merge; an answer with data makes the
//! acknowledgement before it unnecessary; the queue is bounded whatever the peer asks.

use crate::{
    num::{Key, Msn, Psn},
    wire::{NakCode, Opcode, Position, Reth, Syndrome},
    work::PdId,
};
use alloc::collections::VecDeque;

/// Repeated requests that wait for their answer at most; more are dropped, as if lost.
const MAX_REPLAYS: usize = 256;

/// An answer that has not left, or of which a part has not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// PSN of its next packet.
    pub psn: Psn,
    /// Messages completed when it was made.
    pub msn: Msn,
    /// Whether it answers a repeated request.
    pub replay: bool,
    pub kind: Kind,
}

/// What kind of answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A positive acknowledgement; `urgent` if it must not wait for company.
    Ack { urgent: bool },
    /// What is left of a READ response.
    Read(Stream),
    /// The original value of CmpSwap or FetchAdd.
    Atomic(u64),
    /// ATOMIC WRITE was done.
    Written,
    /// FLUSH was done.
    Flushed,
    /// RNR NAK or PSN sequence NAK: the peer may try again.
    Retry(Syndrome),
    /// A NAK that ends the connection.
    Refusal(NakCode),
}

/// The rest of a READ response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Address of the next byte.
    pub addr: u64,
    pub rkey: Key,
    /// Whose regions the key may name.
    pub pd: PdId,
    /// Bytes left.
    pub left: u32,
    /// Whether a packet of it has left.
    pub started: bool,
}

impl Stream {
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

    /// Whether it is more than an acknowledgement.
    const fn is_reply(&self) -> bool {
        matches!(self.kind, Kind::Read(_) | Kind::Atomic(_) | Kind::Written | Kind::Flushed)
    }

    const fn is_ack(&self) -> bool {
        matches!(self.kind, Kind::Ack { .. })
    }

    /// PSNs of its packets still to leave.
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
    /// What `outstanding` says, kept up to date.
    outstanding: Outstanding,
}

/// First answers (not repetitions) that have not left.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Outstanding {
    /// To FLUSHes.
    pub flushes: usize,
    /// To other requests with a reply: READs, atomics, ATOMIC WRITEs.
    pub others: usize,
}

impl Outstanding {
    /// Counts `answer`, if it is one of them.
    const fn add(&mut self, answer: &Pending) {
        match answer.kind {
            _ if !answer.is_reply() || answer.replay => {}
            Kind::Flushed => self.flushes += 1,
            _ => self.others += 1,
        }
    }
}

impl Answers {
    /// After a change other than one more answer behind or one less in front: a request may come while a hundred wait.
    fn recount(&mut self) {
        self.outstanding = Outstanding::default();
        self.queue.iter().for_each(|answer| self.outstanding.add(answer));
    }

    /// Takes the front answer off: it has left, or is given up.
    pub(super) fn pop_front(&mut self) {
        let mut less = Outstanding::default();
        if let Some(front) = self.queue.pop_front() {
            less.add(&front);
        }
        if self.queue.is_empty() {
            // The next one lies where this one did: that memory is at hand.
            self.queue.clear();
        }
        self.outstanding.flushes -= less.flushes;
        self.outstanding.others -= less.others;
    }

    pub(super) fn front(&self) -> Option<&Pending> {
        self.queue.front()
    }

    /// Whether all there is to say is one acknowledgement that may wait.
    pub(super) fn may_wait(&self) -> bool {
        self.queue.len() == 1 && matches!(self.queue[0].kind, Kind::Ack { urgent: false })
    }

    /// First answers that have not left.
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

    /// Acknowledges again; not necessary if something later is about to leave.
    pub(super) fn acknowledge_again(&mut self, psn: Psn, msn: Msn) {
        let implied =
            self.queue.iter().any(|answer| answer.psn.is_after(psn) || answer.psn == psn && !answer.is_ack());
        match self.queue.back_mut() {
            // The requester is repeating itself already: whatever is there leaves now.
            Some(last) if implied => {
                if let Kind::Ack { urgent } = &mut last.kind {
                    *urgent = true;
                }
            }
            _ => self.acknowledge(psn, msn, true),
        }
    }

    /// Answers a request that came in sequence.
    pub(super) fn reply(&mut self, answer: Pending) {
        if self.queue.back().is_some_and(Pending::is_ack) {
            self.queue.pop_back();
        }
        self.outstanding.add(&answer);
        self.queue.push_back(answer);
    }

    /// Answers a repeated request, in place of what is left of earlier answers to the same PSNs.
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

    /// Asks the peer to try again, in place of an earlier wish that has not left.
    pub(super) fn ask_retry(&mut self, psn: Psn, msn: Msn, syndrome: Syndrome) {
        if let Some(at) = self.queue.iter().position(|old| matches!(old.kind, Kind::Retry(_))) {
            self.remove(at);
        }
        self.queue.push_back(Pending { psn, msn, replay: false, kind: Kind::Retry(syndrome) });
    }

    /// Refuses a request for good: the last thing to be said.
    pub(super) fn refuse(&mut self, psn: Psn, msn: Msn, code: NakCode) {
        self.queue.push_back(Pending { psn, msn, replay: false, kind: Kind::Refusal(code) });
    }

    /// The front packet left: goes on to the next one.
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

    /// Says `kind` in place of the front answer.
    pub(super) fn replace_front(&mut self, kind: Kind) {
        if let Some(front) = self.queue.front_mut() {
            front.kind = kind;
        }
        self.recount();
    }

    /// Forgets all answers behind the front one.
    pub(super) fn keep_front(&mut self) {
        self.queue.truncate(1);
        self.recount();
    }

    /// The queue pair is in error. After a refusal all that was executed before it is still answered; otherwise memory
    /// is not read any more, and nothing may be said past the first READ that goes unanswered.
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

    /// Takes an answer out; acknowledgements that become neighbours are one.
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
