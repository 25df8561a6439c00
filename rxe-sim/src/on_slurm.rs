//! Sweeps on Slurm: the jobs that have no result yet become an array, whose every task plays one job and leaves its report in
//! the sweep's folder, which all nodes must see under the same path.

use crate::sweep::Plan;
use rxe_slurm::{Array, SlurmError, State, Task};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use thiserror::Error;

/// How a job that left no result ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The job's number.
    pub job: usize,
    /// What Slurm says of it.
    pub how: String,
    /// The last line that it printed.
    pub said: String,
}

/// Why a sweep cannot be played on Slurm.
#[derive(Debug, Error)]
pub enum OnSlurmError {
    /// Slurm.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// A file or folder.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What sweeps are played with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that plays a job: this one.
    pub program: PathBuf,
    /// The sweep's file.
    pub file: PathBuf,
    /// The sweep's folder.
    pub out: PathBuf,
    /// Jobs at a time at most.
    pub at_once: Option<usize>,
    /// Slurm ends a job after so long.
    pub limit: Option<Duration>,
}

/// A word that a shell takes as it is.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

impl Settings {
    fn array(&self) -> Result<Array, OnSlurmError> {
        let absolute = |path: &Path| {
            fs::canonicalize(path).map_err(|source| OnSlurmError::File { path: path.into(), source })
        };
        let (program, file, out) = (absolute(&self.program)?, absolute(&self.file)?, absolute(&self.out)?);
        Ok(Array {
            name: "rxe-sim".into(),
            comment: format!("rxe-sim {}", out.display()),
            command: format!(
                "exec {} sweep {} --out {} --job $TASK",
                quoted(&program),
                quoted(&file),
                quoted(&out)
            ),
            logs: out,
            limit: self.limit,
            at_once: self.at_once,
        })
    }

    /// Plays on Slurm what has no result in the folder. Jobs that an earlier call left there in the queue are not submitted
    /// again, but waited for. Tells `progress` how many jobs have ended, of how many, and a word about the others; returns what
    /// left no result.
    ///
    /// # Errors
    /// [`OnSlurmError`]. A job that fails is none.
    pub fn play(
        &self,
        plan: &Plan,
        mut progress: impl FnMut(usize, usize, &str),
    ) -> Result<Vec<Lost>, OnSlurmError> {
        let array = self.array()?;
        let wanted: Vec<usize> = plan.missing(&self.out);
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let queued = array.tasks()?;
        let is_queued = |job: &usize| queued.get(job).is_some_and(|task| !task.state.is_over());
        let new: Vec<usize> = wanted.iter().copied().filter(|job| !is_queued(job)).collect();
        array.submit(&new)?;
        let ended = array.wait(&wanted, |known| {
            let over = known.values().filter(|task| task.state.is_over()).count();
            progress(over, wanted.len(), &waits_for(known));
        })?;
        let lost = plan.missing(&self.out).into_iter().map(|job| match ended.get(&job) {
            Some(task) => Lost {
                job,
                how: match &task.state {
                    State::Completed => "it ended well, but its result is not in this folder".into(),
                    state => format!("{} ({})", state.word(), task.reason),
                },
                said: last_line(&array.logs.join(format!("slurm-{}-{}.log", task.array, task.index))),
            },
            None => Lost { job, how: "Slurm does not know it any more".into(), said: String::new() },
        });
        Ok(lost.collect())
    }
}

/// Why nothing runs, if nothing does.
fn waits_for(known: &BTreeMap<usize, Task>) -> String {
    let mut alive = known.values().filter(|task| !task.state.is_over()).peekable();
    let runs = known.values().any(|task| matches!(&task.state, State::Alive(word) if word != "PENDING"));
    match alive.peek() {
        Some(task) if !runs => format!("waiting: {}", task.reason),
        _ => String::new(),
    }
}

fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
}
