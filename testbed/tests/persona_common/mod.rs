//! The persona at one end of a veth pair, our stack over its UDP socket at the other.

#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../../../rxe-verbs/tests/verbs_common/mod.rs"]
mod verbs_common;

pub(crate) use verbs_common::pattern;

use rxe_verbs::{
    Completion, Context, ContextOptions, Gid, Messages, Mtu, Psn, QpChange, QpState, QpType, Qpn, SendOp,
    SendWr, WcOpcode, WcStatus,
};
use std::{
    io::Write,
    net::{IpAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};
use testbed::persona::{Card, Numbers, Pair, Persona, mac};
use verbs_common::{End, PATIENCE, namespaces, netns::Namespace};

/// Path MTU of all connections.
pub(crate) const MTU: usize = 1024;
/// Sizes of messages around all that matters.
pub(crate) const SIZES: [usize; 8] = [0, 1, 3, 1023, 1024, 1025, 3072, 9001];
/// A timeout code that never runs out: where nothing gets lost nothing may be sent again.
pub(crate) const NEVER: u8 = 0;
/// 67 ms.
pub(crate) const SHORT: u8 = 14;

/// Laws that any traffic checks.
const ALWAYS: [&str; 9] = [
    "ICRC right",
    "UDP length is the packet's",
    "MigReq 1",
    "transport version 0",
    "P_Key 0xffff",
    "reserved, FECN and BECN bits 0",
    "pad count right, pad zero",
    "TTL or hop limit 64",
    "destination QP is ours",
];

/// The two of them.
pub(crate) struct Stage {
    pub(crate) persona: Persona,
    pub(crate) context: Context,
    address: IpAddr,
    /// Takes what the kernel at the persona's end would answer with "port unreachable"; never read.
    _sink: UdpSocket,
    _namespaces: (Namespace, Namespace),
}

/// Runs `test` over IPv4 and over IPv6; without root says that it does not.
pub(crate) fn both_families(test: impl Fn(Stage)) {
    both_families_with(Messages::default(), test);
}

/// The same, with WRITEs of ours in that form.
pub(crate) fn both_families_with(messages: Messages, test: impl Fn(Stage)) {
    if !nix::unistd::geteuid().is_root() {
        // Past the test harness, which would keep it to itself.
        let name = thread::current().name().unwrap_or("a test").to_owned();
        let _ = writeln!(std::io::stderr(), "skipped: needs root ({name})");
        return;
    }
    for (own, peer) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
        println!("persona {own}, our stack {peer}");
        test(stage(own.parse().unwrap(), peer.parse().unwrap(), messages));
    }
}

fn stage(own: IpAddr, peer: IpAddr, messages: Messages) -> Stage {
    let (left, right) = namespaces(1500).expect("root may make network namespaces");
    // The persona is to see packets as they would be on a wire, not batches that only a real card would cut.
    right.ip("link set dev v1 gso_max_segs 1");
    let (own_mac, peer_mac) = (left.run(|| mac("v0").unwrap()), right.run(|| mac("v1").unwrap()));
    // Looking for a neighbour can take a second, longer than the queue pairs' patience.
    for (space, interface, address, mac) in [(&right, "v1", own, own_mac), (&left, "v0", peer, peer_mac)] {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        space.ip(&format!("neigh replace {address} lladdr {mac} dev {interface} nud permanent"));
    }
    await_road((&left, own), (&right, peer));
    let sink = left.run(move || UdpSocket::bind((own, 4791)).unwrap());
    let card = left.run(move || Card::open("v0", own, peer, peer_mac).unwrap());
    let context = right.run(move || ContextOptions::new().messages(messages).open_address(peer).unwrap());
    Stage { persona: Persona::new(card), context, address: own, _sink: sink, _namespaces: (left, right) }
}

/// Waits until datagrams pass both ways: a new address is not routed to at once, and what comes before is lost.
fn await_road(one: (&Namespace, IpAddr), other: (&Namespace, IpAddr)) {
    let socket = |end: (&Namespace, IpAddr)| {
        let socket = end.0.run(move || UdpSocket::bind((end.1, 0)).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        socket
    };
    let (one, other) = (socket(one), socket(other));
    for (from, to) in [(&one, &other), (&other, &one)] {
        let start = Instant::now();
        let arrives = || {
            // Without a route yet this is an error.
            let _ = from.send_to(b"?", to.local_addr().unwrap());
            to.recv(&mut [0]).is_ok()
        };
        while !arrives() {
            assert!(start.elapsed() < PATIENCE, "no way from {from:?} to {to:?}");
        }
    }
}

impl Stage {
    /// A connection between a queue pair of the persona's and one of ours, with so many bytes registered; the first PSNs
    /// are close to the turn of the circle. The persona's timeout is on if ours is.
    pub(crate) fn connect(&mut self, bytes: usize, timeout: u8) -> (usize, End) {
        let end = End::new(&self.context, QpType::Rc, bytes);
        let number = self.persona.pairs.len() as u32;
        let numbers = Numbers {
            own_qpn: 0x0001_0e4b + number,
            peer_qpn: end.qp.qpn().value(),
            own_psn: 0xff_fffa,
            peer_psn: 0xff_fff0,
            mtu: MTU,
        };
        verbs_common::to_init(&end.qp);
        let av = self.context.address_vector(0, Gid::from(self.address)).unwrap();
        end.qp
            .modify(&QpChange {
                state: Some(QpState::Rtr),
                av: Some(av),
                path_mtu: Some(Mtu::M1024),
                dest_qpn: Some(Qpn::new(numbers.own_qpn)),
                rq_psn: Some(Psn::new(numbers.own_psn)),
                max_dest_rd_atomic: Some(16),
                min_rnr_timer: Some(12),
                ..QpChange::default()
            })
            .unwrap();
        end.qp
            .modify(&QpChange {
                state: Some(QpState::Rts),
                sq_psn: Some(Psn::new(numbers.peer_psn)),
                timeout: Some(timeout),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(16),
                ..QpChange::default()
            })
            .unwrap();
        let pair = self.persona.connect(numbers);
        if timeout != NEVER {
            self.pair(pair).requester.timeout = Some(Duration::from_millis(100));
        }
        (pair, end)
    }

    pub(crate) const fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    pub(crate) fn pair(&mut self, index: usize) -> &mut Pair {
        &mut self.persona.pairs[index]
    }

    /// Lets the persona work until `count` completions came to us.
    pub(crate) fn completions(&mut self, end: &End, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        let take = |wanted: usize, done: &mut Vec<Completion>| {
            while let Some(wc) = end.cq.poll_within(Duration::ZERO).expect("no overrun") {
                done.push(wc);
            }
            done.len() >= wanted
        };
        self.persona.run("completions", |_| take(count, &mut done));
        let good = done.len() == count && done.iter().all(|wc| wc.status == WcStatus::Success);
        assert!(
            good,
            "{done:?}\n{}{:?}\n{:?}\n{:?}",
            self.persona.card.trace(),
            end.qp.stats(),
            self.context.port_stats(),
            self.context.link_report()
        );
        done
    }

    /// Prints what was checked; fails if a law was broken, or one of `exercised` never checked.
    pub(crate) fn verdict(mut self, exercised: &[&str]) {
        self.persona.settle(20);
        let findings = &self.persona.card.findings;
        println!("{findings}");
        let own = if self.address.is_ipv4() {
            ["IPv4: DF, no fragment, no options", "IPv4: header checksum right"]
        } else {
            ["IPv6: payload length right"; 2]
        };
        assert!(findings.broken().is_empty(), "{:#?}\n{}", findings.broken(), self.persona.card.trace());
        for law in exercised.iter().chain(&ALWAYS).chain(&own) {
            assert!(findings.count(law) > 0, "{law:?} was never checked\n{findings}");
        }
        let stats = self.context.port_stats();
        assert_eq!(
            (stats.dropped_malformed, stats.dropped_opcode, stats.dropped_short),
            (0, 0, 0),
            "{stats:?}"
        );
    }
}

/// Posts one of our operations on `len` bytes at `offset` of our memory.
pub(crate) fn post(end: &End, id: u64, op: SendOp, offset: usize, len: usize) {
    end.qp.post_send(&SendWr::new(id, op, &[end.mr.sge(offset, len as u32)])).unwrap();
}

/// Completions of one kind.
pub(crate) fn of(completions: &[Completion], opcode: WcOpcode) -> Vec<&Completion> {
    completions.iter().filter(|wc| wc.opcode == opcode).collect()
}
