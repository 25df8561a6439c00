//! Queue pairs that wait for room, because admission had none for them, and how they get it.
//!
//! Queue pairs wait in a [`Line`](crate::qp::flow::Line). For room in the window of a destination there is one line for each destination
//! and virtual lane. For room for READ responses there is one line in the endpoint.

use super::{Endpoint, Shared, schedule::Due, table::QpTable};
use crate::{
    num::Qpn,
    qp::{QueuePair, flow::PATIENCE, plan::Wait},
    time::Instant,
};

impl Shared {
    /// Puts a queue pair into the line for what it waits for. It is the last one there, or the `first` if it had its turn and was granted
    /// nothing.
    pub(super) fn wait(&mut self, qp: &mut QueuePair, wait: Wait, first: bool, now: Instant) {
        let qpn = qp.common.qpn;
        match wait {
            Wait::Room | Wait::Turn => {
                let Some((index, peer)) = qp.peer.and_then(|index| Some((index, self.peers.get_mut(index)?)))
                else {
                    return;
                };
                if !peer.is_awaited() {
                    peer.window.awaited(now);
                }
                peer.lane(qp.lane()).line.join(qpn, first);
                self.watch_line(index);
            }
            Wait::Responses => {
                if self.reads.line.is_empty() {
                    self.reads.line_had_turn();
                }
                self.reads.line.join(qpn, first);
                self.watch_readers(now);
            }
            // There are no lines for these. An answer, a timeout or the pacer's deadline makes the queue pair ready again.
            Wait::Answer | Wait::Pace => return,
        }
        qp.waits = Some(if wait == Wait::Turn { Wait::Room } else { wait });
    }

    /// Ends a queue pair's turn to ask for READ responses, if it has the turn. Then the next one in the line has its turn, unless this
    /// queue pair was put back as the `first`.
    pub(super) fn pass_turn(&mut self, qpn: Qpn, first: bool) {
        if self.reads.turn.take_if(|turn| *turn == qpn).is_some() && !first {
            self.reads.line_had_turn();
            self.offer_room(None);
        }
    }

    /// Takes a queue pair out of the line in which it waits. Ends its turn to ask for READ responses.
    pub(super) fn unwait(&mut self, qp: &mut QueuePair) {
        let qpn = qp.common.qpn;
        match qp.waits.take() {
            Some(Wait::Room) => {
                if let Some(peer) = qp.peer.and_then(|index| self.peers.get_mut(index)) {
                    peer.lane(qp.lane()).line.leave(qpn);
                }
            }
            Some(Wait::Responses) => self.reads.line.leave(qpn),
            Some(Wait::Turn | Wait::Answer | Wait::Pace) | None => {}
        }
        if self.reads.turn == Some(qpn) {
            self.reads.turn = None;
        }
    }

    /// Lets queue pairs that wait have their turn if there is room, in the window of `peer` or for READ responses. Called when room may
    /// have become free.
    pub(super) fn offer_room(&mut self, peer: Option<usize>) {
        if let Some(index) = peer
            && let Some(peer) = self.peers.get(index)
            && peer.is_awaited()
        {
            if peer.window.opens() {
                self.schedule_lines(index);
            } else {
                self.watch_line(index);
            }
        }
        if self.reads.turn.is_none() && !self.reads.line.is_empty() {
            if self.reads.opens() {
                self.reads.turn = self.reads.line.next();
            } else {
                // Those that hold the budget now may be silent as well.
                self.watch_readers(Instant::ZERO);
            }
        }
    }

    /// Puts a destination among those with something to send in a lane.
    pub(super) fn schedule_peer(&mut self, lane: u8, index: usize) {
        if let Some(peer) = self.peers.get_mut(index) {
            self.schedule.push_peer(lane, index, peer.lane(lane));
        }
    }

    /// Puts a destination among those with something to send, in all lanes in which a queue pair waits for room there.
    fn schedule_lines(&mut self, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        for (lane, lists) in peer.lanes_mut() {
            if !lists.line.is_empty() {
                self.schedule.push_peer(lane, index, lists);
            }
        }
    }

    /// Sets the timer for queue pairs that wait for room at a destination, unless it is set. When it runs out:
    /// [`Endpoint::end_patience`].
    fn watch_line(&mut self, index: usize) {
        if let Some(peer) = self.peers.get_mut(index)
            && peer.timer.is_none()
        {
            let at = peer.window.patient_until();
            peer.timer = Some(at);
            self.schedule.timers.push(at, Due::Room(index));
        }
    }

    /// Sets the timer to look for queue pairs whose READ responses do not come ([`Endpoint::lapse_reads`]), unless it is set: at `at`, or
    /// later, so that [`PATIENCE`] has passed since the last look.
    fn watch_readers(&mut self, at: Instant) {
        if !self.watches_readers {
            self.watches_readers = true;
            let at = at.max(self.readers_looked_at + PATIENCE);
            self.schedule.timers.push(at, Due::Responses);
        }
    }
}

/// Makes the queue pair ready that has its turn to ask for READ responses.
pub(super) fn call_reader(qps: &mut QpTable, shared: &mut Shared) {
    if let Some(qpn) = shared.reads.turn
        && let Some(qp) = qps.get_mut(qpn)
        && qp.waits == Some(Wait::Responses)
    {
        qp.waits = None;
        shared.make_ready(qp);
    }
}

impl Endpoint {
    /// The timer for queue pairs that wait for room at a destination ran out. If for [`PATIENCE`] no acknowledgement has proven that
    /// packets left the destination's buffer, waiting queue pairs that have nothing under way may send a few packets without room. An
    /// acknowledgement of any of these proves that everything before it has left.
    pub(super) fn end_patience(&mut self, index: usize, now: Instant) {
        let Some(peer) = self.shared.peers.get_mut(index) else { return };
        // The timer may belong to another destination, which had this index before.
        if peer.timer.take_if(|timer| *timer <= now).is_none() || !peer.is_awaited() {
            return;
        }
        if peer.window.patient_until() > now {
            self.shared.watch_line(index);
            return;
        }
        let qps = &self.qps;
        let holds_nothing = |qpn| qps.get(qpn).is_some_and(|qp| qp.holding.is_empty());
        let is_fresh = |qpn| qps.get(qpn).is_some_and(|qp| qp.holding.is_empty() && !qp.holding.silent);
        // Others have something under way, and so get an answer to it or a timeout.
        if peer.prefer(holds_nothing) > 0 {
            peer.prefer(is_fresh);
            peer.window.exceed(now);
            self.shared.schedule_lines(index);
            self.shared.watch_line(index);
        }
    }

    /// The timer for queue pairs that wait for room for READ responses ran out. READ responses for which other queue pairs have asked,
    /// and which have not come for a long time, no longer count.
    pub(super) fn lapse_reads(&mut self, now: Instant) {
        let Self { qps, shared, .. } = self;
        shared.watches_readers = false;
        if shared.reads.turn.is_none() && shared.reads.line.is_empty() {
            return;
        }
        shared.readers_looked_at = now;
        let patience = shared.reads.patience();
        let (mut lapsed, mut next) = (false, None::<Instant>);
        let mut holders = core::mem::take(&mut shared.reads.holders);
        holders.retain(|qpn| {
            let Some(qp) = qps.get_mut(*qpn) else { return false };
            match qp.holding.lapses(patience) {
                Some(at) if at > now => {
                    next = Some(next.map_or(at, |next| next.min(at)));
                    return true;
                }
                Some(_) => {
                    lapsed = true;
                    qp.lapse(&mut shared.reads);
                    shared.make_ready(qp);
                }
                None => {}
            }
            qp.holding.listed = false;
            false
        });
        shared.reads.holders = holders;
        shared.reads.lapses = shared.reads.lapses.saturating_add(lapsed.into());
        let is_fresh = |qpn| {
            let holding = qps.get(qpn).map(|qp| &qp.holding);
            holding.is_some_and(|holding| holding.responses() == 0 && !holding.silent)
        };
        if !shared.reads.opens() && shared.reads.line.prefer(is_fresh) > 0 {
            shared.reads.exceed();
            next = Some(now);
        }
        shared.offer_room(None);
        if let Some(next) = next {
            shared.watch_readers(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        testing::{
            ConnectOptions, Pair, PairConfig,
            connect::{PD, REGION_ALL, SEND_CQ},
        },
        work::{Remote, SendFlags, SendOp, SendWr, Sge, WcStatus},
    };
    use alloc::vec::Vec;

    /// If many queue pairs wait for room for READ responses and room for one becomes free, only one of them is made ready.
    #[test]
    fn one_of_those_who_wait_to_read_is_called_at_a_time() {
        const READERS: usize = 1000;
        const LEN: u32 = 64 * 1024;
        let mut pair = Pair::new(PairConfig { name: "readers", trace: 0, ..PairConfig::default() });
        let options = ConnectOptions::default();
        let qpns: Vec<_> = (0..READERS).map(|_| pair.connect(&options).qpns[0]).collect();
        let [(local, lkey), (remote, rkey)] =
            [0, 1].map(|side: usize| pair.sides[side].heap.alloc_registered(PD, LEN.into(), REGION_ALL));
        let sges = [Sge { addr: local, len: LEN, lkey }];
        for qpn in &qpns {
            let read = SendOp::Read(Remote { addr: remote, rkey });
            let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(0, read, &sges) };
            pair.post_send(0, *qpn, &wr).unwrap();
        }
        // Responses have been asked for until there was no more room, and none has come.
        pair.drain(0);
        let Endpoint { qps, shared, .. } = &mut pair.sides[0].endpoint;
        let ready = |qps: &QpTable| qps.iter().filter(|qp| qp.ready).count();
        let waiting = shared.reads.line.len();
        assert!(waiting > READERS * 9 / 10 && ready(qps) == 0, "{waiting} wait, {} are ready", ready(qps));

        let holder = qps.iter_mut().find(|qp| qp.holding.responses() > 0).unwrap();
        holder.lapse(&mut shared.reads);
        shared.offer_room(None);
        call_reader(qps, shared);
        assert_eq!((ready(qps), shared.reads.line.len()), (1, waiting - 1));
        // The one that was made ready has not asked yet, so it still has its turn.
        shared.offer_room(None);
        call_reader(qps, shared);
        assert_eq!((ready(qps), shared.reads.line.len()), (1, waiting - 1));

        pair.run_until_idle();
        let done = pair.take_completions(0, SEND_CQ);
        assert_eq!(done.iter().filter(|wc| wc.status == WcStatus::Success).count(), READERS);
    }
}
