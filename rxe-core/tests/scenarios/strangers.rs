//! Packets that do not belong: wrong address, partition, PSN, service, ICRC. Counted each, and nothing changes.

use crate::bench::Bench;
use rxe_core::{
    endpoint::{EndpointConfig, STEERING_PROBE, STEERING_PROBE_LEN},
    num::{Pkey, Psn, Qpn},
    qp::QpState,
    stats::QpStats,
    testing::{ConnectOptions, Datagram, PairConfig},
    wire::{self, Bth, Encapsulation, Ext, Opcode, Reth, icrc},
    work::{SendOp, WcStatus},
};

/// A WRITE of 8 bytes to side 1 as side 0 would send it next.
struct Forgery {
    datagram: Datagram,
    bth: Bth,
    ext: Ext,
}

impl Forgery {
    fn new(bench: &Bench) -> Self {
        let (next, _) = bench.pair.sides[0].endpoint.psns(bench.qpn(0)).expect("it exists");
        let bth = Bth { ack_req: true, ..Bth::new(Opcode(0x0a), bench.qpn(1), next) };
        let reth = Reth { addr: bench.addr(1, 0), rkey: bench.key(1), len: 8 };
        let datagram = Datagram {
            src: bench.pair.sides[0].addr,
            dst: bench.pair.sides[1].addr,
            src_port: 0xc000,
            tos: 0,
            hop_limit: 64,
            ident: 0,
            encapsulation: Encapsulation::V2,
            bytes: Vec::new(),
        };
        Self { datagram, bth, ext: Ext { reth, ..Ext::default() } }
    }

    fn seal(mut self) -> Datagram {
        let mut bytes = vec![0; wire::wire_len(self.bth.opcode, 8)];
        wire::emit(&self.bth, &self.ext, 8, &mut bytes).expect("it fits").copy_from_slice(b"stranger");
        icrc::seal(&self.datagram.route(), self.datagram.ident, &mut bytes);
        self.datagram.bytes = bytes;
        self.datagram
    }
}

/// Injects a forgery into a connection that works; it must be counted by `counter`, and the connection go on.
fn dropped(name: &'static str, forge: impl FnOnce(&mut Forgery), counter: fn(&QpStats) -> u64) {
    let mut bench = Bench::new(name);
    bench.send(0, 1, SendOp::Write(bench.remote(1, 100)), 0, 8);
    bench.pair.run_until_idle();
    let memory = bench.pair.sides[1].heap.snapshot();
    let before = bench.pair.sides[1].endpoint.psns(bench.qpn(1));
    let mut forgery = Forgery::new(&bench);
    forge(&mut forgery);
    bench.pair.inject(1, &forgery.seal());
    assert!(bench.pair.sides[1].heap.snapshot() == memory, "{name}: memory changed");
    assert_eq!(counter(&bench.stats(1)), 1, "{name}: {:?}", bench.stats(1));
    assert_eq!(bench.pair.sides[1].endpoint.psns(bench.qpn(1)), before, "{name}");
    bench.pair.run_until_idle();
    bench.send(0, 2, SendOp::Write(bench.remote(1, 100)), 0, 8);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(0), [(1, WcStatus::Success), (2, WcStatus::Success)], "{name}");
    assert_eq!((bench.state(0), bench.state(1)), (QpState::Rts, QpState::Rts), "{name}");
}

/// The forgery as such is good: without a flaw it would be taken.
#[test]
fn without_a_flaw_it_would_be_taken() {
    let mut bench = Bench::new("stranger-good");
    let forgery = Forgery::new(&bench).seal();
    bench.pair.inject(1, &forgery);
    assert_eq!(bench.bytes(1, 0, 8), b"stranger");
}

#[test]
fn another_address() {
    dropped(
        "stranger-src",
        |forgery| forgery.datagram.src = "10.0.0.9".parse().expect("an address"),
        |stats| stats.dropped_address,
    );
    dropped(
        "stranger-dst",
        |forgery| forgery.datagram.dst = "10.0.0.9".parse().expect("an address"),
        |stats| stats.dropped_address,
    );
    dropped(
        "stranger-family",
        |forgery| {
            forgery.datagram.src = "fd00::1".parse().expect("an address");
            forgery.datagram.dst = "fd00::2".parse().expect("an address");
        },
        |stats| stats.dropped_address,
    );
}

#[test]
fn the_other_roce() {
    dropped(
        "stranger-roce",
        |forgery| forgery.datagram.encapsulation = Encapsulation::V1,
        |stats| stats.dropped_gid_type,
    );
}

#[test]
fn another_partition() {
    dropped("stranger-pkey", |forgery| forgery.bth.pkey = Pkey(0x8001), |stats| stats.dropped_pkey);
}

#[test]
fn another_service() {
    dropped("stranger-uc", |forgery| forgery.bth.opcode = Opcode(0x2a), |stats| stats.dropped_service);
}

#[test]
fn another_psn() {
    dropped(
        "stranger-ahead",
        |forgery| forgery.bth.psn = forgery.bth.psn.plus(1000),
        |stats| stats.dropped_out_of_order,
    );
    dropped(
        "stranger-behind",
        |forgery| forgery.bth.psn = forgery.bth.psn.minus(1000),
        |stats| stats.duplicates,
    );
}

#[test]
fn another_queue_pair() {
    let mut bench = Bench::new("stranger-qpn");
    let mut forgery = Forgery::new(&bench);
    forgery.bth.dest_qp = Qpn::new(0x7777);
    bench.pair.inject(1, &forgery.seal());
    let mut forgery = Forgery::new(&bench);
    forgery.bth.dest_qp = Qpn::from_parts(9, bench.qpn(1).index());
    bench.pair.inject(1, &forgery.seal());
    let stats = bench.pair.sides[1].endpoint.port_stats();
    assert_eq!((stats.dropped_no_qp, stats.dropped_other_slot), (1, 1));
}

/// A probe of the host's steering is no packet of the wire, and is given back as it came; one byte more or less makes it
/// an unknown packet, which is not worth anybody's time.
#[test]
fn a_probe_of_the_steering() {
    let keeps = EndpointConfig { keep_strays: true, ..EndpointConfig::default() };
    let config = PairConfig {
        name: "stranger-probe",
        endpoints: [EndpointConfig::default(), keeps],
        ..PairConfig::default()
    };
    let mut bench = Bench::with(config, ConnectOptions::default());
    for len in [STEERING_PROBE_LEN - 1, STEERING_PROBE_LEN, STEERING_PROBE_LEN + 1, 64] {
        let mut datagram = Forgery::new(&bench).seal();
        datagram.bytes = vec![STEERING_PROBE; len];
        bench.pair.inject(1, &datagram);
        let endpoint = &mut bench.pair.sides[1].endpoint;
        let stray = endpoint.poll_stray().map(|stray| stray.bytes);
        assert_eq!(stray, (len == STEERING_PROBE_LEN).then_some(datagram.bytes), "{len} bytes");
        assert!(endpoint.poll_stray().is_none());
    }
    let stats = bench.pair.sides[1].endpoint.port_stats();
    assert_eq!((stats.dropped_short, stats.dropped_opcode), (2, 1));
}

#[test]
fn a_wrong_icrc() {
    let mut bench = Bench::new("stranger-icrc");
    let mut datagram = Forgery::new(&bench).seal();
    if let Some(last) = datagram.bytes.last_mut() {
        *last ^= 1;
    }
    bench.pair.inject(1, &datagram);
    assert_eq!(bench.pair.sides[1].endpoint.port_stats().dropped_icrc, 1);
    assert_eq!(bench.bytes(1, 0, 8), [0; 8]);
}

/// Answers to questions that were not asked.
#[test]
fn unasked_answers() {
    for opcode in [0x0d_u8, 0x0e, 0x0f, 0x10, 0x11, 0x12] {
        for psn in [0_i32, -1, 5, -1000, 1000] {
            let mut bench = Bench::new("stranger-answer");
            bench.send(1, 1, SendOp::Write(bench.remote(0, 100)), 0, 8);
            bench.pair.run_until_idle();
            let mut forgery = Forgery::new(&bench);
            let (next, _) = bench.pair.sides[1].endpoint.psns(bench.qpn(1)).expect("it exists");
            forgery.bth.opcode = Opcode(opcode);
            forgery.bth.psn = Psn::new(next.value().wrapping_add_signed(psn));
            let payload = usize::from(opcode != 0x11 && opcode != 0x12) * 8;
            let mut bytes = vec![0; wire::wire_len(forgery.bth.opcode, payload)];
            wire::emit(&forgery.bth, &forgery.ext, payload, &mut bytes).expect("it fits");
            let route =
                icrc::Route::v2(forgery.datagram.src, forgery.datagram.dst, forgery.datagram.src_port);
            icrc::seal(&route, 0, &mut bytes);
            forgery.datagram.bytes = bytes;
            let memory = bench.pair.sides[1].heap.snapshot();
            bench.pair.inject(1, &forgery.datagram);
            bench.pair.run_until_idle();
            assert!(bench.pair.sides[1].heap.snapshot() == memory, "opcode {opcode:#x} psn {psn}");
            bench.send(1, 2, SendOp::Write(bench.remote(0, 100)), 0, 8);
            bench.pair.run_until_idle();
            let good = WcStatus::Success;
            assert_eq!(bench.sent_statuses(1), [(1, good), (2, good)], "opcode {opcode:#x} psn {psn}");
        }
    }
}

/// A congestion notification counts from the peer alone: anybody else's would throttle the connection.
#[test]
fn congestion_notifications_of_others() {
    let mut bench = Bench::new("stranger-cnp");
    let peer = bench.pair.sides[0].addr;
    for (src, heard) in [("10.99.99.99".parse().unwrap(), 0), (peer, 1)] {
        let dst = bench.pair.sides[1].addr;
        let mut bytes = wire::cnp(bench.qpn(1)).to_vec();
        let route = icrc::Route::v2(src, dst, 0);
        icrc::seal(&route, 7, &mut bytes);
        let datagram = Datagram {
            src,
            dst,
            src_port: 0,
            tos: wire::CNP_TOS,
            hop_limit: 64,
            ident: 7,
            encapsulation: Encapsulation::V2,
            bytes,
        };
        bench.pair.inject(1, &datagram);
        let stats = bench.stats(1);
        assert_eq!((stats.cnps_received, stats.dropped_address), (heard, 1), "from {src}");
    }
    bench.send(1, 1, SendOp::Write(bench.remote(0, 0)), 0, 5000);
    bench.pair.run_until_idle();
    assert_eq!(bench.sent_statuses(1), [(1, WcStatus::Success)]);
}
