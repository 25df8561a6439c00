//! How often the background thread ticks while the application polls.

use crate::engine::background::TICK;
use core::time::Duration;
use nix::time::{ClockId, clock_gettime};

/// Each tick is a wake-up. All of them together may take one part in so many of a processor.
const PART: u32 = 20;
/// The time between two ticks is never longer than this, whatever they take.
const LONGEST: Duration = Duration::from_millis(4);
/// Each wake-up moves the mean by one part in so many of its difference from the mean.
const WEIGHT: u32 = 8;

/// How much processor time a wake-up of this thread takes. If it is little, the thread ticks once in a [`TICK`].
#[derive(Debug, Default)]
pub(in crate::engine) struct Pace {
    wake: Duration,
}

impl Pace {
    /// How long to sleep until the next tick.
    pub(in crate::engine) fn tick(&self) -> Duration {
        (self.wake * PART).clamp(TICK, LONGEST)
    }

    /// Calls `sleep`, and measures the processor time that falling asleep and waking up took.
    pub(in crate::engine) fn time(&mut self, sleep: impl FnOnce()) {
        let before = processor_time();
        sleep();
        self.learn(processor_time().saturating_sub(before));
    }

    fn learn(&mut self, took: Duration) {
        // A wake-up that took long may have been interrupted, so the time that counts is bounded.
        self.wake = (self.wake * (WEIGHT - 1) + took.min(LONGEST / PART * 2)) / WEIGHT;
    }
}

/// The processor time of this thread so far. Always the same where the system does not tell it.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_in_less_often_where_that_takes_long() {
        let mut pace = Pace::default();
        assert_eq!(pace.tick(), TICK);
        let mut seen = Vec::new();
        for micros in [20, 110, 160, 5000, 20] {
            for _ in 0..100 {
                pace.learn(Duration::from_micros(micros));
            }
            seen.push(pace.tick().as_millis());
        }
        // 20 times as long, between a millisecond and four. Wake-ups take about 20 us on real processors, 170 on emulated ones.
        assert_eq!(seen, [1, 2, 3, 4, 1]);
    }

    #[test]
    fn sleep_is_not_processor_time() {
        let (before, pause) = (processor_time(), Duration::from_millis(5));
        for _ in 0..20 {
            std::thread::sleep(pause);
        }
        let took = processor_time() - before;
        assert!(took > Duration::ZERO && took < 10 * pause, "{took:?} of {:?}", 20 * pause);
    }
}
