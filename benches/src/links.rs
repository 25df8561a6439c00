//! Many connections between a few addresses in one process: the common part of the measurements of how queue pairs share a
//! device.

use crate::ends::{self, ALL, Result, Way};
use rxe_verbs::{
    AddressVector, Completion, Context, Cq, Mr, Pd, Qp, QpCaps, QpChange, QpInit, QpState, QpType, RecvWr,
    Remote, SendOp, SendWr, Sge, WcStatus,
};
use std::time::{Duration, Instant};

/// Size of the memory of each side, in bytes.
const MEMORY: usize = 4 << 20;
/// One address.
#[derive(Debug)]
pub struct Host {
    pd: Pd,
    mr: Mr,
    cq: Cq,
    context: Context,
}

impl Host {
    /// Allocates memory, and one completion queue for all queue pairs.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(context: Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        Ok(Self { mr: pd.alloc_mr(MEMORY, ALL)?, cq: context.create_cq(1 << 12, None)?, pd, context })
    }

    /// Takes completions from the completion queue.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn poll(&self, some: &mut [Completion]) -> Result<usize> {
        Ok(self.cq.poll(some)?)
    }

    fn qp(&self) -> Result<Qp> {
        let init = QpInit::new(QpType::Rc, &self.cq);
        let caps = QpCaps { max_send_wr: 64, max_recv_wr: 1024, ..init.caps };
        Ok(self.pd.create_qp(&QpInit { caps, signal_all: true, ..init })?)
    }

    fn sge(&self, len: u32) -> Sge {
        Sge { addr: self.mr.addr(), len, lkey: self.mr.lkey() }
    }

    fn remote(&self) -> Remote {
        Remote { addr: self.mr.addr(), rkey: self.mr.rkey() }
    }
}

/// A queue pair of `near`, and its peer at `far`.
#[derive(Debug)]
pub struct Link<'a> {
    near: &'a Host,
    far: &'a Host,
    qp: Qp,
    peer: Qp,
}

fn bring_up(qp: &Qp, own: &Host, peer: &Qp, timeout: u8, service_level: u8) -> Result<()> {
    let av = own.context.address_vector(0, peer.context().gids().get(0))?;
    let av = AddressVector { service_level, ..av };
    ends::bring_up(qp, &Way { timeout, reads: 16, ..Way::to(peer.qpn(), av) })
}

/// The operation of a message.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// SEND; the receive is posted by the function that times it.
    Send,
}

impl<'a> Link<'a> {
    /// A connection whose near end has this timeout code.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(near: &'a Host, far: &'a Host, timeout: u8) -> Result<Self> {
        Self::in_level(near, far, timeout, 0)
    }

    /// The same with a service level.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn in_level(near: &'a Host, far: &'a Host, timeout: u8, level: u8) -> Result<Self> {
        let (qp, peer) = (near.qp()?, far.qp()?);
        bring_up(&qp, near, &peer, timeout, level)?;
        bring_up(&peer, far, &qp, 17, level)?;
        Ok(Self { near, far, qp, peer })
    }

    /// Moves the peer to the error state, so that requests are no longer answered.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn kill_peer(&self) -> Result<()> {
        Ok(self.peer.modify(&QpChange { state: Some(QpState::Error), ..QpChange::default() })?)
    }

    /// Posts an operation between the start of the near memory and the start of the far memory.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn post(&self, op: Op, wr_id: u64, len: u32) -> Result<()> {
        let sges = [self.near.sge(len)];
        let op = match op {
            Op::Read => SendOp::Read(self.far.remote()),
            Op::Write => SendOp::Write(self.far.remote()),
            Op::Send => SendOp::Send,
        };
        Ok(self.qp.post_send(&SendWr::new(wr_id, op, &sges))?)
    }
}

/// The times of `count` operations of `len` bytes, one after the other, beside all other posted requests. `again` is called
/// for the completions of other queue pairs. The times are in microseconds, and sorted. If an operation takes longer than 20
/// s, its time is infinite and it is the last one.
///
/// # Errors
/// The error of the device, or a failed completion.
pub fn times(
    link: &Link<'_>,
    (op, len): (Op, u32),
    count: usize,
    mut again: impl FnMut(&Completion) -> Result<()>,
) -> Result<Vec<f64>> {
    let mut some = [Completion::default(); 16];
    let mut times = Vec::with_capacity(count);
    for turn in 0..count {
        if matches!(op, Op::Send) {
            link.peer.post_recv(&RecvWr { wr_id: 0, sges: &[link.far.sge(len)] })?;
        }
        let start = Instant::now();
        link.post(op, 1, len)?;
        let mut done = false;
        while !done {
            let found = link.near.poll(&mut some)?;
            for wc in &some[..found] {
                if wc.qpn != link.qp.qpn() {
                    again(wc)?;
                } else if wc.status == WcStatus::Success {
                    done = true;
                } else {
                    return Err(format!("{wc:?}").into());
                }
            }
            if start.elapsed() > Duration::from_secs(20) {
                times.push(f64::INFINITY);
                return Ok(times);
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
        // Polls for the receives of the other side, but seldom: a program that polls is expected to process packets itself.
        if turn % 256 == 255 {
            while link.far.poll(&mut some)? > 0 {}
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The quantile at `share` (0 to 1) of sorted times.
#[must_use]
pub fn at(times: &[f64], share: f64) -> f64 {
    times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

/// All `links` keep `depth` messages outstanding for a while. Returns the throughput in Gbit/s, and the bytes of each link.
///
/// # Errors
/// The error of the device, or a failed completion.
pub fn bulk(links: &[Link<'_>], op: Op, depth: usize, len: u32, seconds: f64) -> Result<(f64, Vec<f64>)> {
    let near = links[0].near;
    let mut bytes = vec![0.0; links.len()];
    for (index, link) in links.iter().enumerate() {
        for _ in 0..depth {
            link.post(op, index as u64 + 2, len)?;
        }
    }
    let mut some = [Completion::default(); 64];
    let (start, mut under_way) = (Instant::now(), links.len() * depth);
    let mut took = 0.0;
    while under_way > 0 {
        let found = near.poll(&mut some)?;
        let elapsed = start.elapsed().as_secs_f64();
        for wc in some[..found].iter().filter(|wc| wc.wr_id >= 2) {
            let index = wc.wr_id as usize - 2;
            if wc.status != WcStatus::Success {
                return Err(format!("{wc:?}").into());
            }
            under_way -= 1;
            if elapsed < seconds {
                bytes[index] += f64::from(len);
                links[index].post(op, wc.wr_id, len)?;
                under_way += 1;
                took = elapsed;
            }
        }
        if elapsed > seconds + 20.0 {
            return Err("messages do not complete any more".into());
        }
    }
    Ok((bytes.iter().sum::<f64>() * 8e-9 / took, bytes))
}
