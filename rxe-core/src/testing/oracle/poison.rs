//! One operation that must fail, in the middle of a scenario: what was posted before it takes effect, what comes after
//! does not, and the other connections do not notice.
//!
//! Of the failing connection's other direction nothing can be foretold but that its requests come back, in order, good
//! ones first. When packets are lost the failure may show earlier and as a timeout: a responder in the error state answers
//! no repeated requests.

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
    /// An R_Key that names nothing.
    Key,
    /// One byte beyond the region.
    Range,
    /// An atomic on an odd address.
    Misaligned,
    /// A SEND longer than every receive.
    TooLong,
    /// A SEND that invalidates what cannot be invalidated.
    Invalidate,
    /// Own data under a key that names nothing.
    LocalKey,
    /// A window bound beyond its region.
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
            // The SEND is acknowledged, but nothing behind it is: the peer's side has ended without a word.
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
    /// Operations of the flow that are left when its turn comes.
    pub turn: u32,
    fault: Fault,
    /// Its number, once posted.
    wr_id: Option<u64>,
    /// Whether the failure showed where it was made.
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

    /// Whether the failing operation of flow `index` was posted before.
    pub(super) fn is_behind_poison(&self, index: usize) -> bool {
        self.poison.is_some_and(|poison| poison.flow == index && poison.wr_id.is_some())
    }

    /// The failing operation.
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
        // This one may complete.
        let len = if poison.fault == Fault::Invalidate { 1 } else { 0 };
        Some(Self::finish_draft(op, SendFlags::empty(), sges, opcode, len))
    }

    fn bad_key(&mut self, index: usize, remote: Remote) -> (SendOp, Vec<Sge>, WcOpcode) {
        let sink = self.flows[index].sink;
        // A READ's landing place is never reached.
        let sges = vec![Sge { addr: sink.addr, len: 8, lkey: sink.key }];
        match self.rng.below(4) {
            0 => (SendOp::Write(remote), sges, WcOpcode::Write),
            1 => (SendOp::Read(remote), sges, WcOpcode::Read),
            2 => (SendOp::CompareSwap { remote, compare: 0, swap: 1 }, sges, WcOpcode::CompareSwap),
            _ => (SendOp::AtomicWrite { remote, value: [1; 8] }, Vec::new(), WcOpcode::AtomicWrite),
        }
    }

    /// An operation behind the failing one: as any other, but without effect by the model.
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

    /// A request failed: the poison, or one that the poison's connection takes down with it.
    pub(super) fn on_failed(&mut self, index: usize, wc: &Completion) {
        assert!(self.is_poisoned(index), "failed for no reason: {wc:?}");
        let poison = self.poison.expect("just asked");
        if self.flows[index].failed {
            // Everything behind the first failure is told, in order.
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
            // What fails on the own side does so when all before it is answered.
            let remote = !matches!(poison.fault, Fault::LocalKey | Fault::Bind);
            // What no acknowledgement was asked for before a side ended in silence is never acknowledged.
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

    /// A receive failed: its queue pair went down with the poisoned connection.
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

    /// Of the failing connection's other direction nobody knows which messages arrived: once all requests have come back
    /// the rest is not waited for.
    pub(super) fn forgive(&mut self) {
        let Some(poison) = self.poison.filter(|poison| self.is_poisoned(poison.flow)) else { return };
        let pair = [poison.flow, poison.flow ^ 1];
        if pair.iter().all(|&index| self.flows[index].has_nothing_posted()) {
            self.flows[poison.flow ^ 1].messages.clear();
        }
    }

    /// Bytes that nobody can foretell are taken as they are; what remains of the images must be right.
    pub(super) fn excuse(&mut self) {
        let Some(poison) = self.poison else { return };
        let (own, other) = (&self.flows[poison.flow], &self.flows[poison.flow ^ 1]);
        let attrs = self.pair.sides[own.side].endpoint.query_qp(own.qpn).map(|(attrs, _)| attrs.state);
        // Where nothing came behind a SEND that was acknowledged its own side has not heard of the end.
        let unheard = poison.fault == Fault::Invalidate && !own.failed;
        assert_eq!(attrs, Some(if unheard { QpState::Rts } else { QpState::Error }));
        let mut unknown = vec![
            (other.side, other.sink.addr, other.sink.len),
            (own.side, other.target.addr, other.target.len),
        ];
        if !poison.exact {
            // A READ before the failing operation may have broken off.
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
