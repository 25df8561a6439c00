//! Whether a program that polls is absent all the same. It may watch memory that its peer writes to, as `ib_write_lat` does, or
//! compute, and poll in between.
//!
//! While the program polls, the background thread leaves packets to it and ticks once a millisecond. The packets of an absent
//! program would wait for the tick each time, so the background thread then listens instead. A thread that has lost its
//! processor, or sleeps, is not absent in this sense. The processor time of the thread tells them apart.

use super::clock;
use crate::sys::process::processor_time_of;
use core::time::Duration;
use rxe_core::time::Instant;

/// After so many ticks in a row that found unread packets while the thread ran without polling,
const MISSES: u32 = 3;
/// the program counts as absent for so long. After that it takes as many ticks again to find out anew.
const LASTS: Duration = Duration::from_millis(250);

/// A time, and the processor time that a thread had used by then.
#[derive(Clone, Copy, Default, Debug)]
struct Moment {
    at: Instant,
    processor: Duration,
}

impl Moment {
    fn of(tid: i32) -> Self {
        Self { at: clock::now(), processor: processor_time_of(tid) }
    }
}

/// What the background thread knows of the program's absence.
#[derive(Default, Debug)]
pub(super) struct Absence {
    /// The system's number of the program's thread.
    tid: i32,
    /// When watching it began.
    since: Moment,
    misses: u32,
    until: Instant,
}

impl Absence {
    /// Begins to observe how much processor time the thread `tid` uses.
    pub(super) fn watch(&mut self, tid: i32) {
        (self.tid, self.since) = (tid, Moment::of(tid));
    }

    /// The program has left nothing unread: counting begins anew.
    pub(super) const fn is_here(&mut self) {
        self.misses = 0;
    }

    /// Packets lay unread, and the program has not polled since [`Self::watch`]. Whether it counts as absent from now on: a thread
    /// that used less than half of the time since then does not count, because it slept or had lost its processor.
    pub(super) fn missed(&mut self) -> bool {
        self.missed_at(Moment::of(self.tid))
    }

    fn missed_at(&mut self, now: Moment) -> bool {
        let (ran, time) = (now.processor.saturating_sub(self.since.processor), now.at.since(self.since.at));
        if ran < time / 2 {
            return false;
        }
        self.misses += 1;
        let is_absent = self.misses >= MISSES;
        if is_absent {
            (self.misses, self.until) = (0, now.at + LASTS);
        }
        is_absent
    }

    /// Whether the program counts as absent.
    pub(super) fn lasts(&self) -> bool {
        self.lasts_at(clock::now())
    }

    fn lasts_at(&self, now: Instant) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process::this_thread;
    use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
    use std::thread;

    fn moment(at: u64, processor: u64) -> Moment {
        Moment { at: Instant::from_nanos(at * 1000), processor: Duration::from_micros(processor) }
    }

    #[test]
    fn one_that_runs_elsewhere_again_and_again_is_absent_for_a_while() {
        let mut absence = Absence { since: moment(1000, 700), ..Absence::default() };
        let (gone, lost) = (moment(2000, 1650), moment(2000, 1100));
        for _ in 0..9 {
            assert!(!absence.missed_at(gone), "now and then");
            assert!(!absence.missed_at(lost), "it had lost its processor");
            assert!(!absence.missed_at(gone));
            absence.is_here();
        }
        assert!(!absence.lasts_at(gone.at));
        assert!(!absence.missed_at(gone) && !absence.missed_at(gone) && absence.missed_at(gone));
        let last = gone.at + LASTS;
        assert!(absence.lasts_at(gone.at) && !absence.lasts_at(last));
        assert!(!absence.missed_at(moment(300_000, 300_000)), "counted anew");
    }

    /// Of the system's own figures: three times a thread is found to compute, or to sleep.
    fn is_absent(work: impl Fn() + Send + Sync) -> bool {
        let (tid, stop) = (AtomicI32::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                tid.store(this_thread(), Ordering::SeqCst);
                while !stop.load(Ordering::SeqCst) {
                    work();
                }
            });
            let mut absence = Absence::default();
            // Other threads of the machine may have the processor for some time.
            let found = (0..200).any(|_| {
                absence.watch(tid.load(Ordering::SeqCst));
                thread::sleep(Duration::from_millis(2));
                absence.missed()
            });
            stop.store(true, Ordering::SeqCst);
            found
        })
    }

    #[test]
    fn who_computes_runs_and_who_sleeps_does_not() {
        assert!(is_absent(core::hint::spin_loop));
        assert!(!is_absent(|| thread::sleep(Duration::from_millis(1))));
    }
}
