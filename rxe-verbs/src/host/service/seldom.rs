//! What anybody can make the service write is written seldom, so that it pushes nothing else out of the log.

use std::time::{Duration, Instant};

/// Lines that may be written at once.
const BURST: u32 = 32;
/// Another one may after so long.
const PAUSE: Duration = Duration::from_millis(500);

/// How many lines may be written, and how many were not.
#[derive(Debug)]
pub(super) struct Seldom {
    left: u32,
    refilled: Instant,
    hidden: u64,
}

impl Seldom {
    pub(super) const fn new(now: Instant) -> Self {
        Self { left: BURST, refilled: now, hidden: 0 }
    }

    /// Whether a line may be written now.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let more = now.duration_since(self.refilled).as_millis() / PAUSE.as_millis();
        if more > 0 {
            self.left = (self.left + u32::try_from(more).unwrap_or(BURST).min(BURST)).min(BURST);
            self.refilled = now;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        self.hidden += u64::from(!may);
        may
    }

    /// Lines that were not written since this was asked last.
    pub(super) fn hidden(&mut self) -> u64 {
        core::mem::take(&mut self.hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_number() {
        let start = Instant::now();
        let mut seldom = Seldom::new(start);
        let written = (0..1000).filter(|_| seldom.take(start)).count();
        assert_eq!((written as u32, seldom.hidden(), seldom.hidden()), (BURST, 1000 - u64::from(BURST), 0));
        assert!(!seldom.take(start + PAUSE / 2));
        assert!(seldom.take(start + PAUSE) && !seldom.take(start + PAUSE));
        assert_eq!((0..1000).filter(|_| seldom.take(start + PAUSE * 10_000)).count() as u32, BURST);
    }
}
