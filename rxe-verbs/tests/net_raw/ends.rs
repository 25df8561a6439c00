//! Two raw links, and what lies between them.

use crate::netns::{self, Namespace, PATIENCE, frames::TaggingSwitch};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CpuSet, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};
use rxe_core::{
    endpoint,
    qp::Mtu,
    testing::{Carrier, Datagram, pair::address},
};
use rxe_verbs::net::{
    Encapsulation, Features, HeaderSeen, Ident, Link, RawLink, RecvBatch, Run, SendError, Transmit,
    UdpConfig, UdpLink,
};
use std::{net::IpAddr, time::Instant};

/// Of the two sides: on one interface their sockets are told apart by these alone.
const SLOTS: [u8; 2] = [1, 200];
const VLAN: &str = "vlan5";
/// Begins packets that nobody is to have: they end what a batch brings.
const MARK: [u8; 4] = [0xee; 4];
/// Milliseconds of a look for arrivals, and looks in vain before they are given up.
const LOOK: u8 = 5;
const LOOKS: u32 = 2_000;

/// From here on this thread, and those that it starts, run on one processor.
pub(crate) fn stay_on_one_processor() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

/// Two hosts, or one, and how they are joined.
pub(crate) struct Hosts {
    pub(crate) name: &'static str,
    /// Whether a batch that the kernel would cut arrives as one frame.
    pub(crate) merges: bool,
    namespaces: [Namespace; 2],
    /// Both sides are in the first of them.
    alone: bool,
    mtu: Mtu,
    features: Features,
    /// RoCEv2 comes by port 4791.
    by_port: bool,
    _switch: Option<TaggingSwitch>,
}

impl Hosts {
    fn new(name: &'static str, namespaces: [Namespace; 2], mtu: Mtu) -> Self {
        let features = Features::default();
        Self { name, merges: true, namespaces, alone: false, mtu, features, by_port: false, _switch: None }
    }

    /// Gives the hosts their addresses on interfaces.
    fn at(self, interfaces: [&str; 2]) -> Self {
        for (side, interface) in interfaces.into_iter().enumerate() {
            let namespace = self.namespace(side);
            namespace.ip(&format!("addr add {}/24 dev {interface}", address(false, side)));
            namespace.ip(&format!("addr add {}/64 dev {interface} nodad", address(true, side)));
        }
        self
    }

    fn namespace(&self, side: usize) -> &Namespace {
        &self.namespaces[if self.alone { 0 } else { side }]
    }

    /// Joined by a veth pair.
    pub(crate) fn veth(mtu: u32) -> Option<Self> {
        let (left, right) = netns::pair(mtu)?;
        let (name, mtu) = if mtu < 9000 { ("veth 1500", Mtu::M1024) } else { ("veth 9000", Mtu::M4096) };
        Some(Self::new(name, [left, right], mtu).at(["v0", "v1"]))
    }

    /// No two packets in one frame leave the interfaces.
    pub(crate) fn with_cut_batches(self) -> Self {
        for (namespace, interface) in self.namespaces.iter().zip(["v0", "v1"]) {
            namespace.cut_batches(interface);
        }
        Self { name: "veth, batches cut by the kernel", merges: false, ..self }
    }

    /// The links make every frame themselves.
    pub(crate) fn without_segmentation(self) -> Self {
        let features = Features { gso: false, ..Features::default() };
        Self { name: "veth without segmentation", merges: false, features, ..self }
    }

    /// RoCEv2 comes by port 4791, as with kernels before 6.2 after the first frame of several packets.
    pub(crate) fn by_port(self) -> Self {
        Self { by_port: true, ..self }
    }

    /// And the port's socket merges nothing.
    pub(crate) fn by_port_singly(self) -> Self {
        let features = Features { gro: false, ..Features::default() };
        Self { merges: false, features, ..self.by_port() }
    }

    /// Joined by a VLAN over a veth pair.
    pub(crate) fn vlan() -> Option<Self> {
        let (left, right) = netns::pair(1500)?;
        if !left.has_vlans("v0") {
            return None;
        }
        for (namespace, parent) in [(&left, "v0"), (&right, "v1")] {
            namespace.ip(&format!("link add link {parent} name {VLAN} type vlan id 5"));
            namespace.ip(&format!("link set {VLAN} up"));
            namespace.await_up(VLAN);
        }
        Some(Self::new("VLAN", [left, right], Mtu::M1024).at([VLAN; 2]))
    }

    /// Joined by a switch that tags every frame.
    pub(crate) fn tagged() -> Option<Self> {
        let (hosts, switch) = TaggingSwitch::new()?;
        let hosts = Self::new("priority tags", hosts, Mtu::M1024).at(["v0", "v1"]);
        Some(Self { merges: false, _switch: Some(switch), ..hosts })
    }

    /// One host, and both sides on its one interface.
    pub(crate) fn on_one_interface() -> Option<Self> {
        // The other end of the pair is there so that the interface is up.
        let (left, right) = netns::pair(1500)?;
        let hosts = Self::new("one interface", [left, right], Mtu::M1024);
        Some(Self { alone: true, ..hosts }.at(["v0", "v0"]))
    }

    /// New links of both sides; those from before have to be closed.
    pub(crate) fn links(&self) -> Vec<RawLink> {
        let link = |side: usize| {
            let [v4, v6] = [false, true].map(|ipv6| address(ipv6, side));
            let (IpAddr::V4(v4), IpAddr::V6(v6)) = (v4, v6) else { panic!("one of each") };
            let config = UdpConfig {
                v4: Some(v4),
                v6: Some(v6),
                slots: None,
                features: self.features,
                ..UdpConfig::default()
            };
            let open =
                move || RawLink::open(UdpLink::open(&config).unwrap(), SLOTS[side], false, &config).unwrap();
            let mut link = self.namespace(side).run(open);
            if self.by_port {
                link.take_by_port().unwrap();
            }
            link
        };
        vec![link(0), link(1)]
    }

    /// What carries packets between them.
    pub(crate) fn ends(&self) -> Ends {
        let arrivals = RecvBatch::default();
        Ends { links: self.links(), mtu: self.mtu, arrivals, marks: 0, batches: 0, packets: 0, merged: 0 }
    }
}

/// A raw link of each side.
#[derive(Debug)]
pub(crate) struct Ends {
    links: Vec<RawLink>,
    mtu: Mtu,
    arrivals: RecvBatch,
    marks: u64,
    /// Batches sent, and packets that came.
    pub(crate) batches: u64,
    pub(crate) packets: u64,
    /// Packets that came with others in one frame.
    pub(crate) merged: u64,
}

impl Ends {
    /// Begins again with new links.
    pub(crate) fn renew(&mut self, hosts: &Hosts) {
        self.links.clear();
        self.links = hosts.links();
    }

    /// Whether the kernel takes batches in one piece.
    pub(crate) fn are_cut_by_the_kernel(&self) -> bool {
        self.links.iter().all(|link| link.capabilities().gso)
    }

    /// Sends what nobody is to have, and takes everything that arrives before it.
    fn take_all(&mut self, from: usize, batch: &Transmit) -> Vec<Datagram> {
        self.marks += 1;
        let mut mark = MARK.to_vec();
        mark.extend([0, SLOTS[1 - from], 0xee, 0xee]);
        mark.extend(self.marks.to_be_bytes());
        mark.extend([0; 8]);
        self.links[from].send(&Transmit { segment_size: mark.len(), ..*batch }, &mark).unwrap();
        let (mut came, mut looks, start) = (Vec::new(), 0, Instant::now());
        loop {
            let any = self.links[1 - from].recv(&mut self.arrivals).unwrap();
            for run in self.arrivals.iter() {
                if run.bytes == mark {
                    return came;
                }
                if (run.src, run.dst) != (batch.src, batch.dst) {
                    // On one interface a sender takes what it has sent to all queue pairs of a group itself.
                    continue;
                }
                if run.packets().len() > 1 {
                    self.merged += run.packets().len() as u64;
                }
                datagrams(&run, &mut came);
            }
            if any == 0 {
                // Time in which this process was stopped is no time that a packet has had.
                looks += 1;
                let lost = looks > LOOKS && start.elapsed() > PATIENCE;
                assert!(!lost, "what was sent does not arrive: {:?}", self.links);
                // What waits for a neighbour leaves by this.
                self.links[from].recv(&mut self.arrivals).unwrap();
                let mut fds: Vec<_> = self.links[1 - from]
                    .poll_fds()
                    .into_iter()
                    .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                    .collect();
                poll(&mut fds, PollTimeout::from(LOOK)).unwrap();
            }
        }
    }
}

/// The packets of a run as the simulation has them.
fn datagrams(run: &Run<'_>, into: &mut Vec<Datagram>) {
    let mut seen = run.seen;
    for bytes in run.packets() {
        into.push(Datagram {
            src: run.src,
            dst: run.dst,
            src_port: run.src_port,
            tos: run.tos,
            hop_limit: run.ttl,
            ident: match seen {
                HeaderSeen::Seen { ident, .. } if run.src.is_ipv4() => ident,
                // A socket hides it: that of the packet at this place of the batch.
                HeaderSeen::Hidden if run.src.is_ipv4() => Ident::Sequential.of(into.len()),
                _ => 0,
            },
            encapsulation: seen.encapsulation(),
            bytes: bytes.to_vec(),
        });
        seen = seen.next();
    }
}

impl Carrier for Ends {
    fn slots(&self) -> [u8; 2] {
        SLOTS
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn carry(&mut self, from: usize, batch: &endpoint::Transmit, packets: &[u8]) -> Vec<Datagram> {
        assert_ne!(batch.encapsulation, Encapsulation::Memory);
        // Links have ports of their own, of which the simulation does not know.
        let source_port = self.links[from].capabilities().source_ports[0];
        let transmit = Transmit { source_port, ..Transmit::from(batch) };
        let thrown = self.links[1 - from].frame_drops().merged;
        let mut came = Vec::new();
        for _ in 0..2 {
            match self.links[from].send(&transmit, packets) {
                Ok(()) => {}
                Err(SendError::MessageTooLong { sent: 0 }) => return Vec::new(),
                Err(error) => panic!("{error}: {transmit:?}"),
            }
            came = self.take_all(from, &transmit);
            // The first of several packets in one frame is lost where the kernel (before 6.2) cannot give such frames.
            if !came.is_empty() || self.links[1 - from].frame_drops().merged == thrown {
                break;
            }
        }
        for datagram in came.iter_mut().filter(|datagram| datagram.encapsulation == Encapsulation::V2) {
            assert_eq!(datagram.src_port, source_port);
            datagram.src_port = batch.src_port;
        }
        self.batches += 1;
        self.packets += came.len() as u64;
        came
    }
}
