//! Arrays of jobs on Slurm, by its own programs (sbatch, squeue, scontrol; man pages of Slurm 22.05): tasks are submitted, and
//! told apart by how they ended. What a task does is a command that is told its number; what it leaves are files of its own.
//!
//! Nothing is kept between runs. Which tasks of an earlier run still wait or run is asked of Slurm, by the comment that an
//! array was submitted with. Slurm's accounting is not needed: squeue knows tasks that have ended for a while (MinJobAge,
//! 300 s unless set), and whoever asks more often than that misses none.

mod states;

pub use states::{State, Task};

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};
use thiserror::Error;

/// What Slurm is asked to do.
#[derive(Clone, Debug)]
pub struct Array {
    /// What queues show as the jobs' name.
    pub name: String,
    /// What tells this work from all other work of the same user: the same in every run of it, for example the folder of its
    /// results. One line.
    pub comment: String,
    /// A shell command; finds its number in `$TASK`.
    pub command: String,
    /// Folder for what tasks print: `slurm-NUMBER.log`, by the number within Slurm's array.
    pub logs: PathBuf,
    /// After so long Slurm ends a task; it counts in whole minutes and looks at them now and then. The partition's limit
    /// without it.
    pub limit: Option<Duration>,
    /// How many tasks run at a time at most; as many as there is room for without it.
    pub at_once: Option<usize>,
}

/// Why Slurm cannot be used.
#[derive(Debug, Error)]
pub enum SlurmError {
    /// A program of Slurm's cannot be started.
    #[error("{program} cannot be started ({source}); Debian has it in slurm-client")]
    Missing {
        /// Which.
        program: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A program of Slurm's refuses.
    #[error("{program} says: {said}")]
    Refused {
        /// Which.
        program: &'static str,
        /// Its words.
        said: String,
    },
    /// A program of Slurm's said what is not understood.
    #[error("{program} answers {said:?}, which is not understood")]
    Strange {
        /// Which.
        program: &'static str,
        /// Its words.
        said: String,
    },
}

/// After so long Slurm is asked for tasks' states the second time, and then each time after a quarter more,
const FIRST_LOOK: Duration = Duration::from_millis(500);
/// up to this: a controller serves many users. It is far less than Slurm remembers tasks for (MinJobAge).
const LAST_LOOK: Duration = Duration::from_secs(5);
/// A controller that restarts is waited for this long.
const PATIENCE: Duration = Duration::from_secs(120);

fn slurm(program: &'static str, arguments: &[String]) -> Result<String, SlurmError> {
    let Output { status, stdout, stderr } = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|source| SlurmError::Missing { program, source })?;
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

/// Numbers in rising order as Slurm writes lists: `0-2,7`.
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
    /// The words for sbatch that submit `tasks`, all of which lie less than MaxArraySize above `offset`.
    fn words(&self, offset: usize, tasks: &[usize]) -> Vec<String> {
        let within: Vec<usize> = tasks.iter().map(|task| task - offset).collect();
        let at_once = self.at_once.map_or_else(String::new, |most| format!("%{}", most.max(1)));
        let mut words = vec![
            "--parsable".into(),
            format!("--job-name={}", self.name),
            format!("--comment={}", self.comment_of(offset)),
            format!("--array={}{at_once}", ranges(&within)),
            // In this word a percent sign of the folder's name has to be two.
            format!("--output={}/slurm-%A-%a.log", self.logs.display().to_string().replace('%', "%%")),
        ];
        if let Some(limit) = self.limit {
            words.push(format!("--time={}", limit.as_secs().div_ceil(60).max(1)));
        }
        words.push(format!("--wrap=TASK=$(({offset} + SLURM_ARRAY_TASK_ID)); {}", self.command));
        words
    }

    /// Arrays begin at 0, so the comment carries what is added to get a task's number.
    fn comment_of(&self, offset: usize) -> String {
        format!("{}+{offset}", self.comment)
    }

    /// Has Slurm play `tasks` (in rising order), as one array or as many as it takes. Their arrays' job numbers.
    ///
    /// # Errors
    /// [`SlurmError`]. What was submitted before is cancelled then.
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
        Ok(ids)
    }

    /// All tasks that Slurm still knows of this work, by number; of several of one number the latest.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn tasks(&self) -> Result<BTreeMap<usize, Task>, SlurmError> {
        let format = format!("--format={}", states::FORMAT);
        let words = ["--noheader", "--array", "--me", "--states=all", &format].map(str::to_owned);
        Ok(states::read(&slurm("squeue", &words)?, &self.comment))
    }

    /// Waits until none of `tasks` waits or runs any more, and says how each ended; those that Slurm has forgotten are missing.
    /// Tells `progress` what is known each time it has looked.
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

/// Ends arrays, as far as Slurm lets us; what has ended already is no error.
pub fn cancel(ids: &[u64]) {
    let words: Vec<String> = ids.iter().map(u64::to_string).collect();
    if !words.is_empty() {
        let _ = slurm("scancel", &words);
    }
}

/// The job number that `sbatch --parsable` prints, with the cluster's name behind it where there are several.
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
