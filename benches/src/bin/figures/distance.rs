//! Measures how far apart the processors are. Two processors of a virtual machine may share a cache or not, and this changes
//! while the machine runs.

use crate::place::{Held, Place, stay};
use benches::{
    ends::Result,
    turns::{extremes, median},
};
use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};
use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Number of round trips, which take a few milliseconds.
const TRIPS: u32 = 10_000;
/// A time limit that is never reached, even if both threads have to share a processor.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time in nanoseconds that a cache line takes from the first processor that we may use to the second and back. `None`
/// if there is only one processor, or if other work delayed the threads too much.
///
/// # Errors
/// The error of the system.
pub(crate) fn measure() -> Result<Option<f64>> {
    let all = sched_getaffinity(Pid::from_raw(0))?;
    let mut allowed = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu) == Ok(true));
    let (Some(_), Some(other)) = (allowed.next(), allowed.next()) else { return Ok(None) };
    let line = AtomicU32::new(0);
    let until = Instant::now() + PATIENCE;
    thread::scope(|scope| {
        let answers = scope.spawn(|| {
            stay(other)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(play(&line, 1, until))
        });
        let ((), _held): ((), Held) = Place::Same.start(|| Ok(()))?;
        let start = Instant::now();
        let done = play(&line, 0, until);
        let taken = start.elapsed();
        let answered = answers.join().map_err(|_| "the other thread is gone")??;
        Ok((done && answered).then(|| taken.as_secs_f64() * 1e9 / f64::from(TRIPS)))
    })
}

/// Adds one whenever it is this side's turn. Returns whether the side completed all its turns.
fn play(line: &AtomicU32, side: u32, until: Instant) -> bool {
    for trip in 0..TRIPS {
        let mine = 2 * trip + side;
        let mut looks = 0_u32;
        while line.load(Ordering::Acquire) != mine {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 16) && Instant::now() > until {
                return false;
            }
            spin_loop();
        }
        line.store(mine + 1, Ordering::Release);
    }
    true
}

/// Samples in words.
pub(crate) fn describe(samples: &[f64]) -> String {
    if samples.is_empty() {
        return "There is one processor.".to_owned();
    }
    let (least, most) = extremes(samples);
    format!(
        "Between measurements a cache line went from one processor to the other and back in {:.0} ns ({least:.0} to {most:.0}).",
        median(samples)
    )
}
