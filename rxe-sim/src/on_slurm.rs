//! Sweeps on Slurm. The jobs that have no result yet become an array. Each task of the array plays one job, and writes its
//! report to the sweep's folder. All nodes must see this folder under the same path.

use crate::sweep::Plan;
use rxe_slurm::{Array, SlurmError, State, Task};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use thiserror::Error;

/// How a job without a result ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The job's number.
    pub job: usize,
    /// Its state, as Slurm reports it.
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
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// How a sweep is played.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that plays a job: this program.
    pub program: PathBuf,
    /// The sweep's file.
    pub file: PathBuf,
    /// The sweep's folder.
    pub out: PathBuf,
    /// Most jobs at the same time.
    pub at_once: Option<usize>,
    /// The time after which Slurm ends a job.
    pub limit: Option<Duration>,
}

/// Quotes a word for a shell.
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

    /// Plays the jobs that have no result in the folder. Jobs of an earlier call that are still in Slurm's queue are not
    /// submitted again, but waited for. Calls `progress` with the number of jobs that have ended, the number of all, and a word
    /// about the others. Returns the jobs that left no result.
    ///
    /// # Errors
    /// [`OnSlurmError`]. A failed job is not an error.
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

/// The reason why no job runs, if none does.
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
