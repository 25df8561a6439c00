//! Sessions of two endpoints of the protocol core in virtual time, captured where packets leave.

use rxe_core::{
    num::Key,
    stats::QpStats,
    testing::{
        ConnectOptions, Connection, Crossing, Pair, PairConfig, Verdict,
        connect::{PD, REGION_ALL},
        pcap,
    },
    work::{RecvWr, Remote, SendFlags, SendOp, SendWr, Sge},
};

/// Bytes of each side's buffer.
pub(crate) const BUFFER: u64 = 1 << 18;

/// A connection with a buffer on each side.
pub(crate) struct Session {
    pub(crate) pair: Pair,
    pub(crate) connection: Connection,
    buffers: [(u64, Key); 2],
}

impl Session {
    pub(crate) fn new(name: &'static str) -> Self {
        Self::with(PairConfig { name, ..PairConfig::default() }, &ConnectOptions::default())
    }

    pub(crate) fn with(config: PairConfig, options: &ConnectOptions) -> Self {
        let mut pair = Pair::new(config);
        let connection = pair.connect(options);
        let buffers =
            [0, 1].map(|side: usize| pair.sides[side].heap.alloc_registered(PD, BUFFER, REGION_ALL));
        Self { pair, connection, buffers }
    }

    pub(crate) fn remote(&self, side: usize) -> Remote {
        let (addr, rkey) = self.buffers[side];
        Remote { addr, rkey }
    }

    pub(crate) fn send(&mut self, side: usize, op: SendOp, len: u32) {
        let (addr, lkey) = self.buffers[side];
        let sge = [Sge { addr, len, lkey }];
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(1, op, &sge) };
        self.pair.post_send(side, self.connection.qpns[side], &wr).unwrap();
    }

    pub(crate) fn recv(&mut self, side: usize, len: u32) {
        let (addr, lkey) = self.buffers[side];
        let sge = [Sge { addr, len, lkey }];
        self.pair.post_recv(side, self.connection.qpns[side], &RecvWr { wr_id: 2, sges: &sge }).unwrap();
    }

    /// Loses the packets for which this says so, on the way from `side`.
    pub(crate) fn lose(&mut self, side: usize, mut which: impl FnMut(&Crossing<'_>) -> bool + 'static) {
        let rule = move |crossing: &Crossing<'_>| if which(crossing) { Verdict::Drop } else { Verdict::Pass };
        self.pair.sides[side].link.set_rule(rule);
    }

    pub(crate) fn run(&mut self) {
        self.pair.run_until_idle();
    }

    pub(crate) fn stats(&self, side: usize) -> QpStats {
        self.pair.sides[side].endpoint.qp_stats(self.connection.qpns[side]).unwrap()
    }

    /// What was put on both wires.
    pub(crate) fn capture(&self) -> Vec<u8> {
        pcap::pcapng(&self.pair.trace)
    }
}
