//! On which processors the two processes of a measurement run.

use benches::ends::Result;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// Where who sleeps is woken costs more than what is measured, and the scheduler decides it differently each time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Place {
    /// Where the scheduler likes.
    Free,
    /// Both on one processor.
    Same,
    /// Each on one of its own, if there are two.
    Apart,
}

/// While it lives, this thread and those that it starts stay where they are.
pub(crate) struct Held(Option<CpuSet>);

impl Place {
    /// Calls `start`, which starts the other process, and then takes this thread to its own place.
    pub(crate) fn start<T>(self, start: impl FnOnce() -> Result<T>) -> Result<(T, Held)> {
        if self == Self::Free {
            return Ok((start()?, Held(None)));
        }
        let all = sched_getaffinity(Pid::from_raw(0))?;
        let mut allowed = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu) == Ok(true));
        let first = allowed.next().ok_or("no processor")?;
        let other = if self == Self::Apart { allowed.next().unwrap_or(first) } else { first };
        let held = Held(Some(all));
        stay(other)?;
        let started = start()?;
        stay(first)?;
        Ok((started, held))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(all) = self.0 {
            // It was so before.
            let _ = sched_setaffinity(Pid::from_raw(0), &all);
        }
    }
}

/// This thread runs on `cpu` only, from now on.
pub(crate) fn stay(cpu: usize) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}
