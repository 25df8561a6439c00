//! Playing a plan: from here, some jobs at a time, or by Slurm. Every job leaves a file in a folder. What has passed there is not
//! played again, so that a matrix that was stopped, or partly failed, goes on with the same command.

use crate::{
    plan::{Job, Plan},
    play::{End, Outcome, Verdict, play},
};
use rxe_slurm::{Array, SlurmError, State, Task};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

fn file(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("job-{number:05}.json"))
}

/// What a job has left in `folder`; `None` also if the file is of another plan's job, or broken.
#[must_use]
pub fn known(folder: &Path, job: &Job) -> Option<Outcome> {
    let text = fs::read_to_string(file(folder, job.number)).ok()?;
    let outcome: Outcome = serde_json::from_str(&text).ok()?;
    (outcome.job == *job).then_some(outcome)
}

/// The jobs that have not passed yet, in rising order.
#[must_use]
pub fn open(plan: &Plan, folder: &Path) -> Vec<usize> {
    let passed = |job: &&Job| known(folder, job).is_some_and(|outcome| outcome.verdict == Verdict::Pass);
    plan.jobs.iter().filter(|job| !passed(job)).map(|job| job.number).collect()
}

/// Plays a job and leaves its file.
///
/// # Errors
/// What the file system says.
pub fn play_one(plan: &Plan, folder: &Path, job: &Job) -> io::Result<Outcome> {
    let outcome = play(plan, job);
    // In two steps, so that nothing half-written is ever found.
    let part = file(folder, job.number).with_extension("part");
    fs::write(&part, serde_json::to_string_pretty(&outcome)?)?;
    fs::rename(&part, file(folder, job.number))?;
    Ok(outcome)
}

/// Plays `numbers` from here, `at_once` at a time. Tells `progress` of each that has ended.
pub fn here(
    plan: &Plan,
    folder: &Path,
    numbers: &[usize],
    at_once: usize,
    progress: impl Fn(&io::Result<Outcome>) + Sync,
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, numbers.len().max(1)) {
            scope.spawn(|| {
                while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    progress(&play_one(plan, folder, &plan.jobs[number]));
                }
            });
        }
    });
}

/// How a matrix is played on Slurm.
#[derive(Clone, Debug)]
pub struct OnSlurm {
    /// The shell command that plays the job `$TASK`.
    pub command: String,
    /// The folder, which all nodes see by this path.
    pub folder: PathBuf,
    /// Jobs at a time at most.
    pub at_once: Option<usize>,
    /// A second limit, for what plays a job: Slurm's own.
    pub limit: Duration,
}

impl OnSlurm {
    /// Has Slurm play `numbers`, and waits. What an earlier call has left in the queue is waited for, not submitted again. Tells
    /// `progress` how many have ended. Returns what Slurm says of each that left no file, or was ended by Slurm before it passed.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn play(
        &self,
        plan: &Plan,
        numbers: &[usize],
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Outcome>, SlurmError> {
        let array = Array {
            name: "rxe-interop".into(),
            comment: format!("rxe-interop {}", self.folder.display()),
            command: self.command.clone(),
            logs: self.folder.clone(),
            limit: Some(self.limit),
            at_once: self.at_once,
        };
        let queued = array.tasks()?;
        let is_queued = |number: &usize| queued.get(number).is_some_and(|task| !task.state.is_over());
        let new: Vec<usize> = numbers.iter().copied().filter(|number| !is_queued(number)).collect();
        // What failed before would be taken for what comes now.
        for number in &new {
            let _ = fs::remove_file(file(&self.folder, *number));
        }
        array.submit(&new)?;
        let ended = array.wait(numbers, |tasks| {
            progress(tasks.values().filter(|task| task.state.is_over()).count());
        })?;
        let counts =
            |job: &Job| known(&self.folder, job).is_some_and(|it| counts(it.verdict, ended.get(&job.number)));
        let all_lost: Vec<&Job> =
            numbers.iter().map(|number| &plan.jobs[*number]).filter(|job| !counts(job)).collect();
        // A later call must not find what an end from outside looked like.
        for job in &all_lost {
            let _ = fs::remove_file(file(&self.folder, job.number));
        }
        Ok(all_lost.into_iter().map(|job| lost(job, &ended)).collect())
    }
}

/// Whether a verdict that was left is one of the programs. If Slurm itself ended the task, it is not: that signal reaches all
/// processes of the task, one after the other, so that what plays the job may see a program fail by it, and leave a file that says
/// so, before it is ended itself.
fn counts(verdict: Verdict, task: Option<&Task>) -> bool {
    let was_ended = |task: &Task| matches!(task.state, State::Timeout | State::Ended(_));
    verdict == Verdict::Pass || !task.is_some_and(was_ended)
}

/// A job that left no file, or none that counts.
fn lost(job: &Job, ended: &BTreeMap<usize, Task>) -> Outcome {
    let why = match ended.get(&job.number) {
        Some(Task { state: State::Completed, .. }) => "played, but its file is not in this folder".to_owned(),
        Some(task) => format!("Slurm ended what played it: {} ({})", task.state.word(), task.reason),
        None => "Slurm does not know it".to_owned(),
    };
    Outcome {
        job: job.clone(),
        verdict: Verdict::Lost,
        why,
        seconds: 0.0,
        server: End::default(),
        client: End::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_because_slurm_ends_its_task_does_not_count() {
        let task = |state| Task { array: 1, index: 0, state, reason: String::new() };
        let cancelled = task(State::Ended("CANCELLED".into()));
        assert!(!counts(Verdict::Fail, Some(&cancelled)));
        assert!(!counts(Verdict::Hang, Some(&task(State::Timeout))));
        assert!(counts(Verdict::Pass, Some(&cancelled)), "it had passed before");
        assert!(counts(Verdict::Fail, Some(&task(State::Failed))));
        // It was asked for its verdict, not for its exit code.
        assert!(counts(Verdict::Fail, Some(&task(State::Completed))));
        assert!(counts(Verdict::Fail, None), "Slurm has forgotten it");
    }
}
