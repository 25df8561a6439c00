//! What is left of the time that something may take, where the suite may be kept from looking.

use std::time::Duration;

/// How long a look at the link takes at most. One that took longer, because the suite did not have a processor, counts as
/// this long: a device on the same machine has had none either.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// By how much a wait may last longer than it was to, whatever kept the suite from looking.
const MOST_HELD: Duration = Duration::from_secs(120);

/// What is left of a time.
#[derive(Debug)]
pub(crate) struct Left {
    /// What remains, where each look counts as [`LOOK`] at most.
    pub(crate) time: Duration,
    /// When it is over in any case.
    end: Duration,
}

impl Left {
    /// That long, from now on.
    pub(crate) const fn new(within: Duration, now: Duration) -> Self {
        Self { time: within, end: now.saturating_add(within).saturating_add(MOST_HELD) }
    }

    /// One more look has taken from then to now; whether there is time for another.
    pub(crate) fn has_more(&mut self, start: Duration, now: Duration) -> bool {
        self.time = self.time.saturating_sub(now.saturating_sub(start).min(LOOK));
        !self.time.is_zero() && now < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many looks of that length there are.
    fn looks(within: Duration, each: Duration) -> u32 {
        let (mut now, mut count) = (Duration::from_secs(7), 0);
        let mut left = Left::new(within, now);
        loop {
            let start = now;
            now += each;
            count += 1;
            if !left.has_more(start, now) {
                return count;
            }
        }
    }

    #[test]
    fn where_nobody_is_held_up_it_is_the_clocks_time() {
        assert_eq!(looks(Duration::from_secs(4), Duration::from_millis(1)), 4000);
        assert_eq!(looks(Duration::from_secs(4), LOOK), 40);
    }

    #[test]
    fn a_standstill_counts_as_one_look() {
        let mut left = Left::new(Duration::from_secs(4), Duration::ZERO);
        assert!(left.has_more(Duration::ZERO, Duration::from_secs(60)));
        assert_eq!(left.time, Duration::from_secs(4) - LOOK);
    }

    #[test]
    fn there_is_an_end_all_the_same() {
        assert_eq!(looks(Duration::from_secs(400), Duration::from_secs(10)), 52);
    }
}
