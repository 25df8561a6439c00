//! Measures how queue pairs of one process affect each other: beside a queue pair whose peer is dead, beside many that use
//! all the bandwidth they can get, and beside eight that are always busy. Prints a table with round trip times of 64 bytes,
//! shares of bandwidth, and Jain's index of the bytes (R. Jain, D. Chiu, W. Hawe, 1984: 1 if all queue pairs get the same
//! share, 1/n if one gets everything).

use benches::{
    ends::{Result, loopback},
    links::{Host, Link, Op, at, bulk, times},
    turns::{load, machine},
};
use clap::Parser;
use rxe_verbs::{ContextOptions, WcStatus};

/// Size of the operation that is timed, in bytes.
const SMALL: u32 = 64;
/// Size of the operations that are posted to a dead peer, in bytes.
const LARGE: u32 = 1 << 20;
/// Size of the messages of queue pairs that use all the bandwidth they can get, in bytes.
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

fn host(number: u8) -> Result<Host> {
    Host::new(ContextOptions::new().alone().open_address(loopback(number))?)
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
                let times = times(&healthy[0], (small, SMALL), args.count, |_| Ok(()))?;
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
    let hosts = [host(1)?, host(2)?, host(3)?];
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
    let times = times(&small, (Op::Send, SMALL), args.count, |wc| match (wc.status, wc.wr_id) {
        (WcStatus::Success, index @ 2..) => links[index as usize - 2].post(Op::Write, index, LARGE),
        _ => Ok(()),
    })?;
    println!(
        "\n| 64 B SEND beside 8 that WRITE 1 MiB | p50 us | p99 us | 384 KiB at their bandwidth, us |\n|---|---|---|---|"
    );
    println!("| | {:.0} | {:.0} | {:.0} |", at(&times, 0.5), at(&times, 0.99), 384.0 * 8.192 / gbit);
    Ok(())
}
