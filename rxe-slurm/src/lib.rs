//! Arrays of jobs on Slurm, by Slurm's programs (sbatch, squeue, scontrol; man pages of Slurm 22.05). Tasks are submitted, and
//! their results are collected. A task runs a command that gets the task's number. Its output is in files of its own.
//!
//! Nothing is stored between runs. Slurm is asked which tasks of an earlier run still wait or run; they are found by the
//! comment of their array. Slurm's accounting is not needed: squeue lists ended tasks for a while (MinJobAge, by default 300
//! s), and this crate asks more often than that.

mod states;

pub use states::{State, Task};

use std::{
    collections::BTreeMap,
    env, io,
    path::PathBuf,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};
use thiserror::Error;

/// The work that Slurm is to do.
#[derive(Clone, Debug)]
pub struct Array {
    /// The name of the jobs in queues.
    pub name: String,
    /// Identifies this work among all work of the same user. It is the same in every run, for example the folder of the
    /// results. One line.
    pub comment: String,
    /// A shell command. The task's number is in `$TASK`.
    pub command: String,
    /// Folder for the output of tasks: `slurm-NUMBER.log`, with the number within Slurm's array.
    pub logs: PathBuf,
    /// The time after which Slurm ends a task, in whole minutes, which Slurm checks now and then. By default the partition's
    /// limit.
    pub limit: Option<Duration>,
    /// Most tasks that run at the same time. By default as many as there is room for.
    pub at_once: Option<usize>,
}

/// Why Slurm cannot be used.
#[derive(Debug, Error)]
pub enum SlurmError {
    /// A program of Slurm cannot be started.
    #[error("{program} cannot be started ({source}); Debian has it in slurm-client")]
    Missing {
        /// The program.
        program: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A program of Slurm has failed.
    #[error("{program} says: {said}")]
    Refused {
        /// The program.
        program: &'static str,
        /// Its output.
        said: String,
    },
    /// The output of a program of Slurm was not understood.
    #[error("{program} answers {said:?}, which is not understood")]
    Strange {
        /// The program.
        program: &'static str,
        /// Its output.
        said: String,
    },
    /// Slurm accepted the arrays, but does not list them.
    #[error(
        "squeue does not list what sbatch has submitted under the comment {comment:?}, so it was cancelled; does the site \
         change comments, or was it another cluster (SBATCH_CLUSTERS)?"
    )]
    Unseen {
        /// The comment of the arrays.
        comment: String,
    },
}

/// The time before Slurm is asked for the states of tasks again. It grows by a quarter each time,
const FIRST_LOOK: Duration = Duration::from_millis(500);
/// up to this, because a controller serves many users. It is far shorter than Slurm remembers tasks (MinJobAge).
const LAST_LOOK: Duration = Duration::from_secs(5);
/// How long to wait for a controller that restarts.
const PATIENCE: Duration = Duration::from_secs(120);

fn slurm(program: &'static str, arguments: &[String]) -> Result<String, SlurmError> {
    let mut command = Command::new(program);
    // sbatch alone obeys the first of these variables.
    if let (Some(clusters), None) = (env::var_os("SBATCH_CLUSTERS"), env::var_os("SLURM_CLUSTERS")) {
        command.env("SLURM_CLUSTERS", clusters);
    }
    let Output { status, stdout, stderr } =
        command.args(arguments).output().map_err(|source| SlurmError::Missing { program, source })?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    Err(SlurmError::Refused { program, said: String::from_utf8_lossy(&stderr).trim().to_owned() })
}

/// Slurm refuses arrays whose highest index is this or more (MaxArraySize of slurm.conf).
fn most_in_array() -> Result<usize, SlurmError> {
    let said = slurm("scontrol", &["show".into(), "config".into()])?;
    let line = said.lines().find_map(|line| line.strip_prefix("MaxArraySize"));
    let number = line.and_then(|rest| rest.trim_start_matches([' ', '=']).trim().parse().ok());
    number.filter(|most| *most > 0).ok_or_else(|| SlurmError::Strange {
        program: "scontrol show config",
        said: line.unwrap_or("no MaxArraySize").to_owned(),
    })
}

/// Writes numbers in rising order as a list of Slurm: `0-2,7`.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    runs.into_iter().map(text).collect::<Vec<_>>().join(",")
}

impl Array {
    /// The arguments of sbatch to submit `tasks`, which are all less than MaxArraySize above `offset`.
    fn words(&self, offset: usize, tasks: &[usize]) -> Vec<String> {
        let within: Vec<usize> = tasks.iter().map(|task| task - offset).collect();
        let at_once = self.at_once.map_or_else(String::new, |most| format!("%{}", most.max(1)));
        let mut words = vec![
            "--parsable".into(),
            format!("--job-name={}", self.name),
            format!("--comment={}", self.comment_of(offset)),
            format!("--array={}{at_once}", ranges(&within)),
            // In this argument a percent sign of the folder's name has to be doubled.
            format!("--output={}/slurm-%A-%a.log", self.logs.display().to_string().replace('%', "%%")),
        ];
        if let Some(limit) = self.limit {
            words.push(format!("--time={}", limit.as_secs().div_ceil(60).max(1)));
        }
        words.push(format!("--wrap=TASK=$(({offset} + SLURM_ARRAY_TASK_ID)); {}", self.command));
        words
    }

    /// Arrays begin at 0, so the comment contains the offset to the task's number.
    fn comment_of(&self, offset: usize) -> String {
        format!("{}+{offset}", self.comment)
    }

    /// Submits `tasks` (in rising order) as one array, or as several if necessary. Returns the job numbers of the arrays.
    ///
    /// # Errors
    /// [`SlurmError`]. Arrays that were submitted before the error are cancelled.
    pub fn submit(&self, tasks: &[usize]) -> Result<Vec<u64>, SlurmError> {
        let most = most_in_array()?;
        let mut ids = Vec::new();
        for part in tasks.chunk_by(|one, next| one / most == next / most) {
            let offset = part[0] / most * most;
            match slurm("sbatch", &self.words(offset, part)).and_then(|said| id_of(&said)) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    cancel(&ids);
                    return Err(error);
                }
            }
        }
        let known = self.tasks().inspect_err(|_| cancel(&ids))?;
        if !tasks.is_empty() && !tasks.iter().any(|task| known.contains_key(task)) {
            cancel(&ids);
            return Err(SlurmError::Unseen { comment: self.comment.clone() });
        }
        Ok(ids)
    }

    /// All tasks of this work that Slurm still knows, by number. If there are several with one number, the latest.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn tasks(&self) -> Result<BTreeMap<usize, Task>, SlurmError> {
        let format = format!("--format={}", states::FORMAT);
        let words = ["--noheader", "--array", "--me", "--states=all", &format].map(str::to_owned);
        Ok(states::read(&slurm("squeue", &words)?, &self.comment))
    }

    /// Waits until all of `tasks` have ended, and returns how each ended. Tasks that Slurm has forgotten are missing. Calls
    /// `progress` with the known states each time.
    ///
    /// # Errors
    /// [`SlurmError`], if the controller has not answered for two minutes.
    pub fn wait(
        &self,
        tasks: &[usize],
        mut progress: impl FnMut(&BTreeMap<usize, Task>),
    ) -> Result<BTreeMap<usize, Task>, SlurmError> {
        let (mut last_answer, mut look) = (Instant::now(), FIRST_LOOK);
        loop {
            match self.tasks() {
                Ok(mut known) => {
                    last_answer = Instant::now();
                    known.retain(|number, _| tasks.binary_search(number).is_ok());
                    progress(&known);
                    if known.values().all(|task| task.state.is_over()) {
                        return Ok(known);
                    }
                }
                Err(error @ SlurmError::Refused { .. }) if last_answer.elapsed() < PATIENCE => {
                    // For example while the controller restarts.
                    drop(error);
                }
                Err(error) => return Err(error),
            }
            thread::sleep(look);
            look = (look * 5 / 4).min(LAST_LOOK);
        }
    }
}

/// Cancels arrays. It is not an error if they have ended already, or cannot be cancelled.
pub fn cancel(ids: &[u64]) {
    let words: Vec<String> = ids.iter().map(u64::to_string).collect();
    if !words.is_empty() {
        let _ = slurm("scancel", &words);
    }
}

/// The job number that `sbatch --parsable` prints. With several clusters the cluster's name follows.
fn id_of(said: &str) -> Result<u64, SlurmError> {
    let number = said.trim().split(';').next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| SlurmError::Strange { program: "sbatch", said: said.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_as_slurm_reads_them() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[5]), "5");
        assert_eq!(ranges(&[0, 1, 2, 7, 9, 10]), "0-2,7,9-10");
    }

    #[test]
    fn arrays_begin_at_0_and_tasks_keep_their_numbers() {
        let array = Array {
            name: "sweep".into(),
            comment: "/out".into(),
            command: "play $TASK".into(),
            logs: "/100 %a".into(),
            limit: Some(Duration::from_secs(61)),
            at_once: Some(3),
        };
        let words = array.words(1001, &[1001, 1002, 1009]);
        assert!(words.contains(&"--array=0-1,8%3".to_owned()), "{words:?}");
        assert!(words.contains(&"--comment=/out+1001".to_owned()), "{words:?}");
        assert!(words.contains(&"--time=2".to_owned()), "{words:?}");
        assert!(words.contains(&"--output=/100 %%a/slurm-%A-%a.log".to_owned()), "{words:?}");
        assert_eq!(words.last().unwrap(), "--wrap=TASK=$((1001 + SLURM_ARRAY_TASK_ID)); play $TASK");
    }

    #[test]
    fn job_numbers_may_carry_a_cluster() {
        assert_eq!(id_of("17\n").unwrap(), 17);
        assert_eq!(id_of("17;north\n").unwrap(), 17);
        assert!(id_of("sbatch: something").is_err());
    }
}
