//! The rest of a time limit, for a suite that may itself be kept from running for a while.

use std::time::Duration;

/// The longest time that one look at the link counts as. A longer look means that the suite had no processor. It counts as
/// this long, because a device on the same machine had no processor either.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// By how much a wait may exceed its limit, however long the suite was kept from running.
const MOST_HELD: Duration = Duration::from_secs(120);

/// The rest of a time limit.
#[derive(Debug)]
pub(crate) struct Left {
    /// The time that remains. Each look counts as [`LOOK`] at most.
    pub(crate) time: Duration,
    /// The moment at which the time is over in any case.
    end: Duration,
}

impl Left {
    /// A limit of `within`, which starts now.
    pub(crate) const fn new(within: Duration, now: Duration) -> Self {
        Self { time: within, end: now.saturating_add(within).saturating_add(MOST_HELD) }
    }

    /// Accounts for one look, which lasted from `start` to `now`. Returns whether there is time for another.
    pub(crate) fn has_more(&mut self, start: Duration, now: Duration) -> bool {
        self.time = self.time.saturating_sub(now.saturating_sub(start).min(LOOK));
        !self.time.is_zero() && now < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of looks of this length that fit into the limit.
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
