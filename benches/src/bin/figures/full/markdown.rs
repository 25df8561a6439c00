//! The report as Markdown.

use super::store::{Line, Report, Table};
use crate::{distance, ratio};
use std::fmt::{self, Write};

/// Three digits.
fn number(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn cell(line: &Line, at: &str) -> String {
    let Some(spot) = line.points.iter().find(|spot| spot.at == at) else { return String::new() };
    if spot.samples.len() == 1 {
        return number(spot.median);
    }
    format!("**{}** {} to {}", number(spot.median), number(spot.least), number(spot.most))
}

fn table(out: &mut String, table: &Table) -> fmt::Result {
    writeln!(out, "\n## {}\n\n{}\n", table.title, table.note)?;
    writeln!(out, "![{}]({}.svg)\n", table.title, table.name)?;
    let names: Vec<&str> = table.series.iter().map(|line| line.name.as_str()).collect();
    writeln!(out, "| {}; {} | {} |", table.across, table.unit, names.join(" | "))?;
    writeln!(out, "|---{}|", "|---".repeat(names.len()))?;
    for at in table.places() {
        let cells: Vec<String> = table.series.iter().map(|line| cell(line, at)).collect();
        writeln!(out, "| {at} | {} |", cells.join(" | "))?;
    }
    Ok(())
}

/// The whole report.
pub(super) fn write(report: &Report) -> Result<String, fmt::Error> {
    let mut out = String::from("# Benchmark report\n\n");
    writeln!(
        out,
        "{}, loopback. {}, commit {}, {}. `{}`: {} rounds of {} s for each measurement, every round measures each thing \
         once.\n{:.0} % of the processors idle before, load {} after. Medians, and the range of the rounds. \
         [../benchmarks.md](../benchmarks.md) tells more;\nthe samples are in [report.json](report.json).",
        report.machine,
        report.date,
        report.commit,
        report.rustc,
        report.command,
        report.rounds,
        report.seconds,
        report.idle_before * 100.0,
        report.load_after,
    )?;
    writeln!(out, "{}", distance::describe(&report.distances))?;
    if !report.environment.is_empty() {
        writeln!(out, "Set were: `{}`.", report.environment.join("`, `"))?;
    }
    if !report.ratios.is_empty() {
        write!(out, "\n## Ratios and their aims\n\n{}", ratio::table(&report.ratios))?;
    }
    report.sections.iter().try_for_each(|section| table(&mut out, section))?;
    Ok(out)
}
