//! The data path's figures, each a ratio of two measurements taken in turns: prints a Markdown table.
//!
//! Every measurement has two processes: this one, and one of the same program that answers (`answer.rs`). Ours are in
//! `ours.rs`; raw UDP, and what a socket could carry at best, in `raw.rs`; TCP is iperf3. `scripts/bench --quick` builds
//! everything and runs this, `scripts/bench --full` the whole report (`full/`).

mod answer;
mod full;
mod ours;
mod place;
mod plan;
mod raw;

use answer::Role;
use benches::{
    ends::Result,
    turns::{extremes, idle_share, machine, median, ratios},
};
use clap::{Parser, Subcommand};
use plan::{Figure, ROWS};
use std::{collections::HashMap, fs};

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
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.command {
        Some(Other::Answer { role, qps, len }) => return answer::run(role, qps, len),
        Some(Other::Full(args)) => return full::run(&args),
        None => {}
    }
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| name.contains(only));
    let rows: Vec<_> = ROWS.iter().filter(|row| wanted(row.name)).collect();
    let mut figures: Vec<Figure> = Vec::new();
    for figure in rows.iter().flat_map(|row| row.above.iter().chain(row.below)) {
        if !figures.contains(figure) {
            figures.push(*figure);
        }
    }
    let idle = idle_share();
    let mut found: HashMap<Figure, Vec<f64>> = HashMap::new();
    for round in 1..=args.rounds {
        for figure in &figures {
            let value = figure.measure(args.seconds).map_err(|error| format!("{figure:?}: {error}"))?;
            eprintln!("round {round}: {figure:?}: {value:.3}");
            found.entry(*figure).or_default().push(value);
        }
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!(
        "{}; {:.0} % of its processors idle before, load {load} after; {} rounds of {} s.\n",
        machine(),
        idle * 100.0,
        args.rounds,
        args.seconds
    );
    println!("| figure | unit | first | second | ratio | of the rounds | aim |");
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let (above, below) = (best(row.above, &found), best(row.below, &found));
        let of_rounds = ratios(&above, &below);
        let (low, high) = extremes(&of_rounds);
        println!(
            "| {} | {} | {:.2} | {:.2} | **{:.2}** | {low:.2} to {high:.2} | {} |",
            row.name,
            row.above[0].unit(),
            median(&above),
            median(&below),
            median(&of_rounds),
            row.aim
        );
    }
    Ok(())
}

/// Of figures that stand for one thing, the one with the largest median.
fn best(figures: &[Figure], found: &HashMap<Figure, Vec<f64>>) -> Vec<f64> {
    let all = figures.iter().filter_map(|figure| found.get(figure));
    all.max_by(|a, b| median(a).total_cmp(&median(b))).cloned().unwrap_or_default()
}
