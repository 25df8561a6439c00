//! Whether the program calls when arrivals make the lookout's descriptor readable. The lookout relies on that; it is its promise.
//!
//! A program may have put the descriptor into a set, and wait for another channel alone. libvalkey does so while the rest of an
//! answer is under way. Packets then wait until the background thread ticks. A tick counts against the promise if it finds unread
//! packets and the thread that asks for events sleeps. A thread that has lost its processor does not sleep, so it does not count.

use super::clock;
use crate::sys::process::is_asleep;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// It is broken by so many times in a row that it was not kept: a program may sleep for another reason now and then.
const STRIKES: u32 = 3;
/// For so many nanoseconds: what the program does may change. To find out again takes it [`STRIKES`] ticks.
const BROKEN: u64 = 250_000_000;

/// What a stack and its shards know of it.
#[derive(Debug, Default)]
pub(crate) struct Promise {
    /// The system's number of the thread that asks for events; 0 if none has.
    thread: AtomicI32,
    /// Whether the program came since it last did not.
    kept: AtomicBool,
    strikes: AtomicU32,
    /// Until when it is broken, in nanoseconds of the engine's clock; 0 if it is not.
    broken: AtomicU64,
}

impl Promise {
    /// The thread `tid` asks for events from now on.
    pub(super) fn given_by(&self, tid: i32) {
        self.thread.store(tid, Ordering::Relaxed);
    }

    /// The program has come. Lost updates do not matter.
    #[inline]
    pub(crate) fn kept(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Packets have waited unread for a tick. Whether that breaks the promise, so that the program is not relied on any more.
    pub(super) fn missed(&self) -> bool {
        self.missed_at(clock::now().nanos(), is_asleep)
    }

    fn missed_at(&self, now: u64, is_asleep: impl Fn(i32) -> bool) -> bool {
        if !is_asleep(self.thread.load(Ordering::Relaxed)) {
            return false;
        }
        let kept = self.kept.swap(false, Ordering::Relaxed);
        let strikes = if kept { 1 } else { self.strikes.load(Ordering::Relaxed) + 1 };
        let broken = strikes >= STRIKES;
        self.strikes.store(if broken { 0 } else { strikes }, Ordering::Relaxed);
        if broken {
            self.broken.store(now + BROKEN, Ordering::Relaxed);
        }
        broken
    }

    /// Whether it was broken, and not made [`again`](Self::again) since.
    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed) != 0
    }

    /// Whether a broken one may be made again by now; it is then.
    pub(super) fn again(&self) -> bool {
        let may = self.broken.load(Ordering::Relaxed) <= clock::now().nanos();
        if may {
            self.broken.store(0, Ordering::Relaxed);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_by_one_that_sleeps_elsewhere_again_and_again() {
        let promise = Promise::default();
        for _ in 0..9 {
            assert!(!promise.missed_at(0, |_| false), "it had lost its processor");
            assert!(!promise.missed_at(0, |_| true), "now and then");
            promise.kept();
        }
        let now = clock::now().nanos();
        assert!(!promise.missed_at(now, |_| true));
        assert!(!promise.missed_at(now, |_| true) && !promise.is_broken());
        assert!(promise.missed_at(now + 3_600_000_000_000, |_| true));
        assert!(promise.is_broken() && !promise.again() && promise.is_broken(), "for an hour");
        promise.broken.store(now.max(1), Ordering::Relaxed);
        assert!(promise.is_broken() && promise.again() && !promise.is_broken(), "its time is over");
        assert!(!promise.missed_at(now, |_| true), "counted anew");
    }
}
