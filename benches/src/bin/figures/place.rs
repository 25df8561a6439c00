//! The choice of processors for the two processes of a measurement.

use benches::ends::Result;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// Where the two processes run. Waking a sleeping process on another processor costs more than the measured operation
/// itself, and the scheduler chooses the processor differently each time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Place {
    /// The scheduler decides.
    Free,
    /// Both on one processor.
    Same,
    /// Each on a processor of its own, if there are two.
    Apart,
}

/// While this value lives, this thread and the threads that it starts stay on their processors.
pub(crate) struct Held(Option<CpuSet>);

impl Place {
    /// Calls `start`, which starts the other process on its processor. Then moves this thread to its own processor.
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
            // Restores the previous set of processors.
            let _ = sched_setaffinity(Pid::from_raw(0), &all);
        }
    }
}

/// Restricts this thread to processor `cpu` from now on.
pub(crate) fn stay(cpu: usize) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}
