//! Ratios with an aim: the samples of both sides, and the results computed from them.

use crate::{
    plan::{Figure, Row},
    probe::{Outcome, Probe},
};
use benches::turns::{extremes, median, ratios};
use serde::{Deserialize, Serialize};

/// A row of the table.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Ratio {
    pub(crate) name: String,
    unit: String,
    aim: String,
    /// Whether the median ratio reaches the aim; `None` if there is no aim.
    reached: Option<bool>,
    /// The medians of both sides, the median of the rounds' ratios, and the smallest and largest of these ratios.
    first: f64,
    second: f64,
    ratio: f64,
    least: f64,
    most: f64,
    /// The samples by round, for each measurement of a side. The measurement with the largest median counts.
    above: Vec<Vec<f64>>,
    below: Vec<Vec<f64>>,
}

impl Ratio {
    /// A row without samples.
    pub(crate) fn new(row: &Row) -> Self {
        Self {
            name: row.name.to_owned(),
            unit: row.above[0].1.unit().to_owned(),
            aim: row.aim.to_owned(),
            reached: None,
            first: 0.0,
            second: 0.0,
            ratio: 0.0,
            least: 0.0,
            most: 0.0,
            above: vec![Vec::new(); row.above.len()],
            below: vec![Vec::new(); row.below.len()],
        }
    }

    /// Adds the samples of a round.
    pub(crate) fn add(&mut self, row: &Row, outcome: impl Fn(Probe) -> Option<Outcome>) {
        let add = |samples: &mut [Vec<f64>], figures: &[Figure]| {
            for (samples, (probe, pick)) in samples.iter_mut().zip(figures) {
                samples.extend(outcome(*probe).map(|outcome| outcome.pick(*pick)));
            }
        };
        add(&mut self.above, row.above);
        add(&mut self.below, row.below);
        let (above, below) = (best(&self.above), best(&self.below));
        let of_rounds = ratios(above, below);
        (self.first, self.second, self.ratio) = (median(above), median(below), median(&of_rounds));
        (self.least, self.most) = extremes(&of_rounds);
        self.reached = reached(&self.aim, self.ratio);
    }
}

fn best(samples: &[Vec<f64>]) -> &[f64] {
    samples.iter().max_by(|a, b| median(a).total_cmp(&median(b))).map_or(&[], Vec::as_slice)
}

/// Whether an aim is reached. An aim has the form `>= 1.5` or `<= 1.5`, or is empty.
fn reached(aim: &str, ratio: f64) -> Option<bool> {
    let (sign, bound) = aim.split_once(' ')?;
    let bound: f64 = bound.parse().ok()?;
    Some(if sign == ">=" { ratio >= bound } else { ratio <= bound })
}

/// All rows as a Markdown table.
pub(crate) fn table(ratios: &[Ratio]) -> String {
    let mut out =
        String::from("| figure | unit | first | second | ratio | of the rounds | aim | reached |\n");
    out += "|---|---|---|---|---|---|---|---|\n";
    for row in ratios {
        let Ratio { name, unit, first, second, ratio, least, most, aim, .. } = row;
        let reached = row.reached.map_or("", |reached| if reached { "yes" } else { "no" });
        out += &format!(
            "| {name} | {unit} | {first:.2} | {second:.2} | **{ratio:.2}** | {least:.2} to {most:.2} | {aim} | {reached} |\n"
        );
    }
    out
}
