//! The data path's figures, each a ratio of two measurements taken in turns. Prints them as a Markdown table.
//!
//! Every measurement (`probe.rs`) has two processes: this one, and an answering one of the same program (`answer.rs`).
//! `ours.rs` measures our stack. `raw.rs` measures raw UDP, and the best that a socket could do. iperf3 measures TCP.
//! `scripts/bench --quick` builds everything and runs this program; `scripts/bench --full` makes the full report (`full/`).

mod across;
mod answer;
mod distance;
mod full;
mod ours;
mod place;
mod plan;
mod probe;
mod ratio;
mod raw;

use across::Wire;
use answer::Role;
use benches::{
    ends::Result,
    turns::{Hog, idle_share, load, machine},
};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use probe::{Outcome, Probe};
use ratio::Ratio;
use std::collections::HashMap;

/// The data path's figures, side by side
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Other>,
    /// Repetitions of each measurement
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each measurement (iperf3: at least one)
    #[arg(short = 'D', long, default_value_t = 0.4)]
    seconds: f64,
    /// Only rows whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Busy loops beside it
    #[arg(long, default_value_t = 0)]
    hogs: usize,
}

#[derive(Debug, Subcommand)]
enum Other {
    Full(full::Args),
    /// The other side of a measurement; started by this program
    #[command(hide = true)]
    Answer {
        /// What to do there
        #[arg(value_enum)]
        role: Role,
        /// Queue pairs
        qps: usize,
        /// Bytes of a message
        len: u32,
        /// What joins the two sides
        #[arg(value_enum)]
        wire: Wire,
    },
    /// A measurement in network namespaces of its own; started by this program
    #[command(hide = true)]
    Across {
        /// What joins the two sides
        #[arg(value_enum)]
        wire: Wire,
        /// How long
        seconds: f64,
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.command {
        Some(Other::Answer { role, qps, len, wire }) => return answer::run(role, qps, len, wire),
        Some(Other::Across { wire, seconds }) => return across::run(wire, seconds),
        Some(Other::Full(args)) => return full::run(&args),
        None => {}
    }
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| name.contains(only));
    let rows = plan::possible(wanted);
    let probes = unique(rows.iter().flat_map(|row| row.probes()));
    let mut ratios: Vec<Ratio> = rows.iter().map(|row| Ratio::new(row)).collect();
    let idle = idle_share();
    let _hogs = Hog::start(args.hogs)?;
    let bar = bar(args.rounds, &probes)?;
    let mut distances = Vec::new();
    for _ in 0..args.rounds {
        let found = round(&probes, args.seconds, &bar, &mut distances)?;
        ratios
            .iter_mut()
            .zip(&rows)
            .for_each(|(ratio, row)| ratio.add(row, |probe| found.get(&probe).cloned()));
    }
    bar.finish_and_clear();
    println!(
        "{}; {:.0} % of its processors idle before, {} busy loops beside it, load {} after; {} rounds of {} s.\n{}\n",
        machine(),
        idle * 100.0,
        args.hogs,
        load(),
        args.rounds,
        args.seconds,
        distance::describe(&distances),
    );
    print!("{}", ratio::table(&ratios));
    Ok(())
}

/// Each measurement once, in the order of its first occurrence.
fn unique(all: impl Iterator<Item = Probe>) -> Vec<Probe> {
    let mut probes = Vec::new();
    for probe in all {
        if !probes.contains(&probe) {
            probes.push(probe);
        }
    }
    probes
}

/// A progress bar, shown only on a terminal.
fn bar(rounds: u32, probes: &[Probe]) -> Result<ProgressBar> {
    let bar = ProgressBar::new(u64::from(rounds) * probes.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} of {duration}  {wide_msg}")?);
    Ok(bar)
}

/// Takes each measurement once. Before each, it measures how far apart the processors are.
fn round(
    probes: &[Probe],
    seconds: f64,
    bar: &ProgressBar,
    distances: &mut Vec<f64>,
) -> Result<HashMap<Probe, Outcome>> {
    let mut found = HashMap::new();
    for probe in probes {
        bar.set_message(format!("{probe:?}"));
        distances.extend(distance::measure()?);
        let outcome = probe.measure(seconds).map_err(|error| format!("{probe:?}: {error}"))?;
        found.insert(*probe, outcome);
        bar.inc(1);
    }
    Ok(found)
}
