//! The full report: every figure plotted against what it depends on, beside the figure that it is compared with. It is
//! written as Markdown, JSON and plots.

mod markdown;
mod plan;
mod plot;
mod store;

use crate::{bar, plan::possible, round, unique};
use benches::ends::Result;
use std::{
    fs,
    path::{Path, PathBuf},
};
use store::Report;

/// The whole report, into a folder and onto the screen
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Repetitions of each measurement
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each measurement (iperf3: at least one)
    #[arg(short = 'D', long, default_value_t = 0.4, value_parser = parse_seconds)]
    seconds: f64,
    /// Where report.md, report.json and the plots go
    #[arg(short, long, default_value = "docs/benchmarks")]
    out: PathBuf,
    /// Only sections whose name contains this, of those with a plot and `ratios`
    #[arg(long)]
    only: Option<String>,
    /// Add the rounds to those that are stored, if everything else is as it was
    #[arg(long)]
    add: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.001..=60.0).contains(seconds));
    seconds.ok_or_else(|| "it is 0.001 to 60".to_owned())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| name.contains(only));
    let mut plan = plan::sections();
    plan.retain(|section| wanted(section.name));
    let rows = if wanted("ratios") { possible(|_| true) } else { Vec::new() };
    if plan.is_empty() && rows.is_empty() {
        return Err("no section has such a name".into());
    }
    let points = plan.iter().flat_map(|section| &section.series).flat_map(|series| &series.points);
    let probes = unique(rows.iter().flat_map(|row| row.probes()).chain(points.map(|point| point.probe)));
    let mut report = Report::new(&rows, &plan, args.seconds);
    if args.add {
        let path = args.out.join("report.json");
        let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        report.continue_from(serde_json::from_slice(&text)?)?;
    }
    let bar = bar(args.rounds, &probes)?;
    for _ in 0..args.rounds {
        let found = round(&probes, args.seconds, &bar, &mut report.distances)?;
        report.add(&rows, &plan, |probe| found.get(&probe).cloned());
    }
    bar.finish_and_clear();
    let markdown = markdown::write(&report)?;
    let json = serde_json::to_string_pretty(&report)? + "\n";
    store(&args.out, &report, &markdown, &json)?;
    print!("{}", if args.json { &json } else { &markdown });
    Ok(())
}

fn store(out: &Path, report: &Report, markdown: &str, json: &str) -> Result<()> {
    fs::create_dir_all(out)?;
    for table in &report.sections {
        fs::write(out.join(format!("{}.svg", table.name)), plot::draw(table)?)?;
    }
    fs::write(out.join("report.md"), markdown)?;
    Ok(fs::write(out.join("report.json"), json)?)
}
