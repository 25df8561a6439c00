//! The times of the steps, and their output.

use crate::measure::Times;
use core::fmt;
use serde::Serialize;
use std::time::{Duration, Instant};

/// One step, done by all connections.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    pub(super) step: &'static str,
    /// Time from the beginning of the first to the end of the last.
    pub(super) total_ms: f64,
    /// Time of a single connection, from beginning to end.
    #[serde(flatten)]
    pub(super) times: Times,
}

/// The results.
#[derive(Debug, Serialize)]
pub(super) struct Table {
    pub(super) connections: usize,
    /// Counting only the step that exchanges messages.
    pub(super) connections_per_second: f64,
    /// Counting all steps until a connection is established, if the steps follow each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from_scratch_per_second: Option<f64>,
    pub(super) steps: Vec<Step>,
}

impl Table {
    /// `exchange` is the step that connects.
    pub(super) fn new(connections: usize, steps: Vec<Step>, exchange: &str) -> Self {
        let rate = |ms: f64| if ms > 0.0 { connections as f64 * 1000.0 / ms } else { 0.0 };
        let alone = steps.iter().find(|step| step.step == exchange).map_or(0.0, |step| step.total_ms);
        Self { connections, connections_per_second: rate(alone), from_scratch_per_second: None, steps }
    }

    /// If each step begins when the one before has ended: also counts the steps before `exchange`.
    pub(super) fn in_sequence(self, exchange: &str) -> Self {
        let last = self.steps.iter().position(|step| step.step == exchange).unwrap_or_default();
        let ms: f64 = self.steps.iter().take(last + 1).map(|step| step.total_ms).sum();
        let rate = (ms > 0.0).then(|| self.connections as f64 * 1000.0 / ms);
        Self { from_scratch_per_second: rate, ..self }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = ["total ms", "us / conn", "median us", "99 % us", "max us"];
        write!(f, "{:<14}", "step")?;
        titles.iter().try_for_each(|title| write!(f, "{title:>12}"))?;
        writeln!(f)?;
        for Step { step, total_ms, times } in &self.steps {
            let each = total_ms * 1000.0 / self.connections.max(1) as f64;
            let columns = [*total_ms, each, times.median_usec, times.p99_usec, times.max_usec];
            write!(f, "{step:<14}")?;
            columns.iter().try_for_each(|number| write!(f, "{number:>12.2}"))?;
            writeln!(f)?;
        }
        let Self { connections, connections_per_second: rate, .. } = self;
        write!(f, "{connections} connections, {rate:.0} per second")?;
        if let Some(all) = self.from_scratch_per_second {
            write!(f, "; {all:.0} with all that comes before")?;
        }
        writeln!(f)
    }
}

/// A stop watch for a step.
#[derive(Debug)]
pub(super) struct Watch {
    step: &'static str,
    span: Option<(Instant, Instant)>,
    times: Vec<Duration>,
}

impl Watch {
    pub(super) const fn new(step: &'static str) -> Self {
        Self { step, span: None, times: Vec::new() }
    }

    /// One connection has completed the step, which began at `start`.
    pub(super) fn lap(&mut self, start: Instant) {
        let now = Instant::now();
        let begin = self.span.map_or(start, |(begin, _)| begin.min(start));
        self.span = Some((begin, now));
        self.times.push(now - start);
    }

    pub(super) fn read(self) -> Step {
        let total = self.span.map_or(Duration::ZERO, |(begin, end)| end - begin);
        Step { step: self.step, total_ms: total.as_secs_f64() * 1000.0, times: Times::new(self.times, 1.0) }
    }
}
