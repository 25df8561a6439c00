//! A random program that uses reliable connections, and a model of the right results.
//!
//! A scenario follows from one seed: two endpoints, the wires between them with their faults, and the operations that both sides post on
//! several connections at once. The model applies each operation, in the order of posting, to its image of the two arenas. At the end
//! the arenas must equal the images, with the gaps between regions. Then every operation took effect exactly once and in order, and
//! nothing else was written. Every completion must be the expected one: in order, with the right status, opcode, length and extra
//! data, and with its bytes in place.
//!
//! The results do not depend on timing, except when an operation fails (`poison`). Where the specification lets them depend on it (a
//! WRITE to bytes that an earlier READ may still fetch, a SEND of bytes that a READ fetches), the program uses fences.

mod flow;
mod plan;
mod poison;
mod receive;
mod window;

pub use plan::{Plan, Recipe};

use super::{
    carrier::Wire,
    connect::{ConnectOptions, RECV_CQ, SEND_CQ},
    pair::Pair,
    rng::Rng,
};
use crate::{stats::QpStats, work::WcStatus};
use alloc::{format, string::String, vec, vec::Vec};
use core::time::Duration;
use flow::Flow;
use poison::Poison;
use receive::Receiver;

/// No scenario may take longer than this, in virtual time.
const PATIENCE: Duration = Duration::from_secs(600);

/// What happened in a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Operations posted.
    pub operations: u64,
    /// Payload bytes of these operations.
    pub bytes: u64,
    /// Packets that were sent.
    pub packets: u64,
    /// Packets that were lost, corrupted, duplicated or delayed.
    pub accidents: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
    /// Duplicate requests received.
    pub duplicates: u64,
    /// How long it took in virtual time, nanoseconds.
    pub nanos: u64,
    /// Sum of the digests of everything that was sent on the wires.
    pub digest: u64,
}

impl Outcome {
    /// Adds the numbers of another scenario.
    pub const fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.packets += other.packets;
        self.accidents += other.accidents;
        self.retransmitted += other.retransmitted;
        self.timeouts += other.timeouts;
        self.rnr_naks += other.rnr_naks;
        self.duplicates += other.duplicates;
        self.nanos += other.nanos;
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

/// What the bytes of one side's arena must be.
#[derive(Debug)]
struct Image {
    base: u64,
    bytes: Vec<u8>,
}

impl Image {
    fn get(&self, addr: u64, len: u64) -> &[u8] {
        let at = (addr - self.base) as usize;
        &self.bytes[at..at + len as usize]
    }

    fn set(&mut self, addr: u64, data: &[u8]) {
        let at = (addr - self.base) as usize;
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }
}

/// A scenario that is running.
#[derive(Debug)]
struct World {
    plan: Plan,
    pair: Pair,
    rng: Rng,
    images: [Image; 2],
    /// Two for each connection: first the requests of side 0, then those of side 1.
    flows: Vec<Flow>,
    /// Receive queues of side 0, then of side 1: one for each connection, or a shared one.
    receivers: Vec<Receiver>,
    /// The operation that must fail, if any.
    poison: Option<Poison>,
    outcome: Outcome,
}

/// Runs the scenario of `seed`. `wire` carries the packets. If the run fails, the latest `trace` records of what happened are printed.
///
/// # Panics
/// If the endpoints do anything that the model does not expect.
#[must_use]
pub fn run(seed: u64, recipe: Recipe, wire: impl Into<Wire>, trace: usize) -> Outcome {
    let plan = Plan::new(seed, recipe).over(wire.into());
    let mut world = World::new(plan, trace);
    if trace > 0 {
        std::eprintln!("{:#?}", world.plan);
    }
    world.play();
    world.finish();
    world.outcome
}

impl World {
    fn new(plan: Plan, trace: usize) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x0a_c1e);
        let pair = Pair::new(plan.pair_config(trace));
        let image =
            |side: usize| Image { base: pair.sides[side].heap.base(), bytes: vec![0; pair.config().heap] };
        let images = [image(0), image(1)];
        let rng_data = rng.fork(1);
        let poison =
            plan.poison.then(|| Poison::new(&mut rng.fork(2), 2 * plan.connections, plan.operations));
        let mut world = Self {
            plan,
            pair,
            rng,
            images,
            flows: Vec::new(),
            receivers: Vec::new(),
            poison,
            outcome: Outcome::default(),
        };
        world.connect(rng_data);
        world
    }

    fn connect(&mut self, mut data: Rng) {
        let mut srqs = [None; 2];
        for (side, srq) in srqs.iter_mut().enumerate() {
            if self.plan.shared_receive[side] {
                let endpoint = &mut self.pair.sides[side].endpoint;
                let id = endpoint.create_srq(super::connect::PD, 64, 4).expect("a shared receive queue");
                *srq = Some(id);
            }
        }
        let options = ConnectOptions { srq: srqs, ..self.plan.connect_options() };
        for index in 0..self.plan.connections {
            let psn = self.plan.psn(index, &mut data);
            let connection = self.pair.connect(&ConnectOptions { psn, ..options });
            for side in 0..2 {
                let flow = Flow::new(self, index, side, connection.qpns, &mut data);
                self.flows.push(flow);
            }
        }
        for (side, srq) in srqs.into_iter().enumerate() {
            let receivers: Vec<_> = match srq {
                Some(id) => vec![Receiver::shared(self, side, id)],
                None => (0..self.plan.connections)
                    .map(|index| Receiver::own(self, side, self.flows[2 * index + side].qpn))
                    .collect(),
            };
            self.receivers.extend(receivers);
        }
        for (image, side) in self.images.iter_mut().zip(&self.pair.sides) {
            image.bytes = side.heap.snapshot();
        }
    }

    /// Posts operations, with random pauses, until all are posted. Then waits until all have completed.
    fn play(&mut self) {
        while self.flows.iter().any(|flow| flow.remaining > 0) {
            let flow = self.rng.below(self.flows.len());
            for _ in 0..self.rng.range(1..self.plan.burst + 1) {
                self.post_random(flow);
            }
            self.post_receives(false);
            let pause = self.rng.range(0..self.plan.pause_nanos + 1);
            self.pair.run_for(Duration::from_nanos(pause));
            if self.flows.iter().all(|flow| flow.is_full(self.plan.queue())) {
                // The pause may be 0. Then only the next event makes room.
                self.pair.step(self.pair.now + PATIENCE);
            }
            self.take_completions();
        }
        let end = self.pair.now + PATIENCE;
        loop {
            self.take_completions();
            self.forgive();
            if self.flows.iter().all(Flow::is_done) {
                break;
            }
            self.post_receives(true);
            if !self.pair.step(end)
                && self.pair.completions_waiting(0) + self.pair.completions_waiting(1) == 0
            {
                let waiting: Vec<String> = self.flows.iter().map(Flow::describe).collect();
                panic!("nothing happens any more, but these wait: {waiting:#?}");
            }
        }
    }

    fn take_completions(&mut self) {
        for side in 0..2 {
            while let Some((wc, solicited)) = self.pair.poll_cq_solicited(side, SEND_CQ) {
                assert_eq!(solicited, wc.status != WcStatus::Success, "only a failed send wakes: {wc:?}");
                self.on_sent(side, &wc);
            }
            while let Some((wc, solicited)) = self.pair.poll_cq_solicited(side, RECV_CQ) {
                self.on_received(side, &wc, solicited);
            }
        }
    }

    /// Called when all operations have completed. Nothing more may happen now, and all bytes must be those of the model.
    fn finish(&mut self) {
        self.pair.run_until_idle();
        if self.poison.is_some() {
            // Receives may be flushed late.
            self.take_completions();
            self.excuse();
        }
        for side in 0..2 {
            assert_eq!(self.pair.completions_waiting(side), 0, "completions that nobody asked for");
            for &event in &self.pair.sides[side].async_events {
                assert!(self.is_expected_event(side, event), "event of side {side}: {event:?}");
            }
            let image = &self.images[side];
            if let Err((addr, found, expected)) = self.pair.sides[side].heap.compare(&image.bytes) {
                panic!(
                    "side {side}: byte at {addr:#x} is {found:#04x}, should be {expected:#04x} ({})",
                    self.place_of(side, addr)
                );
            }
        }
        self.count();
    }

    /// What is at an address, for messages.
    fn place_of(&self, side: usize, addr: u64) -> String {
        for (index, flow) in self.flows.iter().enumerate() {
            for (name, at, area) in [
                ("source", flow.side, flow.source),
                ("sink", flow.side, flow.sink),
                ("target", 1 - flow.side, flow.target),
            ] {
                if at == side && area.contains(addr) {
                    return format!("{name} of flow {index}, offset {:#x}", addr - area.addr);
                }
            }
        }
        match self.receivers.iter().find(|receiver| receiver.side == side && receiver.owns(addr)) {
            Some(_) => "a receive buffer".into(),
            None => "outside every region".into(),
        }
    }

    fn count(&mut self) {
        let mut total = QpStats::default();
        for flow in &self.flows {
            let stats = self.pair.sides[flow.side].endpoint.qp_stats(flow.qpn).expect("its counters");
            total.retransmitted += stats.retransmitted;
            total.timeouts += stats.timeouts;
            total.rnr_naks_received += stats.rnr_naks_received;
            total.duplicates += stats.duplicates;
        }
        let links = [self.pair.sides[0].link.stats(), self.pair.sides[1].link.stats()];
        self.outcome.packets = links.iter().map(|link| link.sent).sum();
        self.outcome.digest = links.iter().map(|link| u64::from(link.digest)).sum();
        self.outcome.accidents =
            links.iter().map(|link| link.lost + link.corrupted + link.duplicated + link.delayed).sum();
        self.outcome.retransmitted = total.retransmitted;
        self.outcome.timeouts = total.timeouts;
        self.outcome.rnr_naks = total.rnr_naks_received;
        self.outcome.duplicates = total.duplicates;
        self.outcome.nanos = self.pair.now.nanos();
        if self.outcome.accidents == 0 && self.outcome.rnr_naks == 0 && self.poison.is_none() {
            assert_eq!(total.retransmitted, 0, "sent again although nothing was lost");
            assert_eq!(total.timeouts, 0, "timed out although nothing was lost");
        }
    }
}
