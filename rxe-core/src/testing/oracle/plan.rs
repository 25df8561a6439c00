//! The parameters of a scenario, which follow from its seed.

use crate::{
    endpoint::{Acks, EndpointConfig},
    num::Psn,
    qp::{Mtu, QpCaps},
    testing::{
        carrier::Wire,
        connect::ConnectOptions,
        link::{Faults, LinkConfig},
        pair::PairConfig,
        rng::Rng,
    },
    wire::{Encapsulation, Ident},
};
use core::time::Duration;

/// A family of scenarios.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipe {
    /// Nothing is lost.
    Clean,
    /// Loss only.
    Loss,
    /// Duplication and reordering.
    Disorder,
    /// Packets with one bit flipped.
    Damage,
    /// All faults at once.
    Storm,
    /// Receives are posted late, so that the receiver is not ready (RNR).
    NotReady,
    /// Messages up to 64 KiB.
    Large,
    /// One operation must fail.
    Poison,
}

impl Recipe {
    /// All families.
    pub const ALL: [Self; 8] = [
        Self::Clean,
        Self::Loss,
        Self::Disorder,
        Self::Damage,
        Self::Storm,
        Self::NotReady,
        Self::Large,
        Self::Poison,
    ];

    /// Name of the family and of its test.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Loss => "loss",
            Self::Disorder => "disorder",
            Self::Damage => "damage",
            Self::Storm => "storm",
            Self::NotReady => "not_ready",
            Self::Large => "large",
            Self::Poison => "poison",
        }
    }
}

/// A scenario's parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed from which everything follows.
    pub seed: u64,
    /// The family.
    pub recipe: Recipe,
    /// Path MTU.
    pub mtu: Mtu,
    /// Number of connections.
    pub connections: usize,
    /// Operations that each side posts on each connection.
    pub operations: u32,
    /// Largest number of bytes of a WRITE or READ.
    pub max_len: u64,
    /// Largest number of bytes of a SEND, and size of receive buffers.
    pub max_send: u64,
    /// Whether one operation must fail.
    pub poison: bool,
    /// Largest number of operations that are posted without a pause.
    pub burst: u64,
    /// Longest pause between posts, nanoseconds.
    pub pause_nanos: u64,
    /// Whether the connections of a side share a receive queue.
    pub shared_receive: [bool; 2],
    /// Whether a side posts receives before messages come.
    pub ready: [bool; 2],
    /// Number of receive buffers of each receive queue.
    pub buffers: usize,
    /// Number of memory windows that each connection has on each side.
    pub windows: usize,
    /// READs and atomics that each side may have outstanding.
    pub max_rd_atomic: [u8; 2],
    signal_all: bool,
    timeout: u8,
    min_rnr_timer: u8,
    queue: u32,
    links: [LinkConfig; 2],
    endpoints: [EndpointConfig; 2],
    ipv6: bool,
    merge: bool,
    show_headers: bool,
    wire: Wire,
    acks: Acks,
}

impl Plan {
    /// The scenario of `seed` in the family `recipe`.
    #[must_use]
    pub fn new(seed: u64, recipe: Recipe) -> Self {
        let mut rng = Rng::new(seed ^ (recipe as u64) << 56);
        let mtu = rng.pick(&Mtu::ALL);
        let packet = u64::from(mtu.bytes());
        let max_len = match recipe {
            Recipe::Large => rng.pick(&[16 << 10, 64 << 10]),
            _ => packet * rng.pick(&[1, 2, 2, 3, 5]) + rng.range(0..packet),
        };
        let max_send = max_len.min(packet * 4);
        let connections = rng.pick(&[1, 1, 2, 3]);
        let operations = match recipe {
            Recipe::Large => rng.range(2..8) as u32,
            _ => rng.range(3..24) as u32,
        };
        let ready = match recipe {
            Recipe::NotReady => [rng.chance(300), false],
            _ => [true; 2],
        };
        Self {
            seed,
            recipe,
            mtu,
            connections,
            operations,
            max_len,
            max_send,
            poison: recipe == Recipe::Poison,
            burst: rng.pick(&[1, 3, 8, 16]),
            pause_nanos: rng.pick(&[0, 2_000, 30_000, 300_000]),
            shared_receive: [rng.chance(300), rng.chance(300)],
            ready,
            buffers: rng.range(2..10) as usize,
            windows: rng.below(3),
            max_rd_atomic: [0; 2].map(|_: u8| rng.pick(&[1, 2, 4, 16, 128])),
            signal_all: rng.chance(300),
            timeout: rng.range(10..14) as u8,
            min_rnr_timer: rng.pick(&[1, 5, 12, 14]),
            queue: rng.pick(&[2, 8, 64]),
            links: [link(&mut rng, recipe), link(&mut rng, recipe)],
            endpoints: [endpoint(&mut rng), endpoint(&mut rng)],
            ipv6: rng.chance(300),
            merge: rng.chance(700),
            show_headers: rng.chance(300),
            wire: Encapsulation::V2.into(),
            acks: if rng.chance(700) { Acks::Wait } else { Acks::Flush },
        }
    }

    /// The same scenario over another wire. The path MTU is at most that of the wire. In memory packets are not corrupted: they have no
    /// ICRC, by which this could be noticed.
    pub(super) fn over(mut self, wire: Wire) -> Self {
        if wire.encapsulation == Encapsulation::Memory {
            self.links.iter_mut().for_each(|link| link.faults.corrupt = 0);
        }
        if let Some(carrier) = &wire.carrier {
            self.mtu = self.mtu.min(carrier.borrow().mtu());
        }
        self.wire = wire;
        self
    }

    /// Size of each side's arena, which is enough for all areas and gaps.
    fn heap(&self) -> usize {
        let flow = self.source() + self.sink() + self.target() + 6 * 128;
        let receive = self.buffers as u64 * (self.max_send + 256);
        // Source and sink of a flow, and the target of the flow in the other direction.
        (self.connections as u64 * (flow + receive) + 4096) as usize
    }

    /// Size of a flow's source, bytes.
    pub(super) const fn source(&self) -> u64 {
        self.max_len + 1024
    }

    /// Size of a flow's sink, bytes: where READs and atomics put their results.
    pub(super) const fn sink(&self) -> u64 {
        6 * self.max_len + 16 * self.operations as u64
    }

    /// Size of a flow's target, bytes: memory of the peer.
    pub(super) const fn target(&self) -> u64 {
        2 * self.max_len + 1024
    }

    /// First PSNs, by side. Often shortly before they wrap around.
    pub(super) fn psn(&self, _connection: usize, rng: &mut Rng) -> [Psn; 2] {
        let mut one = || {
            let near_end = rng.chance(500);
            let value = rng.next_u64() as u32;
            if near_end { Psn::new(0xff_ffff - value % 64) } else { Psn::new(value) }
        };
        [one(), one()]
    }

    pub(super) fn pair_config(&self, trace: usize) -> PairConfig {
        PairConfig {
            seed: self.seed,
            name: "oracle",
            ipv6: self.ipv6,
            links: self.links,
            endpoints: self.endpoints.clone(),
            merge: self.merge,
            show_headers: self.show_headers,
            encapsulation: self.wire.encapsulation,
            carrier: self.wire.carrier.clone(),
            acks: self.acks,
            trace,
            heap: self.heap(),
        }
    }

    pub(super) fn connect_options(&self) -> ConnectOptions {
        let caps = QpCaps {
            max_send_wr: self.queue,
            max_recv_wr: self.buffers as u32,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 128,
        };
        ConnectOptions {
            mtu: self.mtu,
            timeout: self.timeout,
            min_rnr_timer: self.min_rnr_timer,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: [self.max_rd_atomic[1], self.max_rd_atomic[0]],
            caps,
            signal_all: self.signal_all,
            ..ConnectOptions::default()
        }
    }

    /// Whether every request makes a completion.
    pub(super) const fn signal_all(&self) -> bool {
        self.signal_all
    }

    /// Largest number of send requests outstanding.
    pub(super) const fn queue(&self) -> usize {
        self.queue as usize
    }
}

fn link(rng: &mut Rng, recipe: Recipe) -> LinkConfig {
    let chance = |rng: &mut Rng, most: u64| rng.range(0..most + 1) as u16;
    let faults = match recipe {
        Recipe::Clean => Faults::default(),
        Recipe::Loss => Faults { loss: chance(rng, 50), ..Faults::default() },
        Recipe::Disorder => {
            Faults { duplicate: chance(rng, 80), reorder: chance(rng, 80), ..Faults::default() }
        }
        Recipe::Damage => Faults { corrupt: chance(rng, 50), ..Faults::default() },
        Recipe::Poison if rng.chance(500) => Faults::default(),
        Recipe::Storm | Recipe::Poison | Recipe::NotReady | Recipe::Large => Faults {
            loss: chance(rng, 30),
            duplicate: chance(rng, 50),
            reorder: chance(rng, 50),
            corrupt: chance(rng, 10),
        },
    };
    LinkConfig {
        faults,
        latency: Duration::from_nanos(rng.pick(&[0, 2_000, 20_000, 200_000])),
        reorder_delay: Duration::from_nanos(rng.pick(&[3_000, 50_000, 500_000, 6_000_000])),
        rate: rng.pick(&[0, 0, 1_000_000_000, 50_000_000]),
        queue: 0,
        hold: 0,
        mark: 0,
    }
}

fn endpoint(rng: &mut Rng) -> EndpointConfig {
    let max_segments = rng.pick(&[1, 2, 16, 64, 128]);
    let ports = rng.range(1..5);
    let window = rng.pick(&[16 * 1024, 96 * 1024, 1 << 20]);
    EndpointConfig {
        slot: rng.pick(&[0, 1, 200]),
        max_segments,
        max_batch: rng.pick(&[9_000, 65_000]),
        ident: if max_segments == 1 || rng.chance(200) { Ident::Zero } else { Ident::Sequential },
        source_ports: (0..ports).map(|port| 0xc000 + port as u16 * 17).collect(),
        receive_window: rng.pick(&[4 * 1024, 32 * 1024, 256 * 1024]),
        send_window: (window, window * 2),
        parts: rng.chance(500),
        ..EndpointConfig::default()
    }
}
