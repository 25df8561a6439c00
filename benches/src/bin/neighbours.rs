//! What queue pairs of one process do to each other: beside one whose peer is dead, beside many that want all there is, beside
//! eight that never pause. Prints a table: round trips of 64 bytes, shares of bandwidth, and Jain's index of bytes
//! (R. Jain, D. Chiu, W. Hawe, 1984: 1 where all get the same, 1/n where one gets all).

use benches::{
    ends::{ALL, Result, loopback},
    turns::{load, machine},
};
use clap::Parser;
use rxe_verbs::{
    Completion, Context, ContextOptions, Cq, Mr, Mtu, Pd, Psn, Qp, QpCaps, QpChange, QpInit, QpState, QpType,
    RecvWr, Remote, SendOp, SendWr, Sge, WcStatus,
};
use std::time::{Duration, Instant};

/// Bytes of memory of each side.
const MEMORY: usize = 4 << 20;
/// Bytes of the operation that is timed.
const SMALL: u32 = 64;
/// Bytes of what is posted to a dead peer.
const LARGE: u32 = 1 << 20;
/// Bytes of the messages of those that want all there is.
const BULK: u32 = 64 << 10;

/// What queue pairs of one process do to each other
#[derive(Debug, Parser)]
struct Args {
    /// Seconds of each measurement of bandwidth
    #[arg(short = 'D', long, default_value_t = 0.5)]
    seconds: f64,
    /// Small operations of each measurement of time
    #[arg(short = 'n', long, default_value_t = 500)]
    count: usize,
    /// Timeout codes of the queue pairs with a dead peer
    #[arg(long, value_delimiter = ',', default_value = "14,17,0")]
    timeouts: Vec<u8>,
}

/// One address.
struct Host {
    pd: Pd,
    mr: Mr,
    cq: Cq,
    context: Context,
}

impl Host {
    fn new(number: u8) -> Result<Self> {
        let context = ContextOptions::new().alone().open_address(loopback(number))?;
        let pd = context.alloc_pd()?;
        Ok(Self { mr: pd.alloc_mr(MEMORY, ALL)?, cq: context.create_cq(1 << 12, None)?, pd, context })
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

/// A queue pair of `near`'s, and its peer at `far`.
struct Link<'a> {
    near: &'a Host,
    far: &'a Host,
    qp: Qp,
    peer: Qp,
}

fn bring_up(qp: &Qp, own: &Host, peer: &Qp, timeout: u8) -> Result<()> {
    let av = own.context.address_vector(0, peer.context().gids().get(0))?;
    let init =
        QpChange { state: Some(QpState::Init), pkey_index: Some(0), port: Some(1), ..QpChange::default() };
    qp.modify(&QpChange { access: Some(ALL), ..init })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rtr),
        av: Some(av),
        path_mtu: Some(Mtu::M4096),
        dest_qpn: Some(peer.qpn()),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(16),
        min_rnr_timer: Some(1),
        ..QpChange::default()
    })?;
    qp.modify(&QpChange {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(0)),
        timeout: Some(timeout),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(16),
        ..QpChange::default()
    })?;
    Ok(())
}

/// An operation, by its name.
#[derive(Clone, Copy)]
enum Op {
    Read,
    Write,
    Send,
}

impl<'a> Link<'a> {
    fn new(near: &'a Host, far: &'a Host, timeout: u8) -> Result<Self> {
        let (qp, peer) = (near.qp()?, far.qp()?);
        bring_up(&qp, near, &peer, timeout)?;
        bring_up(&peer, far, &qp, 17)?;
        Ok(Self { near, far, qp, peer })
    }

    /// Nobody answers any more.
    fn kill_peer(&self) -> Result<()> {
        Ok(self.peer.modify(&QpChange { state: Some(QpState::Error), ..QpChange::default() })?)
    }

    fn post(&self, op: Op, wr_id: u64, len: u32) -> Result<()> {
        let sges = [self.near.sge(len)];
        let op = match op {
            Op::Read => SendOp::Read(self.far.remote()),
            Op::Write => SendOp::Write(self.far.remote()),
            Op::Send => SendOp::Send,
        };
        Ok(self.qp.post_send(&SendWr::new(wr_id, op, &sges))?)
    }
}

/// Completions of the measuring side, as (queue pair's index, bytes).
fn poll(near: &Host, some: &mut [Completion]) -> Result<usize> {
    Ok(near.cq.poll(some)?)
}

/// `count` operations of 64 bytes, one after the other, beside whatever else is posted: `again` is called for completions of
/// others. Microseconds, sorted.
fn times(
    link: &Link<'_>,
    op: Op,
    count: usize,
    mut again: impl FnMut(&Completion) -> Result<()>,
) -> Result<Vec<f64>> {
    let mut some = [Completion::default(); 16];
    let mut times = Vec::with_capacity(count);
    for turn in 0..count {
        if matches!(op, Op::Send) {
            link.peer.post_recv(&RecvWr { wr_id: 0, sges: &[link.far.sge(SMALL)] })?;
        }
        let start = Instant::now();
        link.post(op, 1, SMALL)?;
        let mut done = false;
        while !done {
            let found = poll(link.near, &mut some)?;
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
        // The receives of the other side, seldom: who polls there is expected to look for packets himself.
        if turn % 256 == 255 {
            while poll(link.far, &mut some)? > 0 {}
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn at(times: &[f64], share: f64) -> f64 {
    times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

/// All `links` keep `depth` messages under way for a while: Gbit/s, and the bytes of each.
fn bulk(links: &[Link<'_>], op: Op, depth: usize, len: u32, seconds: f64) -> Result<(f64, Vec<f64>)> {
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
        let found = poll(near, &mut some)?;
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

fn jain(bytes: &[f64]) -> f64 {
    let (sum, squares) =
        bytes.iter().fold((0.0, 0.0), |(sum, squares), one| (sum + one, squares + one * one));
    sum * sum / (bytes.len() as f64 * squares)
}

fn dead_peers(args: &Args, hosts: &[Host; 3]) -> Result<()> {
    println!(
        "| beside a dead peer | timeout | where | 64 B: p50 us | p99 us | 16 that WRITE 64 KiB / alone |"
    );
    println!("|---|---|---|---|---|---|");
    for (name, op) in [("READ", Op::Read), ("WRITE", Op::Write), ("SEND", Op::Send)] {
        for &timeout in &args.timeouts {
            for (place, far) in [("the same address", 1), ("another", 2)] {
                let healthy: Vec<Link<'_>> =
                    (0..16).map(|_| Link::new(&hosts[0], &hosts[1], 17)).collect::<Result<_>>()?;
                let (alone, _) = bulk(&healthy, Op::Write, 4, BULK, args.seconds)?;
                let dead = Link::new(&hosts[0], &hosts[far], timeout)?;
                dead.kill_peer()?;
                for _ in 0..4 {
                    dead.post(op, 0, LARGE)?;
                }
                let small = if matches!(op, Op::Read) { Op::Read } else { Op::Write };
                let times = times(&healthy[0], small, args.count, |_| Ok(()))?;
                let (beside, _) = bulk(&healthy, Op::Write, 4, BULK, args.seconds)?;
                println!(
                    "| {name} | {timeout} | {place} | {:.0} | {:.0} | {:.2} |",
                    at(&times, 0.5),
                    at(&times, 0.99),
                    beside / alone
                );
            }
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}, load {}\n", machine(), load());
    let hosts = [Host::new(1)?, Host::new(2)?, Host::new(3)?];
    dead_peers(&args, &hosts)?;
    println!("\n| 64 queue pairs at once | Gbit/s | Jain's index of bytes |\n|---|---|---|");
    for (name, op) in [("WRITE", Op::Write), ("READ", Op::Read)] {
        let links: Vec<Link<'_>> =
            (0..64).map(|_| Link::new(&hosts[0], &hosts[1], 17)).collect::<Result<_>>()?;
        let (gbit, bytes) = bulk(&links, op, 4, BULK, 2.0 * args.seconds)?;
        println!("| {name} 64 KiB | {gbit:.1} | {:.3} |", jain(&bytes));
    }
    let links: Vec<Link<'_>> = (0..8).map(|_| Link::new(&hosts[0], &hosts[1], 17)).collect::<Result<_>>()?;
    let (gbit, _) = bulk(&links, Op::Write, 2, LARGE, args.seconds)?;
    for (index, link) in links.iter().enumerate() {
        for _ in 0..2 {
            link.post(Op::Write, index as u64 + 2, LARGE)?;
        }
    }
    let small = Link::new(&hosts[0], &hosts[1], 17)?;
    let times = times(&small, Op::Send, args.count, |wc| match (wc.status, wc.wr_id) {
        (WcStatus::Success, index @ 2..) => links[index as usize - 2].post(Op::Write, index, LARGE),
        _ => Ok(()),
    })?;
    println!(
        "\n| 64 B SEND beside 8 that WRITE 1 MiB | p50 us | p99 us | 384 KiB at their bandwidth, us |\n|---|---|---|---|"
    );
    println!("| | {:.0} | {:.0} | {:.0} |", at(&times, 0.5), at(&times, 0.99), 384.0 * 8.192 / gbit);
    Ok(())
}
