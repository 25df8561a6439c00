//! Our protocol core as a device under test, in memory and on simulated time. This is the only file that uses rxe-core. It
//! takes the roles of the operating system (addresses, UDP, time, memory) and of the verbs library.

use super::{
    About, Access, Answer, Change, Dut, Feature, Handle, Mr, Qp, QpSpec, RecvWr, Refusal, SendWr, Service,
    State, Wc,
    convert::{CAPS, STATES, change_of, dest, event_name, flags, in_words, operation, rights, service, sges},
};
use crate::link::{Arrival, Link, LinkError, Unsent};
use rxe_core::{
    endpoint::{Acks, Endpoint, EndpointConfig, Run, RunMeta},
    num::{Key, Qpn},
    qp::QpConfig,
    region::WindowType,
    testing::heap::Heap,
    time::Instant,
    wire::HeaderSeen,
    work::{self, AsyncEvent, BindWindow, Completion, CqId, Event, PdId, SendOp, SrqId},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    rc::Rc,
    time::Duration,
};

/// Size of the device's memory in bytes. It is allocated anew for every case.
const MEMORY: usize = 2 << 20;
/// The address of its first byte.
const BASE: u64 = 0x7f00_0000_0000;
/// The XRC domain.
const XRCD: work::XrcdId = work::XrcdId(1);
/// If the core sends this many batches at one moment, it counts as a device that sends without end.
const MOST_BATCHES: u32 = 100_000;
/// The start value of its clock, in nanoseconds. It is not zero, so that a time of zero is noticed as an error.
const START: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Object {
    Pd(PdId),
    Mr(Key),
    Mw(Key, PdId),
    Cq(CqId),
    Srq(SrqId),
    /// With the shared receive queue that it uses, if any.
    Qp(Qpn, Option<SrqId>),
}

struct Machine {
    endpoint: Endpoint,
    heap: Heap,
    now: Instant,
    /// Packets that the device has sent and that have not been taken from it yet.
    sent: VecDeque<Vec<u8>>,
    completions: BTreeMap<CqId, VecDeque<Completion>>,
    events: VecDeque<AsyncEvent>,
    objects: BTreeMap<Handle, Object>,
    next: u64,
    arena: Vec<u8>,
    seed: u64,
    own: IpAddr,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("now", &self.now).finish_non_exhaustive()
    }
}

fn config(seed: u64) -> EndpointConfig {
    EndpointConfig { seed, ..EndpointConfig::default() }
}

impl Machine {
    fn new(own: IpAddr) -> Self {
        let config = config(1);
        Self {
            arena: vec![0; config.max_batch],
            endpoint: Endpoint::new(config),
            heap: Heap::new(BASE, MEMORY, 1),
            now: Instant::from_nanos(START),
            sent: VecDeque::new(),
            completions: BTreeMap::new(),
            events: VecDeque::new(),
            objects: BTreeMap::new(),
            next: 1,
            seed: 1,
            own,
        }
    }

    fn add(&mut self, object: Object) -> Handle {
        let handle = self.next;
        self.next += 1;
        self.objects.insert(handle, object);
        handle
    }

    fn pd(&self, handle: Handle) -> Answer<PdId> {
        match self.objects.get(&handle) {
            Some(Object::Pd(pd)) => Ok(*pd),
            _ => Err(Refusal::words("no such protection domain")),
        }
    }

    fn cq(&self, handle: Handle) -> Answer<CqId> {
        match self.objects.get(&handle) {
            Some(Object::Cq(cq)) => Ok(*cq),
            _ => Err(Refusal::words("no such completion queue")),
        }
    }

    fn srq(&self, handle: Handle) -> Answer<SrqId> {
        match self.objects.get(&handle) {
            Some(Object::Srq(srq)) => Ok(*srq),
            _ => Err(Refusal::words("no such shared receive queue")),
        }
    }

    fn qp(&self, handle: Handle) -> Answer<(Qpn, Option<SrqId>)> {
        match self.objects.get(&handle) {
            Some(Object::Qp(qpn, srq)) => Ok((*qpn, *srq)),
            _ => Err(Refusal::words("no such queue pair")),
        }
    }

    /// Takes all packets and events that the endpoint has ready.
    fn drain(&mut self) {
        let mut batches = 0;
        while let Some(batch) = self.endpoint.poll_transmit(self.now, &self.heap, &mut self.arena, Acks::Wait)
        {
            batches += 1;
            assert!(batches < MOST_BATCHES, "the device sends without end");
            for (index, bytes) in self.arena[..batch.len].chunks(batch.segment).enumerate() {
                let hop_limit = if batch.hop_limit == 0 { 64 } else { batch.hop_limit };
                let meta = (batch.src, batch.dst, batch.src_port, batch.tos, hop_limit, index as u16);
                self.sent.push_back(wrapped(meta, bytes));
            }
        }
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Completion { cq, wc, .. } => self.completions.entry(cq).or_default().push_back(wc),
                Event::Async(event) => self.events.push_back(event),
            }
        }
    }

    /// Processes an IP packet as a host does before the RoCE stack sees it.
    fn deliver(&mut self, ip: &[u8]) -> Option<()> {
        let v4 = ip.first()? >> 4 == 4;
        let (header, tos, hop_limit) = if v4 { (20, ip[1], *ip.get(8)?) } else { (40, 0, *ip.get(7)?) };
        let tos = if v4 { tos } else { (u16::from_be_bytes([ip[0], ip[1]]) >> 4) as u8 };
        let ends = crate::wire::ends_of(ip)?;
        let word = |at: usize| Some(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?]));
        let (ident, fragment) = if v4 { (word(4)?, word(6)?) } else { (0, 0) };
        let is_whole = fragment & 0x3fff == 0;
        if ends.dst != self.own && !ends.dst.is_multicast() || !is_whole || v4 && ip[0] != 0x45 {
            return None;
        }
        let udp = ip.get(header..)?;
        let length = usize::from(word(header + 4)?);
        let bytes = udp.get(8..length)?;
        let meta = RunMeta {
            src: ends.src,
            dst: ends.dst,
            src_port: ends.sport,
            ifindex: 1,
            tos,
            hop_limit,
            seen: HeaderSeen::Seen { ident, fragment },
        };
        self.endpoint.handle_run(self.now, &Run { meta, bytes, segment: 0 }, &self.heap);
        self.drain();
        Some(())
    }

    /// Advances time until the device sends a packet, at most until `end`.
    fn run_until(&mut self, end: Instant) {
        while self.sent.is_empty() {
            match self.endpoint.poll_timeout().filter(|&due| due <= end) {
                Some(due) => {
                    self.now = self.now.max(due);
                    self.endpoint.handle_timeout(self.now, &self.heap);
                    self.drain();
                }
                None => {
                    self.now = end;
                    return;
                }
            }
        }
    }
}

type Meta = (IpAddr, IpAddr, u16, u8, u8, u16);

/// The IP packet that a host makes of a RoCE packet.
fn wrapped((src, dst, sport, tos, hop_limit, ident): Meta, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u16 + 8;
    let mut ip = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = vec![0x45, tos];
            for word in [length + 20, ident, 0x4000] {
                ip.extend(word.to_be_bytes());
            }
            ip.extend([hop_limit, 17, 0, 0]);
            ip.extend(src.octets());
            ip.extend(dst.octets());
            let sum: u32 = ip.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            ip
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut ip = (0x6000_0000 | u32::from(tos) << 20).to_be_bytes().to_vec();
            ip.extend(length.to_be_bytes());
            ip.extend([17, hop_limit]);
            ip.extend(src.octets());
            ip.extend(dst.octets());
            ip
        }
        _ => Vec::new(),
    };
    for word in [sport, crate::wire::PORT, length, 0] {
        ip.extend(word.to_be_bytes());
    }
    ip.extend(bytes);
    ip
}

/// The core as a device.
#[derive(Debug)]
pub struct CoreDut {
    machine: Rc<RefCell<Machine>>,
    about: About,
}

/// The link to it: packets arrive at once, and time jumps to the next event.
#[derive(Debug)]
pub struct MemoryLink {
    machine: Rc<RefCell<Machine>>,
    own: IpAddr,
}

/// A device and the link to it.
#[must_use]
pub fn open(ipv6: bool) -> (CoreDut, MemoryLink) {
    let address = |last: u8| -> IpAddr {
        if ipv6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)).into()
        } else {
            Ipv4Addr::new(10, 0, 0, last).into()
        }
    };
    let machine = Rc::new(RefCell::new(Machine::new(address(2))));
    let features = [
        Feature::AtomicWrite,
        Feature::Flush,
        Feature::Xrc,
        Feature::Windows,
        Feature::Srq,
        Feature::Uc,
        Feature::IpHeader,
        Feature::Udp,
        Feature::ExactTime,
        Feature::ManyQps,
        Feature::Unchecked,
        Feature::Multicast,
    ];
    let about = About {
        name: "core".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        address: address(2),
        features: features.into(),
        path_mtu: None,
    };
    (CoreDut { machine: Rc::clone(&machine), about }, MemoryLink { machine, own: address(1) })
}

impl Link for MemoryLink {
    fn own(&self) -> IpAddr {
        self.own
    }

    fn source_port(&self) -> u16 {
        0xc000
    }

    fn send(&mut self, ip: &[u8]) -> Result<(), Unsent> {
        self.machine.borrow_mut().deliver(ip);
        Ok(())
    }

    fn recv(&mut self, within: Duration) -> Result<Option<Arrival>, LinkError> {
        let mut machine = self.machine.borrow_mut();
        let end = machine.now + within;
        machine.run_until(end);
        Ok(machine.sent.pop_front().map(|ip| Arrival { ip, header_seen: true }))
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.machine.borrow().now.nanos() - START)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn calm(&self) -> Duration {
        Duration::from_millis(2)
    }
}

impl Dut for CoreDut {
    fn about(&self) -> &About {
        &self.about
    }

    fn reset(&mut self) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        machine.seed += 1;
        let seed = machine.seed;
        machine.endpoint = Endpoint::new(config(seed));
        machine.heap = Heap::new(BASE, MEMORY, seed);
        machine.sent.clear();
        machine.completions.clear();
        machine.events.clear();
        machine.objects.clear();
        Ok(())
    }

    fn pd(&mut self) -> Answer<Handle> {
        let mut machine = self.machine.borrow_mut();
        let pd = PdId(machine.next as u32);
        Ok(machine.add(Object::Pd(pd)))
    }

    fn mr(&mut self, pd: Handle, length: usize, access: &[Access]) -> Answer<Mr> {
        let mut machine = self.machine.borrow_mut();
        let pd = machine.pd(pd)?;
        let (addr, key) = machine.heap.alloc_registered(pd, length as u64, rights(access));
        let handle = machine.add(Object::Mr(key));
        Ok(Mr { handle, addr, length, lkey: key.0, rkey: key.0 })
    }

    fn mem_write(&mut self, mr: &Mr, offset: usize, data: &[u8]) -> Answer<()> {
        self.machine.borrow().heap.set(mr.addr + offset as u64, data);
        Ok(())
    }

    fn mem_read(&mut self, mr: &Mr, offset: usize, length: usize) -> Answer<Vec<u8>> {
        Ok(self.machine.borrow().heap.get(mr.addr + offset as u64, length as u64))
    }

    fn cq(&mut self, _cqe: u32) -> Answer<Handle> {
        let mut machine = self.machine.borrow_mut();
        let cq = CqId(machine.next as u32);
        Ok(machine.add(Object::Cq(cq)))
    }

    fn srq(&mut self, pd: Handle, max_wr: u32) -> Answer<Handle> {
        let mut machine = self.machine.borrow_mut();
        let pd = machine.pd(pd)?;
        let srq = machine.endpoint.create_srq(pd, max_wr, 4).map_err(Refusal::words)?;
        Ok(machine.add(Object::Srq(srq)))
    }

    fn srq_limit(&mut self, srq: Handle, limit: u32) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        let srq = machine.srq(srq)?;
        machine.endpoint.modify_srq(srq, None, Some(limit)).map_err(Refusal::words)?;
        machine.drain();
        Ok(())
    }

    fn qp(&mut self, spec: &QpSpec) -> Answer<Qp> {
        let mut machine = self.machine.borrow_mut();
        let (pd, recv_cq) = (machine.pd(spec.pd)?, machine.cq(spec.recv_cq)?);
        let target = spec.service == Service::XrcTarget;
        let (mut queue, mut srq_number) = (spec.srq.map(|srq| machine.srq(srq)).transpose()?, 0);
        if target {
            let made =
                machine.endpoint.create_xrc_srq(pd, (XRCD, recv_cq), 128, 4).map_err(Refusal::words)?;
            (queue, srq_number) = (Some(made.0), made.1);
        }
        let config = QpConfig {
            qp_type: service(spec.service),
            pd,
            send_cq: machine.cq(spec.send_cq)?,
            recv_cq,
            srq: queue.filter(|_| !target),
            xrcd: target.then_some(XRCD),
            caps: CAPS,
            signal_all: spec.sig_all,
        };
        let qpn = machine.endpoint.create_qp(config).map_err(Refusal::words)?;
        let handle = machine.add(Object::Qp(qpn, queue));
        Ok(Qp { handle, qpn: qpn.value(), srq_number })
    }

    fn modify(&mut self, qp: Handle, change: &Change) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        let (qpn, _) = machine.qp(qp)?;
        let Machine { endpoint, heap, now, .. } = &mut *machine;
        endpoint.modify_qp(*now, qpn, &change_of(change), heap).map_err(Refusal::words)?;
        machine.drain();
        Ok(())
    }

    fn state(&mut self, qp: Handle) -> Answer<State> {
        let machine = self.machine.borrow();
        let (qpn, _) = machine.qp(qp)?;
        let (attrs, _) =
            machine.endpoint.query_qp(qpn).ok_or_else(|| Refusal::words("no such queue pair"))?;
        Ok(STATES.iter().find(|pair| pair.1 == attrs.state).map_or(State::Reset, |pair| pair.0))
    }

    fn post_recv(&mut self, qp: Handle, wr: &RecvWr) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        let (qpn, srq) = machine.qp(qp)?;
        let sges = sges(&wr.sge);
        let wr = work::RecvWr { wr_id: wr.wr_id, sges: &sges };
        match srq {
            Some(srq) => machine.endpoint.post_srq_recv(srq, &wr),
            None => machine.endpoint.post_recv(qpn, &wr),
        }
        .map_err(Refusal::words)?;
        machine.drain();
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: Handle, wr: &RecvWr) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        let srq = machine.srq(srq)?;
        let sges = sges(&wr.sge);
        let wr = work::RecvWr { wr_id: wr.wr_id, sges: &sges };
        machine.endpoint.post_srq_recv(srq, &wr).map_err(Refusal::words)
    }

    fn post_send(&mut self, qp: Handle, wr: &SendWr) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        let (qpn, _) = machine.qp(qp)?;
        let sges = sges(&wr.sge);
        let mut made = work::SendWr::new(wr.wr_id, operation(&wr.op), &sges);
        made.flags = flags(&wr.flags);
        made.dest = wr.dest.as_ref().map(dest);
        let now = machine.now;
        machine.endpoint.post_send(now, qpn, &made).map_err(Refusal::words)?;
        machine.drain();
        Ok(())
    }

    fn poll(&mut self, cq: Handle) -> Answer<Vec<Wc>> {
        let mut machine = self.machine.borrow_mut();
        let cq = machine.cq(cq)?;
        Ok(machine
            .completions
            .get_mut(&cq)
            .map(|list| list.drain(..).map(|wc| in_words(&wc)).collect())
            .unwrap_or_default())
    }

    fn async_event(&mut self) -> Answer<Option<String>> {
        let event = self.machine.borrow_mut().events.pop_front();
        Ok(event.map(|event| event_name(event).to_owned()))
    }

    fn mw(&mut self, pd: Handle, kind: u8) -> Answer<(Handle, u32)> {
        let mut machine = self.machine.borrow_mut();
        let pd = machine.pd(pd)?;
        let kind = if kind == 1 { WindowType::One } else { WindowType::Two };
        let key = machine.heap.alloc_window(pd, kind);
        Ok((machine.add(Object::Mw(key, pd)), key.0))
    }

    fn bind_mw(
        &mut self,
        qp: Handle,
        mw: Handle,
        mr: &Mr,
        range: (usize, usize),
        access: &[Access],
    ) -> Answer<u32> {
        let mut machine = self.machine.borrow_mut();
        let (qpn, _) = machine.qp(qp)?;
        let Some(&Object::Mw(key, pd)) = machine.objects.get(&mw) else {
            return Err(Refusal::words("no such window"));
        };
        let new_rkey = key.rotated();
        let bind = BindWindow {
            window: key,
            new_rkey,
            region: Key(mr.lkey),
            addr: mr.addr + range.0 as u64,
            len: range.1 as u64,
            access: rights(access),
        };
        let now = machine.now;
        let wr = work::SendWr::new(0, SendOp::BindWindow(bind), &[]);
        machine.endpoint.post_send(now, qpn, &wr).map_err(Refusal::words)?;
        machine.objects.insert(mw, Object::Mw(new_rkey, pd));
        machine.drain();
        Ok(new_rkey.0)
    }

    fn attach(&mut self, qp: Handle, group: IpAddr) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        let (qpn, _) = machine.qp(qp)?;
        machine.endpoint.attach_multicast(qpn, group).map_err(Refusal::words)
    }

    fn detach(&mut self, qp: Handle, group: IpAddr) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        let (qpn, _) = machine.qp(qp)?;
        machine.endpoint.detach_multicast(qpn, group).map_err(Refusal::words)
    }

    fn close(&mut self, handle: Handle) -> Answer<()> {
        let mut machine = self.machine.borrow_mut();
        match machine.objects.remove(&handle) {
            Some(Object::Qp(qpn, _)) => machine.endpoint.destroy_qp(qpn).map_err(Refusal::words)?,
            Some(Object::Srq(srq)) => machine.endpoint.destroy_srq(srq).map_err(Refusal::words)?,
            Some(Object::Mr(key) | Object::Mw(key, _)) => {
                if !machine.heap.deregister(key) {
                    return Err(Refusal::words("the region is in use"));
                }
            }
            Some(Object::Pd(_) | Object::Cq(_)) => {}
            None => return Err(Refusal::words("no such object")),
        }
        machine.drain();
        Ok(())
    }
}
