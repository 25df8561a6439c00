//! One operation in the middle of a scenario that must fail. Operations of its flow before it take effect, those after it do not, and
//! other connections are not affected.
//!
//! The model cannot foretell how many requests of the other direction of that connection take effect. They only must complete in order:
//! first those that succeed, then those that fail. If packets are lost, the failing flow may fail at an earlier request, with a timeout,
//! because a responder in the error state does not answer repeated requests.

use super::{
    World,
    flow::{Draft, Effect},
};
use crate::{
    num::Key,
    qp::QpState,
    testing::rng::Rng,
    work::{AsyncEvent, BindWindow, Completion, Remote, SendFlags, SendOp, Sge, WcOpcode, WcStatus},
};
use alloc::{vec, vec::Vec};

/// What is wrong with the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The R_Key does not exist.
    Key,
    /// A WRITE that ends one byte beyond the region.
    Range,
    /// An atomic whose address is not a multiple of 8.
    Misaligned,
    /// A SEND that is longer than the receive buffers.
    TooLong,
    /// A SEND that invalidates the key of a region, which may not be invalidated so.
    Invalidate,
    /// The L_Key of the data to send does not exist.
    LocalKey,
    /// A window is bound whose key does not exist.
    Bind,
}

impl Fault {
    const ALL: [Self; 7] = [
        Self::Key,
        Self::Range,
        Self::Misaligned,
        Self::TooLong,
        Self::Invalidate,
        Self::LocalKey,
        Self::Bind,
    ];

    const fn status(self) -> WcStatus {
        match self {
            Self::Key | Self::Range => WcStatus::RemoteAccess,
            // The SEND is acknowledged. Then the peer's queue pair goes to the error state without a NAK, so later requests time out.
            Self::Invalidate => WcStatus::RetryExceeded,
            Self::Misaligned | Self::TooLong => WcStatus::RemoteInvalidRequest,
            Self::LocalKey => WcStatus::LocalProtection,
            Self::Bind => WcStatus::MemoryWindowBind,
        }
    }
}

/// The operation that fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poison {
    pub flow: usize,
    /// It is posted when this many operations of the flow are left.
    pub turn: u32,
    fault: Fault,
    /// Its work request ID, once it has been posted.
    wr_id: Option<u64>,
    /// Whether the operation itself failed with the expected status, not an earlier one.
    exact: bool,
}

impl Poison {
    pub(super) fn new(rng: &mut Rng, flows: usize, operations: u32) -> Self {
        let turn = rng.range(1..u64::from(operations) + 1) as u32;
        Self { flow: rng.below(flows), turn, fault: rng.pick(&Fault::ALL), wr_id: None, exact: false }
    }
}

impl World {
    /// Whether flow `index` belongs to a connection on which the failing operation was posted.
    pub(super) fn is_poisoned(&self, index: usize) -> bool {
        self.poison.is_some_and(|poison| poison.wr_id.is_some() && poison.flow / 2 == index / 2)
    }

    /// Whether the next operation of flow `index` is the one that fails.
    pub(super) fn is_poison_due(&self, index: usize) -> bool {
        self.poison.is_some_and(|poison| {
            poison.flow == index && poison.wr_id.is_none() && self.flows[index].remaining == poison.turn
        })
    }

    /// Whether the failing operation of flow `index` has been posted.
    pub(super) fn is_behind_poison(&self, index: usize) -> bool {
        self.poison.is_some_and(|poison| poison.flow == index && poison.wr_id.is_some())
    }

    /// Drafts the failing operation.
    pub(super) fn draft_poison(&mut self, index: usize) -> Option<Draft> {
        let mut poison = self.poison?;
        let flow = &self.flows[index];
        poison.wr_id = Some(flow.next_id);
        self.poison = Some(poison);
        let target = flow.target;
        let nothing = Key(0xffff_ff00);
        let own = |len: u32| vec![Sge { addr: flow.source.addr, len, lkey: flow.source.key }];
        let remote = Remote { addr: target.addr, rkey: target.key };
        let (op, sges, opcode) = match poison.fault {
            Fault::Key => self.bad_key(index, Remote { rkey: nothing, ..remote }),
            Fault::Range => {
                let beyond = Remote { addr: target.addr + target.len - 7, ..remote };
                (SendOp::Write(beyond), own(8), WcOpcode::Write)
            }
            Fault::Misaligned => {
                let odd = Remote { addr: target.addr + 4, ..remote };
                (SendOp::FetchAdd { remote: odd, add: 1 }, own(8), WcOpcode::FetchAdd)
            }
            Fault::TooLong => (SendOp::Send, own(self.plan.max_send as u32 + 1), WcOpcode::Send),
            Fault::Invalidate => (SendOp::SendInvalidate(target.key), own(1), WcOpcode::Send),
            Fault::LocalKey => {
                let sge = Sge { addr: flow.source.addr, len: 100, lkey: nothing };
                (SendOp::Write(remote), vec![sge], WcOpcode::Write)
            }
            Fault::Bind => {
                let bind = BindWindow { window: nothing, new_rkey: nothing, len: 8, ..BindWindow::default() };
                (SendOp::BindWindow(bind), Vec::new(), WcOpcode::BindWindow)
            }
        };
        // A SEND with invalidate may complete with success at the requester.
        let len = if poison.fault == Fault::Invalidate { 1 } else { 0 };
        Some(Self::finish_draft(op, SendFlags::empty(), sges, opcode, len))
    }

    fn bad_key(&mut self, index: usize, remote: Remote) -> (SendOp, Vec<Sge>, WcOpcode) {
        let sink = self.flows[index].sink;
        // A READ must not change these bytes, because it fails.
        let sges = vec![Sge { addr: sink.addr, len: 8, lkey: sink.key }];
        match self.rng.below(4) {
            0 => (SendOp::Write(remote), sges, WcOpcode::Write),
            1 => (SendOp::Read(remote), sges, WcOpcode::Read),
            2 => (SendOp::CompareSwap { remote, compare: 0, swap: 1 }, sges, WcOpcode::CompareSwap),
            _ => (SendOp::AtomicWrite { remote, value: [1; 8] }, Vec::new(), WcOpcode::AtomicWrite),
        }
    }

    /// Drafts an operation after the failing one. It is like any other, but has no effect in the model.
    pub(super) fn draft_behind(&mut self, index: usize) -> Option<Draft> {
        let images = [self.images[0].bytes.clone(), self.images[1].bytes.clone()];
        let draft = match self.rng.below(4) {
            0 => Some(self.draft_send(index, SendFlags::empty())),
            1 => Some(self.draft_write(index, SendFlags::empty())),
            2 => self.draft_read(index, SendFlags::empty()),
            _ => self.draft_atomic(index, SendFlags::empty()),
        };
        for (image, bytes) in self.images.iter_mut().zip(images) {
            image.bytes = bytes;
        }
        let mut draft = draft?;
        draft.message = None;
        draft.opens = None;
        draft.posted.effect = Effect::None;
        Some(draft)
    }

    /// A request failed. It must be the failing operation, or another one of its connection that fails because of it.
    pub(super) fn on_failed(&mut self, index: usize, wc: &Completion) {
        assert!(self.is_poisoned(index), "failed for no reason: {wc:?}");
        let poison = self.poison.expect("just asked");
        if self.flows[index].failed {
            // After the first failure every request has a completion, in order.
            let next = self.flows[index].posted.pop_front().map(|posted| posted.wr_id);
            assert_eq!((next, wc.status), (Some(wc.wr_id), WcStatus::WorkRequestFlushed), "{wc:?}");
            return;
        }
        self.flows[index].failed = true;
        let links = [self.pair.sides[0].link.stats(), self.pair.sides[1].link.stats()];
        let lossy = links.iter().any(|link| link.lost + link.corrupted + link.delayed + link.duplicated > 0);
        if index == poison.flow {
            let bad = poison.wr_id.expect("posted");
            let late = poison.fault == Fault::Invalidate && wc.wr_id > bad;
            let exact = (late || wc.wr_id == bad) && wc.status == poison.fault.status();
            // These two faults are found at the requester, after everything before them has been answered. So no timeout comes first.
            let remote = !matches!(poison.fault, Fault::LocalKey | Fault::Bind);
            // If packets are lost, or if the peer ends without a NAK, requests before it may never be acknowledged.
            let silent = lossy || poison.fault == Fault::Invalidate;
            let timed_out = remote && silent && wc.wr_id <= bad && wc.status == WcStatus::RetryExceeded;
            assert!(exact || timed_out, "{:?} of {bad} shows as {wc:?}", poison.fault);
            self.poison = Some(Poison { exact, ..poison });
        } else {
            let expected = [WcStatus::WorkRequestFlushed, WcStatus::RetryExceeded];
            assert!(expected.contains(&wc.status), "{wc:?}");
        }
        while let Some(posted) = self.flows[index].posted.pop_front() {
            if posted.wr_id == wc.wr_id {
                return;
            }
            assert!(!posted.signaled, "{} should have completed before {wc:?}", posted.wr_id);
            self.check_results(index, &posted);
        }
        panic!("not posted, or completed twice: {wc:?}");
    }

    /// A receive failed. It must belong to the connection with the failing operation.
    pub(super) fn on_receive_failed(&mut self, side: usize, wc: &Completion) {
        let index = self.flows.iter().position(|flow| flow.side == side && flow.qpn == wc.qpn);
        let poisoned = index.is_some_and(|index| self.is_poisoned(index));
        assert!(poisoned, "failed for no reason: {wc:?}");
        let own = match self.poison.map(|poison| poison.fault) {
            Some(Fault::TooLong) => WcStatus::LocalLength,
            Some(Fault::Invalidate) => WcStatus::RemoteInvalidRequest,
            _ => WcStatus::WorkRequestFlushed,
        };
        assert!(wc.status == own || wc.status == WcStatus::WorkRequestFlushed, "{wc:?}");
    }

    /// Stops waiting for messages in the other direction of the failing connection once all its requests have completed: it is not known
    /// which of them arrived.
    pub(super) fn forgive(&mut self) {
        let Some(poison) = self.poison.filter(|poison| self.is_poisoned(poison.flow)) else { return };
        let pair = [poison.flow, poison.flow ^ 1];
        if pair.iter().all(|&index| self.flows[index].has_nothing_posted()) {
            self.flows[poison.flow ^ 1].messages.clear();
        }
    }

    /// Copies bytes that the model cannot foretell from the arenas to the images, so that only the others are compared.
    pub(super) fn excuse(&mut self) {
        let Some(poison) = self.poison else { return };
        let (own, other) = (&self.flows[poison.flow], &self.flows[poison.flow ^ 1]);
        let attrs = self.pair.sides[own.side].endpoint.query_qp(own.qpn).map(|(attrs, _)| attrs.state);
        // If no request followed the SEND with invalidate, which was acknowledged, the requester does not know that the peer has failed.
        let unheard = poison.fault == Fault::Invalidate && !own.failed;
        assert_eq!(attrs, Some(if unheard { QpState::Rts } else { QpState::Error }));
        let mut unknown = vec![
            (other.side, other.sink.addr, other.sink.len),
            (own.side, other.target.addr, other.target.len),
        ];
        if !poison.exact {
            // A READ before the failing operation may have been broken off.
            unknown.push((own.side, own.sink.addr, own.sink.len));
        }
        for flow in [own, other] {
            for receiver in self.receivers.iter().filter(|receiver| receiver.serves(flow.side, flow.qpn)) {
                unknown.extend(receiver.areas().map(|(addr, len)| (receiver.side, addr, len)));
            }
        }
        for (side, addr, len) in unknown {
            let bytes = self.pair.sides[side].heap.get(addr, len);
            self.images[side].set(addr, &bytes);
        }
    }

    /// Whether an event of `side` belongs to the failing connection.
    pub(super) fn is_expected_event(&self, side: usize, event: AsyncEvent) -> bool {
        let Some(poison) = self.poison else { return false };
        let (own, other) = (&self.flows[poison.flow], &self.flows[poison.flow ^ 1]);
        let here = if own.side == side { own } else { other };
        match event {
            AsyncEvent::QpFatal(qpn) | AsyncEvent::LastWqeReached(qpn) => qpn == here.qpn,
            AsyncEvent::QpAccessError(qpn) => {
                qpn == other.qpn && side == other.side && poison.fault.status() == WcStatus::RemoteAccess
            }
            AsyncEvent::QpRequestError(qpn) => {
                qpn == other.qpn
                    && side == other.side
                    && poison.fault.status() == WcStatus::RemoteInvalidRequest
            }
            _ => false,
        }
    }
}
