//! The states of tasks, from squeue.

use std::collections::{BTreeMap, btree_map::Entry};

/// The format for squeue: the array's job, the task's index, state, reason, and the comment, which is last because it may
/// contain any text.
pub(crate) const FORMAT: &str = "%F|%K|%T|%r|%k";

/// The state of a task (squeue(1), JOB STATE CODES).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// It has not ended. With Slurm's word for the state.
    Alive(String),
    /// Its command exited with 0.
    Completed,
    /// Its command exited with another code.
    Failed,
    /// Slurm ended it after its time limit.
    Timeout,
    /// It ended in another way (CANCELLED, NODE_FAIL, OUT_OF_MEMORY, ...), with Slurm's word.
    Ended(String),
}

impl State {
    fn new(word: &str) -> Self {
        match word {
            "PENDING" | "RUNNING" | "SUSPENDED" | "CONFIGURING" | "COMPLETING" | "REQUEUED"
            | "REQUEUE_FED" | "REQUEUE_HOLD" | "RESIZING" | "SIGNALING" | "SPECIAL_EXIT" | "STAGE_OUT"
            | "STOPPED" | "RESV_DEL_HOLD" => Self::Alive(word.to_owned()),
            "COMPLETED" => Self::Completed,
            "FAILED" => Self::Failed,
            "TIMEOUT" | "DEADLINE" => Self::Timeout,
            other => Self::Ended(other.to_owned()),
        }
    }

    /// Whether it has ended.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        !matches!(self, Self::Alive(_))
    }

    /// Slurm's word for it.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Alive(word) | Self::Ended(word) => word,
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Timeout => "TIMEOUT",
        }
    }
}

/// A task in Slurm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// The job number of its array.
    pub array: u64,
    /// Its index in the array, which is in the name of its log.
    pub index: usize,
    /// Its state.
    pub state: State,
    /// The reason of the state, in Slurm's words: `Resources`, `NonZeroExitCode`, `None`, ...
    pub reason: String,
}

/// The tasks whose comment is `comment`, a plus sign, and the offset of the index. If there are several with one number, the
/// latest.
pub(crate) fn read(said: &str, comment: &str) -> BTreeMap<usize, Task> {
    let mut tasks = BTreeMap::new();
    for line in said.lines() {
        let Some((number, task)) = parse(line, comment) else { continue };
        match tasks.entry(number) {
            Entry::Vacant(place) => {
                place.insert(task);
            }
            Entry::Occupied(mut place) if place.get().array < task.array => {
                place.insert(task);
            }
            Entry::Occupied(_) => {}
        }
    }
    tasks
}

/// Parses a line of squeue. `None` for jobs of others, which may have any text.
fn parse(line: &str, comment: &str) -> Option<(usize, Task)> {
    let mut fields = line.trim().splitn(5, '|');
    let mut next = || fields.next();
    let (array, index, state, reason) = (next()?, next()?, next()?, next()?);
    let offset: usize = next()?.strip_prefix(comment)?.strip_prefix('+')?.parse().ok()?;
    let index: usize = index.parse().ok()?;
    let task =
        Task { array: array.parse().ok()?, index, state: State::new(state), reason: reason.to_owned() };
    Some((offset.checked_add(index)?, task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_told_by_their_comment() {
        let said = "7|0|COMPLETED|None|/out+0\n7|1|FAILED|NonZeroExitCode|/out+0\n8|1|RUNNING|None|/out+1000\n\
                    9|1|PENDING|Resources|/out+0\n9|2|TIMEOUT|TimeLimit|/out2+0\n3|N/A|RUNNING|None|\n\
                    10|3|NODE_FAIL|None|/out+0\n11||FAILED|a|b|/out+0\nrubbish\n12|9|FAILED|x|/out+99999999999999999999999";
        let tasks = read(said, "/out");
        let states: Vec<_> = tasks.iter().map(|(number, task)| (*number, task.state.word())).collect();
        assert_eq!(
            states,
            [(0, "COMPLETED"), (1, "PENDING"), (3, "NODE_FAIL"), (1001, "RUNNING")],
            "task 1 was submitted again by array 9"
        );
        assert!(tasks[&3].state.is_over() && !tasks[&1].state.is_over());
        assert_eq!(tasks[&1].reason, "Resources");
    }
}
