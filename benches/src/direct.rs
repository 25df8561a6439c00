//! Two endpoints without a link. The packets that one puts into its arena are handed to the other as one run. So the cost is
//! that of the protocol alone, on each side.

use rxe_core::{
    endpoint::{Acks, Arbitration, LANES, Lanes, Run, RunMeta},
    num::Key,
    qp::Mtu,
    testing::{
        ConnectOptions, Connection, Pair, PairConfig,
        connect::{PD, REGION_ALL},
    },
    wire::HeaderSeen,
    work::{Event, RecvWr, Remote, SendOp, SendWr, Sge, WcStatus},
};
use std::time::{Duration, Instant};

/// The operation of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// RDMA WRITE.
    Write,
    /// SEND into a posted receive.
    Send,
    /// RDMA READ.
    Read,
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 3] = [Self::Write, Self::Send, Self::Read];

    /// Its name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Send => "send",
            Self::Read => "read",
        }
    }
}

/// An arbitration that must never be called, because only one lane ever has packets to send.
#[derive(Debug)]
struct Unasked;

impl Arbitration for Unasked {
    fn next(&mut self, waiting: u16) -> Option<u8> {
        panic!("whose turn it is among {waiting:b}")
    }

    fn sent(&mut self, lane: u8, _: usize) {
        panic!("lane {lane} has sent while others waited")
    }
}

/// A reliable connection between two endpoints in this thread. Side 0 sends requests, side 1 answers.
#[derive(Debug)]
pub struct Direct {
    pair: Pair,
    connection: Connection,
    buffers: [(u64, Key); 2],
    arena: Vec<u8>,
    size: u32,
    /// Number of packets that each side sent.
    pub packets: [u64; 2],
    /// Time spent in each side's endpoint, if `timed` is set.
    pub spent: [Duration; 2],
    /// Whether to read the clock, which costs instructions itself.
    pub timed: bool,
}

impl Direct {
    /// Connects two endpoints for messages of `size` bytes.
    #[must_use]
    pub fn new(mtu: Mtu, size: u32) -> Self {
        // Leaves space between the memory that is written and the memory that is read.
        let heap = 4 * size as usize + 4096;
        let mut pair = Pair::new(PairConfig { trace: 0, heap, ..PairConfig::default() });
        let connection = pair.connect(&ConnectOptions { mtu, ..ConnectOptions::default() });
        let buffers =
            [0, 1].map(|side: usize| pair.sides[side].heap.alloc_registered(PD, size.into(), REGION_ALL));
        for (side, (addr, _)) in buffers.iter().enumerate() {
            let bytes: Vec<u8> =
                (0..size).map(|at| (at * 7) as u8 ^ (at >> 8) as u8 ^ (side as u8)).collect();
            pair.sides[side].heap.set(*addr, &bytes);
        }
        let arena = vec![0; pair.config().endpoints[0].max_batch];
        Self {
            pair,
            connection,
            buffers,
            arena,
            size,
            packets: [0; 2],
            spent: [Duration::ZERO; 2],
            timed: false,
        }
    }

    /// From now on, each service level has a virtual lane, with arbitration between them. The connection stays in lane 0.
    pub fn use_lanes(&mut self) {
        let of_level = core::array::from_fn(|level| level.min(LANES - 1) as u8);
        for side in &mut self.pair.sides {
            side.endpoint.set_lanes(Lanes::new(of_level, [0; LANES], Box::new(Unasked)));
        }
    }

    /// Executes one message, from posting it to its completion.
    ///
    /// # Panics
    /// If it does not complete successfully.
    pub fn message(&mut self, op: Op) {
        let sges = self.buffers.map(|(addr, lkey)| [Sge { addr, len: self.size, lkey }]);
        let remote = Remote { addr: self.buffers[1].0, rkey: self.buffers[1].1 };
        let wr = match op {
            Op::Write => SendOp::Write(remote),
            Op::Send => SendOp::Send,
            Op::Read => SendOp::Read(remote),
        };
        let now = self.pair.now;
        let [qpn, peer] = self.connection.qpns;
        if op == Op::Send {
            let start = self.start();
            let posted = self.pair.sides[1].endpoint.post_recv(peer, &RecvWr { wr_id: 1, sges: &sges[1] });
            self.stop(1, start);
            posted.expect("room for a receive");
        }
        let start = self.start();
        let posted = self.pair.sides[0].endpoint.post_send(now, qpn, &SendWr::new(1, wr, &sges[0]));
        self.stop(0, start);
        posted.expect("room for a request");
        let mut completions = [0, 0];
        while completions[0] == 0 {
            let moved = [self.carry(0), self.carry(1)];
            completions[0] += self.complete(0);
            completions[1] += self.complete(1);
            assert!(moved != [false; 2] || completions[0] > 0, "the message is stuck");
        }
        assert_eq!(completions, [1, u32::from(op == Op::Send)], "completions of one {}", op.name());
    }

    /// Hands all packets that `from` has to send to the other side. Returns whether there were any.
    fn carry(&mut self, from: usize) -> bool {
        let now = self.pair.now;
        let mut any = false;
        loop {
            let start = self.start();
            let side = &mut self.pair.sides[from];
            let batch = side.endpoint.poll_transmit(now, &side.heap, &mut self.arena, Acks::Flush);
            self.stop(from, start);
            let Some(batch) = batch else { return any };
            any = true;
            self.packets[from] += batch.count as u64;
            let meta = RunMeta {
                src: batch.src,
                dst: batch.dst,
                src_port: batch.src_port,
                ifindex: 1,
                tos: batch.tos,
                hop_limit: batch.hop_limit,
                seen: HeaderSeen::Hidden,
            };
            let run = Run { meta, bytes: &self.arena[..batch.len], segment: batch.segment };
            let start = self.start();
            let side = &mut self.pair.sides[1 - from];
            side.endpoint.handle_run(now, &run, &side.heap);
            self.stop(1 - from, start);
        }
    }

    /// Takes the events of a side. Returns the number of completions.
    fn complete(&mut self, side: usize) -> u32 {
        let mut count = 0;
        let start = self.start();
        while let Some(event) = self.pair.sides[side].endpoint.poll_event() {
            if let Event::Completion { wc, .. } = event {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                count += 1;
            }
        }
        self.stop(side, start);
        count
    }

    fn start(&self) -> Option<Instant> {
        self.timed.then(Instant::now)
    }

    fn stop(&mut self, side: usize, start: Option<Instant>) {
        if let Some(start) = start {
            self.spent[side] += start.elapsed();
        }
    }

    /// Checks that both buffers are equal, as they must be after a message of any kind.
    ///
    /// # Panics
    /// If they differ.
    pub fn check(&self) {
        let [near, far] =
            [0, 1].map(|side: usize| self.pair.sides[side].heap.get(self.buffers[side].0, self.size.into()));
        assert!(near == far, "the message did not arrive as it was sent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lane_alone_needs_no_arbitration() {
        let mut direct = Direct::new(Mtu::M4096, 65_536);
        direct.use_lanes();
        for op in Op::ALL {
            direct.message(op);
        }
        direct.check();
    }

    #[test]
    fn every_kind_of_message_arrives() {
        for op in Op::ALL {
            for (mtu, size) in [(Mtu::M1024, 1 << 20), (Mtu::M4096, 65_536), (Mtu::M4096, 64)] {
                let mut direct = Direct::new(mtu, size);
                direct.message(op);
                direct.message(op);
                direct.check();
                let data = u64::from(2 * size.div_ceil(mtu.bytes()));
                let answerer = usize::from(op == Op::Read);
                assert_eq!(direct.packets[answerer], data, "{} of {size}: {:?}", op.name(), direct.packets);
            }
        }
    }
}
