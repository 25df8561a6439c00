//! Sweeps: one scenario with several values of some keys, and several seeds. Each job leaves a file of its own, so a sweep
//! that was stopped goes on where it was, and one failed job loses only itself.

use crate::{Scenario, ScenarioError, World, report::Report};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};
use thiserror::Error;

/// A sweep file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The scenario's file, from the sweep file's folder.
    pub scenario: PathBuf,
    /// Seeds 1 to this.
    #[serde(default = "ten")]
    pub seeds: u64,
    /// Keys of the scenario, with dots (`"adapter.recovery"`), and their values. All combinations are played.
    #[serde(default)]
    pub vary: BTreeMap<String, Vec<toml::Value>>,
    /// Named cells of a comparison, each with keys and values that belong together. Every one is combined with all of `vary`.
    #[serde(default)]
    pub cells: BTreeMap<String, BTreeMap<String, toml::Value>>,
    /// Numbers of the report that the tables have, with dots (`"all.slowdown_mean"`).
    pub show: Vec<String>,
}

/// The column that names a job's cell.
const CELL: &str = "cell";

const fn ten() -> u64 {
    10
}

/// One simulation of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// Its place in the sweep, from 0.
    pub number: usize,
    /// Its values, by key.
    pub values: BTreeMap<String, toml::Value>,
    /// Its seed.
    pub seed: u64,
}

/// Why a sweep, or one job of it, does not work.
#[derive(Debug, Error)]
pub enum SweepError {
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that is not what it should be.
    #[error("{path}: {problem}")]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// There is no such job.
    #[error("job {0} is none of the sweep's {1}")]
    NoSuchJob(usize, usize),
}

/// A sweep that was read, with its scenario.
#[derive(Debug)]
pub struct Plan {
    sweep: Sweep,
    scenario: toml::Value,
    path: PathBuf,
    /// All jobs.
    pub jobs: Vec<Job>,
}

fn read(path: &Path) -> Result<String, SweepError> {
    fs::read_to_string(path).map_err(|source| SweepError::File { path: path.into(), source })
}

impl Plan {
    /// Reads a sweep file and its scenario, and looks whether all jobs are scenarios.
    ///
    /// # Errors
    /// [`SweepError`].
    pub fn read(path: &Path) -> Result<Self, SweepError> {
        let wrong = |path: &Path, problem: String| SweepError::Content { path: path.into(), problem };
        let sweep: Sweep = toml::from_str(&read(path)?).map_err(|error| wrong(path, error.to_string()))?;
        let file = path.parent().unwrap_or_else(|| Path::new("")).join(&sweep.scenario);
        let text = read(&file)?;
        Scenario::read(&text).map_err(|error| wrong(&file, error.to_string()))?;
        let scenario =
            toml::from_str(&text).map_err(|error: toml::de::Error| wrong(&file, error.to_string()))?;
        let mut combinations = vec![BTreeMap::new()];
        for (key, values) in &sweep.vary {
            let with = |before: &BTreeMap<String, toml::Value>, value: &toml::Value| {
                let mut next = before.clone();
                next.insert(key.clone(), value.clone());
                next
            };
            combinations = combinations
                .iter()
                .flat_map(|before| values.iter().map(move |value| with(before, value)))
                .collect();
        }
        if !sweep.cells.is_empty() {
            let in_cell = |name: &String, values: &BTreeMap<String, toml::Value>| {
                let mut values = values.clone();
                values.insert(CELL.into(), toml::Value::String(name.clone()));
                values
            };
            let cells = sweep.cells.keys();
            combinations =
                cells.flat_map(|name| combinations.iter().map(move |values| in_cell(name, values))).collect();
        }
        let jobs = combinations
            .iter()
            .flat_map(|values| (1..=sweep.seeds).map(move |seed| (values.clone(), seed)))
            .enumerate()
            .map(|(number, (values, seed))| Job { number, values, seed })
            .collect();
        let plan = Self { sweep, scenario, path: path.into(), jobs };
        for job in plan.jobs.iter().filter(|job| job.seed == 1) {
            plan.scenario(job).map_err(|error| wrong(path, format!("{:?}: {error}", job.values)))?;
        }
        Ok(plan)
    }

    /// The scenario of a job.
    ///
    /// # Errors
    /// What the job's values make wrong.
    pub fn scenario(&self, job: &Job) -> Result<Scenario, ScenarioError> {
        let mut value = self.scenario.clone();
        let cell =
            job.values.get(CELL).and_then(toml::Value::as_str).and_then(|name| self.sweep.cells.get(name));
        for (key, wanted) in
            job.values.iter().filter(|(key, _)| *key != CELL).chain(cell.into_iter().flatten())
        {
            set(&mut value, key, wanted);
        }
        set(&mut value, "seed", &toml::Value::Integer(job.seed.cast_signed()));
        let scenario: Scenario = value.try_into().map_err(Box::new)?;
        scenario.check()?;
        Ok(scenario)
    }

    fn result(folder: &Path, job: &Job) -> PathBuf {
        folder.join(format!("job-{:05}.json", job.number))
    }

    /// Plays one job and leaves its report in `folder`, unless it is there already. Whether it was played.
    ///
    /// # Errors
    /// What went wrong.
    pub fn play(&self, folder: &Path, number: usize) -> Result<bool, SweepError> {
        let job = self.jobs.get(number).ok_or(SweepError::NoSuchJob(number, self.jobs.len()))?;
        let path = Self::result(folder, job);
        if self.is_done(&path, job) {
            return Ok(false);
        }
        let wrong = |error: ScenarioError| SweepError::Content {
            path: self.path.clone(),
            problem: error.to_string(),
        };
        let scenario = self.scenario(job).map_err(wrong)?;
        let start = Instant::now();
        let mut world = World::new(&scenario).map_err(wrong)?;
        world.run(|_| ());
        let report = Report::new(&scenario.title, job.seed, &world, start.elapsed());
        let text = serde_json::json!({ "job": job, "report": report }).to_string();
        // In two steps, so that a job that was stopped leaves nothing that looks done.
        let part = path.with_extension("part");
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| SweepError::File { path, source })?;
        Ok(true)
    }

    fn is_done(&self, path: &Path, job: &Job) -> bool {
        let known = fs::read_to_string(path)
            .ok()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
        known.is_some_and(|known| serde_json::to_value(job).is_ok_and(|job| known["job"] == job))
    }

    /// The numbers of the jobs that have no result in `folder`, in rising order.
    #[must_use]
    pub fn missing(&self, folder: &Path) -> Vec<usize> {
        let lacks = |job: &&Job| !self.is_done(&Self::result(folder, job), job);
        self.jobs.iter().filter(lacks).map(|job| job.number).collect()
    }

    /// Plays all jobs on `threads` threads; tells `progress` of each one that is done or failed.
    pub fn play_all(
        &self,
        folder: &Path,
        threads: usize,
        progress: impl Fn(&Job, &Result<bool, SweepError>) + Sync,
    ) -> usize {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(0));
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, self.jobs.len().max(1)) {
                scope.spawn(|| {
                    while let Some(job) = self.jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = self.play(folder, job.number);
                        progress(job, &outcome);
                        if outcome.is_err()
                            && let Ok(mut failed) = failed.lock()
                        {
                            *failed += 1;
                        }
                    }
                });
            }
        });
        failed.into_inner().unwrap_or(self.jobs.len())
    }

    /// Writes `table.csv` (a line a job) and `summary.csv` (a line for each combination of values: mean, least and most over
    /// the seeds) from what is there. How many jobs are missing.
    ///
    /// # Errors
    /// What the file system says.
    pub fn tabulate(&self, folder: &Path) -> Result<usize, SweepError> {
        let keys: Vec<String> =
            self.jobs.first().map_or_else(Vec::new, |job| job.values.keys().cloned().collect());
        let head = |more: Vec<String>| keys.iter().cloned().chain(more).collect::<Vec<_>>().join(",");
        let mut table =
            vec![head(std::iter::once("seed".into()).chain(self.sweep.show.iter().cloned()).collect())];
        let columns = self.sweep.show.iter();
        let columns = columns.flat_map(|name| ["mean", "least", "most"].map(|what| format!("{name} {what}")));
        let mut summary = vec![head(std::iter::once("seeds".into()).chain(columns).collect())];
        let mut missing = 0;
        let seeds = usize::try_from(self.sweep.seeds).unwrap_or(1).max(1);
        for jobs in self.jobs.chunks(seeds) {
            let values: Vec<String> = jobs[0].values.values().map(plain).collect();
            let mut found: Vec<Vec<f64>> = Vec::new();
            for job in jobs {
                let path = Self::result(folder, job);
                if !self.is_done(&path, job) {
                    missing += 1;
                    continue;
                }
                let known: serde_json::Value = serde_json::from_str(&read(&path)?).unwrap_or_default();
                let numbers: Vec<f64> =
                    self.sweep.show.iter().map(|name| number(&known["report"], name)).collect();
                let texts =
                    std::iter::once(job.seed.to_string()).chain(numbers.iter().map(ToString::to_string));
                table.push(values.iter().cloned().chain(texts).collect::<Vec<_>>().join(","));
                found.push(numbers);
            }
            let figures = (0..self.sweep.show.len()).flat_map(|at| {
                let column = || found.iter().map(|numbers| numbers[at]);
                let mean = column().sum::<f64>() / found.len().max(1) as f64;
                [mean, column().fold(f64::MAX, f64::min), column().fold(f64::MIN, f64::max)]
                    .map(|n| format!("{n:.4}"))
            });
            let texts = std::iter::once(found.len().to_string()).chain(figures);
            if !found.is_empty() {
                summary.push(values.iter().cloned().chain(texts).collect::<Vec<_>>().join(","));
            }
        }
        for (name, lines) in [("table.csv", table), ("summary.csv", summary)] {
            let path = folder.join(name);
            fs::write(&path, lines.join("\n") + "\n").map_err(|source| SweepError::File { path, source })?;
        }
        Ok(missing)
    }
}

/// A value as a table has it.
fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.replace(',', ";"),
        toml::Value::Table(table) if table.is_empty() => "-".into(),
        other => other.to_string().replace(',', ";"),
    }
}

/// The number at a path with dots; numbers in the path count list entries.
fn number(report: &serde_json::Value, path: &str) -> f64 {
    let found = path.split('.').fold(report, |value, key| match key.parse::<usize>() {
        Ok(index) if value.is_array() => &value[index],
        _ => &value[key],
    });
    found.as_f64().unwrap_or(f64::NAN)
}

/// Sets the value at a path with dots; numbers in the path count list entries. An empty table takes a key away.
fn set(value: &mut toml::Value, path: &str, wanted: &toml::Value) {
    let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
    let place = match value {
        toml::Value::Array(list) => {
            let Some(place) = key.parse::<usize>().ok().and_then(|index| list.get_mut(index)) else { return };
            place
        }
        toml::Value::Table(table) => {
            if rest.is_none() && wanted.as_table().is_some_and(toml::Table::is_empty) {
                table.remove(key);
                return;
            }
            table.entry(key).or_insert_with(|| toml::Value::Table(toml::Table::new()))
        }
        _ => return,
    };
    match rest {
        Some(rest) => set(place, rest, wanted),
        None => place.clone_from(wanted),
    }
}
