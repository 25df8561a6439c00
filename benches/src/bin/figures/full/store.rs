//! The stored form of the report: the samples, and the circumstances in which they were taken.

use super::plan::Section;
use crate::{
    plan::Row,
    probe::{Outcome, Probe},
    ratio::Ratio,
};
use benches::{
    ends::Result,
    turns::{extremes, idle_share, load, machine, median},
};
use serde::{Deserialize, Serialize};
use std::{env, process::Command};

/// The content of the JSON file.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Report {
    pub(super) machine: String,
    /// Date of the last round, in UTC.
    pub(super) date: String,
    /// With a `+` behind it if files had been changed.
    pub(super) commit: String,
    pub(super) rustc: String,
    pub(super) command: String,
    /// The variables of rxe that were set.
    pub(super) environment: Vec<String>,
    /// Length of each measurement.
    pub(super) seconds: f64,
    pub(super) rounds: u32,
    /// Share of all processors that was idle before the first round.
    pub(super) idle_before: f64,
    /// The load of one minute, after the last round.
    pub(super) load_after: String,
    /// Round trip times of a cache line between two processors in nanoseconds, taken before each measurement.
    pub(super) distances: Vec<f64>,
    pub(super) ratios: Vec<Ratio>,
    pub(super) sections: Vec<Table>,
}

/// A section.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) across: String,
    pub(super) unit: String,
    pub(super) note: String,
    pub(super) series: Vec<Line>,
}

/// A series.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<Spot>,
}

/// A point: the samples of all rounds.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Spot {
    pub(super) at: String,
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) samples: Vec<f64>,
}

impl Spot {
    fn add(&mut self, sample: f64) {
        self.samples.push(sample);
        self.median = median(&self.samples);
        (self.least, self.most) = extremes(&self.samples);
    }
}

/// The first line that a command prints, or an empty text.
fn line_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

impl Report {
    /// A report with the circumstances, but without samples.
    pub(super) fn new(rows: &[&Row], plan: &[Section], seconds: f64) -> Self {
        // The files that an earlier run has written (in docs) do not count as changes.
        let changed = ["status", "--porcelain", "-uno", "--", ":/", ":(top,exclude)docs"];
        let changed = if line_of("git", &changed).is_empty() { "" } else { "+" };
        let variables = env::vars().filter(|(name, _)| name.starts_with("RXE_"));
        let arguments: Vec<String> = env::args().skip(2).collect();
        Self {
            machine: machine(),
            date: line_of("date", &["-u", "+%F"]),
            commit: line_of("git", &["rev-parse", "--short=12", "HEAD"]) + changed,
            rustc: line_of("rustc", &["--version"]),
            command: format!("scripts/bench --full {}", arguments.join(" ")).trim_end().to_owned(),
            environment: variables.map(|(name, value)| format!("{name}={value}")).collect(),
            seconds,
            rounds: 0,
            idle_before: idle_share(),
            load_after: String::new(),
            distances: Vec::new(),
            ratios: rows.iter().map(|row| Ratio::new(row)).collect(),
            sections: plan.iter().map(Table::new).collect(),
        }
    }

    /// Puts the samples of an earlier run in front of the samples of this run.
    pub(super) fn continue_from(&mut self, earlier: Self) -> Result<()> {
        let same = |report: &Self| {
            let Self { machine, commit, rustc, environment, seconds, .. } = report.clone();
            (machine, commit, rustc, environment, seconds.to_bits(), report.shape())
        };
        if same(self) != same(&earlier) {
            return Err(
                "what is stored is of another machine, commit, compiler, environment, length or set of \
                        sections; without --add it is replaced"
                    .into(),
            );
        }
        (self.sections, self.ratios) = (earlier.sections, earlier.ratios);
        self.distances = earlier.distances;
        (self.rounds, self.idle_before) = (earlier.rounds, earlier.idle_before);
        Ok(())
    }

    /// The names of all series and ratios that have samples.
    fn shape(&self) -> Vec<String> {
        let mut names: Vec<String> = self.ratios.iter().map(|ratio| ratio.name.clone()).collect();
        for table in &self.sections {
            for line in &table.series {
                let at = line.points.iter().map(|spot| &spot.at);
                names.extend(at.map(|at| format!("{}/{}/{at}", table.name, line.name)));
            }
        }
        names
    }

    /// Adds one round.
    pub(super) fn add(
        &mut self,
        rows: &[&Row],
        plan: &[Section],
        outcome: impl Fn(Probe) -> Option<Outcome>,
    ) {
        self.ratios.iter_mut().zip(rows).for_each(|(ratio, row)| ratio.add(row, &outcome));
        for (table, section) in self.sections.iter_mut().zip(plan) {
            for (line, series) in table.series.iter_mut().zip(&section.series) {
                for (spot, point) in line.points.iter_mut().zip(&series.points) {
                    if let Some(outcome) = outcome(point.probe) {
                        spot.add(outcome.pick(point.pick));
                    }
                }
            }
        }
        self.rounds += 1;
        self.load_after = load();
    }
}

impl Table {
    fn new(section: &Section) -> Self {
        let spot =
            |at: &String| Spot { at: at.clone(), median: 0.0, least: 0.0, most: 0.0, samples: Vec::new() };
        let lines = section.series.iter().map(|series| Line {
            name: series.name.to_owned(),
            points: series.points.iter().map(|point| spot(&point.at)).collect(),
        });
        Self {
            name: section.name.to_owned(),
            title: section.title.to_owned(),
            across: section.across.to_owned(),
            unit: section.unit().to_owned(),
            note: section.note.to_owned(),
            series: lines.collect(),
        }
    }

    /// The labels of the horizontal axis, in order.
    pub(super) fn places(&self) -> Vec<&str> {
        let longest = self.series.iter().max_by_key(|line| line.points.len());
        longest.map(|line| line.points.iter().map(|spot| spot.at.as_str()).collect()).unwrap_or_default()
    }
}
