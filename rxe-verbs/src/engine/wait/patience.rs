//! How long a thread that waits for an event looks for packets before it sleeps.

use core::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// The thread looks for so long at least, unless [`Polling`](crate::Polling) says otherwise.
const LEAST: Duration = Duration::from_micros(20);
/// The thread looks for so long at most.
const MOST: Duration = Duration::from_millis(1);
/// Most looks before a sleep. A wake-up costs as much as 20 to 80 looks, on fast machines and on emulated ones.
const MOST_LOOKS: u32 = 256;
/// The number of looks is 0 (only [`LEAST`] counts), or at least this.
const FIRST_LOOKS: u32 = 64;

/// What earlier waits have taught. If a packet came soon after the thread had fallen asleep, the thread looks longer the next time, up
/// to [`MOST_LOOKS`]. If it took long, the thread looks less. "Soon" is measured in looks: a machine on which a look takes long
/// also takes long to wake a thread.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    looks: AtomicU32,
}

/// What one wait has spent on looking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) looks: u32,
    pub(crate) time: Duration,
}

impl Patience {
    /// Whether to look once more.
    pub(crate) fn lasts(&self, spent: Spent) -> bool {
        spent.time < LEAST || spent.time < MOST && spent.looks < self.looks.load(Ordering::Relaxed)
    }

    /// The thread looked in vain, as `spent` says, fell asleep, and was woken after `slept`.
    pub(crate) fn learn(&self, spent: Spent, slept: Duration) {
        let looks = self.looks.load(Ordering::Relaxed);
        let worth = spent.time.saturating_mul(MOST_LOOKS) / spent.looks.max(1);
        let looks = if slept < worth.min(MOST) {
            (looks * 2).clamp(FIRST_LOOKS, MOST_LOOKS)
        } else if looks > FIRST_LOOKS {
            looks / 2
        } else {
            0
        };
        self.looks.store(looks, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn spent(looks: u32, micros: u64) -> Spent {
        Spent { looks, time: Duration::from_micros(micros) }
    }

    /// Looks of `micros` each until patience is at an end.
    fn looks(patience: &Patience, micros: u64) -> u32 {
        (0..).find(|looks| !patience.lasts(spent(*looks, u64::from(*looks) * micros))).unwrap()
    }

    #[test]
    fn it_grows_where_waits_are_short_and_shrinks_where_they_are_long() {
        let patience = Patience::default();
        assert_eq!(looks(&patience, 2), 10);
        // Looks of 2 us: 512 us are worth looking for.
        let mut seen = Vec::new();
        for slept in [500, 500, 500, 500, 513, 513, 513, 513] {
            patience.learn(spent(10, 20), Duration::from_micros(slept));
            seen.push(looks(&patience, 2));
        }
        assert_eq!(seen, [64, 128, 256, 256, 128, 64, 10, 10]);
    }

    #[test]
    fn it_is_never_longer_than_a_millisecond() {
        let patience = Patience::default();
        for _ in 0..9 {
            patience.learn(spent(1, 900), Duration::from_micros(900));
        }
        assert_eq!(looks(&patience, 100), 10);
        patience.learn(spent(0, 20), Duration::from_secs(9));
        assert_eq!(looks(&patience, 1), 128);
    }
}
