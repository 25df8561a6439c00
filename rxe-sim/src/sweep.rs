//! Sweeps: one scenario with several values for some keys, and several seeds. Each job writes a file of its own. So a sweep
//! that was stopped can be continued, and a failed job does not affect the others.

use crate::{Scenario, ScenarioError, World, report::Report};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hasher},
    io,
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
    /// The scenario's file, relative to the folder of the sweep file.
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
    /// Numbers of the report that are in the tables, with dots (`"all.slowdown_mean"`).
    pub show: Vec<String>,
}

/// The column that names a job's cell.
const CELL: &str = "cell";

/// The key of a scenario's seed.
const SEED: &str = "seed";

/// Most jobs of a sweep: each is a file.
const MOST_JOBS: u64 = 100_000;

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

/// Why a sweep, or one of its jobs, cannot be played.
#[derive(Debug, Error)]
pub enum SweepError {
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has the wrong content.
    #[error("{path}: {problem}")]
    Content {
        /// Its path.
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
    program: String,
    /// All jobs.
    pub jobs: Vec<Job>,
}

impl Sweep {
    /// Refuses a sweep without jobs, or with too many.
    fn check(&self) -> Result<(), String> {
        if self.seeds == 0 {
            return Err("seeds: at least 1".into());
        }
        if self.vary.contains_key(CELL) {
            return Err(format!("vary.{CELL}: scenarios have no such key"));
        }
        self.check_keys()?;
        if let Some((key, _)) = self.vary.iter().find(|(_, values)| values.is_empty()) {
            return Err(format!("vary.{key}: an empty list; say at least one value"));
        }
        let cells = self.cells.len().max(1) as u64;
        let values = self.vary.values().map(|values| values.len() as u64);
        let jobs = values.fold(cells.saturating_mul(self.seeds), u64::saturating_mul);
        if jobs > MOST_JOBS {
            return Err(format!("{jobs} jobs: at most {MOST_JOBS}"));
        }
        Ok(())
    }
}

impl Sweep {
    /// Refuses keys that would have no effect, or whose values in the tables would not be those that were played.
    fn check_keys(&self) -> Result<(), String> {
        let cells = self.cells.iter().flat_map(|(cell, values)| values.keys().map(move |key| (cell, key)));
        let varied = self.vary.keys().map(|key| (format!("vary.{key}"), key));
        let all = varied.chain(cells.clone().map(|(cell, key)| (format!("cells.{cell}.{key}"), key)));
        if let Some((place, _)) = all.into_iter().find(|(_, key)| *key == SEED) {
            return Err(format!("{place}: seeds are from 1 to \"seeds\""));
        }
        let is_in = |key: &str, outer: &str| {
            key.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        for (cell, key) in cells {
            if let Some(varied) = self.vary.keys().find(|varied| is_in(varied, key) || is_in(key, varied)) {
                let how = if varied == key { String::new() } else { format!(", as {varied}") };
                return Err(format!("cells.{cell}: {key} is also in vary{how}"));
            }
        }
        Ok(())
    }
}

/// This program: its version, and a hash of its executable. Without the hash, results of another build would be taken for its own.
fn program() -> Result<String, SweepError> {
    const EXECUTABLE: &str = "/proc/self/exe";
    let bytes = fs::read(EXECUTABLE).map_err(|error| SweepError::Content {
        path: EXECUTABLE.into(),
        problem: format!("{error}: results carry a hash of the program; have /proc mounted"),
    })?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(format!("{} {:016x}", env!("CARGO_PKG_VERSION"), hasher.finish()))
}

/// Whether a file is one of a sweep, and not of a scenario: only sweeps name a scenario. `None` if it is not TOML.
#[must_use]
pub fn is_sweep(text: &str) -> Option<bool> {
    Some(text.parse::<toml::Table>().ok()?.contains_key("scenario"))
}

fn read(path: &Path) -> Result<String, SweepError> {
    fs::read_to_string(path).map_err(|source| SweepError::File { path: path.into(), source })
}

impl Plan {
    /// Reads a sweep file and its scenario, and checks that each job is a valid scenario.
    ///
    /// # Errors
    /// [`SweepError`].
    pub fn read(path: &Path) -> Result<Self, SweepError> {
        let wrong = |path: &Path, problem: String| SweepError::Content { path: path.into(), problem };
        let text = read(path)?;
        if is_sweep(&text) == Some(false) {
            return Err(wrong(
                path,
                "a sweep names its `scenario`; to play one scenario: rxe sim FILE".to_owned(),
            ));
        }
        let sweep: Sweep = toml::from_str(&text).map_err(|error| wrong(path, error.to_string()))?;
        sweep.check().map_err(|problem| wrong(path, problem))?;
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
        let plan = Self { sweep, scenario, path: path.into(), program: program()?, jobs };
        for job in plan.jobs.iter().filter(|job| job.seed == 1) {
            plan.scenario(job).map_err(|error| wrong(path, format!("{:?}: {error}", job.values)))?;
        }
        Ok(plan)
    }

    /// The scenario of a job.
    ///
    /// # Errors
    /// The job's values are not valid for the scenario.
    pub fn scenario(&self, job: &Job) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = self.with_values(job)?.try_into().map_err(Box::new)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The text of the scenario with the values of a job.
    fn with_values(&self, job: &Job) -> Result<toml::Value, ScenarioError> {
        let mut value = self.scenario.clone();
        let cell =
            job.values.get(CELL).and_then(toml::Value::as_str).and_then(|name| self.sweep.cells.get(name));
        for (key, wanted) in
            job.values.iter().filter(|(key, _)| *key != CELL).chain(cell.into_iter().flatten())
        {
            set(&mut value, key, wanted).map_err(|what| {
                ScenarioError::value("sweep", format!("{key:?} is nothing that can be set: {what}"))
            })?;
        }
        if let Some(table) = value.as_table_mut() {
            table.insert(SEED.into(), toml::Value::Integer(job.seed.cast_signed()));
        }
        Ok(value)
    }

    /// The beginning of a job's result, which identifies the job. With another scenario, other values or another program it is
    /// another job.
    fn identity(&self, job: &Job) -> Result<serde_json::Value, ScenarioError> {
        Ok(serde_json::json!({ "program": self.program, "job": job, "scenario": self.with_values(job)? }))
    }

    fn result(folder: &Path, job: &Job) -> PathBuf {
        folder.join(format!("job-{:05}.json", job.number))
    }

    /// Plays one job and writes its report to `folder`, unless it is there already. Returns whether it was played.
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
        let mut result = self.identity(job).map_err(wrong)?;
        result["report"] = serde_json::to_value(&report).unwrap_or_default();
        let text = result.to_string();
        // Written under another name first, so that a job that was stopped leaves no file that looks complete.
        let part = path.with_extension("part");
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| SweepError::File { path, source })?;
        Ok(true)
    }

    fn is_done(&self, path: &Path, job: &Job) -> bool {
        self.report(path, job).is_some()
    }

    /// The report of a job, if there is one in `folder` and it belongs to this job.
    fn report(&self, path: &Path, job: &Job) -> Option<serde_json::Value> {
        let mut known: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let report = known.get_mut("report")?.take();
        known.as_object_mut()?.remove("report");
        // The expected value is also converted to text and back, because a fraction may differ in the last bit after that.
        let wanted = serde_json::from_str(&self.identity(job).ok()?.to_string()).ok();
        (wanted == Some(known)).then_some(report)
    }

    /// The numbers of the jobs that have no result in `folder`, in rising order.
    #[must_use]
    pub fn missing(&self, folder: &Path) -> Vec<usize> {
        let lacks = |job: &&Job| !self.is_done(&Self::result(folder, job), job);
        self.jobs.iter().filter(lacks).map(|job| job.number).collect()
    }

    /// Plays all jobs on `threads` threads. Calls `progress` for each one that is done or has failed.
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

    /// Writes `table.csv` (a line for each job) and `summary.csv` (a line for each combination of values: mean, median, minimum
    /// and maximum over the seeds) from the reports that exist. A number that a report does not have is left empty. Returns how
    /// many jobs are missing.
    ///
    /// # Errors
    /// The file system's error.
    pub fn tabulate(&self, folder: &Path) -> Result<usize, SweepError> {
        let keys: Vec<String> =
            self.jobs.first().map_or_else(Vec::new, |job| job.values.keys().cloned().collect());
        let head = |more: Vec<String>| keys.iter().cloned().chain(more).collect::<Vec<_>>().join(",");
        let mut table =
            vec![head(std::iter::once("seed".into()).chain(self.sweep.show.iter().cloned()).collect())];
        let columns = self.sweep.show.iter();
        let columns = columns.flat_map(|name| FIGURES.map(|what| format!("{name} {what}")));
        let mut summary = vec![head(std::iter::once("seeds".into()).chain(columns).collect())];
        let mut missing = 0;
        let seeds = usize::try_from(self.sweep.seeds).unwrap_or(1).max(1);
        for jobs in self.jobs.chunks(seeds) {
            let values: Vec<String> = jobs[0].values.values().map(plain).collect();
            let mut found: Vec<Vec<Option<f64>>> = Vec::new();
            for job in jobs {
                let Some(report) = self.report(&Self::result(folder, job), job) else {
                    missing += 1;
                    continue;
                };
                let numbers: Vec<_> = self.sweep.show.iter().map(|name| number(&report, name)).collect();
                let text = |number: &Option<f64>| number.map_or_else(String::new, |n| n.to_string());
                let texts = std::iter::once(job.seed.to_string()).chain(numbers.iter().map(text));
                table.push(values.iter().cloned().chain(texts).collect::<Vec<_>>().join(","));
                found.push(numbers);
            }
            let figures = (0..self.sweep.show.len()).flat_map(|at| {
                let figures = figures(found.iter().filter_map(|numbers| numbers[at]).collect());
                figures.map(|figures| figures.map(|n| format!("{n:.4}"))).unwrap_or_default()
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

/// The columns of `summary.csv` for a number.
const FIGURES: [&str; 4] = ["mean", "median", "least", "most"];

/// These statistics of the values of several seeds, if there are any.
fn figures(mut of: Vec<f64>) -> Option<[f64; FIGURES.len()]> {
    of.sort_unstable_by(f64::total_cmp);
    let (least, most) = (*of.first()?, *of.last()?);
    let (below, above) = (of[(of.len() - 1) / 2], of[of.len() / 2]);
    Some([of.iter().sum::<f64>() / of.len() as f64, below.midpoint(above), least, most])
}

/// A value as a cell of a table.
fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.replace(',', ";"),
        toml::Value::Table(table) if table.is_empty() => "-".into(),
        other => other.to_string().replace(',', ";"),
    }
}

/// The number at a path with dots, if there is one; numbers in the path count list entries.
fn number(report: &serde_json::Value, path: &str) -> Option<f64> {
    let found = path.split('.').fold(report, |value, key| match key.parse::<usize>() {
        Ok(index) if value.is_array() => &value[index],
        _ => &value[key],
    });
    found.as_f64()
}

/// Sets the value at a path with dots; numbers in the path count list entries. An empty table removes a key.
///
/// # Errors
/// A part of the path is not a table or list. An unknown key is not noticed here, but when the scenario is read.
fn set(value: &mut toml::Value, path: &str, wanted: &toml::Value) -> Result<(), String> {
    let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
    let place = match value {
        toml::Value::Array(list) => {
            let count = list.len();
            let place = key.parse::<usize>().ok().and_then(|index| list.get_mut(index));
            place.ok_or_else(|| format!("{key:?} where there is a list of {count}, counted from 0"))?
        }
        toml::Value::Table(table) => {
            if rest.is_none() && wanted.as_table().is_some_and(toml::Table::is_empty) {
                table.remove(key);
                return Ok(());
            }
            table.entry(key).or_insert_with(|| toml::Value::Table(toml::Table::new()))
        }
        _ => return Err(format!("{key:?} where there is a {}", value.type_str())),
    };
    match rest {
        Some(rest) => set(place, rest, wanted),
        None => {
            place.clone_from(wanted);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
