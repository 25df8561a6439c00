//! Measures what virtual lanes cost, and what they are good for. Three comparisons: one lane with arbitration and without,
//! taken in turns; a small message beside a busy lane, in a lane of high priority and in the busy lane itself; the shares of
//! lanes by weight.

use benches::{
    ends::{Result, loopback},
    links::{Host, Link, Op, at, bulk, times},
    turns::{extremes, load, machine, median, ratios},
};
use clap::Parser;
use rxe_fabric::{Fabric, Options, Partitions};
use rxe_verbs::{Completion, ContextOptions, WcStatus};

/// Message sizes in bytes: for connections that use all the bandwidth they can get, and for messages with the highest cost
/// per byte.
const BULK: u32 = 128 << 10;
const SMALL: u32 = 64;
/// Size of messages that need several turns of the queue pair while others are busy, in bytes.
const MIDDLE: u32 = 64 << 10;
/// Number of connections that keep a lane busy, and number of messages that each has outstanding.
const BUSY: usize = 32;
const DEPTH: usize = 4;
/// One service level for each lane, and all lanes in the low-priority table, as without an OpenSM configuration file.
const USUAL: &str = "qos TRUE\n";
/// Lane 4 goes before lane 0, without a limit.
const PRIORITY: &str = "qos TRUE\nqos_high_limit 255\nqos_vlarb_high 4:64\nqos_vlarb_low 0:4\n";
/// Three lanes with different weights.
const WEIGHTS: &str = "qos TRUE\nqos_high_limit 0\nqos_vlarb_high 0:0\nqos_vlarb_low 1:64,2:16,3:4\n";

/// What virtual lanes cost, and what they are good for
#[derive(Debug, Parser)]
struct Args {
    /// Seconds of each measurement of bandwidth
    #[arg(short = 'D', long, default_value_t = 0.5)]
    seconds: f64,
    /// Rounds, in each of which everything is measured once; 32 orders of opening and measuring take turns
    #[arg(long, default_value_t = 32)]
    rounds: usize,
    /// Operations of each measurement of time
    #[arg(short = 'n', long, default_value_t = 200)]
    count: usize,
    /// One table alone
    #[arg(long)]
    only: Option<Table>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    /// What arbitration costs where one lane is used.
    Cost,
    /// Messages beside a busy lane.
    Latency,
    /// Shares by weights.
    Shares,
}

/// Opens two addresses with these lanes, or without lanes if there are no options.
fn hosts(first: u8, options: Option<&str>) -> Result<[Host; 2]> {
    let open = |number| -> Result<Host> {
        let mut wishes = ContextOptions::new().alone();
        if let Some(options) = options {
            let (options, _) = Options::parse(options)?;
            wishes = wishes.lanes(&Fabric::new(&options, None, Partitions::default()));
        }
        Host::new(wishes.open_address(loopback(number))?)
    };
    Ok([open(first)?, open(first + 1)?])
}

/// The variants that are compared, and the service level of each. First nothing is configured. The second is the same once
/// more, and shows how precise the comparison is. The third has tables of lanes with all traffic in lane 0. The fourth has
/// the same tables with all traffic in lane 1; its batches pass a DSCP and a priority to the system.
const KINDS: [(Option<&str>, u8); 4] = [(None, 0), (None, 0), (Some(USUAL), 0), (Some(USUAL), 1)];

/// The throughput in one lane, with tables of lanes and without. Each round opens hosts and connections anew, because their
/// place in memory changes the throughput by some per cent for as long as they live. The order of opening and measuring
/// changes from round to round.
fn cost(args: &Args) -> Result<()> {
    println!(
        "| one lane | without arbitration | the same once more | with it | in lane 1 | lane 0, ratio (median of {} rounds, least to most) | lane 1 | of the two without |",
        args.rounds
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, len, depth, unit) in
        [("WRITE 128 KiB, Gbit/s", BULK, 4, 1.0), ("WRITE 64 B, M/s", SMALL, 32, 512e-3)]
    {
        let mut rates = [const { Vec::new() }; KINDS.len()];
        for round in 0..args.rounds {
            for (which, rate) in one_round(round, (len, depth), args.seconds)? {
                rates[which].push(rate / unit);
            }
        }
        let [plain, again, lanes, other] = &rates;
        let all = [plain, again, lanes, other].map(|rates| format!("{:.2}", median(rates))).join(" | ");
        let compared = [lanes, other, again].map(|rates| {
            let found = ratios(rates, plain);
            let (least, most) = extremes(&found);
            format!("{:.3} ({least:.3} to {most:.3})", median(&found))
        });
        println!("| {name} | {all} | {} |", compared.join(" | "));
    }
    Ok(())
}

/// The throughputs of a round in Gbit/s, each with its index in [`KINDS`].
fn one_round(round: usize, (len, depth): (u32, usize), seconds: f64) -> Result<Vec<(usize, f64)>> {
    let mut order = [0, 1, 2, 3];
    order.rotate_left(round % 4);
    if round / 4 % 2 == 1 {
        order.reverse();
    }
    let mut pairs = Vec::new();
    for (place, which) in (0..).zip(order) {
        pairs.push((which, hosts(1 + 2 * place, KINDS[which].0)?));
    }
    let mut links = Vec::new();
    for (which, [near, far]) in &pairs {
        let level = KINDS[*which].1;
        links.push((
            *which,
            (0..4).map(|_| Link::in_level(near, far, 17, level)).collect::<Result<Vec<_>>>()?,
        ));
    }
    // The variant that was opened first is not always measured first.
    let begin = round / 8 % 4;
    links.rotate_left(begin);
    links.iter().map(|(which, links)| Ok((*which, bulk(links, Op::Write, depth, len, seconds)?.0))).collect()
}

/// Messages alone, messages in a high-priority lane beside a busy lane, and messages in the busy lane.
fn latency(args: &Args) -> Result<()> {
    println!(
        "\n| beside {BUSY} that WRITE 128 KiB | WRITE 64 B: p50 us | p99 us | WRITE 64 KiB: p50 us | p99 us |\n|---|---|---|---|---|"
    );
    let [near, far] = &hosts(9, Some(PRIORITY))?;
    let busy: Vec<Link<'_>> = (0..BUSY).map(|_| Link::new(near, far, 17)).collect::<Result<_>>()?;
    let (high, low) = (Link::in_level(near, far, 17, 4)?, Link::new(near, far, 17)?);
    // Indexed by message size, then by place.
    let mut found = [[const { Vec::new() }; 3], [const { Vec::new() }; 3]];
    for _ in 0..args.rounds {
        for (len, found) in [SMALL, MIDDLE].into_iter().zip(&mut found) {
            found[0].extend(times(&high, (Op::Write, len), args.count, |_| Ok(()))?);
            for (link, all) in [&high, &low].into_iter().zip(&mut found[1..]) {
                all.extend(beside(link, len, args.count, near, &busy)?);
            }
        }
    }
    for (place, name) in ["alone", "high lane beside a busy one", "in the busy lane"].iter().enumerate() {
        print!("| {name} |");
        for times in found.iter_mut().map(|places| &mut places[place]) {
            times.sort_by(f64::total_cmp);
            print!(" {:.0} | {:.0} |", at(times, 0.5), at(times, 0.99));
        }
        println!();
    }
    Ok(())
}

/// Times of operations of one connection while others are always busy.
fn beside(link: &Link<'_>, len: u32, count: usize, near: &Host, busy: &[Link<'_>]) -> Result<Vec<f64>> {
    for (index, link) in busy.iter().enumerate() {
        for _ in 0..DEPTH {
            link.post(Op::Write, index as u64 + 2, BULK)?;
        }
    }
    let times = times(link, (Op::Write, len), count, |wc| match (wc.status, wc.wr_id) {
        (WcStatus::Success, index @ 2..) => busy[index as usize - 2].post(Op::Write, index, BULK),
        (WcStatus::Success, _) => Ok(()),
        _ => Err(format!("{wc:?}").into()),
    })?;
    // The outstanding messages complete, and no new ones are posted.
    let mut left = busy.len() * DEPTH;
    let mut some = [Completion::default(); 64];
    while left > 0 {
        left -= near.poll(&mut some)?;
    }
    Ok(times)
}

/// The shares of three lanes that are always busy.
fn shares(args: &Args) -> Result<()> {
    println!(
        "\n| weights 64:16:4 | due | share of bytes (median of {} rounds, least to most) |\n|---|---|---|",
        args.rounds
    );
    let [near, far] = &hosts(11, Some(WEIGHTS))?;
    let links: Vec<Link<'_>> =
        (1..=3).map(|level| Link::in_level(near, far, 17, level)).collect::<Result<_>>()?;
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..args.rounds {
        let (_, bytes) = bulk(&links, Op::Write, 32, BULK, args.seconds)?;
        let sum: f64 = bytes.iter().sum();
        bytes.iter().zip(&mut found).for_each(|(bytes, all)| all.push(bytes / sum));
    }
    for (lane, (weight, shares)) in [64.0, 16.0, 4.0].iter().zip(&found).enumerate() {
        let (least, most) = extremes(shares);
        println!(
            "| lane {} | {:.3} | {:.3} ({least:.3} to {most:.3}) |",
            lane + 1,
            weight / 84.0,
            median(shares)
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}, load {}\n", machine(), load());
    let wanted = |table| args.only.is_none_or(|only| only == table);
    if wanted(Table::Cost) {
        cost(&args)?;
    }
    if wanted(Table::Latency) {
        latency(&args)?;
    }
    if wanted(Table::Shares) {
        shares(&args)?;
    }
    Ok(())
}
