//! Many queue pairs with little room: requests of all kinds and sizes, changes of state and path, losses. Each request ends once, in order,
//! and where nothing was lost nothing is sent again.

use crate::bench::{BUFFER, Bench};
use rxe_core::{
    endpoint::EndpointConfig,
    num::Qpn,
    qp::{Mtu, QpChange, QpState},
    testing::{
        ConnectOptions, Connection, LinkConfig, PairConfig, Rng,
        connect::{RECV_CQ, SEND_CQ},
        link::Faults,
    },
    work::{AddressVector, RecvWr, Remote, SendFlags, SendOp, SendWr, WcStatus},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const SEEDS: u64 = 25;
/// Steps of a play.
const STEPS: usize = 400;
const LENGTHS: [u32; 10] = [0, 1, 64, 255, 256, 1024, 4096, 4097, 20_000, 100_000];

/// A queue pair: its side and its number.
type Which = (usize, u32);

struct Crowd {
    bench: Bench,
    rng: Rng,
    connections: Vec<Connection>,
    /// The requests of each queue pair.
    posted: BTreeMap<Which, Vec<u64>>,
    /// Queue pairs that were reset, so that requests were dropped.
    reset: BTreeSet<Which>,
    next: u64,
}

fn bench(rng: &mut Rng, seed: u64, lossy: bool) -> Bench {
    let window = rng.pick(&[4096, 16 * 1024, 64 * 1024]);
    let endpoint = EndpointConfig {
        send_window: (window, rng.pick(&[window, 4 * window])),
        receive_window: rng.pick(&[1, 2048, 16 * 1024, 64 * 1024, 60_000]),
        max_segments: rng.pick(&[1, 4, 64]),
        parts: rng.chance(500),
        ..EndpointConfig::default()
    };
    let loss = if lossy { rng.pick(&[1, 20, 50]) } else { 0 };
    let wire = LinkConfig {
        rate: rng.pick(&[0, 1_000_000_000]),
        hold: rng.pick(&[0, 20_000]),
        latency: Duration::from_micros(10),
        faults: Faults { loss, duplicate: loss / 2, reorder: loss / 2, ..Faults::default() },
        ..LinkConfig::default()
    };
    let endpoints = [endpoint.clone(), endpoint];
    let config =
        PairConfig { seed, name: "crowd", links: [wire; 2], endpoints, trace: 0, ..PairConfig::default() };
    let options = ConnectOptions {
        timeout: if lossy { 11 } else { 0 },
        mtu: rng.pick(&[Mtu::M256, Mtu::M1024, Mtu::M4096]),
        max_rd_atomic: [rng.pick(&[1, 4, 16, 128]); 2],
        max_dest_rd_atomic: [128; 2],
        ..ConnectOptions::default()
    };
    Bench::with(config, options)
}

impl Crowd {
    fn new(seed: u64, lossy: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut bench = bench(&mut rng, seed, lossy);
        let count = rng.pick(&[2, 8, 40]);
        let mut connections: Vec<_> = (0..count).map(|_| bench.pair.connect(&bench.options)).collect();
        connections.push(bench.connection);
        let (posted, reset) = (BTreeMap::new(), BTreeSet::new());
        Self { bench, rng, connections, posted, reset, next: 0 }
    }

    fn step(&mut self) {
        let connection = self.connections[self.rng.below(self.connections.len())];
        let side = self.rng.below(2);
        match self.rng.below(20) {
            0..=15 => self.post(side, connection),
            16 => self.change(side, connection),
            17 => self.bench.pair.run_for(Duration::from_micros(self.rng.range(1..2000))),
            18 => {
                let end = self.bench.pair.now + Duration::from_millis(1);
                for _ in 0..self.rng.below(30) {
                    self.bench.pair.step(end);
                }
            }
            _ if self.rng.chance(100) => self.begin_anew(connection),
            _ => {}
        }
    }

    fn operation(&mut self, remote: Remote) -> SendOp {
        match self.rng.below(10) {
            0 | 1 => SendOp::Send,
            2 => SendOp::WriteImm(remote, [1; 4]),
            3 | 4 => SendOp::Write(remote),
            5 | 6 => SendOp::Read(remote),
            7 => SendOp::FetchAdd { remote, add: 1 },
            8 => SendOp::AtomicWrite { remote, value: [3; 8] },
            _ => SendOp::Flush { remote, len: 8, placement: 1, selectivity: 0 },
        }
    }

    fn post(&mut self, side: usize, Connection { qpns, .. }: Connection) {
        let remote = self.bench.remote(1 - side, 0);
        let op = self.operation(remote);
        let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { self.rng.pick(&LENGTHS) };
        let fence = if self.rng.chance(100) { SendFlags::FENCE } else { SendFlags::empty() };
        let sges = [self.bench.sge(side, 0, len)];
        let wr = SendWr { flags: SendFlags::SIGNALED | fence, ..SendWr::new(self.next, op, &sges) };
        // The queue may be full, or closed.
        if self.bench.pair.post_send(side, qpns[side], &wr).is_ok() {
            self.posted.entry((side, qpns[side].value())).or_default().push(self.next);
            self.next += 1;
        }
        if matches!(op, SendOp::Send | SendOp::WriteImm(..)) {
            self.offer(1 - side, qpns[1 - side]);
        }
    }

    /// Posts a receive, if there is room for it.
    fn offer(&mut self, side: usize, qpn: Qpn) {
        let sges = [self.bench.sge(side, 0, BUFFER as u32)];
        let _ = self.bench.pair.post_recv(side, qpn, &RecvWr { wr_id: 0, sges: &sges });
    }

    /// Stops the send queue, or lets it go on. It may refuse while it drains.
    fn change(&mut self, side: usize, Connection { qpns, .. }: Connection) {
        let state = Some(self.rng.pick(&[QpState::Sqd, QpState::Rts]));
        let _ = self.bench.pair.modify(side, qpns[side], &QpChange { state, ..QpChange::default() });
        if self.rng.chance(300) {
            let traffic_class = self.rng.below(2) as u8 * 8;
            let av = Some(AddressVector { traffic_class, ..self.bench.pair.path(side) });
            let path = QpChange { state: Some(QpState::Sqd), av, ..QpChange::default() };
            let _ = self.bench.pair.modify(side, qpns[side], &path);
        }
    }

    /// Both ends begin anew.
    fn begin_anew(&mut self, Connection { qpns, .. }: Connection) {
        let reset = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
        for (side, qpn) in qpns.into_iter().enumerate() {
            self.bench.pair.modify(side, qpn, &reset).expect("reset");
            self.reset.insert((side, qpn.value()));
        }
        self.bench.pair.run_for(Duration::from_millis(1));
        let options = self.bench.options;
        for side in 0..2 {
            self.bench.pair.bring_up(side, qpns[side], qpns[1 - side], &options, QpState::Rts);
        }
    }

    /// Lets all requests end.
    fn finish(&mut self) {
        for round in 0..200 {
            for Connection { qpns, .. } in self.connections.clone() {
                for (side, qpn) in qpns.into_iter().enumerate() {
                    let rts = QpChange { state: Some(QpState::Rts), ..QpChange::default() };
                    let _ = self.bench.pair.modify(side, qpn, &rts);
                    for _ in 0..if round < 3 { 20 } else { 0 } {
                        self.offer(side, qpn);
                    }
                }
            }
            self.bench.pair.run_for(Duration::from_millis(20));
        }
        self.bench.pair.run_until_idle();
    }

    fn check(&mut self, lossy: bool) {
        let mut done: BTreeMap<Which, Vec<u64>> = BTreeMap::new();
        for side in 0..2 {
            self.bench.pair.sides[side].endpoint.check_admission();
            for wc in self.bench.pair.take_completions(side, SEND_CQ) {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                done.entry((side, wc.qpn.value())).or_default().push(wc.wr_id);
            }
            self.bench.pair.take_completions(side, RECV_CQ);
        }
        for (which, ids) in self.posted.iter().filter(|(which, _)| !self.reset.contains(which)) {
            assert_eq!(done.get(which), Some(ids), "{which:?}");
        }
        if lossy || !self.reset.is_empty() {
            return;
        }
        for (side, qpn) in self.connections.iter().flat_map(|connection| (0..2).zip(connection.qpns)) {
            let stats = self.bench.pair.sides[side].endpoint.qp_stats(qpn).expect("it is there");
            let again = (stats.retransmitted, stats.duplicates);
            assert!(stats.rnr_naks_received > 0 || again == (0, 0), "{again:?} sent again");
        }
    }
}

#[test]
fn every_request_ends() {
    for seed in 1..=SEEDS {
        for lossy in [false, true] {
            println!("seed {seed}, lossy: {lossy}");
            let mut crowd = Crowd::new(seed, lossy);
            for _ in 0..STEPS {
                crowd.step();
            }
            crowd.finish();
            crowd.check(lossy);
        }
    }
}
