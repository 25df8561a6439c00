//! The exchange of messages: the client sends, and the server answers.

use super::{Args, Service, contact::Contact};
use crate::{
    Result,
    local::{self, Connection, next_completion},
};
use rxe_verbs::{
    Access, CompChannel, Completion, Context, Cq, Gid, Mr, Pd, Qkey, Qp, QpCaps, QpInit, RecvWr, SendOp,
    SendWr, Srq, UdDest, WcOpcode,
};
use std::time::{Duration, Instant};

/// The Q_Key of ibv_ud_pingpong.
const QKEY: Qkey = Qkey(0x1111_1111);
/// Bytes in front of a received datagram.
const GRH: usize = 40;
/// Memory for receives.
const RECEIVE_BYTES: usize = 64 << 20;
/// The initial content of the C programs' buffers: 0x7b, but 0 in ibv_srq_pingpong.
const FILL: u8 = 0x7b;

/// One queue pair of this end.
#[derive(Debug)]
struct Player {
    qp: Qp,
    own: Contact,
    /// The destination of datagrams.
    dest: Option<UdDest>,
    /// Messages received.
    received: u32,
    /// What has to happen before the next send.
    send_pending: bool,
    recv_pending: bool,
}

/// One end.
#[derive(Debug)]
pub(super) struct Table {
    context: Context,
    pd: Pd,
    cq: Cq,
    /// If there is one, this end sleeps instead of polling.
    events: Option<CompChannel>,
    srq: Option<Srq>,
    players: Vec<Player>,
    /// A send buffer for each player.
    sends: Mr,
    /// `slots` receive buffers of `slot` bytes.
    receives: Mr,
    slots: usize,
    slot: usize,
    /// Bytes before the message in a slot.
    before: usize,
    size: usize,
    check: bool,
    /// Patterns change from message to message. (Not with a shared queue: ibv_srq_pingpong has one buffer for all queue
    /// pairs, and may answer one with what came by another.)
    changing: bool,
    expected: Vec<u8>,
}

impl Table {
    pub(super) fn new(context: &Context, service: Service, size: u32, args: &Args) -> Result<Self> {
        let size = size as usize;
        let count = if service == Service::Srq { args.num_qp as usize } else { 1 };
        let before = if service == Service::Ud { GRH } else { 0 };
        let slot = size + before;
        let slots = (RECEIVE_BYTES / slot).min(args.rx_depth as usize).max(2 * count);
        let pd = context.alloc_pd()?;
        let events = args.events.then(|| context.create_comp_channel()).transpose()?;
        let cq = context.create_cq((slots + count) as u32, events.as_ref())?;
        let srq = (service == Service::Srq).then(|| pd.create_srq(slots as u32, 1)).transpose()?;
        let caps = QpCaps {
            max_send_wr: 1,
            max_recv_wr: slots as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let mut players = Vec::with_capacity(count);
        for _ in 0..count {
            let init = QpInit { caps, srq: srq.as_ref(), ..QpInit::new(service.qp_type(), &cq) };
            let qp = pd.create_qp(&init)?;
            local::to_init(&qp, Access::empty(), QKEY)?;
            let own = Contact { qpn: qp.qpn(), psn: local::random_psn(), gid: Gid::ZERO };
            players.push(Player {
                qp,
                own,
                dest: None,
                received: 0,
                send_pending: false,
                recv_pending: true,
            });
        }
        let sends = pd.alloc_mr(size * count, Access::LOCAL_WRITE)?;
        sends.fill(FILL)?;
        let receives = pd.alloc_mr(slot * slots, Access::LOCAL_WRITE)?;
        let (context, check, changing) = (context.clone(), args.check, service != Service::Srq);
        let expected = vec![0; size];
        let table = Self {
            context,
            pd,
            cq,
            events,
            srq,
            players,
            sends,
            receives,
            slots,
            slot,
            before,
            size,
            check,
            changing,
            expected,
        };
        (0..slots).try_for_each(|slot| table.receive(slot))?;
        Ok(table)
    }

    /// Our parameters for the peer.
    pub(super) fn contacts(&mut self, gid: Gid) -> Vec<Contact> {
        self.players.iter_mut().for_each(|player| player.own.gid = gid);
        self.players.iter().map(|player| player.own).collect()
    }

    pub(super) fn connect(&self, index: usize, to: &Connection) -> Result<()> {
        local::connect(&self.players[index].qp, to)
    }

    /// Sets the destination of datagrams.
    pub(super) fn aim(&mut self, peers: &[Contact], gid_index: u8) -> Result<()> {
        if self.before == 0 {
            return Ok(());
        }
        for (player, peer) in self.players.iter_mut().zip(peers) {
            let ah = self.pd.create_ah(self.context.address_vector(gid_index, peer.gid)?);
            player.dest = Some(ah.dest(peer.qpn, QKEY));
        }
        Ok(())
    }

    fn receive(&self, slot: usize) -> Result<()> {
        let sges = [self.receives.sge(slot * self.slot, self.slot as u32)];
        let wr = RecvWr { wr_id: slot as u64, sges: &sges };
        match &self.srq {
            Some(srq) => srq.post_recv(&wr)?,
            None => self.players[0].qp.post_recv(&wr)?,
        }
        Ok(())
    }

    /// Sends message number `round`.
    fn send(&mut self, index: usize, round: u32) -> Result<()> {
        if self.check {
            pattern(&mut self.expected, if self.changing { round } else { 0 });
            self.sends.write_at(index * self.size, &self.expected)?;
        }
        let player = &mut self.players[index];
        let sges = [self.sends.sge(index * self.size, self.size as u32)];
        let wr = SendWr { dest: player.dest, ..SendWr::new(u64::MAX, SendOp::Send, &sges) };
        player.qp.post_send(&wr)?;
        (player.send_pending, player.recv_pending) = (true, true);
        Ok(())
    }

    /// Runs until `iters` messages were sent and as many received. Returns the time.
    pub(super) fn play(&mut self, client: bool, iters: u32) -> Result<Duration> {
        let start = Instant::now();
        if client {
            (0..self.players.len()).try_for_each(|index| self.send(index, 0))?;
        }
        let (mut sent, mut received) = (0, 0);
        while sent < iters || received < iters {
            let wc = next_completion(&self.cq, self.events.as_ref(), &self.context)?;
            let index = self.players.iter().position(|player| player.own.qpn == wc.qpn);
            let index = index.ok_or("a completion of a queue pair that is not ours")?;
            if wc.opcode == WcOpcode::Recv {
                received += 1;
                self.take(index, &wc, client)?;
                self.receive(wc.wr_id as usize)?;
                self.players[index].recv_pending = false;
            } else {
                sent += 1;
                self.players[index].send_pending = false;
            }
            let player = &self.players[index];
            if sent < iters && !player.send_pending && !player.recv_pending {
                // The client's first message has number 0. The server answers with the number that it got.
                let round = if client { player.received } else { player.received - 1 };
                self.send(index, round)?;
            }
        }
        Ok(start.elapsed())
    }

    /// Counts a message, and compares it if requested.
    fn take(&mut self, index: usize, wc: &Completion, client: bool) -> Result<()> {
        let round = self.players[index].received;
        self.players[index].received += 1;
        let got = wc.byte_len as usize - self.before.min(wc.byte_len as usize);
        if got != self.size {
            let size = self.size;
            return Err(format!(
                "message {round} has {got} bytes, not {size}: give both sides the same --size"
            )
            .into());
        }
        if !self.check {
            return Ok(());
        }
        let slot = wc.wr_id as usize;
        if slot >= self.slots {
            return Err("a receive completion names no receive".into());
        }
        let at = slot * self.slot + self.before;
        let bytes = self.receives.read_vec(at, self.size)?;
        let wrong = self.first_wrong(&bytes, round, client);
        // So that old data is not taken for new data.
        self.receives.write_at(at, &vec![0xee; self.size])?;
        match wrong {
            None => Ok(()),
            Some(at) => {
                let byte = bytes[at];
                Err(format!("message {round}: byte {at} is {byte:#04x}, not what was sent").into())
            }
        }
    }

    /// Where a message is not what it must be. Our own client sends pattern `round`; a client of rdma-core sends back
    /// what it got last, which was our answer to the message before, and at first what its buffer was filled with.
    fn first_wrong(&mut self, bytes: &[u8], round: u32, client: bool) -> Option<usize> {
        let changing = self.changing;
        let number = |round: u32| if changing { round } else { 0 };
        pattern(&mut self.expected, number(round));
        let wrong = bytes.iter().zip(&self.expected).position(|(got, want)| got != want)?;
        if client {
            return Some(wrong);
        }
        if round == 0 {
            let known = |(got, want): (&u8, &u8)| got == want || matches!(*got, 0 | FILL);
            return bytes.iter().zip(&self.expected).position(|pair| !known(pair));
        }
        pattern(&mut self.expected, number(round - 1));
        let as_before = bytes.iter().zip(&self.expected).all(|(got, want)| got == want);
        (!as_before).then_some(wrong)
    }
}

/// The bytes of message number `round`: the first byte of every 4096 is 0, which is all that `-c` of the C programs looks
/// at; the others depend on place and number.
fn pattern(bytes: &mut [u8], round: u32) {
    let seed = u64::from(round) << 32;
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        let mixed = (seed ^ index as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).to_le_bytes();
        chunk.copy_from_slice(&mixed[..chunk.len()]);
    }
    bytes.iter_mut().step_by(4096).for_each(|byte| *byte = 0);
}
