//! What is measured of a stretch of requests and answers.

use benches::{
    ends::Result,
    turns::{median, processor_seconds},
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    time::{Duration, Instant},
};

/// What one process has spent.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct Spent {
    /// Processor time, seconds.
    pub(crate) processor: f64,
    /// Times that one of its threads slept and was woken.
    pub(crate) wakeups: u64,
}

impl Spent {
    /// Until now.
    pub(crate) fn now() -> Result<Self> {
        let mut wakeups = 0;
        for task in fs::read_dir("/proc/self/task")? {
            // A thread that ends just now has nothing to tell.
            let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            wakeups += count.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Self { processor: processor_seconds()?, wakeups })
    }

    /// Since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            processor: self.processor - before.processor,
            wakeups: self.wakeups.saturating_sub(before.wakeups),
        }
    }
}

/// The client's stretch: a quarter more at first, which does not count.
pub(crate) struct Stretch {
    begun: Instant,
    length: Duration,
    warm: bool,
    before: Spent,
    times: Vec<f64>,
}

/// Round trips in microseconds, and seconds they took together.
pub(crate) struct Answers {
    times: Vec<f64>,
    seconds: f64,
}

impl Stretch {
    pub(crate) fn begin(seconds: f64) -> Result<Self> {
        let length = Duration::from_secs_f64(seconds / 4.0);
        Ok(Self { begun: Instant::now(), length, warm: false, before: Spent::now()?, times: Vec::new() })
    }

    /// An answer came at `now` to what was asked at `asked`.
    pub(crate) fn add(&mut self, asked: Instant, now: Instant) {
        if self.warm {
            self.times.push((now - asked).as_secs_f64() * 1e6);
        }
    }

    /// Whether it goes on. Asked after each wait.
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

/// What came of a measurement.
#[derive(Clone, Copy, Default, Serialize, Debug)]
pub(crate) struct Figures {
    /// Answers a second.
    pub(crate) rate: f64,
    /// Round trips, microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Processor time of both processes for an answer, microseconds.
    pub(crate) processor: f64,
    /// Wake-ups of both processes for an answer: 2 if each message wakes one thread.
    pub(crate) wakeups: f64,
}

impl Figures {
    /// The server's figures include getting going, which is a quarter more of everything.
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
