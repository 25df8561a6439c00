//! Two endpoints on two hosts, a wire in each direction, and a virtual clock, which jumps to the time of the next event.
//!
//! Every batch of an endpoint is checked (size, count, one destination socket, right ICRCs) before it is cut into packets. Packets that
//! arrive together are joined into runs, as a kernel's receive offload does.

use super::{
    carrier::Carrier,
    heap::Heap,
    link::{Datagram, Link, LinkConfig},
    pcap,
    trace::{Entry, Record, Trace},
};
use crate::{
    endpoint::{Acks, Endpoint, EndpointConfig, Run, RunMeta, Transmit},
    num::{Pkey, Qpn},
    qp::{ModifyError, PostError, QpChange},
    time::Instant,
    wire::{
        Class, Encapsulation, HeaderSeen, ICRC_LEN, Ident, Packet,
        icrc::{self, DONT_FRAGMENT, Route},
    },
    work::{AsyncEvent, Completion, CqId, Event, GidType, RecvWr, SendWr, SrqId},
};
use alloc::{collections::BTreeMap, collections::VecDeque, format, rc::Rc, string::String, vec, vec::Vec};
use core::{
    cell::RefCell,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

/// Largest number of bytes in a run, as in a kernel's receive offload.
const MAX_RUN: usize = 65_000;
/// Largest number of packets in a run.
const MAX_RUN_PACKETS: usize = 64;
/// If this many steps happen without the clock moving on, the endpoints are assumed never to come to rest.
const MAX_TURNS: u32 = 100_000;

/// Configuration of a [`Pair`].
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// Seed from which everything random follows.
    pub seed: u64,
    /// Name, for messages and the capture file of a failure.
    pub name: &'static str,
    /// Whether the hosts have IPv6 addresses, not IPv4.
    pub ipv6: bool,
    /// The wires: from side 0 to side 1, and back.
    pub links: [LinkConfig; 2],
    /// Configurations of the endpoints. Their seeds are ignored: they follow from `seed`.
    pub endpoints: [EndpointConfig; 2],
    /// Whether packets that arrive together are joined into runs.
    pub merge: bool,
    /// Whether receivers see the IPv4 ID, as on a raw link.
    pub show_headers: bool,
    /// What carries the packets.
    pub encapsulation: Encapsulation,
    /// The real wire that packets cross when they leave, if any. It determines slots and IPv4 IDs. Receivers see the headers then.
    pub carrier: Option<Rc<RefCell<dyn Carrier>>>,
    /// Whether acknowledgements leave at once, or wait for data or other acknowledgements with which they can leave.
    pub acks: Acks,
    /// Number of records that are kept, to be printed after a failure. 0: none.
    pub trace: usize,
    /// Size of each side's heap, bytes.
    pub heap: usize,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            name: "pair",
            ipv6: false,
            links: [LinkConfig::default(); 2],
            endpoints: [EndpointConfig::default(), EndpointConfig::default()],
            merge: true,
            show_headers: false,
            encapsulation: Encapsulation::V2,
            carrier: None,
            acks: Acks::Wait,
            trace: 20_000,
            heap: 1 << 20,
        }
    }
}

/// One host.
#[derive(Debug)]
pub struct Side {
    /// The endpoint under test.
    pub endpoint: Endpoint,
    /// The memory of its application.
    pub heap: Heap,
    /// Its address.
    pub addr: IpAddr,
    /// The wire on which it sends.
    pub link: Link,
    /// Completions not yet taken, by queue.
    completions: BTreeMap<CqId, VecDeque<(Completion, bool)>>,
    /// Asynchronous events not yet taken.
    pub async_events: VecDeque<AsyncEvent>,
    config: EndpointConfig,
    arena: Vec<u8>,
}

/// Two hosts, two wires and a clock.
#[derive(Debug)]
pub struct Pair {
    /// The time on the virtual clock.
    pub now: Instant,
    /// The hosts.
    pub sides: [Side; 2],
    /// Records of what happened.
    pub trace: Trace,
    config: PairConfig,
    drains: usize,
}

/// Addresses of the two hosts.
#[must_use]
pub const fn address(ipv6: bool, side: usize) -> IpAddr {
    let last = side as u8 + 1;
    if ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last as u16))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }
}

impl PairConfig {
    /// Type of both sides' GIDs.
    #[must_use]
    pub fn gid_type(&self) -> GidType {
        self.encapsulation.into()
    }
}

impl Pair {
    /// Two hosts without queue pairs.
    #[must_use]
    pub fn new(mut config: PairConfig) -> Self {
        if let Some(carrier) = &config.carrier {
            config.show_headers = true;
            for (endpoint, slot) in config.endpoints.iter_mut().zip(carrier.borrow().slots()) {
                (endpoint.slot, endpoint.ident) = (slot, Ident::Sequential);
            }
        }
        let side = |which: usize| {
            let seed = config.seed.wrapping_mul(4).wrapping_add(which as u64);
            let memory = config.encapsulation == Encapsulation::Memory;
            let endpoint_config = EndpointConfig { seed, memory, ..config.endpoints[which].clone() };
            Side {
                arena: vec![0; endpoint_config.max_batch],
                endpoint: Endpoint::new(endpoint_config.clone()),
                // The hosts have different addresses, so that an address of one does not exist on the other.
                heap: Heap::new(0x7f00_0000_0000 + ((which as u64) << 40), config.heap, seed),
                addr: address(config.ipv6, which),
                link: Link::new(config.links[which], seed ^ 0x5bd1_e995),
                completions: BTreeMap::new(),
                async_events: VecDeque::new(),
                config: endpoint_config,
            }
        };
        Self {
            // Not zero, so that a time of zero is seen to be wrong, and so that no packet has come for longer than a second.
            now: Instant::from_nanos(10_000_000_000),
            sides: [side(0), side(1)],
            trace: Trace::new(config.trace),
            config,
            drains: 0,
        }
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &PairConfig {
        &self.config
    }

    fn note(&mut self, side: usize, text: impl FnOnce() -> String) {
        if self.trace.is_on() {
            self.trace.note(self.now, side, text());
        }
    }

    /// Posts a send request, and then sends what the endpoint has to send.
    ///
    /// # Errors
    /// The error of the endpoint.
    pub fn post_send(&mut self, side: usize, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.note(side, || format!("post_send {qpn} id {} {:?} {:?}", wr.wr_id, wr.op, wr.flags));
        let outcome = self.sides[side].endpoint.post_send(self.now, qpn, wr);
        self.drain(side);
        outcome
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// The error of the endpoint.
    pub fn post_recv(&mut self, side: usize, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.note(side, || format!("post_recv {qpn} id {} {:?}", wr.wr_id, wr.sges));
        let outcome = self.sides[side].endpoint.post_recv(qpn, wr);
        self.drain(side);
        outcome
    }

    /// Posts a receive request to a shared queue.
    ///
    /// # Errors
    /// The error of the endpoint.
    pub fn post_srq_recv(&mut self, side: usize, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.note(side, || format!("post_srq_recv {srq:?} id {} {:?}", wr.wr_id, wr.sges));
        let outcome = self.sides[side].endpoint.post_srq_recv(srq, wr);
        self.drain(side);
        outcome
    }

    /// Modifies a queue pair.
    ///
    /// # Errors
    /// The error of the endpoint.
    pub fn modify(&mut self, side: usize, qpn: Qpn, change: &QpChange) -> Result<(), ModifyError> {
        self.note(side, || format!("modify {qpn} [{}] to {:?}", change.mask().names(), change.state));
        let Side { endpoint, heap, .. } = &mut self.sides[side];
        let outcome = endpoint.modify_qp(self.now, qpn, change, heap);
        self.drain(side);
        outcome
    }

    /// The oldest completion of a queue.
    pub fn poll_cq(&mut self, side: usize, cq: CqId) -> Option<Completion> {
        self.poll_cq_solicited(side, cq).map(|(wc, _)| wc)
    }

    /// The oldest completion of a queue, and whether it wakes a consumer that waits for solicited completions only.
    pub fn poll_cq_solicited(&mut self, side: usize, cq: CqId) -> Option<(Completion, bool)> {
        self.sides[side].completions.get_mut(&cq)?.pop_front()
    }

    /// All completions of a queue, oldest first.
    pub fn take_completions(&mut self, side: usize, cq: CqId) -> Vec<Completion> {
        core::iter::from_fn(|| self.poll_cq(side, cq)).collect()
    }

    /// Number of completions in all queues of a side.
    #[must_use]
    pub fn completions_waiting(&self, side: usize) -> usize {
        self.sides[side].completions.values().map(VecDeque::len).sum()
    }

    /// Takes all packets and events that the endpoint of `side` has, and checks its admission ([`Endpoint::check_admission`]).
    pub fn drain(&mut self, side: usize) {
        let mut batches = 0;
        while self.sides[side].link.holds_until(self.now).is_none() && self.transmit(side) {
            batches += 1;
            assert!(batches < MAX_TURNS, "side {side} sends without end");
        }
        // With many queue pairs the check takes long, so it is not made each time.
        self.drains = self.drains.wrapping_add(1);
        if self.drains.is_multiple_of(1 + self.sides[side].endpoint.qp_count() / 8) {
            self.sides[side].endpoint.check_admission();
        }
        while let Some(event) = self.sides[side].endpoint.poll_event() {
            self.note(side, || match event {
                Event::Completion { cq, solicited, wc } => format!("{cq:?} solicited {solicited} {wc:?}"),
                Event::Async(event) => format!("{event:?}"),
            });
            let side = &mut self.sides[side];
            match event {
                Event::Completion { cq, solicited, wc } => {
                    side.completions.entry(cq).or_default().push_back((wc, solicited));
                }
                Event::Async(event) => side.async_events.push_back(event),
            }
        }
    }

    /// Takes one batch and puts its packets on the wire. False if there is none.
    fn transmit(&mut self, which: usize) -> bool {
        let Side { endpoint, heap, arena, .. } = &mut self.sides[which];
        let Some(batch) = endpoint.poll_transmit(self.now, heap, arena, self.config.acks) else {
            return false;
        };
        self.check_batch(which, &batch);
        let side = &mut self.sides[which];
        let mut carried =
            self.config.carrier.as_ref().map(|carrier| {
                carrier.borrow_mut().carry(which, &batch, &side.arena[..batch.len]).into_iter()
            });
        for (index, bytes) in side.arena[..batch.len].chunks(batch.segment).enumerate() {
            let mut datagram = Datagram {
                src: batch.src,
                dst: batch.dst,
                src_port: batch.src_port,
                tos: batch.tos,
                hop_limit: if batch.hop_limit == 0 { 64 } else { batch.hop_limit },
                ident: batch.ident.of(index),
                encapsulation: batch.encapsulation,
                bytes: bytes.to_vec(),
            };
            if let Some(carried) = &mut carried {
                let came = carried.next();
                assert_eq!(came, Some(datagram.as_shown()), "packet {index} is not what came");
                datagram = came.unwrap_or(datagram);
            }
            let kept = self.trace.is_on().then(|| datagram.clone());
            let fate = side.link.send(self.now, datagram);
            if let Some(datagram) = kept {
                let entry = Entry::Packet { datagram, fate };
                self.trace.push(Record { at: self.now, side: which, entry });
            }
        }
        assert_eq!(carried.and_then(|mut carried| carried.next()), None, "more came than was sent");
        true
    }

    /// Checks what must be true for every batch.
    fn check_batch(&self, which: usize, batch: &Transmit) {
        let side = &self.sides[which];
        assert!(batch.len > 0 && batch.len <= side.config.max_batch, "{batch:?}");
        assert!(batch.segment > 0, "{batch:?}");
        assert_eq!(batch.count, batch.len.div_ceil(batch.segment), "{batch:?}");
        assert!(batch.count <= usize::from(side.config.max_segments), "{batch:?}");
        assert_eq!(batch.src, side.addr, "{batch:?}");
        assert!(side.config.source_ports.contains(&batch.src_port), "{batch:?}");
        assert_eq!((batch.ident, batch.encapsulation), (side.config.ident, self.config.encapsulation));
        let route = batch.route();
        let mut slot = None;
        for (index, bytes) in side.arena[..batch.len].chunks(batch.segment).enumerate() {
            let packet = Packet::decode(bytes).unwrap_or_else(|error| panic!("sent {bytes:02x?}: {error}"));
            let ident = batch.ident.of(index);
            // A FLUSH that was not answered is sent again with kernel rxe's ICRC, because the peer may run kernel rxe.
            let sealed = batch.encapsulation == Encapsulation::Memory
                || icrc::check(&route, ident, DONT_FRAGMENT, bytes)
                || packet.info.class == Class::Flush && is_rxe_flush(&route, ident, bytes);
            assert!(sealed, "sent with a wrong ICRC: {packet}");
            assert_eq!(bytes.len() % 4, 0, "{packet}");
            assert_ne!(packet.bth.pkey, Pkey(0), "{packet}");
            let this = packet.bth.dest_qp.slot();
            assert_eq!(*slot.get_or_insert(this), this, "a batch for two sockets: {packet}");
        }
    }

    /// Hands over the packets that have arrived at `to`, joined into runs. False if there were none.
    fn deliver(&mut self, to: usize) -> bool {
        let mut next = self.sides[1 - to].link.receive(self.now);
        let any = next.is_some();
        let mut bytes = Vec::new();
        while let Some(first) = next.take() {
            bytes.clear();
            bytes.extend_from_slice(&first.bytes);
            let (segment, mut count) = (first.bytes.len(), 1);
            next = self.sides[1 - to].link.receive(self.now);
            while let Some(more) = next.take() {
                let same = (more.src, more.dst, more.src_port) == (first.src, first.dst, first.src_port)
                    && (more.tos, more.hop_limit) == (first.tos, first.hop_limit);
                let joins = self.config.merge && (!self.config.show_headers || follows(&first, &more, count));
                let whole = bytes.len() == count * segment;
                let fits = bytes.len() + more.bytes.len() <= MAX_RUN && count < MAX_RUN_PACKETS;
                if !(joins && same && whole && fits && more.bytes.len() <= segment) {
                    next = Some(more);
                    break;
                }
                bytes.extend_from_slice(&more.bytes);
                count += 1;
                next = self.sides[1 - to].link.receive(self.now);
            }
            let seen = seen(&first, self.config.show_headers);
            let meta = RunMeta {
                src: first.src,
                dst: first.dst,
                src_port: first.src_port,
                ifindex: 1,
                tos: first.tos,
                hop_limit: first.hop_limit,
                seen,
            };
            let Side { endpoint, heap, .. } = &mut self.sides[to];
            endpoint.handle_run(self.now, &Run { meta, bytes: &bytes, segment }, heap);
            self.drain(to);
        }
        any
    }

    /// Hands a datagram that the test made to the endpoint of `to`: directly, or over the real wire if there is one.
    pub fn inject(&mut self, to: usize, datagram: &Datagram) {
        self.note(to, || format!("injected: {:02x?}", datagram.bytes));
        let Some(carrier) = self.config.carrier.clone() else { return self.hand(to, datagram) };
        let carried = carrier.borrow_mut().carry(1 - to, &datagram.batch(), &datagram.bytes);
        carried.iter().for_each(|datagram| self.hand(to, datagram));
    }

    fn hand(&mut self, to: usize, datagram: &Datagram) {
        let meta = RunMeta {
            src: datagram.src,
            dst: datagram.dst,
            src_port: datagram.src_port,
            ifindex: 1,
            tos: datagram.tos,
            hop_limit: datagram.hop_limit,
            seen: seen(datagram, true),
        };
        let Side { endpoint, heap, .. } = &mut self.sides[to];
        endpoint.handle_run(self.now, &Run { meta, bytes: &datagram.bytes, segment: 0 }, heap);
        self.drain(to);
    }

    /// The time of the next event: a packet arrives, a timer of an endpoint runs out, or a full wire takes more.
    #[must_use]
    pub fn next_event(&self) -> Option<Instant> {
        let side = |side: &Side| {
            // If a timer has run out, but the wire takes no more, then what is due leaves when the wire takes more.
            let held = side.link.holds_until(self.now);
            let timeout =
                side.endpoint.poll_timeout().map(|at| held.filter(|_| at <= self.now).unwrap_or(at));
            [side.link.next_arrival(), timeout, held.filter(|_| side.endpoint.may_transmit())]
        };
        self.sides.iter().flat_map(side).flatten().min()
    }

    /// Moves the clock to the next event and lets it happen. False if there is none until `limit`.
    pub fn step(&mut self, limit: Instant) -> bool {
        let Some(next) = self.next_event().filter(|&next| next <= limit) else { return false };
        self.now = self.now.max(next);
        for side in 0..2 {
            self.deliver(side);
            if self.sides[side].endpoint.poll_timeout().is_some_and(|timeout| timeout <= self.now) {
                let Side { endpoint, heap, .. } = &mut self.sides[side];
                endpoint.handle_timeout(self.now, heap);
                self.drain(side);
            }
            if self.sides[side].link.config().hold != 0 {
                self.drain(side);
            }
        }
        true
    }

    /// Runs until nothing is on the wire and no timer is set, but not longer than `limit`. False if something was left then.
    pub fn run_until_idle_for(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        self.run(end);
        self.next_event().is_none()
    }

    /// Runs until nothing is on the wire and no timer is set.
    ///
    /// # Panics
    /// If that takes more than an hour of virtual time.
    pub fn run_until_idle(&mut self) {
        assert!(self.run_until_idle_for(Duration::from_secs(3600)), "still at work after an hour");
    }

    /// Runs for exactly this long.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.run(end);
        self.now = end;
    }

    /// Runs as long as `busy` is true, but not longer than `limit`. False if it is still true then.
    pub fn run_while(&mut self, limit: Duration, mut busy: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        while busy(self) {
            if !self.step(end) {
                return !busy(self);
            }
        }
        true
    }

    fn run(&mut self, end: Instant) {
        let (mut turns, mut last) = (0, self.now);
        while self.step(end) {
            turns = if self.now == last { turns + 1 } else { 0 };
            last = self.now;
            assert!(turns < MAX_TURNS, "time stands still at {:?}", self.now);
        }
    }

    /// Writes the recorded packets to a capture file. Returns its path.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn write_capture(&self) -> std::io::Result<std::path::PathBuf> {
        let folder = std::env::var_os("RXE_FAILURES")
            .map_or_else(|| std::env::temp_dir().join("rxe-failures"), std::path::PathBuf::from);
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}-{}.pcapng", self.config.name, self.config.seed));
        std::fs::write(&path, pcap::pcapng(&self.trace))?;
        Ok(path)
    }

    /// Prints the records and the path of the capture file.
    pub fn print_evidence(&self) {
        std::eprintln!("---- {} with seed {}: what happened ----", self.config.name, self.config.seed);
        let records: Vec<_> = self.trace.records().collect();
        let from = records.len().saturating_sub(400);
        if from > 0 || self.trace.forgotten() > 0 {
            std::eprintln!("({} earlier records left out)", from as u64 + self.trace.forgotten());
        }
        for record in &records[from..] {
            std::eprintln!("{record}");
        }
        match self.write_capture() {
            Ok(path) => std::eprintln!("---- capture: {}", path.display()),
            Err(error) => std::eprintln!("---- no capture: {error}"),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() && self.trace.is_on() {
            self.print_evidence();
        }
    }
}

/// Whether a datagram may follow `count` others, of which `first` is the first one, in a frame whose headers are shown.
fn follows(first: &Datagram, more: &Datagram, count: usize) -> bool {
    first.encapsulation == Encapsulation::V2
        && (!first.is_numbered() || more.ident == first.ident.wrapping_add(count as u16))
}

/// What a link shows of a datagram's headers.
const fn seen(datagram: &Datagram, show: bool) -> HeaderSeen {
    match datagram.encapsulation {
        Encapsulation::V2 if show => HeaderSeen::Seen { ident: datagram.ident, fragment: DONT_FRAGMENT },
        Encapsulation::V2 => HeaderSeen::Hidden,
        Encapsulation::V1 => HeaderSeen::Grh,
        Encapsulation::Memory => HeaderSeen::Bare,
    }
}

/// Whether a FLUSH carries the ICRC that kernel rxe computes for it.
fn is_rxe_flush(route: &Route, ident: u16, packet: &[u8]) -> bool {
    let (body, icrc) = packet.split_at(packet.len() - ICRC_LEN);
    let standard = icrc::compute(route, ident, DONT_FRAGMENT, body);
    icrc::rxe_flush(standard, body).to_le_bytes() == icrc
}
