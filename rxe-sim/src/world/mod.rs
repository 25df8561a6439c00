//! The simulation. Its clock jumps from event to event. Every host is an endpoint of rxe-core, and packets have the headers
//! that the endpoints wrote.
//!
//! A wire delivers packets in order, so only its first packet has an event. A port has an event for the end of a packet only if
//! another packet waits. So there are no more events than active ports and hosts, a few thousand, and they stay in the
//! processor's cache.

mod calendar;
mod event;
mod host;
mod recovery;
mod switch;

pub use host::address;

use crate::{
    packet::{Pool, Queue, Ticket},
    pcap::Tap,
    rng::Rng,
    scenario::{Adapter, Scenario, ScenarioError, Switch},
    topology::{Topology, find_wires},
    traffic::{self, Flow},
    units::SECOND,
};
use calendar::Calendar;
use event::Event;
use host::{Host, Placed, Progress};
use std::collections::VecDeque;
use switch::{Buffer, Ingress};

/// Room for one packet.
const ARENA: usize = 4200;
/// The progress bar is updated after this many events.
const STRIDE: u32 = 1 << 14;
/// Most flows whose goodput is recorded.
const MOST_RECORDED: usize = 64;

/// The sending end of a wire.
#[derive(Debug, Default)]
struct Port {
    control: Queue,
    data: Queue,
    /// Packets on the wire, each with the time at which it reaches the end, in picoseconds.
    flight: VecDeque<(u64, Ticket)>,
    busy_until: u64,
    /// Whether there is an event for the end of the present packet.
    scheduled: bool,
    paused: bool,
    /// The pause frames that are under way to it, in the order in which they were sent: whether they begin a pause or end it.
    told: VecDeque<bool>,
    /// The start of the present pause, and the total time of earlier pauses.
    paused_at: u64,
    paused_for: u64,
    /// The greatest length of `data` so far.
    longest: u64,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Counts {
    /// Events of all kinds.
    pub events: u64,
    /// Packets that reached the end of a wire.
    pub hops: u64,
    /// Packets that reached a host's endpoint.
    pub deliveries: u64,
    /// Data packets that endpoints sent.
    pub packets: u64,
    /// Dropped by switches.
    pub dropped: u64,
    /// Lost on wires.
    pub lost: u64,
    /// Marked by switches.
    pub marked: u64,
    /// Marked packets that arrived out of sequence. With selective repeat the sender learns of them late.
    pub marked_early: u64,
    /// Pause frames (without those that end a pause).
    pub pauses: u64,
    /// Data packets sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Negative acknowledgements.
    pub naks: u64,
    /// Congestion notifications that reached their queue pair.
    pub notifications: u64,
}

/// A sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its time in picoseconds.
    pub at: u64,
    /// Bytes in each recorded queue.
    pub queues: Vec<u64>,
    /// Bytes of each recorded flow that were delivered since the last sample.
    pub delivered: Vec<u64>,
    /// The rate in bits per second that congestion control allows each recorded flow. Without congestion control it is the
    /// link's rate, and 0 if the flow is not under way.
    pub rates: Vec<u64>,
}

/// The result of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The flow.
    pub flow: Flow,
    /// Time from its start to the delivery of its last byte, in picoseconds; `None` if that byte was not delivered.
    pub took: Option<u64>,
    /// The time that it would have taken alone.
    pub ideal: u64,
    /// Bytes that were delivered.
    pub delivered: u64,
    /// Whether its queue pair failed.
    pub failed: bool,
}

/// A simulated network.
#[derive(Debug)]
pub struct World {
    now: u64,
    end: u64,
    topology: Topology,
    rules: Switch,
    adapter: Adapter,
    ports: Vec<Port>,
    ingress: Vec<Ingress>,
    buffers: Vec<Buffer>,
    hosts: Vec<Host>,
    pool: Pool,
    events: Calendar,
    flows: Vec<Flow>,
    progress: Vec<Progress>,
    memory: Placed,
    rng: Rng,
    arena: Vec<u8>,
    scratch: Vec<u8>,
    counts: Counts,
    delivered: usize,
    active: usize,
    every: Option<u64>,
    record_from: u64,
    watched: Vec<(usize, String)>,
    recorded_flows: usize,
    last_delivered: Vec<u64>,
    samples: Vec<Sample>,
    taps: Vec<(usize, Tap)>,
}

/// Time in picoseconds for `bytes` at `rate` bits per second.
const fn serialization(bytes: u64, rate: u64) -> u64 {
    // Single packets fit into 64 bits, whose division takes a fraction of the time.
    match bytes.checked_mul(8 * SECOND) {
        Some(bits) => bits / rate,
        None => (bytes as u128 * 8 * SECOND as u128 / rate as u128) as u64,
    }
}

/// The longest time that a packet takes over any wire, in picoseconds.
fn longest_way(topology: &Topology) -> u64 {
    let ways = topology.wires.iter().map(|wire| wire.delay + serialization(ARENA as u64, wire.rate));
    ways.max().unwrap_or(0)
}

impl World {
    /// Builds the network that a scenario describes, at time 0.
    ///
    /// # Errors
    /// What is wrong in the scenario.
    pub fn new(scenario: &Scenario) -> Result<Self, ScenarioError> {
        let topology = Topology::build(&scenario.network)?;
        let flows = traffic::flows(scenario, &topology)?;
        let watched = find_wires(&topology, &scenario.record.queues)?;
        let wires = topology.wires.len();
        let hosts = (0..topology.hosts)
            .map(|host| Host {
                endpoint: host::endpoint(host, scenario.seed),
                wire: topology.next(host, (host + 1) % topology.hosts, 0),
                again: Queue::default(),
                wake: None,
                flow_of: std::collections::HashMap::new(),
            })
            .collect();
        let recorded_flows = if scenario.record.flows { flows.len().min(MOST_RECORDED) } else { 0 };
        let mut world = Self {
            now: 0,
            end: scenario.end.0,
            rules: scenario.switch.clone(),
            adapter: scenario.adapter.clone(),
            ports: (0..wires).map(|_| Port::default()).collect(),
            ingress: vec![Ingress::default(); wires],
            buffers: vec![Buffer::default(); topology.names.len() - topology.hosts],
            hosts,
            pool: Pool::default(),
            events: Calendar::new(longest_way(&topology)),
            progress: flows.iter().map(|_| Progress::default()).collect(),
            memory: Placed(std::cell::RefCell::new(vec![0; flows.len()])),
            flows,
            rng: Rng::new(scenario.seed, 1),
            arena: vec![0; ARENA],
            scratch: vec![0; ARENA],
            counts: Counts::default(),
            delivered: 0,
            active: 0,
            every: scenario.record.every.map(|every| every.0.max(1)),
            record_from: scenario.record.from.0,
            watched,
            recorded_flows,
            last_delivered: vec![0; recorded_flows],
            samples: Vec::new(),
            taps: Vec::new(),
            topology,
        };
        if let Some(first) = world.flows.first() {
            world.schedule(first.start, Event::Start(0));
        }
        if let Some(every) = world.every {
            world.schedule(every, Event::Sample);
        }
        Ok(world)
    }

    /// The wire that is named by its ends (`"h0-s0"`: from h0 to s0), if there is one.
    #[must_use]
    pub fn wire(&self, name: &str) -> Option<usize> {
        self.topology.wire(name)
    }

    /// Captures the packets that are sent over a wire.
    pub fn tap(&mut self, wire: usize, tap: Tap) {
        self.taps.push((wire, tap));
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.events.push(at, event.code());
    }

    /// Runs until the end of the simulated time, or until all flows are done. Calls `progress` now and then with the part of
    /// the time that has passed, 0 to 1.
    pub fn run(&mut self, mut progress: impl FnMut(f64)) {
        let mut stride = 0;
        while let Some((at, code)) = self.events.pop() {
            if at > self.end || self.is_done() {
                break;
            }
            self.now = at;
            self.counts.events += 1;
            stride += 1;
            if stride == STRIDE {
                stride = 0;
                progress(at as f64 / self.end.max(1) as f64);
            }
            self.happen(Event::from_code(code));
        }
        for index in 0..self.progress.len() {
            if let Some(qpns) = self.progress[index].qpns
                && let Some(stats) = self.hosts[self.flows[index].src].endpoint.qp_stats(qpns[0])
            {
                self.counts.retransmitted += stats.retransmitted;
                self.counts.timeouts += stats.timeouts;
                self.counts.naks += stats.psn_naks_received;
                self.counts.notifications += stats.cnps_received;
            }
        }
        progress(1.0);
    }

    fn is_done(&self) -> bool {
        self.delivered == self.flows.len() && self.active == 0
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(wire) => self.arrive(wire),
            Event::Free(wire) => {
                self.ports[wire].scheduled = false;
                self.send(wire);
            }
            Event::Pause(wire) => self.pause(wire),
            Event::Wake(host) => self.wake(host),
            Event::Start(flow) => {
                if let Some(next) = self.flows.get(flow + 1) {
                    self.schedule(next.start, Event::Start(flow + 1));
                }
                self.start_flow(flow);
            }
            Event::Silence(flow) => self.silence(flow),
            Event::Sample => self.sample(),
        }
    }

    /// The first packet of a wire has reached its end.
    fn arrive(&mut self, wire: usize) {
        let flight = &mut self.ports[wire].flight;
        let Some((_, packet)) = flight.pop_front() else { return };
        if let Some((arrives, _)) = flight.front().copied() {
            self.schedule(arrives, Event::Arrive(wire));
        }
        self.counts.hops += 1;
        let node = self.topology.wires[wire].to;
        if node < self.topology.hosts {
            self.receive(node, packet.at);
        } else {
            self.forward(wire, packet);
        }
    }

    /// Sends the next packet of a port, if it has one and is allowed to send.
    fn send(&mut self, wire: usize) {
        let from = self.topology.wires[wire].from;
        let is_host = from < self.topology.hosts;
        let port = &mut self.ports[wire];
        if port.busy_until > self.now {
            if !port.scheduled {
                port.scheduled = true;
                let at = port.busy_until;
                self.schedule(at, Event::Free(wire));
            }
            return;
        }
        let (packet, data) = if let Some(packet) = port.control.pop() {
            (packet, false)
        } else if port.paused {
            return;
        } else if is_host {
            let Some(packet) = self.next_of_host(from) else {
                self.set_alarm(from);
                return;
            };
            (packet, true)
        } else {
            let Some(packet) = port.data.pop() else { return };
            (packet, true)
        };
        if data && !is_host {
            self.release(from, packet);
        }
        self.put_on_wire(wire, packet, data);
        let port = &self.ports[wire];
        let waits = !port.control.is_empty()
            || !port.paused && if is_host { self.has_more(from) } else { !port.data.is_empty() };
        let port = &mut self.ports[wire];
        if waits && !port.scheduled {
            port.scheduled = true;
            let at = port.busy_until;
            self.schedule(at, Event::Free(wire));
        }
        if is_host {
            self.set_alarm(from);
        }
    }

    fn put_on_wire(&mut self, wire: usize, packet: Ticket, data: bool) {
        let about = self.topology.wires[wire];
        for (tapped, tap) in &self.taps {
            if *tapped == wire {
                tap.record(self.now, self.pool.get(packet.at));
            }
        }
        let free = self.now + serialization(packet.wire_len.into(), about.rate);
        self.ports[wire].busy_until = free;
        if data && about.loss > 0.0 && self.rng.unit() < about.loss {
            self.counts.lost += 1;
            self.pool.remove(packet.at);
            return;
        }
        let arrives = free + about.delay;
        let flight = &mut self.ports[wire].flight;
        let first = flight.is_empty();
        flight.push_back((arrives, packet));
        if first {
            self.schedule(arrives, Event::Arrive(wire));
        }
    }

    fn sample(&mut self) {
        let rates = (0..self.recorded_flows).map(|flow| self.rate_of(flow)).collect();
        let placed = self.memory.0.borrow();
        let delivered =
            (0..self.recorded_flows).map(|flow| placed[flow] - self.last_delivered[flow]).collect();
        self.last_delivered.copy_from_slice(&placed[..self.recorded_flows]);
        let queues = self.watched.iter().map(|(wire, _)| self.ports[*wire].data.bytes).collect();
        self.samples.push(Sample { at: self.now, queues, delivered, rates });
        drop(placed);
        if let Some(every) = self.every {
            self.schedule(self.now + every, Event::Sample);
        }
    }

    /// The time that a flow would take alone: the delays of the path, the time of its first packet on every wire, and the time
    /// of the others on the slowest wire.
    fn ideal(&self, flow: &Flow) -> u64 {
        let mtu = u64::from(self.adapter.mtu);
        // BTH, address and immediate in the first or only packet, ICRC, frame.
        let around = 16 + u64::from(crate::packet::FRAME);
        let packets = flow.size.div_ceil(mtu).max(1);
        let total = flow.size + packets * around + 20;
        let first = flow.size.min(mtu) + around + 16;
        let (mut node, mut time, mut slowest) = (flow.src, 0_u64, u64::MAX);
        while node != flow.dst {
            let wire = self.topology.wires[self.topology.next(node, flow.dst, 0)];
            time = time.saturating_add(wire.delay + serialization(first, wire.rate));
            slowest = slowest.min(wire.rate);
            node = wire.to;
        }
        time.saturating_add(serialization(total.saturating_sub(first), slowest))
    }

    /// The results of all flows.
    pub fn ended(&self) -> impl Iterator<Item = Ended> {
        let placed = self.memory.0.borrow().clone();
        self.flows.iter().zip(&self.progress).zip(placed).map(|((flow, progress), delivered)| Ended {
            flow: *flow,
            took: progress.delivered.map(|at| at - flow.start),
            ideal: self.ideal(flow),
            delivered,
            failed: progress.failed,
        })
    }

    /// Counters.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Simulated time, picoseconds.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// A node's name.
    #[must_use]
    pub fn name(&self, node: usize) -> &str {
        &self.topology.names[node]
    }

    /// The record, and the names of its queues.
    pub fn record(&self) -> (&[Sample], impl Iterator<Item = &str>) {
        (&self.samples, self.watched.iter().map(|(_, name)| name.as_str()))
    }

    /// From when on the report counts queues, picoseconds.
    #[must_use]
    pub const fn record_from(&self) -> u64 {
        self.record_from
    }

    /// The longest that a data queue was, by the names of its wire's ends, bytes.
    #[must_use]
    pub fn longest_queue(&self) -> (String, u64) {
        let longest = self.ports.iter().enumerate().max_by_key(|(_, port)| port.longest);
        longest.map_or_else(Default::default, |(wire, port)| {
            let wire = self.topology.wires[wire];
            (format!("{}-{}", self.name(wire.from), self.name(wire.to)), port.longest)
        })
    }

    /// For how long ports were paused, all together, picoseconds.
    #[must_use]
    pub fn paused(&self) -> u64 {
        let still = |port: &Port| if port.paused { self.now - port.paused_at } else { 0 };
        self.ports.iter().map(|port| port.paused_for + still(port)).sum()
    }
}
