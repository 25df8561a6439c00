//! The whole report: every figure against what it depends on, beside what it is compared with, as Markdown, JSON and plots.

mod markdown;
mod plan;
mod plot;
mod store;

use benches::ends::Result;
use indicatif::{ProgressBar, ProgressStyle};
use plan::{Outcome, Probe, Section};
use std::{
    collections::HashMap,
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
    /// Only sections whose name contains this
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
    let mut plan = plan::sections();
    plan.retain(|section| args.only.as_deref().is_none_or(|only| section.name.contains(only)));
    if plan.is_empty() {
        return Err("no section has such a name".into());
    }
    let probes = probes(&plan);
    let mut report = Report::new(&plan, args.seconds);
    if args.add {
        let path = args.out.join("report.json");
        let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        report.continue_from(serde_json::from_slice(&text)?)?;
    }
    let bar = ProgressBar::new(u64::from(args.rounds) * probes.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} of {duration}  {wide_msg}")?);
    for _ in 0..args.rounds {
        let mut found: HashMap<Probe, Outcome> = HashMap::new();
        for probe in &probes {
            bar.set_message(format!("{probe:?}"));
            let outcome = probe.measure(args.seconds).map_err(|error| format!("{probe:?}: {error}"))?;
            found.insert(*probe, outcome);
            bar.inc(1);
        }
        report.add(&plan, |probe| found.get(&probe).cloned());
    }
    bar.finish_and_clear();
    let markdown = markdown::write(&report)?;
    let json = serde_json::to_string_pretty(&report)? + "\n";
    store(&args.out, &report, &markdown, &json)?;
    print!("{}", if args.json { &json } else { &markdown });
    Ok(())
}

/// Each measurement once, in the order of the sections.
fn probes(plan: &[Section]) -> Vec<Probe> {
    let mut probes = Vec::new();
    for point in plan.iter().flat_map(|section| &section.series).flat_map(|series| &series.points) {
        if !probes.contains(&point.probe) {
            probes.push(point.probe);
        }
    }
    probes
}

fn store(out: &Path, report: &Report, markdown: &str, json: &str) -> Result<()> {
    fs::create_dir_all(out)?;
    for table in &report.sections {
        fs::write(out.join(format!("{}.svg", table.name)), plot::draw(table)?)?;
    }
    fs::write(out.join("report.md"), markdown)?;
    Ok(fs::write(out.join("report.json"), json)?)
}
