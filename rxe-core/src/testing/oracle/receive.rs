//! The receiving half of the model: receive queues, their buffers, and what must arrive in them.

use super::World;
use crate::{
    num::{Key, Qpn},
    testing::{connect::PD, rng::Rng},
    work::{Access, Completion, RecvWr, Sge, SrqId, WcExtra, WcOpcode, WcStatus},
};
use alloc::{collections::VecDeque, vec::Vec};

/// A message that must arrive. Messages of a flow arrive in order.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub opcode: WcOpcode,
    /// The bytes that are put into the receive buffer (SEND) or at an address (WRITE with immediate).
    pub data: Vec<u8>,
    /// The address of a WRITE with immediate.
    pub placed_at: Option<u64>,
    pub extra: WcExtra,
    pub solicited: bool,
}

/// A receive buffer.
#[derive(Clone, Debug)]
struct Buffer {
    addr: u64,
    sges: Vec<Sge>,
}

#[derive(Clone, Copy, Debug)]
enum Queue {
    Own(Qpn),
    Shared(SrqId),
}

/// The receive queue of a queue pair, or a shared one.
#[derive(Debug)]
pub(super) struct Receiver {
    pub side: usize,
    queue: Queue,
    len: u64,
    buffers: Vec<Buffer>,
    free: Vec<usize>,
    /// Posted receives, oldest first: (wr_id, buffer).
    posted: VecDeque<(u64, usize)>,
    next_id: u64,
}

impl Receiver {
    pub(super) fn own(world: &mut World, side: usize, qpn: Qpn) -> Self {
        Self::new(world, side, Queue::Own(qpn))
    }

    pub(super) fn shared(world: &mut World, side: usize, srq: SrqId) -> Self {
        Self::new(world, side, Queue::Shared(srq))
    }

    fn new(world: &mut World, side: usize, queue: Queue) -> Self {
        let len = world.plan.max_send;
        let count = world.plan.buffers;
        let buffers: Vec<_> = (0..count)
            .map(|_| {
                let heap = &world.pair.sides[side].heap;
                let (addr, lkey) = heap.alloc_registered(PD, len, Access::LOCAL_WRITE);
                Buffer { addr, sges: cut(&mut world.rng, addr, len, lkey) }
            })
            .collect();
        Self { side, queue, len, buffers, free: (0..count).collect(), posted: VecDeque::new(), next_id: 0 }
    }

    pub(super) fn owns(&self, addr: u64) -> bool {
        self.buffers.iter().any(|buffer| (buffer.addr..buffer.addr + self.len).contains(&addr))
    }

    /// Address and length of each buffer.
    pub(super) fn areas(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buffers.iter().map(|buffer| (buffer.addr, self.len))
    }

    /// Whether messages to `qpn` of `side` use this queue.
    pub(super) fn serves(&self, side: usize, qpn: Qpn) -> bool {
        self.side == side
            && match self.queue {
                Queue::Own(own) => own == qpn,
                Queue::Shared(_) => true,
            }
    }
}

/// Cuts `len` bytes at `addr` into up to four elements in random order. Some may be empty.
pub(super) fn cut(rng: &mut Rng, addr: u64, len: u64, lkey: Key) -> Vec<Sge> {
    let pieces = rng.range(1..5);
    let mut rest = (addr, len);
    let mut sges = Vec::new();
    for piece in 1..=pieces {
        let take = if piece == pieces { rest.1 } else { rng.range(0..rest.1 + 1) };
        let sge = Sge { addr: rest.0, len: take as u32, lkey };
        let at = rng.below(sges.len() + 1);
        sges.insert(at, sge);
        rest = (rest.0 + take, rest.1 - take);
    }
    sges
}

impl World {
    /// Posts receives. If the plan says so, as many as there are buffers, before messages come. Otherwise one for each message that
    /// waits: sometimes, or always if `all`.
    pub(super) fn post_receives(&mut self, all: bool) {
        for index in 0..self.receivers.len() {
            let side = self.receivers[index].side;
            let waiting: usize = self
                .flows
                .iter()
                .filter(|flow| self.receivers[index].serves(1 - flow.side, flow.peer_qpn))
                .map(|flow| flow.messages.len())
                .sum();
            let wanted = match self.plan.ready[side] {
                true => usize::MAX,
                false if all || self.rng.chance(200) => waiting,
                false => 0,
            };
            while self.receivers[index].posted.len() < wanted && self.post_receive(index) {}
        }
    }

    fn post_receive(&mut self, index: usize) -> bool {
        let receiver = &mut self.receivers[index];
        if receiver.free.is_empty() {
            return false;
        }
        let buffer = receiver.free.swap_remove(self.rng.below(receiver.free.len()));
        let wr_id = (index as u64) << 32 | receiver.next_id;
        receiver.next_id += 1;
        receiver.posted.push_back((wr_id, buffer));
        let (side, queue) = (receiver.side, receiver.queue);
        let sges = receiver.buffers[buffer].sges.clone();
        let wr = RecvWr { wr_id, sges: &sges };
        match queue {
            Queue::Own(qpn) => self.pair.post_recv(side, qpn, &wr),
            Queue::Shared(srq) => self.pair.post_srq_recv(side, srq, &wr),
        }
        .expect("room for a receive");
        true
    }

    /// A receive completed. It must have the next message of its flow, as a whole, in a posted buffer.
    pub(super) fn on_received(&mut self, side: usize, wc: &Completion, wakes: bool) {
        if wc.status != WcStatus::Success {
            self.on_receive_failed(side, wc);
            self.take_posted(side, wc);
            return;
        }
        let flow = self
            .flows
            .iter()
            .position(|flow| flow.side == 1 - side && flow.peer_qpn == wc.qpn)
            .unwrap_or_else(|| panic!("no such queue pair: {wc:?}"));
        let message = self.flows[flow]
            .messages
            .pop_front()
            .unwrap_or_else(|| panic!("nothing was sent that could arrive: {wc:?}"));
        assert_eq!(
            (wc.opcode, u64::from(wc.byte_len), wc.extra, wc.solicited, wakes),
            (message.opcode, message.data.len() as u64, message.extra, message.solicited, message.solicited),
            "{wc:?}"
        );
        assert!(wc.grh, "{wc:?}");
        let index = self.take_posted(side, wc);
        let receiver = self.receiver(side, wc);
        receiver.free.push(index);
        let buffer = receiver.buffers[index].clone();
        match message.placed_at {
            None => self.check_buffer(side, &buffer, &message.data),
            Some(addr) => {
                // The bytes must be in place, unless a later operation may have changed them.
                let untouched = self.images[side].get(addr, message.data.len() as u64) == message.data;
                let found = self.pair.sides[side].heap.get(addr, message.data.len() as u64);
                assert!(
                    !untouched || found == message.data,
                    "completed before its bytes were placed: {wc:?}"
                );
            }
        }
        if let WcExtra::Invalidated(key) = message.extra {
            self.window_ended(flow, key);
        }
    }

    fn receiver(&mut self, side: usize, wc: &Completion) -> &mut Receiver {
        self.receivers
            .iter_mut()
            .find(|receiver| receiver.serves(side, wc.qpn))
            .expect("every queue pair has a receive queue")
    }

    /// Removes a completed receive from those that are posted. Returns its buffer.
    fn take_posted(&mut self, side: usize, wc: &Completion) -> usize {
        let receiver = self.receiver(side, wc);
        let at = receiver.posted.iter().position(|&(wr_id, _)| wr_id == wc.wr_id);
        let at = at.unwrap_or_else(|| panic!("that receive was not posted, or completed twice: {wc:?}"));
        if matches!(receiver.queue, Queue::Own(_)) {
            assert_eq!(at, 0, "receives complete in order: {wc:?}");
        }
        receiver.posted.remove(at).expect("just found").1
    }

    fn check_buffer(&mut self, side: usize, buffer: &Buffer, data: &[u8]) {
        let mut rest = data;
        for sge in &buffer.sges {
            let (here, later) = rest.split_at((sge.len as usize).min(rest.len()));
            let found = self.pair.sides[side].heap.get(sge.addr, here.len() as u64);
            assert!(found == here, "side {side}: wrong bytes received in {sge:?}");
            self.images[side].set(sge.addr, here);
            rest = later;
        }
    }
}
