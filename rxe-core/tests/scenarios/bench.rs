//! What the scenarios share: a connection, a buffer on each side, and queries for what was on the wire.

use rxe_core::{
    num::{Key, Psn, Qpn},
    qp::{QpChange, QpState},
    stats::QpStats,
    testing::{
        ConnectOptions, Connection, Pair, PairConfig, Rng,
        connect::{PD, RECV_CQ, REGION_ALL, SEND_CQ},
        link::Verdict,
        trace::Entry,
    },
    time::Instant,
    wire::{Class, Opcode, Packet, icrc},
    work::{AsyncEvent, Completion, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, WcStatus},
};

/// Bytes of each side's buffer.
pub(crate) const BUFFER: u64 = 256 * 1024;

/// A connection and a registered buffer on each side.
pub(crate) struct Bench {
    pub(crate) pair: Pair,
    pub(crate) connection: Connection,
    pub(crate) options: ConnectOptions,
    /// Address and key of each side's buffer.
    buffers: [(u64, Key); 2],
}

/// A packet that was put on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) opcode: Opcode,
    pub(crate) class: Class,
    pub(crate) psn: Psn,
    pub(crate) payload: usize,
    pub(crate) ack_req: bool,
    /// Length asked for (RETH).
    pub(crate) asked: u32,
    pub(crate) lost: bool,
}

impl Bench {
    /// A reliable connection over good wires.
    pub(crate) fn new(name: &'static str) -> Self {
        Self::with(PairConfig { name, ..PairConfig::default() }, ConnectOptions::default())
    }

    pub(crate) fn with(config: PairConfig, options: ConnectOptions) -> Self {
        let mut pair = Pair::new(config);
        let connection = pair.connect(&options);
        let buffers =
            [0, 1].map(|side: usize| pair.sides[side].heap.alloc_registered(PD, BUFFER, REGION_ALL));
        Self { pair, connection, options, buffers }
    }

    pub(crate) fn qpn(&self, side: usize) -> Qpn {
        self.connection.qpns[side]
    }

    pub(crate) fn key(&self, side: usize) -> Key {
        self.buffers[side].1
    }

    pub(crate) fn addr(&self, side: usize, offset: u64) -> u64 {
        self.buffers[side].0 + offset
    }

    pub(crate) fn sge(&self, side: usize, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr(side, offset), len, lkey: self.key(side) }
    }

    /// The bytes at `offset` of `side`'s buffer, as its peer names them.
    pub(crate) fn remote(&self, side: usize, offset: u64) -> Remote {
        Remote { addr: self.addr(side, offset), rkey: self.key(side) }
    }

    /// Fills a piece of a buffer with bytes that belong to `seed`, and gives them.
    pub(crate) fn fill(&self, side: usize, offset: u64, len: u64, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        Rng::new(seed).fill(&mut bytes);
        self.pair.sides[side].heap.set(self.addr(side, offset), &bytes);
        bytes
    }

    pub(crate) fn bytes(&self, side: usize, offset: u64, len: u64) -> Vec<u8> {
        self.pair.sides[side].heap.get(self.addr(side, offset), len)
    }

    /// Posts a signaled request whose data is `len` bytes at `offset` of the own buffer.
    pub(crate) fn send(&mut self, side: usize, wr_id: u64, op: SendOp, offset: u64, len: u32) {
        self.send_with(side, wr_id, op, offset, len, SendFlags::SIGNALED);
    }

    pub(crate) fn send_with(
        &mut self,
        side: usize,
        wr_id: u64,
        op: SendOp,
        offset: u64,
        len: u32,
        flags: SendFlags,
    ) {
        let sges = [self.sge(side, offset, len)];
        let wr = SendWr { flags, ..SendWr::new(wr_id, op, &sges) };
        self.pair.post_send(side, self.connection.qpns[side], &wr).expect("posted");
    }

    /// Posts a receive into `len` bytes at `offset` of the own buffer.
    pub(crate) fn recv(&mut self, side: usize, wr_id: u64, offset: u64, len: u32) {
        let sges = [self.sge(side, offset, len)];
        self.pair
            .post_recv(side, self.connection.qpns[side], &RecvWr { wr_id, sges: &sges })
            .expect("posted");
    }

    /// Completions of requests posted by `side` that wait.
    pub(crate) fn sent(&mut self, side: usize) -> Vec<Completion> {
        self.pair.take_completions(side, SEND_CQ)
    }

    /// Completions of receives of `side` that wait.
    pub(crate) fn received(&mut self, side: usize) -> Vec<Completion> {
        self.pair.take_completions(side, RECV_CQ)
    }

    /// (wr_id, status) of the requests of `side` that completed.
    pub(crate) fn sent_statuses(&mut self, side: usize) -> Vec<(u64, WcStatus)> {
        statuses(&self.sent(side))
    }

    /// (wr_id, status) of the receives of `side` that completed.
    pub(crate) fn received_statuses(&mut self, side: usize) -> Vec<(u64, WcStatus)> {
        statuses(&self.received(side))
    }

    pub(crate) fn events(&mut self, side: usize) -> Vec<AsyncEvent> {
        self.pair.sides[side].async_events.drain(..).collect()
    }

    pub(crate) fn state(&self, side: usize) -> QpState {
        self.pair.sides[side].endpoint.query_qp(self.qpn(side)).expect("it exists").0.state
    }

    pub(crate) fn stats(&self, side: usize) -> QpStats {
        self.pair.sides[side].endpoint.qp_stats(self.qpn(side)).expect("it exists")
    }

    pub(crate) fn go_to(&mut self, side: usize, state: QpState) {
        let change = QpChange { state: Some(state), ..QpChange::default() };
        let qpn = self.qpn(side);
        self.pair.modify(side, qpn, &change).expect("a transition");
    }

    /// Every packet that `side` has put on the wire.
    pub(crate) fn wire(&self, side: usize) -> Vec<Seen> {
        self.pair
            .trace
            .records()
            .filter(|record| record.side == side)
            .filter_map(|record| match &record.entry {
                Entry::Packet { datagram, fate } => {
                    let packet = Packet::decode(&datagram.bytes).expect("endpoints send what decodes");
                    Some(Seen {
                        at: record.at,
                        opcode: packet.bth.opcode,
                        class: packet.info.class,
                        psn: packet.bth.psn,
                        payload: packet.payload.len(),
                        ack_req: packet.bth.ack_req,
                        asked: packet.ext.reth.len,
                        lost: *fate == Verdict::Drop,
                    })
                }
                Entry::Note(_) => None,
            })
            .collect()
    }

    /// Those of one class.
    pub(crate) fn wire_of(&self, side: usize, class: Class) -> Vec<Seen> {
        self.wire(side).into_iter().filter(|seen| seen.class == class).collect()
    }

    /// For each FLUSH of `side`: whether it carried kernel rxe's ICRC.
    pub(crate) fn rxe_flushes(&self, side: usize) -> Vec<bool> {
        let packets = self.pair.trace.records().filter(|record| record.side == side);
        let datagrams = packets.filter_map(|record| match &record.entry {
            Entry::Packet { datagram, .. } => Some(datagram),
            Entry::Note(_) => None,
        });
        datagrams
            .filter(|datagram| datagram.bytes[0] == Opcode::RC_FLUSH.0)
            .map(|datagram| {
                let route = icrc::Route::v2(datagram.src, datagram.dst, datagram.src_port);
                !icrc::check(&route, datagram.ident, icrc::DONT_FRAGMENT, &datagram.bytes)
            })
            .collect()
    }

    /// Loses every packet that leaves `side` from now on.
    pub(crate) fn cut(&mut self, side: usize) {
        self.pair.sides[side].link.set_rule(|_| Verdict::Drop);
    }

    /// Lets packets of `side` pass again.
    pub(crate) fn mend(&mut self, side: usize) {
        self.pair.sides[side].link.clear_rule();
    }
}

/// (wr_id, status) of completions.
pub(crate) fn statuses(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}
