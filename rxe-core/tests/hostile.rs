//! A hostile peer: packets with the right ICRC, addresses and PSN, but random opcodes, keys, addresses, lengths and payloads, sent into
//! connections at work. Whatever they are: no panic, and no byte changes that the attacked side has not granted to its peer.

use rxe_core::{
    num::{Key, Psn, Qkey, Qpn},
    qp::{QpChange, QpState, QpType},
    testing::{
        ConnectOptions, Connection, Datagram, Pair, PairConfig, Rng,
        connect::{PD, REGION_ALL},
    },
    wire::{self, Aeth, AtomicEth, Bth, Deth, Encapsulation, Ext, Feth, Opcode, Reth, Syndrome, icrc},
    work::{Access, PdId, RecvWr, SendOp, SendWr, Sge},
};

const SERVICES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// The attacked host: regions with all kinds of rights.
struct Victim {
    pair: Pair,
    options: ConnectOptions,
    connection: Connection,
    /// (address, length, key) of what a peer may write to: one open region, receive buffers.
    open: [(u64, u64, Key); 2],
    /// Regions that a peer may not write to, and addresses of none.
    closed: Vec<(u64, Key)>,
}

impl Victim {
    fn new(seed: u64, qp_type: QpType) -> Self {
        let config = PairConfig {
            seed,
            name: "hostile",
            ipv6: seed % 2 == 1,
            heap: 1 << 16,
            trace: 2_000,
            ..PairConfig::default()
        };
        let options = ConnectOptions { qp_type, timeout: 10, retry_count: 1, ..ConnectOptions::default() };
        let mut pair = Pair::new(config);
        let connection = pair.connect(&options);
        let heap = &pair.sides[1].heap;
        let (addr, key) = heap.alloc_registered(PD, 8192, REGION_ALL);
        let (buffers, buffer_key) = heap.alloc_registered(PD, 16 * 64, Access::LOCAL_WRITE);
        let mut closed = Vec::new();
        for (pd, access) in [
            (PD, Access::REMOTE_READ),
            (PD, Access::LOCAL_WRITE),
            (PD, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL),
            (PdId(9), REGION_ALL),
        ] {
            closed.push(heap.alloc_registered(pd, 8192, access));
        }
        for &(addr, _) in &closed {
            let mut bytes = vec![0; 8192];
            Rng::new(addr).fill(&mut bytes);
            heap.set(addr, &bytes);
        }
        let open = [(addr, 8192, key), (buffers, 16 * 64, buffer_key)];
        Self { pair, options, connection, open, closed }
    }

    /// All memory but what the peer may write to.
    fn untouchable(&self) -> Vec<u8> {
        let heap = &self.pair.sides[1].heap;
        let mut all = heap.snapshot();
        for (addr, len, _) in self.open {
            let at = (addr - heap.base()) as usize;
            all[at..at + len as usize].fill(0);
        }
        all
    }

    fn is_alive(&self) -> bool {
        (0..2).all(|side| {
            let qpn = self.connection.qpns[side];
            let state = self.pair.sides[side].endpoint.query_qp(qpn).map(|(attrs, _)| attrs.state);
            state == Some(QpState::Rts)
        })
    }

    /// Connects both ends anew, through RESET.
    fn revive(&mut self) {
        let qpns = self.connection.qpns;
        for (side, qpn) in qpns.into_iter().enumerate() {
            let reset = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
            self.pair.modify(side, qpn, &reset).expect("always possible");
            let options = self.options;
            self.pair.bring_up(side, qpn, qpns[1 - side], &options, QpState::Rts);
        }
    }

    /// Honest work of both sides, so that there is something to disturb.
    fn work(&mut self, rng: &mut Rng) {
        let (addr, _, key) = self.open[rng.below(2)];
        let sges = [Sge { addr: addr + 64 * rng.range(0..16), len: 64, lkey: key }];
        let _ = self.pair.post_recv(1, self.connection.qpns[1], &RecvWr { wr_id: 1, sges: &sges });
        if self.options.qp_type == QpType::Ud {
            return;
        }
        let own = [Sge { addr: self.open[0].0 + 4096, len: 3000, lkey: self.open[0].2 }];
        // The address does not matter: the peer is the attacker, whose memory is not examined.
        let remote = rxe_core::work::Remote { addr: 0, rkey: Key(0) };
        let op = match rng.below(3) {
            0 if self.options.qp_type == QpType::Rc => SendOp::Read(remote),
            1 => SendOp::Write(remote),
            _ => SendOp::Send,
        };
        let qpn = self.connection.qpns[1];
        let endpoint = &mut self.pair.sides[1].endpoint;
        let _ = endpoint.post_send(self.pair.now, qpn, &SendWr::new(2, op, &own));
        // Its packets go nowhere either: the attacker answers as it likes.
        self.pair.sides[1].link.cut();
    }

    fn address(&self, rng: &mut Rng) -> (u64, Key) {
        let (mut addr, key) = match rng.below(4) {
            0 | 1 => (self.open[0].0, self.open[0].2),
            _ => self.closed[rng.below(self.closed.len())],
        };
        let key = if rng.chance(100) { Key(rng.next_u64() as u32) } else { key };
        addr = match rng.below(6) {
            0 => addr.wrapping_add(8192).wrapping_sub(rng.range(0..16)),
            1 => addr.wrapping_sub(rng.range(0..16)),
            2 => u64::MAX - rng.range(0..16),
            3 => self.closed[rng.below(self.closed.len())].0,
            _ => addr + 8 * rng.range(0..1000),
        };
        (addr, key)
    }

    /// A packet that lies.
    fn lie(&self, rng: &mut Rng) -> Datagram {
        let base = match self.options.qp_type {
            QpType::Rc => 0x00,
            QpType::Uc => 0x20,
            _ => 0x60,
        };
        let opcode = loop {
            let opcode = Opcode(base | rng.below(32) as u8);
            if opcode.info().is_some() {
                break opcode;
            }
        };
        let (sent, expected) = self.pair.sides[1].endpoint.psns(self.connection.qpns[1]).expect("it exists");
        let psn = if opcode.info().is_some_and(|info| info.is_request()) { expected } else { sent.minus(1) };
        let psn = match rng.below(8) {
            0 => psn.minus(rng.range(0..20) as u32),
            1 => psn.plus(rng.range(0..20) as u32),
            2 => Psn::new(rng.next_u64() as u32),
            _ => psn,
        };
        let mut bth = Bth::new(opcode, self.connection.qpns[1], psn);
        bth.ack_req = rng.chance(500);
        bth.solicited = rng.chance(500);
        bth.congestion = rng.next_u64() as u8;
        let (addr, rkey) = self.address(rng);
        let len = rng.pick(&[0, 1, 8, 1024, 1025, 4096, 8192, 1 << 31, u32::MAX]);
        let ext = Ext {
            deth: Deth { qkey: Qkey(0x1111_1111), src_qp: Qpn::new(rng.next_u64() as u32) },
            feth: Feth { placement: rng.below(16) as u8, selectivity: rng.below(4) as u8 },
            reth: Reth { addr, rkey, len },
            atomic: AtomicEth { addr, rkey, swap_or_add: rng.next_u64(), compare: 0 },
            aeth: Aeth {
                syndrome: Syndrome::from_bits(if rng.chance(300) { rng.next_u64() as u8 } else { 0x1f }),
                ..Aeth::default()
            },
            original: rng.next_u64(),
            invalidate: rkey,
            ..Ext::default()
        };
        let payload = match opcode.info() {
            Some(info) if info.payload => rng.pick(&[0, 1, 8, 64, 100, 1023, 1024, 1025, 4096, 5000]),
            _ => 0,
        };
        let mut bytes = vec![0; wire::wire_len(opcode, payload)];
        rng.fill(wire::emit(&bth, &ext, payload, &mut bytes).expect("it fits"));
        if rng.chance(50) {
            // Cut short, or with a wrong pad count.
            let keep = rng.below(bytes.len() + 1);
            bytes.truncate(keep);
            if let Some(flags) = bytes.get_mut(1) {
                *flags ^= 0x30;
            }
        }
        let [attacker, victim] = [self.pair.sides[0].addr, self.pair.sides[1].addr];
        icrc::seal(&icrc::Route::v2(attacker, victim, 0xc000), 0, &mut bytes);
        Datagram {
            src: attacker,
            dst: victim,
            src_port: 0xc000,
            tos: 0,
            hop_limit: 64,
            ident: 0,
            encapsulation: Encapsulation::V2,
            bytes,
        }
    }
}

fn attack(qp_type: QpType) {
    let (mut survived, mut killed) = (0_u32, 0_u32);
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut victim = Victim::new(seed, qp_type);
        let before = victim.untouchable();
        for _ in 0..60 {
            if rng.chance(300) {
                victim.work(&mut rng);
            }
            let datagram = victim.lie(&mut rng);
            victim.pair.inject(1, &datagram);
            victim.pair.sides[1].link.cut();
            assert!(victim.untouchable() == before, "a closed byte changed, seed {seed}");
            if victim.is_alive() {
                survived += 1;
            } else {
                killed += 1;
                victim.revive();
            }
        }
        // It becomes idle, and all objects can be destroyed.
        victim.pair.run_for(core::time::Duration::from_secs(2));
        assert!(victim.untouchable() == before, "a closed byte changed, seed {seed}");
        let qpn = victim.connection.qpns[1];
        victim.pair.sides[1].endpoint.destroy_qp(qpn).expect("it exists");
    }
    println!("{qp_type:?}: {survived} lies survived, {killed} took the queue pair to the error state");
    assert!(survived > 1000, "hardly anything was tried");
    match qp_type {
        QpType::Rc => assert!(killed > 1000, "an RC responder refuses by going to the error state"),
        QpType::Ud => assert_eq!(killed, 0, "a datagram cannot harm its receiver"),
        _ => {}
    }
}

#[test]
fn a_lying_peer_on_rc() {
    attack(SERVICES[0]);
}

#[test]
fn a_lying_peer_on_uc() {
    attack(SERVICES[1]);
}

#[test]
fn a_lying_sender_of_datagrams() {
    attack(SERVICES[2]);
}

/// Bytes that were never a packet.
#[test]
fn noise() {
    let mut rng = Rng::new(1);
    let mut victim = Victim::new(2, QpType::Rc);
    let before = victim.untouchable();
    for round in 0..20_000 {
        let mut datagram = victim.lie(&mut rng);
        let len = 1 + rng.below(120);
        datagram.bytes = vec![0; len];
        rng.fill(&mut datagram.bytes);
        if round % 2 == 0 && len > 8 {
            // At least with the right addresses.
            datagram.bytes[0] &= 0x1f;
            datagram.bytes[1] &= 0xf0;
            datagram.bytes[4..8].copy_from_slice(&victim.connection.qpns[1].value().to_be_bytes());
        }
        victim.pair.inject(1, &datagram);
    }
    assert!(victim.untouchable() == before);
    assert!(victim.is_alive(), "noise does not pass the ICRC");
    let stats = victim.pair.sides[1].endpoint.port_stats();
    let dropped: u64 =
        stats.each().filter(|(name, _)| name.starts_with("dropped")).map(|(_, count)| count).sum();
    assert_eq!(dropped, 20_000, "each one is counted: {stats:?}");
}
