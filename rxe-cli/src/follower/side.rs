//! The objects of each process: memory, and a queue pair for every line.

use super::{CLEAR, Card, DEPTH, GUARD, Kind, Received, Setup};
use crate::{
    Result,
    local::{self, Connection, PATIENCE},
};
use rxe_verbs::{
    Access, Completion, Context, Cq, Gid, Key, Mr, Pd, Psn, Qkey, Qp, QpCaps, QpInit, QpType, Qpn, RecvWr,
    Remote, SendOp, SendWr, Srq, UdDest, WcExtra, WcOpcode,
};
use std::time::{Duration, Instant};

const QKEY: Qkey = Qkey(0x1111_1111);
/// Outstanding READs and atomics.
const READS: u8 = 128;
/// Most memory of a follower.
const MEMORY: usize = 1 << 30;
/// Most lines of a follower.
const LINES: usize = 256;

/// A queue pair, and its peer.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    kind: Kind,
    psn: Psn,
    dest: Option<UdDest>,
}

/// One end.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) mr: Mr,
    pub(crate) lines: Vec<Line>,
    srq: Option<Srq>,
    gid: u8,
    setup: Setup,
    /// The other end's memory.
    remote: Remote,
}

impl Side {
    /// Creates all objects, and brings the queue pairs to INIT.
    pub(crate) fn new(context: &Context, gid: u8, setup: &Setup) -> Result<Self> {
        if setup.memory > MEMORY || setup.lines.len() > LINES {
            return Err(format!("more than {MEMORY} bytes or {LINES} queue pairs were asked for").into());
        }
        let pd = context.alloc_pd()?;
        let rights = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
        let mr = pd.alloc_mr(setup.memory.max(1), rights)?;
        let shared = setup.lines.contains(&Kind::Shared);
        let srq = shared.then(|| pd.create_srq(DEPTH, 1)).transpose()?;
        let rights = rights - Access::LOCAL_WRITE - Access::MW_BIND;
        let lines = setup.lines.iter().map(|kind| Line::new(context, &pd, *kind, srq.as_ref(), rights));
        let lines = lines.collect::<Result<_>>()?;
        let (context, setup) = (context.clone(), setup.clone());
        Ok(Self { context, pd, mr, lines, srq, gid, setup, remote: Remote::default() })
    }

    /// The parameters of this end.
    pub(crate) fn card(&self) -> Result<Card> {
        let ip = self.context.gids().get(self.gid).address().ok_or("our GID is gone")?;
        let lines = self.lines.iter().map(|line| (line.qp.qpn().value(), line.psn.value())).collect();
        Ok(Card { ip, lines, addr: self.mr.addr(), rkey: self.mr.rkey().0 })
    }

    pub(crate) fn connect(&mut self, to: &Card) -> Result<()> {
        if to.lines.len() != self.lines.len() {
            return Err("the two sides have different numbers of queue pairs".into());
        }
        let mtu = self.setup.path_mtu()?;
        let remote_gid = Gid::from(to.ip);
        let av = self.context.address_vector(self.gid, remote_gid)?;
        for (line, (qpn, psn)) in self.lines.iter_mut().zip(&to.lines) {
            let (remote_qpn, remote_psn) = (Qpn::new(*qpn), Psn::new(*psn));
            let psn = line.psn;
            let gid_index = self.gid;
            let timeout = local::TIMEOUT;
            let to =
                Connection { gid_index, remote_gid, remote_qpn, remote_psn, psn, mtu, depth: READS, timeout };
            local::connect(&line.qp, &to)?;
            line.dest = (line.kind == Kind::Ud).then(|| self.pd.create_ah(av).dest(remote_qpn, QKEY));
        }
        self.remote = Remote { addr: to.addr, rkey: Key(to.rkey) };
        Ok(())
    }

    /// The other end's memory from `at` on.
    pub(crate) const fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.remote.addr.wrapping_add(at as u64), rkey: self.remote.rkey }
    }

    pub(crate) fn line(&self, line: usize) -> Result<&Line> {
        self.lines.get(line).ok_or_else(|| format!("there is no queue pair {line}").into())
    }

    /// Posts a work request about `len` bytes of our memory.
    pub(crate) fn post(&self, line: usize, op: SendOp, at: usize, len: u32) -> Result<()> {
        let line = self.line(line)?;
        let sges = [self.mr.sge(at, len)];
        let empty = len == 0 || matches!(op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. });
        let sges = if empty { &[][..] } else { &sges };
        Ok(line.qp.post_send(&SendWr { dest: line.dest, ..SendWr::new(1, op, sges) })?)
    }

    /// Waits for our own work request.
    pub(crate) fn sent(&self, line: usize) -> Result<Completion> {
        let wc = self.finished(line)?;
        local::check(&wc, &self.context)?;
        Ok(wc)
    }

    /// Waits for our own work request, however it ends.
    pub(crate) fn finished(&self, line: usize) -> Result<Completion> {
        let wc = self.line(line)?.send_cq.poll_within(PATIENCE)?;
        Ok(wc.ok_or("a work request did not complete")?)
    }

    pub(crate) fn receive(&self, line: usize, at: usize, len: u32) -> Result<()> {
        let line = self.line(line)?;
        let sges = [self.mr.sge(at, len)];
        let wr = RecvWr { wr_id: at as u64, sges: if len == 0 { &[] } else { &sges } };
        match &self.srq {
            Some(srq) if line.kind == Kind::Shared => srq.post_recv(&wr)?,
            _ => line.qp.post_recv(&wr)?,
        }
        Ok(())
    }

    /// Waits for a receive.
    pub(crate) fn received(&self, line: usize, timeout: Duration) -> Result<Received> {
        let line = self.line(line)?;
        let wc = line.recv_cq.poll_within(timeout)?.ok_or("nothing arrived")?;
        local::check(&wc, &self.context)?;
        let grh = wc.grh.then(|| self.mr.read_vec(wc.wr_id as usize, 40)).transpose()?;
        Ok(Received {
            len: wc.byte_len,
            by_write: wc.opcode == WcOpcode::RecvRdmaWithImm,
            immediate: if let WcExtra::Immediate(bytes) = wc.extra { Some(bytes) } else { None },
            invalidated: if let WcExtra::Invalidated(key) = wc.extra { Some(key.0) } else { None },
            src_qp: wc.src_qp.value(),
            grh,
        })
    }

    pub(crate) fn fill(&self, at: usize, len: usize, seed: u64) -> Result<()> {
        Ok(self.mr.write_at(at, &pattern(len, seed))?)
    }

    /// Clears a range and its guards.
    pub(crate) fn clear(&self, at: usize, len: usize) -> Result<()> {
        let at = at.checked_sub(GUARD).ok_or("no room for a guard")?;
        Ok(self.mr.write_at(at, &vec![CLEAR; len.min(MEMORY) + 2 * GUARD])?)
    }

    /// Compares a range with a pattern, and its guards with what they were cleared to; the guard in front ends `skip`
    /// bytes before the range.
    pub(crate) fn check(
        &self,
        at: usize,
        len: usize,
        skip: usize,
        seed: u64,
        timeout: Duration,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.compare(at, len, skip, seed) {
                Err(_) if start.elapsed() < timeout => self.context.progress(),
                result => return result,
            }
        }
    }

    fn compare(&self, at: usize, len: usize, skip: usize, seed: u64) -> Result<()> {
        let before = GUARD + skip.min(GUARD);
        let first = at.checked_sub(before).ok_or("no room for a guard")?;
        let mut got = self.mr.read_vec(first, before + len.min(MEMORY) + GUARD)?;
        got.drain(GUARD..before);
        let guard = [CLEAR; GUARD];
        let want = [&guard[..], &pattern(len, seed), &guard[..]].concat();
        let Some(wrong) = got.iter().zip(&want).position(|(got, want)| got != want) else { return Ok(()) };
        let (place, got, want) = (wrong as i64 - GUARD as i64, got[wrong], want[wrong]);
        Err(format!("byte {place} of {len} is {got:#04x} and should be {want:#04x}").into())
    }
}

impl Line {
    fn new(context: &Context, pd: &Pd, kind: Kind, srq: Option<&Srq>, rights: Access) -> Result<Self> {
        let qp_type = match kind {
            Kind::Rc | Kind::Shared => QpType::Rc,
            Kind::Uc => QpType::Uc,
            Kind::Ud => QpType::Ud,
        };
        let send_cq = context.create_cq(2 * DEPTH, None)?;
        let recv_cq = context.create_cq(2 * DEPTH, None)?;
        let caps = QpCaps {
            max_send_wr: DEPTH,
            max_recv_wr: 2 * DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 256,
        };
        let init = QpInit { recv_cq: &recv_cq, caps, ..QpInit::new(qp_type, &send_cq) };
        let srq = srq.filter(|_| kind == Kind::Shared);
        let qp = pd.create_qp(&QpInit { srq, ..init })?;
        // Unreliable services have no READs and atomics.
        let rights = if kind == Kind::Uc { Access::REMOTE_WRITE } else { rights };
        local::to_init(&qp, rights, QKEY)?;
        Ok(Self { qp, send_cq, recv_cq, kind, psn: local::random_psn(), dest: None })
    }
}

/// `len` bytes that depend on place and `seed`.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len.min(MEMORY)];
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        let mixed = (seed << 32 ^ index as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).to_le_bytes();
        chunk.copy_from_slice(&mixed[..chunk.len()]);
    }
    bytes
}
