//! Measures a period of requests and answers.

use benches::{
    ends::Result,
    turns::{median, processor_seconds},
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    time::{Duration, Instant},
};

/// The resources that one process has used.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct Spent {
    /// Processor time, seconds.
    pub(crate) processor: f64,
    /// Number of times that one of its threads slept and was woken.
    pub(crate) wakeups: u64,
}

impl Spent {
    /// The resources used so far.
    pub(crate) fn now() -> Result<Self> {
        let mut wakeups = 0;
        for task in fs::read_dir("/proc/self/task")? {
            // A thread may end at this moment; its status is then missing and counts as zero.
            let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            wakeups += count.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Self { processor: processor_seconds()?, wakeups })
    }

    /// The resources used since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            processor: self.processor - before.processor,
            wakeups: self.wakeups.saturating_sub(before.wakeups),
        }
    }
}

/// The period that the client measures. A quarter of its length is added in front as a warm-up that does not count.
pub(crate) struct Stretch {
    begun: Instant,
    length: Duration,
    warm: bool,
    before: Spent,
    times: Vec<f64>,
}

/// Round trip times in microseconds, and the seconds that they took together.
pub(crate) struct Answers {
    times: Vec<f64>,
    seconds: f64,
}

impl Stretch {
    pub(crate) fn begin(seconds: f64) -> Result<Self> {
        let length = Duration::from_secs_f64(seconds / 4.0);
        Ok(Self { begun: Instant::now(), length, warm: false, before: Spent::now()?, times: Vec::new() })
    }

    /// Records an answer that arrived at `now` for a request sent at `asked`.
    pub(crate) fn add(&mut self, asked: Instant, now: Instant) {
        if self.warm {
            self.times.push((now - asked).as_secs_f64() * 1e6);
        }
    }

    /// Whether the period goes on. Called after each wait.
    pub(crate) fn goes_on(&mut self) -> Result<bool> {
        if self.begun.elapsed() < self.length {
            return Ok(true);
        }
        if !self.warm {
            self.warm = true;
            self.begun = Instant::now();
            self.length *= 4;
            self.before = Spent::now()?;
            return Ok(true);
        }
        Ok(self.times.is_empty())
    }

    pub(crate) fn end(self) -> Result<(Spent, Answers)> {
        let seconds = self.begun.elapsed().as_secs_f64();
        Ok((Spent::now()?.since(self.before), Answers { times: self.times, seconds }))
    }
}

/// The result of a measurement.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub(crate) struct Figures {
    /// Answers per second.
    pub(crate) rate: f64,
    /// Round trip times in microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Processor time of both processes per answer, in microseconds.
    pub(crate) processor: f64,
    /// Wake-ups of both processes per answer: 2 if each message wakes one thread.
    pub(crate) wakeups: f64,
}

impl Figures {
    /// The server's figures include the warm-up, so they are a quarter too large.
    pub(crate) fn new(answers: Answers, ours: Spent, theirs: Spent) -> Self {
        let Answers { mut times, seconds } = answers;
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
        let each = 1.0 / times.len().max(1) as f64;
        Self {
            rate: times.len() as f64 / seconds,
            p50: at(0.5),
            p99: at(0.99),
            processor: (ours.processor + theirs.processor / 1.25) * each * 1e6,
            wakeups: (ours.wakeups as f64 + theirs.wakeups as f64 / 1.25) * each,
        }
    }

    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |pick: fn(&Self) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
        Self {
            rate: of(|figures| figures.rate),
            p50: of(|figures| figures.p50),
            p99: of(|figures| figures.p99),
            processor: of(|figures| figures.processor),
            wakeups: of(|figures| figures.wakeups),
        }
    }
}
