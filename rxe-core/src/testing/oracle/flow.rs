//! The sending half of the model. A flow is the operations of one side on one connection.

use super::{
    World,
    receive::{Message, cut},
    window::{Phase, Window},
};
use crate::{
    num::{Key, Qpn},
    region::WindowType,
    testing::{
        connect::{PD, REGION_ALL},
        rng::Rng,
    },
    work::{
        Access, Completion, Payload, Remote, SendFlags, SendOp, SendWr, Sge, WcExtra, WcOpcode, WcStatus,
    },
};
use alloc::{collections::VecDeque, format, string::String, vec, vec::Vec};

/// A piece of a heap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub addr: u64,
    pub len: u64,
    pub key: Key,
}

impl Area {
    pub(super) fn contains(&self, addr: u64) -> bool {
        (self.addr..self.addr + self.len).contains(&addr)
    }
}

/// What changes in the model when an operation completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    None,
    /// The window of this flow with this key has one user less.
    Unused(Key),
    /// This window of the flow in the *other* direction is bound.
    Bound {
        window: usize,
        key: Key,
        addr: u64,
        len: u64,
    },
    /// The window of the flow in the other direction with this key is invalid.
    Ended(Key),
}

/// An operation that was posted.
#[derive(Debug)]
pub(super) struct Posted {
    pub wr_id: u64,
    opcode: WcOpcode,
    byte_len: u64,
    pub signaled: bool,
    /// The bytes that must be at these addresses when it completes.
    result: Vec<(u64, Vec<u8>)>,
    pub effect: Effect,
}

/// One side's operations on one connection.
#[derive(Debug)]
pub(super) struct Flow {
    pub side: usize,
    pub qpn: Qpn,
    pub peer_qpn: Qpn,
    /// Bytes to send. They never change.
    pub source: Area,
    /// Where READs and atomics put their results. Each piece is used once.
    pub sink: Area,
    sink_used: u64,
    /// Bytes of the peer that only this flow changes.
    pub target: Area,
    /// Windows on `target`.
    windows: Vec<Window>,
    pub posted: VecDeque<Posted>,
    /// Messages that the peer has not received yet.
    pub messages: VecDeque<Message>,
    /// Ranges of `target` that READs since the last fence may still fetch.
    open_reads: Vec<(u64, u64)>,
    /// Number of operations that have yet to be posted.
    pub remaining: u32,
    pub next_id: u64,
    /// Whether one of its requests has failed.
    pub failed: bool,
}

/// An operation that is about to be posted.
pub(super) struct Draft {
    op: SendOp,
    flags: SendFlags,
    sges: Vec<Sge>,
    pub posted: Posted,
    pub message: Option<Message>,
    /// Address and length of what a READ fetches. Until the next fence they must not change.
    pub opens: Option<(u64, u64)>,
}

impl Flow {
    pub(super) fn new(world: &World, connection: usize, side: usize, qpns: [Qpn; 2], data: &mut Rng) -> Self {
        let plan = &world.plan;
        let (own, peer) = (&world.pair.sides[side].heap, &world.pair.sides[1 - side].heap);
        let area = |heap: &crate::testing::Heap, len: u64, access: Access| {
            let (addr, key) = heap.alloc_registered(PD, len, access);
            Area { addr, len, key }
        };
        let flow = Self {
            side,
            qpn: qpns[side],
            peer_qpn: qpns[1 - side],
            source: area(own, plan.source(), Access::empty()),
            sink: area(own, plan.sink(), Access::LOCAL_WRITE),
            sink_used: 0,
            target: area(peer, plan.target(), REGION_ALL),
            windows: (0..plan.windows)
                .map(|_| Window { key: peer.alloc_window(PD, WindowType::Two), phase: Phase::Free })
                .collect(),
            posted: VecDeque::new(),
            messages: VecDeque::new(),
            open_reads: Vec::new(),
            remaining: plan.operations,
            next_id: (connection as u64) << 33 | (side as u64) << 32,
            failed: false,
        };
        let mut bytes = vec![0; flow.source.len as usize];
        data.fill(&mut bytes);
        own.set(flow.source.addr, &bytes);
        bytes.resize(flow.target.len as usize, 0);
        data.fill(&mut bytes);
        peer.set(flow.target.addr, &bytes);
        flow
    }

    pub(super) fn is_done(&self) -> bool {
        self.has_nothing_posted() && self.messages.is_empty()
    }

    /// Whether nothing can be posted now.
    pub(super) fn is_full(&self, queue: usize) -> bool {
        self.remaining == 0 || self.posted.len() >= queue
    }

    /// Whether all operations have been posted and all have completed.
    pub(super) fn has_nothing_posted(&self) -> bool {
        self.remaining == 0 && self.posted.is_empty()
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "side {} {}: {} operations not completed, oldest {:?}; {} messages not received",
            self.side,
            self.qpn,
            self.posted.len(),
            self.posted.front().map(|posted| (posted.wr_id & 0xffff_ffff, posted.opcode)),
            self.messages.len()
        )
    }

    /// Whether a READ that was posted before could fetch bytes that are changed now (`len` bytes at `addr`).
    fn races(&self, addr: u64, len: u64) -> bool {
        self.open_reads.iter().any(|&(start, size)| start < addr + len && addr < start + size)
    }

    fn unused(&mut self, key: Key) {
        for window in &mut self.windows {
            if let Phase::Bound { users, .. } = &mut window.phase
                && window.key == key
            {
                *users -= 1;
            }
        }
    }
}

impl World {
    /// Posts one random operation of flow `index`, unless all are posted or its queue is full.
    pub(super) fn post_random(&mut self, index: usize) {
        let flow = &self.flows[index];
        if flow.remaining == 0 || flow.posted.len() >= self.plan.queue() {
            return;
        }
        let is_poison = self.is_poison_due(index);
        let draft = match () {
            () if is_poison => self.draft_poison(index),
            () if self.is_behind_poison(index) => self.draft_behind(index),
            () => self.draft(index),
        };
        let Some(mut draft) = draft else { return };
        let flow = &mut self.flows[index];
        flow.remaining -= 1;
        // The last operation, and the last one before the queue is full, must be signaled.
        if self.rng.chance(500) || flow.remaining == 0 || flow.posted.len() + 1 >= self.plan.queue() {
            draft.flags |= SendFlags::SIGNALED;
        }
        if draft.flags.contains(SendFlags::FENCE) {
            flow.open_reads.clear();
        }
        flow.open_reads.extend(draft.opens);
        let wr_id = flow.next_id;
        flow.next_id += 1;
        draft.posted.wr_id = wr_id;
        draft.posted.signaled = self.plan.signal_all() || draft.flags.contains(SendFlags::SIGNALED);
        self.outcome.operations += 1;
        self.outcome.bytes += draft.posted.byte_len;
        let (side, qpn) = (flow.side, flow.qpn);
        flow.posted.push_back(draft.posted);
        flow.messages.extend(draft.message);
        let bytes = self.payload(index, &draft.sges);
        let inline =
            !matches!(draft.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
                && bytes.len() <= 128
                && !is_poison
                && self.rng.chance(200);
        let payload = if inline { Payload::Inline(&bytes) } else { Payload::Sges(&draft.sges) };
        let wr = SendWr { wr_id, op: draft.op, flags: draft.flags, payload, dest: None, xrc_srq: 0 };
        self.pair.post_send(side, qpn, &wr).expect("room for a send");
    }

    /// The bytes that these elements of a request hold in the model.
    fn payload(&self, index: usize, sges: &[Sge]) -> Vec<u8> {
        let image = &self.images[self.flows[index].side];
        sges.iter().flat_map(|sge| image.get(sge.addr, sge.len.into())).copied().collect()
    }

    fn draft(&mut self, index: usize) -> Option<Draft> {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::FENCE, self.rng.chance(100));
        flags.set(SendFlags::SOLICITED, self.rng.chance(300));
        match self.rng.below(16) {
            0..=2 => Some(self.draft_send(index, flags)),
            3..=6 => Some(self.draft_write(index, flags)),
            7..=9 => self.draft_read(index, flags),
            10 | 11 => self.draft_atomic(index, flags),
            12 => Some(self.draft_atomic_write(index, flags)),
            13 => Some(self.draft_flush(index, flags)),
            14 => self.draft_window(index, flags),
            _ => self.draft_send_invalidate(index, flags),
        }
    }

    pub(super) fn finish_draft(
        op: SendOp,
        flags: SendFlags,
        sges: Vec<Sge>,
        opcode: WcOpcode,
        byte_len: u64,
    ) -> Draft {
        let posted =
            Posted { wr_id: 0, opcode, byte_len, signaled: false, result: Vec::new(), effect: Effect::None };
        Draft { op, flags, sges, posted, message: None, opens: None }
    }

    /// A random length of at most `most`: 0, near a multiple of the path MTU, or any.
    fn length(&mut self, most: u64) -> u64 {
        let packet = u64::from(self.plan.mtu.bytes());
        let len = match self.rng.below(8) {
            0 => 0,
            1 => packet * self.rng.range(1..4) + self.rng.range(0..3) - 1,
            2..=4 => self.rng.range(1..65),
            _ => self.rng.range(0..most + 1),
        };
        len.min(most)
    }

    /// Elements with `len` bytes to send, at random places. If the bytes are results of READs, a fence is needed and set.
    fn source_sges(&mut self, index: usize, len: u64, flags: &mut SendFlags) -> Vec<Sge> {
        let flow = &self.flows[index];
        let from_sink = flow.sink_used >= len && self.rng.chance(150);
        let (area, size) =
            if from_sink { (flow.sink, flow.sink_used) } else { (flow.source, flow.source.len) };
        if from_sink {
            *flags |= SendFlags::FENCE;
        }
        let pieces = self.rng.range(1..5);
        let mut rest = len;
        (1..=pieces)
            .map(|piece| {
                let take = if piece == pieces { rest } else { self.rng.range(0..rest + 1) };
                rest -= take;
                let addr = area.addr + self.rng.range(0..size - take + 1);
                Sge { addr, len: take as u32, lkey: area.key }
            })
            .collect()
    }

    /// A random place in the flow's target, of at most `most` bytes, directly or through a window. Returns address and key, length, and
    /// what changes when the operation completes.
    fn place(&mut self, index: usize, most: u64, align: u64) -> (Remote, u64, Effect) {
        let flow = &self.flows[index];
        let mut area = (flow.target.addr, flow.target.len, flow.target.key);
        let mut effect = Effect::None;
        let bound = flow.windows.iter().position(|window| matches!(window.phase, Phase::Bound { .. }));
        if let Some(which) = bound
            && self.rng.chance(400)
            && let Window { key, phase: Phase::Bound { addr, len, users } } =
                &mut self.flows[index].windows[which]
        {
            *users += 1;
            area = (*addr, *len, *key);
            effect = Effect::Unused(*key);
        }
        let (start, size, rkey) = area;
        let (addr, len) = if align > 1 {
            let first = start.next_multiple_of(align);
            let slots = (start + size - first) / align;
            (first + align * self.rng.range(0..slots), align)
        } else {
            let len = self.length(most.min(size));
            (start + self.rng.range(0..size - len + 1), len)
        };
        (Remote { addr, rkey }, len, effect)
    }

    pub(super) fn draft_send(&mut self, index: usize, mut flags: SendFlags) -> Draft {
        let len = self.length(self.plan.max_send);
        let sges = self.source_sges(index, len, &mut flags);
        let imm = (self.rng.next_u64() as u32).to_be_bytes();
        let (op, extra) = match self.rng.chance(300) {
            true => (SendOp::SendImm(imm), WcExtra::Immediate(imm)),
            false => (SendOp::Send, WcExtra::None),
        };
        let data = self.payload(index, &sges);
        let solicited = flags.contains(SendFlags::SOLICITED);
        let message = Message { opcode: WcOpcode::Recv, data, placed_at: None, extra, solicited };
        Draft { message: Some(message), ..Self::finish_draft(op, flags, sges, WcOpcode::Send, len) }
    }

    fn draft_send_invalidate(&mut self, index: usize, flags: SendFlags) -> Option<Draft> {
        let windows = &self.flows[index].windows;
        let which = windows.iter().position(|window| matches!(window.phase, Phase::Bound { .. }))?;
        let mut draft = self.draft_send(index, flags);
        let window = &mut self.flows[index].windows[which];
        if let Phase::Bound { users, .. } = window.phase
            && users > 0
        {
            // A READ through the window must not be repeated when the window is no longer valid.
            draft.flags |= SendFlags::FENCE;
        }
        window.phase = Phase::Ending;
        draft.op = SendOp::SendInvalidate(window.key);
        draft.message.as_mut()?.extra = WcExtra::Invalidated(window.key);
        Some(draft)
    }

    pub(super) fn draft_write(&mut self, index: usize, mut flags: SendFlags) -> Draft {
        let (remote, len, effect) = self.place(index, self.plan.max_len, 1);
        let sges = self.source_sges(index, len, &mut flags);
        let flow = &self.flows[index];
        if flow.races(remote.addr, len) {
            flags |= SendFlags::FENCE;
        }
        let data = self.payload(index, &sges);
        self.images[1 - self.flows[index].side].set(remote.addr, &data);
        let imm = (self.rng.next_u64() as u32).to_be_bytes();
        let with_imm = self.rng.chance(300);
        let op = if with_imm { SendOp::WriteImm(remote, imm) } else { SendOp::Write(remote) };
        let mut draft = Self::finish_draft(op, flags, sges, WcOpcode::Write, len);
        draft.posted.effect = effect;
        draft.message = with_imm.then(|| Message {
            opcode: WcOpcode::RecvRdmaWithImm,
            data,
            placed_at: Some(remote.addr),
            extra: WcExtra::Immediate(imm),
            solicited: flags.contains(SendFlags::SOLICITED),
        });
        draft
    }

    /// Takes `len` bytes of the flow's sink. `None` if there are not enough left.
    fn take_sink(&mut self, index: usize, len: u64) -> Option<(u64, Key)> {
        let flow = &mut self.flows[index];
        if flow.sink.len - flow.sink_used < len {
            return None;
        }
        let addr = flow.sink.addr + flow.sink_used;
        flow.sink_used += len;
        Some((addr, flow.sink.key))
    }

    /// Puts a result into the image, and records that its bytes must be in place when the operation completes.
    fn expect_result(&mut self, index: usize, draft: &mut Draft, data: &[u8]) {
        let mut rest = data;
        for sge in &draft.sges {
            let (here, later) = rest.split_at((sge.len as usize).min(rest.len()));
            self.images[self.flows[index].side].set(sge.addr, here);
            draft.posted.result.push((sge.addr, here.to_vec()));
            rest = later;
        }
    }

    pub(super) fn draft_read(&mut self, index: usize, flags: SendFlags) -> Option<Draft> {
        let left = self.flows[index].sink.len - self.flows[index].sink_used;
        let (remote, len, effect) = self.place(index, self.plan.max_len.min(left), 1);
        let (addr, lkey) = self.take_sink(index, len)?;
        let sges = cut(&mut self.rng, addr, len, lkey);
        let data = self.images[1 - self.flows[index].side].get(remote.addr, len).to_vec();
        let mut draft = Self::finish_draft(SendOp::Read(remote), flags, sges, WcOpcode::Read, len);
        draft.posted.effect = effect;
        self.expect_result(index, &mut draft, &data);
        draft.opens = Some((remote.addr, len));
        Some(draft)
    }

    pub(super) fn draft_atomic(&mut self, index: usize, mut flags: SendFlags) -> Option<Draft> {
        let (addr, lkey) = self.take_sink(index, 8)?;
        let (remote, _, effect) = self.place(index, 8, 8);
        if self.flows[index].races(remote.addr, 8) {
            flags |= SendFlags::FENCE;
        }
        let image = &mut self.images[1 - self.flows[index].side];
        let mut original = [0; 8];
        original.copy_from_slice(image.get(remote.addr, 8));
        let value = u64::from_ne_bytes(original);
        let operand = self.rng.next_u64();
        let (op, opcode) = match self.rng.below(3) {
            0 => {
                image.set(remote.addr, &value.wrapping_add(operand).to_ne_bytes());
                (SendOp::FetchAdd { remote, add: operand }, WcOpcode::FetchAdd)
            }
            1 => {
                image.set(remote.addr, &operand.to_ne_bytes());
                (SendOp::CompareSwap { remote, compare: value, swap: operand }, WcOpcode::CompareSwap)
            }
            _ => (SendOp::CompareSwap { remote, compare: !value, swap: operand }, WcOpcode::CompareSwap),
        };
        let sges = vec![Sge { addr, len: 8, lkey }];
        let mut draft = Self::finish_draft(op, flags, sges, opcode, 8);
        draft.posted.effect = effect;
        self.expect_result(index, &mut draft, &original);
        Some(draft)
    }

    fn draft_atomic_write(&mut self, index: usize, mut flags: SendFlags) -> Draft {
        let (remote, _, effect) = self.place(index, 8, 8);
        if self.flows[index].races(remote.addr, 8) {
            flags |= SendFlags::FENCE;
        }
        let value = self.rng.next_u64().to_le_bytes();
        self.images[1 - self.flows[index].side].set(remote.addr, &value);
        let op = SendOp::AtomicWrite { remote, value };
        let mut draft = Self::finish_draft(op, flags, Vec::new(), WcOpcode::AtomicWrite, 8);
        draft.posted.effect = effect;
        draft
    }

    fn draft_flush(&mut self, index: usize, flags: SendFlags) -> Draft {
        let (remote, len, effect) = self.place(index, self.plan.max_len, 1);
        let op = SendOp::Flush {
            remote,
            len: len as u32,
            placement: self.rng.range(1..4) as u8,
            selectivity: self.rng.below(2) as u8,
        };
        let mut draft = Self::finish_draft(op, flags, Vec::new(), WcOpcode::Flush, 0);
        draft.posted.effect = effect;
        draft
    }

    /// Binds or invalidates a window of the flow in the other direction, whose target is memory of this side.
    fn draft_window(&mut self, index: usize, flags: SendFlags) -> Option<Draft> {
        let other = index ^ 1;
        let count = self.flows[other].windows.len();
        let which = if count == 0 { return None } else { self.rng.below(count) };
        let target = self.flows[other].target;
        let window = self.flows[other].windows[which];
        let (op, opcode, effect) = match window.phase {
            Phase::Free => {
                let bind = window.bind(&mut self.rng, target.key, target.addr, target.len);
                self.flows[other].windows[which].phase = Phase::Binding;
                let effect =
                    Effect::Bound { window: which, key: bind.new_rkey, addr: bind.addr, len: bind.len };
                (SendOp::BindWindow(bind), WcOpcode::BindWindow, effect)
            }
            Phase::Bound { users: 0, .. } => {
                self.flows[other].windows[which].phase = Phase::Ending;
                (SendOp::LocalInvalidate(window.key), WcOpcode::LocalInvalidate, Effect::Ended(window.key))
            }
            _ => return None,
        };
        let mut draft = Self::finish_draft(op, flags, Vec::new(), opcode, 0);
        draft.flags.remove(SendFlags::SOLICITED);
        draft.posted.effect = effect;
        Some(draft)
    }

    /// The window of flow `index` with this key is invalid now, and may be bound again.
    pub(super) fn window_ended(&mut self, index: usize, key: Key) {
        for window in &mut self.flows[index].windows {
            if window.key == key && window.phase == Phase::Ending {
                window.phase = Phase::Free;
            }
        }
    }

    /// A send request completed. It must be the oldest signaled one. All requests before it are complete then, too.
    pub(super) fn on_sent(&mut self, side: usize, wc: &Completion) {
        let index = self
            .flows
            .iter()
            .position(|flow| flow.side == side && flow.qpn == wc.qpn)
            .unwrap_or_else(|| panic!("no such queue pair: {wc:?}"));
        if wc.status != WcStatus::Success {
            self.on_failed(index, wc);
            return;
        }
        assert!(!self.flows[index].failed, "good after a failure: {wc:?}");
        loop {
            let posted = self.flows[index]
                .posted
                .pop_front()
                .unwrap_or_else(|| panic!("nothing was posted that could complete: {wc:?}"));
            self.check_results(index, &posted);
            self.apply(index, posted.effect);
            if posted.wr_id == wc.wr_id {
                assert!(posted.signaled, "not to be told: {wc:?}");
                assert_eq!((wc.opcode, u64::from(wc.byte_len)), (posted.opcode, posted.byte_len), "{wc:?}");
                return;
            }
            assert!(!posted.signaled, "{} should have completed before {wc:?}", posted.wr_id);
        }
    }

    /// Checks that the results of a completed READ or atomic are in place.
    pub(super) fn check_results(&self, index: usize, posted: &Posted) {
        let heap = &self.pair.sides[self.flows[index].side].heap;
        for (addr, expected) in &posted.result {
            let found = heap.get(*addr, expected.len() as u64);
            assert!(found == *expected, "wrong result at {addr:#x} of {posted:?}");
        }
    }

    fn apply(&mut self, index: usize, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Unused(key) => self.flows[index].unused(key),
            Effect::Bound { window, key, addr, len } => {
                let window = &mut self.flows[index ^ 1].windows[window];
                *window = Window { key, phase: Phase::Bound { addr, len, users: 0 } };
            }
            Effect::Ended(key) => self.window_ended(index ^ 1, key),
        }
    }
}
