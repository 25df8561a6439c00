//! Somebody on the same network throws packets at connections in use, in the name of the peer and otherwise: each is
//! counted by what is wrong with it, and the connections go on as if nothing had come.

#[path = "../verbs_common/mod.rs"]
mod verbs_common;

mod forgery;

use forgery::{Forgery, Injector};
use rxe_verbs::{
    Completion, ContextOptions, Mtu, PortStats, QpState, QpStats, QpType, RecvWr, Remote, SendOp, SendWr,
    WcExtra, WcOpcode,
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};
use verbs_common::{End, PATIENCE, connected, netns, pattern};

/// Packets of every kind.
const EACH: u64 = 40;
/// Where WRITEs go, where READs and atomic results come back, where a SEND lands, where the atomic is.
const PLACE: usize = 0;
const BACK: usize = 16_384;
const MAIL: usize = 32_768;
const WORD: usize = 49_152;
const MEMORY: usize = 65_536;

/// Both ends, and a third party that can reach them.
struct Stage {
    /// Sends all requests, so it takes all responses.
    requester: End,
    responder: End,
    addresses: [IpAddr; 2],
    /// An address of nobody.
    stranger: IpAddr,
}

/// Ahead of all that the traffic can come to between the making of a packet and its arrival, and less than half of all PSNs.
const AHEAD: i32 = 1 << 20;

/// Who gets a forged packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Requester,
    Responder,
}

impl Stage {
    /// A request with nothing wrong: a WRITE of 8 bytes, in the name of the requester, with the PSN expected now. Taken,
    /// it would change memory that is compared, and use up a PSN.
    fn write(&self) -> Forgery {
        let (_, expected) = self.responder.qp.psns();
        let mut body = (self.responder.mr.addr() + PLACE as u64).to_be_bytes().to_vec();
        body.extend(self.responder.mr.rkey().0.to_be_bytes());
        body.extend(8_u32.to_be_bytes());
        body.extend(b"stranger");
        Forgery {
            src: self.addresses[0],
            dst: self.addresses[1],
            opcode: 0x0a,
            version: 0,
            pkey: 0xffff,
            qpn: self.responder.qp.qpn().value(),
            psn: expected.value(),
            body,
            keep: usize::MAX,
            spoilt: false,
        }
    }

    /// A request without extension headers: a SEND of 8 bytes.
    fn send(&self, opcode: u8, ahead: i32) -> Forgery {
        let write = self.write();
        let psn = write.psn.wrapping_add_signed(ahead);
        Forgery { opcode, psn, body: b"stranger".to_vec(), ..write }
    }

    /// A response in the name of the other end, `ahead` of the next PSN of the victim.
    fn answer(&self, victim: Victim, opcode: u8, syndrome: u8, ahead: i32) -> Forgery {
        let (end, [src, dst]) = match victim {
            Requester => (&self.requester, [self.addresses[1], self.addresses[0]]),
            Responder => (&self.responder, self.addresses),
        };
        let psn = end.qp.psns().0.value().wrapping_add_signed(ahead);
        let mut body = vec![syndrome, 0, 0, 1];
        match opcode {
            0x11 => {}
            0x12 => body.extend(b"stranger"),
            0x0e => body = vec![0x66; 1024],
            0x0d => body.extend([0x66; 1024]),
            _ => body.extend(b"stranger"),
        }
        Forgery { src, dst, opcode, qpn: end.qp.qpn().value(), psn, body, ..self.write() }
    }
}

/// A kind of bad packet.
struct Kind {
    name: &'static str,
    victim: Victim,
    forge: fn(&Stage) -> Forgery,
    /// The counter that tells it from all others.
    counter: fn(&PortStats, &QpStats) -> u64,
    /// Nothing else moves that counter. (Sending again, which a busy machine can cause, looks like some kinds.)
    exact: bool,
}

const fn kind(
    name: &'static str,
    forge: fn(&Stage) -> Forgery,
    counter: fn(&PortStats, &QpStats) -> u64,
) -> Kind {
    Kind { name, victim: Responder, forge, counter, exact: true }
}

const fn psn(
    name: &'static str,
    forge: fn(&Stage) -> Forgery,
    counter: fn(&PortStats, &QpStats) -> u64,
) -> Kind {
    Kind { exact: false, ..kind(name, forge, counter) }
}

const fn response(name: &'static str, victim: Victim, forge: fn(&Stage) -> Forgery) -> Kind {
    Kind { name, victim, forge, counter: |_, qp| qp.responses_ignored, exact: false }
}

use Victim::{Requester, Responder};

const KINDS: &[Kind] = &[
    kind("a wrong ICRC", |s| Forgery { spoilt: true, ..s.write() }, |port, _| port.dropped_icrc),
    kind("a stranger's address", |s| Forgery { src: s.stranger, ..s.write() }, |_, qp| qp.dropped_address),
    kind("another partition", |s| Forgery { pkey: 0x8001, ..s.write() }, |_, qp| qp.dropped_pkey),
    kind("partition 0", |s| Forgery { pkey: 0, ..s.write() }, |_, qp| qp.dropped_pkey),
    kind("no queue pair", |s| Forgery { qpn: 0x7777, ..s.write() }, |port, _| port.dropped_no_qp),
    kind("another slot", |s| Forgery { qpn: 0x05_0011, ..s.write() }, |port, _| port.dropped_other_slot),
    kind("a WRITE of UC", |s| Forgery { opcode: 0x2a, ..s.write() }, |_, qp| qp.dropped_service),
    kind("a SEND of UD", |s| Forgery { opcode: 0x64, ..s.write() }, |_, qp| qp.dropped_service),
    kind("no opcode of any", |s| Forgery { opcode: 0x1f, ..s.write() }, |port, _| port.dropped_opcode),
    kind("another version", |s| Forgery { version: 1, ..s.write() }, |port, _| port.dropped_malformed),
    kind("an ACK with payload", ack_with_payload, |port, _| port.dropped_malformed),
    kind("cut in the BTH", |s| Forgery { keep: 7, ..s.write() }, |port, _| port.dropped_short),
    kind("cut in the RETH", |s| Forgery { keep: 20, ..s.write() }, |port, _| port.dropped_short),
    kind("nothing but an ICRC", |s| Forgery { keep: 0, ..s.write() }, |port, _| port.dropped_short),
    psn("a PSN to come", |s| s.send(0x04, AHEAD), |_, qp| qp.dropped_out_of_order),
    psn("a PSN far ahead", |s| s.send(0x04, 1 << 22), |_, qp| qp.dropped_out_of_order),
    psn("a WRITE ahead", |s| ahead(s.write(), AHEAD), |_, qp| qp.dropped_out_of_order),
    psn("a SEND just done", |s| s.send(0x04, -1), |_, qp| qp.duplicates),
    psn("a SEND long done", |s| s.send(0x04, -(1 << 22)), |_, qp| qp.duplicates),
    psn("a WRITE just done", |s| ahead(s.write(), -1), |_, qp| qp.duplicates),
    psn(
        "a READ just done",
        |s| ahead(Forgery { opcode: 0x0c, ..without_payload(s.write()) }, -3),
        |_, qp| qp.duplicates,
    ),
    response("an ACK for nothing sent", Requester, |s| s.answer(Requester, 0x11, 0x1f, AHEAD)),
    response("an ACK from long ago", Requester, |s| s.answer(Requester, 0x11, 0x1f, -5000)),
    response("an ACK half around", Requester, |s| s.answer(Requester, 0x11, 0x1f, 1 << 23)),
    response("a sequence NAK", Requester, |s| s.answer(Requester, 0x11, 0x60, AHEAD)),
    response("an invalid request NAK", Requester, |s| s.answer(Requester, 0x11, 0x61, AHEAD)),
    response("an access NAK", Requester, |s| s.answer(Requester, 0x11, 0x62, -5000)),
    response("an operation NAK", Requester, |s| s.answer(Requester, 0x11, 0x63, AHEAD)),
    response("an RNR NAK", Requester, |s| s.answer(Requester, 0x11, 0x2e, AHEAD)),
    response("a reserved syndrome", Requester, |s| s.answer(Requester, 0x11, 0x80, AHEAD)),
    response("READ data ahead", Requester, |s| s.answer(Requester, 0x10, 0x1f, AHEAD)),
    response("READ data from long ago", Requester, |s| s.answer(Requester, 0x0d, 0x1f, -5000)),
    response("READ data in the middle", Requester, |s| s.answer(Requester, 0x0e, 0x1f, AHEAD)),
    response("an atomic's result", Requester, |s| s.answer(Requester, 0x12, 0x1f, AHEAD)),
    response("an ACK to who never asked", Responder, |s| s.answer(Responder, 0x11, 0x1f, 0)),
    response("a NAK to who never asked", Responder, |s| s.answer(Responder, 0x11, 0x62, -1)),
    response("READ data to who never asked", Responder, |s| s.answer(Responder, 0x10, 0x1f, 0)),
];

fn ack_with_payload(stage: &Stage) -> Forgery {
    let ack = stage.answer(Responder, 0x11, 0x1f, 0);
    Forgery { body: [&ack.body[..], b"stranger"].concat(), ..ack }
}

fn ahead(forgery: Forgery, by: i32) -> Forgery {
    Forgery { psn: forgery.psn.wrapping_add_signed(by), ..forgery }
}

fn without_payload(mut forgery: Forgery) -> Forgery {
    forgery.body.truncate(16);
    forgery
}

/// What one round of traffic expects of a completion.
fn expect(wc: &Completion, wr_id: u64, opcode: WcOpcode, len: Option<usize>) {
    assert_eq!((wc.wr_id, wc.opcode), (wr_id, opcode), "{wc:?}");
    if let Some(len) = len {
        assert_eq!(wc.byte_len as usize, len, "{wc:?}");
    }
}

/// One of each operation, everything compared by its reader.
fn round(stage: &Stage, number: u64) {
    let (a, b) = (&stage.requester, &stage.responder);
    let size = 1 + (number * 2477 % 9000) as usize;
    let data = pattern(number + 1, size);
    let remote = |at: usize| Remote { addr: b.mr.addr() + at as u64, rkey: b.mr.rkey() };
    let (out, len) = ([a.mr.sge(PLACE, size as u32)], size as u32);
    a.mr.write_at(PLACE, &data).unwrap();

    a.qp.post_send(&SendWr::new(number, SendOp::Write(remote(PLACE)), &out)).unwrap();
    expect(&a.good(), number, WcOpcode::Write, None);
    assert!(b.mr.read_vec(PLACE, size).unwrap() == data, "round {number}: written");

    let back = [a.mr.sge(BACK, len)];
    a.qp.post_send(&SendWr::new(number, SendOp::Read(remote(PLACE)), &back)).unwrap();
    expect(&a.good(), number, WcOpcode::Read, Some(size));
    assert!(a.mr.read_vec(BACK, size).unwrap() == data, "round {number}: read");

    b.qp.post_recv(&RecvWr { wr_id: number, sges: &[b.mr.sge(MAIL, 9001)] }).unwrap();
    let imm = (number as u32).to_be_bytes();
    a.qp.post_send(&SendWr::new(number, SendOp::SendImm(imm), &out)).unwrap();
    let got = b.good();
    expect(&got, number, WcOpcode::Recv, Some(size));
    assert_eq!(got.extra, WcExtra::Immediate(imm));
    expect(&a.good(), number, WcOpcode::Send, None);
    assert!(b.mr.read_vec(MAIL, size).unwrap() == data, "round {number}: received");

    let op = SendOp::FetchAdd { remote: remote(WORD), add: 3 };
    a.qp.post_send(&SendWr::new(number, op, &[a.mr.sge(WORD, 8)])).unwrap();
    expect(&a.good(), number, WcOpcode::FetchAdd, Some(8));
    assert_eq!(a.mr.load_u64(WORD), Ok(3 * number), "round {number}: added once each");
}

/// Sends [`EACH`] packets of a kind, each when the one before has been counted.
fn inject(stage: &Stage, injector: &Injector, kind: &Kind) {
    let end = match kind.victim {
        Requester => &stage.requester,
        Responder => &stage.responder,
    };
    let count = || (kind.counter)(&end.qp.context().port_stats(), &end.qp.stats());
    let first = count();
    for number in 1..=EACH {
        let before = count();
        injector.inject(&(kind.forge)(stage));
        let start = Instant::now();
        while count() == before {
            let port = end.qp.context().port_stats();
            assert!(start.elapsed() < PATIENCE, "{}, {number}: {port:?} {:?}", kind.name, end.qp.stats());
            thread::yield_now();
        }
        let states = [stage.requester.qp.state(), stage.responder.qp.state()];
        assert_eq!(states, [QpState::Rts; 2], "{}", kind.name);
    }
    let counted = count() - first;
    assert!(if kind.exact { counted == EACH } else { counted >= EACH }, "{}: {counted}", kind.name);
}

/// Every drop that the port of the responder counts is one of ours.
fn account(stage: &Stage) {
    let port = stage.responder.qp.context().port_stats();
    let qp = stage.responder.qp.stats();
    let total: u64 =
        port.each().filter(|(name, _)| name.starts_with("dropped")).map(|(_, count)| count).sum();
    let ours = KINDS.iter().filter(|kind| kind.exact).count() as u64 * EACH;
    assert_eq!(total, ours, "{port:?}");
    let by_qp = qp.dropped_address + qp.dropped_pkey + qp.dropped_service;
    assert_eq!(port.dropped_by_qp, by_qp, "{qp:?}");
    let port = stage.requester.qp.context().port_stats();
    for (name, count) in port.each().filter(|(name, _)| name.starts_with("dropped")) {
        assert_eq!(count, 0, "{name} at the requester");
    }
}

/// Two connected ends at these addresses in a namespace of their own, one round of traffic old.
fn set_up(addresses: [IpAddr; 2], stranger: IpAddr) -> Option<(Stage, Injector)> {
    let namespace = netns::Namespace::new()?;
    let ipv4 = stranger.is_ipv4();
    let injector = match namespace.run(move || Injector::new(ipv4)) {
        Ok(injector) => injector,
        Err(error) => {
            netns::skip(&format!("needs root: a raw socket: {error}"));
            return None;
        }
    };
    if !ipv4 {
        addresses.iter().for_each(|ip| namespace.ip(&format!("addr add {ip}/128 dev lo nodad")));
    }
    let open = move || addresses.map(|ip| ContextOptions::new().alone().open_address(ip).expect("it opens"));
    let [a, b] = namespace.run(open);
    let two = verbs_common::Two::of("namespace", a, b);
    let (requester, responder) = connected(&two, QpType::Rc, MEMORY, Mtu::M1024);
    let stage = Stage { requester, responder, addresses, stranger };
    round(&stage, 0);
    Some((stage, injector))
}

/// Traffic in one thread, bad packets from the other.
fn attack(addresses: [IpAddr; 2], stranger: IpAddr) {
    let Some((stage, injector)) = set_up(addresses, stranger) else { return };
    let stage = &stage;
    let (stop, rounds) = (&AtomicBool::new(false), &AtomicU64::new(1));
    thread::scope(|scope| {
        let traffic = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                round(stage, rounds.load(Ordering::Relaxed));
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let attack = AssertUnwindSafe(|| {
            for kind in KINDS {
                let before = rounds.load(Ordering::Relaxed);
                inject(stage, &injector, kind);
                // The traffic goes on meanwhile, and afterwards.
                let start = Instant::now();
                while rounds.load(Ordering::Relaxed) < before + 2 && !traffic.is_finished() {
                    assert!(start.elapsed() < PATIENCE, "the traffic stands still after {}", kind.name);
                    thread::yield_now();
                }
            }
        });
        let attacked = catch_unwind(attack);
        stop.store(true, Ordering::Relaxed);
        traffic.join().expect("all that was sent arrived as it was, and nothing else");
        attacked.unwrap_or_else(|panic| resume_unwind(panic));
    });
    account(stage);
    for end in [&stage.requester, &stage.responder] {
        assert_eq!(end.cq.poll(&mut [Completion::default()]), Ok(0), "a completion nobody asked for");
    }
    let (rounds, packets) = (rounds.load(Ordering::Relaxed), KINDS.len() as u64 * EACH);
    println!("{packets} bad packets of {} kinds, {rounds} rounds of traffic", KINDS.len());
}

const IPV4: ([IpAddr; 2], IpAddr) = ([v4(1), v4(2)], v4(9));
const IPV6: ([IpAddr; 2], IpAddr) = ([v6(1), v6(2)], v6(9));

const fn v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

const fn v6(last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, last))
}

#[test]
fn bad_packets_over_ipv4() {
    attack(IPV4.0, IPV4.1);
}

#[test]
fn bad_packets_over_ipv6() {
    attack(IPV6.0, IPV6.1);
}

/// The forged packet without a flaw is taken: what keeps the others out is the flaw.
#[test]
fn without_a_flaw_it_would_be_taken() {
    for (addresses, stranger) in [IPV4, IPV6] {
        let Some((stage, injector)) = set_up(addresses, stranger) else { return };
        injector.inject(&stage.write());
        let start = Instant::now();
        while stage.responder.mr.read_vec(PLACE, 8).unwrap() != b"stranger" {
            let stats = stage.responder.qp.context().port_stats();
            assert!(start.elapsed() < PATIENCE, "{stranger}: {stats:?}");
            stage.responder.qp.context().progress();
        }
    }
}
